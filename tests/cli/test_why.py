"""`why` on the command line: a run of before is explained from its files."""

import json

import msgspec
import pytest

from dflash_tui.cli.main import main
from dflash_tui.events import Event, Exited, Health, HealthChanged, Stopping, encode
from dflash_tui.planning.request import LaunchRequest
from dflash_tui.runs.run import Run
from tests.support import recordings
from tests.tui.conftest import a_run


def kept(name: str, *events: Event, identity: str = "20261121-012400-toy") -> Run:
    """Write the folder of a run that nobody watches any more."""
    run = msgspec.structs.replace(a_run(request=LaunchRequest("demo-cpu")), id=identity)
    run.folder.mkdir(parents=True)
    run.log.write_bytes(recordings.raw(f"cpu-vllm-0.32.0/{name}"))
    run.samples.write_bytes(b"".join(encode(event) + b"\n" for event in events))
    (run.folder / "run.json").write_bytes(msgspec.json.encode(run))
    return run


@pytest.fixture
def failed(folders) -> Run:
    return kept("fail_max_model_len_kv", Exited(1795224300.0, 1))


def test_it_prints_cause_evidence_fix_and_the_command(failed, capsys, snapshot):
    """What a watcher would have seen, at any later time."""
    assert main(["why", failed.id]) == 0
    told = capsys.readouterr().out
    assert "dflash-tui up demo-cpu --set max-model-len=8064" in told
    assert told.replace(str(failed.log), "LOG") == snapshot


def test_it_is_json(failed, capsys):
    """One object, with what the words are made of."""
    assert main(["why", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["diagnosis"]["log_values"] == {"tokens": "32768", "needed": "0.03", "there": "0.01", "fits": "8064"}
    assert found["remedies"][0]["changes"] == {"settings": {"max-model-len": "8064"}}


def test_without_a_name_it_is_the_newest_that_failed(failed, capsys):
    """A run that was stopped on purpose is passed over, and says so when it is named."""
    stopped = kept("dflash", Stopping(1795224290.0), Exited(1795224300.0, 0), identity="20261122-000000-toy")
    assert main(["why"]) == 0
    assert failed.id in capsys.readouterr().out
    assert main(["why", stopped.id]) == 0
    assert f"{stopped.id} was stopped" in capsys.readouterr().err


def test_a_report_goes_to_stdout(failed, capsys, snapshot):
    """It can be sent into a file as it is."""
    assert main(["why", "--report"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == snapshot


def test_a_run_whose_end_nobody_saw_is_explained(folders, capsys, snapshot):
    """Its exit code is unknown; its cause is not."""
    kept("kill9_core_idle", HealthChanged(1795224290.0, Health.WARM))
    assert main(["why"]) == 0
    told = capsys.readouterr().out
    assert "exit code unknown" in told
    assert told.splitlines()[0] == snapshot
