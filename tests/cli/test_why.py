"""`why` on the command line: a run of before is explained from its files."""

import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from dflash_tui.cli.main import main
from dflash_tui.events import Event, Exited, Health, HealthChanged, Stopping, encode
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.request import LaunchRequest
from dflash_tui.runs.run import Run
from tests.support import recordings
from tests.support.log_formats import NO_FP4
from tests.tui.conftest import a_run


def kept(name: str, *events: Event, identity: str = "20261121-012400-toy") -> Run:
    """Write the folder of a run that nobody watches any more."""
    run = msgspec.structs.replace(a_run(request=LaunchRequest(recipe="demo-cpu")), id=identity)
    run.folder.mkdir(parents=True)
    run.log.write_bytes(recordings.raw(f"cpu-vllm-0.32.0/{name}"))
    run.samples.write_bytes(b"".join(encode(event) + b"\n" for event in events))
    (run.folder / "run.json").write_bytes(msgspec.json.encode(run))
    return run


@pytest.fixture
def failed(folders) -> Run:
    return kept("fail_max_model_len_kv", Exited(1795224300.0, 1))


def test_why_prints_cause_evidence_fix_and_command(failed, capsys, snapshot):
    """What a watcher would have seen, at any later time."""
    assert main(["why", failed.id]) == 0
    told = capsys.readouterr().out
    assert "dflash-tui up demo-cpu --set max-model-len=8064" in told
    assert told.replace(str(failed.log), "LOG") == snapshot


def test_why_prints_json(failed, capsys):
    """One object, with what the words are made of."""
    assert main(["why", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["diagnosis"]["log_values"] == {"tokens": "32768", "needed": "0.03", "there": "0.01", "fits": "8064"}
    assert found["remedies"][0]["changes"] == {"settings": {"max-model-len": "8064"}}


def test_why_without_name_takes_newest_failure(failed, capsys):
    """A run that was stopped on purpose is passed over, and says so when it is named."""
    stopped = kept("dflash", Stopping(1795224290.0), Exited(1795224300.0, 0), identity="20261122-000000-toy")
    assert main(["why"]) == 0
    assert failed.id in capsys.readouterr().out
    assert main(["why", stopped.id]) == 0
    assert f"✓ {stopped.id} was stopped" in capsys.readouterr().out


def test_run_on_fallback_kernel_is_reported(folders, capsys):
    """Also one that did not fail, and has ended."""
    run = kept("dflash", Stopping(1795224290.0), Exited(1795224300.0, 0))
    (run.folder / "run.json").write_bytes(
        msgspec.json.encode(
            msgspec.structs.replace(run, plan=msgspec.structs.replace(run.plan, hardware=Hardware.GB10))
        )
    )
    run.log.write_bytes(
        f"(EngineCore pid=1) WARNING 11-21 01:24:20 [x.py:3] {NO_FP4}\n".encode() + run.log.read_bytes()
    )
    assert main(["why", run.id]) == 0
    told = capsys.readouterr().out
    assert "! FP4 weights run on Marlin" in told
    assert NO_FP4.partition(" ")[0] in told


def test_why_without_failure_names_doctor(folders, capsys):
    assert main(["why"]) == 2
    assert re.findall(r"dflash-tui \w+", capsys.readouterr().err) == ["dflash-tui doctor", "dflash-tui ps"]


def test_run_with_unseen_end_is_explained(folders, capsys, snapshot):
    """Its exit code is unknown; its cause is not."""
    kept("kill9_core_idle", HealthChanged(1795224290.0, Health.WARM))
    assert main(["why"]) == 0
    told = capsys.readouterr().out
    assert "exit code unknown" in told
    assert told.splitlines()[0] == snapshot


NEEDED = (
    "(EngineCore_DP0 pid=1094) ValueError: To serve at least one request with the models's max seq len (262144), "
    "(24.0 GiB "
    "KV cache is needed, which is larger than the available KV cache memory (3.18 GiB). Based on the available "
    "memory, the "
    "estimated maximum model length is 34736. Try increasing `gpu_memory_utilization`.\n"
)


def test_a_log_of_any_server_is_explained(tmp_path, capsys, snapshot, monkeypatch):
    """The first lines say why and what to do; the line that decides follows in full."""
    monkeypatch.setenv("COLUMNS", "100")
    file = tmp_path / "server.log"
    file.write_text("".join(f"vllm-1  | {line}\n" for line in NEEDED.splitlines()))
    assert main(["why", str(file)]) == 0
    assert capsys.readouterr().out == snapshot


def test_a_log_is_explained_as_json(tmp_path, capsys, monkeypatch):
    """One object, whose keys docs/commands.md lists; a file of this folder needs no slash."""
    (tmp_path / "server.log").write_text(NEEDED)
    monkeypatch.chdir(tmp_path)
    assert main(["why", "server.log", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
    assert [key for key in found if f"| `{key}` |" not in page] == []
    assert (found["kind"], found["confidence"], found["process"]) == ("kv_cache", "certain", "EngineCore_DP0")
    assert found["evidence"] == [NEEDED.partition(") ")[2].strip()]


def test_a_log_is_read_from_a_pipe(folders):
    """As `docker logs NAME 2>&1 | dflash-tui why -`."""
    ended = subprocess.run(
        [sys.executable, "-m", "dflash_tui", "why", "-"], input=NEEDED, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "34736" in "".join(ended.stdout.splitlines()[:3])


def test_what_is_no_log_ends_with_2(tmp_path, capsys):
    """Of a folder, and of a name that is neither a run nor a file."""
    for words in (["why", str(tmp_path)], ["why", "nope"], ["why", "./nope"], ["why", "-", "--report"]):
        assert main(words) == 2
        assert capsys.readouterr().err.startswith("dflash-tui: error: ")
