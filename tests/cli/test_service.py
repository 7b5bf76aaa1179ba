"""`service`: the unit that runs a recipe, as its quoting is specified and as the real systemd reads it."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_tui.cli import main
from dflash_tui.cli.commands import plan as service
from tests.support.systemd_parser import fields, unquoted
from tests.support.values import present

WORDS = [
    "--mode",
    "eager",
    "--set",
    "host=0.0.0.0",
    "--set",
    'env.NOTE=50% "$x\\n',
    "--force",
    "I know",
    "--every",
    "9",
]
LAUNCH = ["up", "demo-cpu", "--mode", "eager", "--port", "8000", *WORDS[2:], "--foreground"]


@given(st.lists(st.text(st.characters(exclude_categories=["C"])), min_size=1))
def test_every_word_comes_back(words):
    assert unquoted(" ".join(map(service._quote, words))) == words


def test_unit_runs_this_installation_with_launch_options(folders, monkeypatch, capsys):
    """Absolute paths, the options and the port of the plan, no token; where to put those is said."""
    for name in ("HF_TOKEN", "VLLM_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "hf_planted_0123456789abcdef")
    assert main.main(["service", "demo-cpu", *WORDS]) == 0
    text, said = capsys.readouterr()
    assert "planted" not in text
    assert "systemd/user/dflash-tui-demo-cpu.service" in said
    unit = fields(text)
    assert unquoted(unit["ExecStart"][0].removeprefix(":")) == [sys.executable, "-P", "-m", "dflash_tui", *LAUNCH]
    assert unit["EnvironmentFile"] == [f"-{folders}/config/dflash-tui/service.env"]
    assert f"XDG_STATE_HOME={folders}/state" in unit["Environment"]
    assert main.main(["service", "demo-cpu", *WORDS, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"].rstrip() == text.rstrip()


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_the_real_systemd_reads_it(folders, capsys, tmp_path):
    """It finds nothing to say against the unit, and sees the same words and limits."""
    assert main.main(["service", "demo-cpu", *WORDS]) == 0
    path = tmp_path / "demo.service"
    path.write_text(capsys.readouterr().out)
    command = ["systemd-analyze", "--user", "verify", str(path)]
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=240)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    environ["SYSTEMD_LOG_LEVEL"] = "debug"
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=240)
    seen = (done.stdout + done.stderr).partition("Unit demo.service:")[2]
    told = present(re.search(r"Command Line: (.*)", seen))
    assert shlex.split(told[1].replace("\\$", "$")) == [sys.executable, "-P", "-m", "dflash_tui", *LAUNCH]
    for line in ("KillMode: mixed", "Restart: no", "OOMPolicy: continue", "OOMScoreAdjust: 1000", "MemorySwapMax: 0"):
        assert line in seen
    assert re.search(rf"MemoryMax: {fields(path.read_text())['MemoryMax'][0]}\b", seen)
