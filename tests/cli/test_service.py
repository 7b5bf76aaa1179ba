"""`service`: the unit that runs a recipe, as its quoting is specified and as the real systemd reads it."""

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_tui.cli import main
from dflash_tui.launch import systemd_unit
from tests.support import fake_nvml
from tests.support.systemd_parser import fields, unquoted

NASTY = [
    "a b",
    "$HOME ${X}",
    "50%n",
    "q\"x'y",
    "back\\slash\\n",
    ";",
    "",
    "-x=1",
    "ü",
    "tab\tnl\nesc\x1b",
    "\u202edcba",
]
GIB = systemd_unit.GIB
systemd = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")


def made(command: list[str], cuda: int | None = None, path: str = "/x") -> str:
    memory = systemd_unit.UnitMemory(128 * GIB, cuda)
    return systemd_unit.build_unit(
        "demo", command, environment={"PATH": path}, secrets="/50% of/s.env", restarts="No.", patience=75, memory=memory
    )


def verified(text: str, folder: Path) -> str:
    """Return what the real systemd makes of a unit; it has nothing to say against it."""
    path = folder / "demo.service"
    path.write_text(text)
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
    command = ["systemd-analyze", "--user", "verify", str(path)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=240)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    environ["SYSTEMD_LOG_LEVEL"] = "debug"
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=240)
    return (done.stdout + done.stderr).partition("Unit demo.service:")[2]


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1))
def test_every_word_comes_back(words):
    """Whatever letters it has, and on one line of what a terminal can show."""
    line = " ".join(map(systemd_unit.quote_unit_word, words))
    assert unquoted(line) == words
    assert line.isprintable()


@systemd
def test_the_real_systemd_reads_it(tmp_path):
    """It finds nothing to say against the unit, and sees the same words, limits and variables."""
    folder = tmp_path / "a b%h$x;"
    folder.mkdir()
    (folder / "py thon").symlink_to(sys.executable)
    words = [str(folder / "py thon"), *(word for word in NASTY if word.isprintable())]
    seen = verified(made(words, 90 * GIB, "/a b:%h$x\\"), tmp_path)
    assert seen
    told = re.search(r"Command Line: (.*)", seen)
    assert told
    assert shlex.split(told[1].replace("\\$", "$")) == words
    for line in ("Environment: PATH=/a b:%h$x\\", "EnvironmentFile: -/50% of/s.env", "KillMode: mixed", "Restart: no",
                 "OOMPolicy: continue", "OOMScoreAdjust: 1000", "TimeoutStopSec: 1min 15s"):  # fmt: skip
        assert line in seen
    most = 128 * GIB - 128 * GIB // 20
    for name, limit in (("Max", most), ("High", most - 90 * GIB), ("SwapMax", 0)):
        assert re.search(rf"Memory{name}: {limit}\b", seen)


def test_memory_is_left_to_the_system():
    """The greater of 4 GiB and a twentieth, a quarter of a small machine; CUDA's part where that is the same memory."""
    assert [systemd_unit.UnitMemory(total * GIB).reserve / GIB for total in (8, 24, 120)] == [2, 4, 6]
    assert "MemoryHigh" not in fields(made(["x"]))
    assert fields(made(["x"], 90 * GIB))["MemoryHigh"] == [str(38 * GIB - 128 * GIB // 20)]
    assert fields(made(["x"], 120 * GIB))["MemoryHigh"] == [str(8 * GIB)]


def test_what_runs_is_this_installation_with_the_options_of_a_launch(folders, monkeypatch, capsys, snapshot):
    """Absolute paths, the options and the port of the plan, no token; where to put those is said."""
    for name in ("HF_TOKEN", "VLLM_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "hf_planted_0123456789abcdef")
    words = [
        "--mode",
        "eager",
        "--set",
        "host=0.0.0.0",
        "--set",
        "env.NOTE=50% $x",
        "--force",
        "I know",
        "--every",
        "9",
    ]
    assert main.main(["service", "demo-cpu", *words]) == 0
    text = capsys.readouterr().out
    assert "planted" not in text
    given = fields(text)
    [command] = given["ExecStart"]
    assert unquoted(command.removeprefix(":")) == [
        sys.executable, "-P", "-m", "dflash_tui", "up", "demo-cpu", "--mode", "eager", "--port", "8000",
        "--set", "host=0.0.0.0", "--set", "env.NOTE=50% $x", "--force", "I know", "--every", "9", "--foreground",
    ]  # fmt: skip
    assert given["EnvironmentFile"] == [f"-{folders}/config/dflash-tui/service.env"]
    assert f"XDG_STATE_HOME={folders}/state" in given["Environment"]
    assert [line for line in text.splitlines() if "after a crash" in line] == snapshot


def test_it_is_written_once_and_replaced_when_asked(folders, capsys, snapshot):
    """The same unit is no trouble; another one stays as it is, unless told; what comes next is said."""
    path = folders / "config" / "systemd" / "user" / "dflash-tui-demo-cpu.service"
    write = ["service", "demo-cpu", "--write"]
    assert [main.main(write), main.main(write)] == [0, 0]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    said = capsys.readouterr()
    assert said.out == ""
    for step in (
        "daemon-reload",
        "enable --now dflash-tui-demo-cpu.service",
        "journalctl",
        "enable-linger",
        "chmod 600",
    ):
        assert step in said.err
    before = path.read_text()
    changed = [*write, "--set", "restart.times=3"]
    assert main.main(changed) == 2
    assert "--replace" in capsys.readouterr().err
    assert path.read_text() == before
    assert main.main([*changed, "--replace"]) == 0
    assert [line for line in path.read_text().splitlines() if "after a crash" in line] == snapshot
    assert list(path.parent.iterdir()) == [path]


def test_what_keeps_a_unit_from_starting_is_said_and_it_is_written(folders, stand_in_nvml, gemma_hub):
    """Of a laptop's memory 3 GiB are taken, and nothing is fetched; a key need not be in the shell, but in the file."""
    words = ("service", "gemma-4-26b-a4b", "--set", "host=0.0.0.0", "--write")
    done = fake_nvml.dflash(stand_in_nvml, "laptop", *words)
    assert done.returncode == 0, done.stderr
    wrote, memory, missing, command, *_ = done.stderr.splitlines()
    assert wrote.endswith("/dflash-tui-gemma-4-26b-a4b.service")
    assert ("GPU memory" in memory, "20.9 GiB" in memory) == (True, True)
    assert re.findall(r"vllm \d|cyankiwi|z-lab", missing) == ["vllm 0", "cyankiwi", "z-lab"]
    assert shlex.split(command.partition(": ")[2]) == ["dflash-tui", "up", *words[1:-1]]
    forced = fake_nvml.dflash(stand_in_nvml, "laptop", *words, "--replace", "--force", "I know")
    assert [line[0] == "!" for line in forced.stderr.splitlines()[1:3]] == [True, False]


@pytest.mark.usefixtures("folders")
def test_a_server_on_the_port_of_the_unit_is_to_be_stopped_first(launch, capsys):
    """It was launched by hand, so nothing else keeps the unit from starting."""
    run = launch()
    assert main.main(["service", "demo-cpu", "--port", str(run.plan.port), "--write"]) == 0
    _, warning, command, after, *_ = capsys.readouterr().err.splitlines()
    assert (run.id in warning, command.split()) == (True, ["first:", "dflash-tui", "stop", run.id])
    assert after.split()[0] == "start:"


def test_cuda_takes_of_the_systems_memory_on_a_gb10(folders, stand_in_nvml):
    """There no limit of systemd sees it: the unit says so, and what bounds it."""
    done = fake_nvml.dflash(stand_in_nvml, "gb10", "service", "gemma-4-31b")
    assert done.returncode == 0, done.stderr
    assert re.search(r"gpu-memory-utilization .* \d+\.\d GiB\. ", done.stdout)
    assert "MemoryHigh" in fields(done.stdout)


@pytest.mark.parametrize("letter", ["\\", '"', "\n"])
def test_a_path_that_systemd_does_not_take_is_said(letter, monkeypatch, capsys, snapshot):
    """It runs no program with a quote or a backslash in its path."""
    monkeypatch.setattr(sys, "executable", f"/a{letter}b/python")
    assert main.main(["service", "demo-cpu"]) == 2
    assert capsys.readouterr().err == snapshot


def test_a_variable_that_systemd_would_ignore_is_refused(monkeypatch, capsys):
    """Its values are UTF-8, and a folder's name need not be."""
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/caf\udce9")
    assert main.main(["service", "demo-cpu"]) == 2
    assert "PATH" in capsys.readouterr().err
