"""What a report of one run says, and that nothing in a run can steer it."""

import zipfile
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from dflash_tui.experiments import run_report
from dflash_tui.experiments.run_report import RunReport
from dflash_tui.monitoring import recording
from dflash_tui.presentation import benchmark_text
from tests.support.recordings import RUNS
from tests.support.values import present
from tests.tui.conftest import HOSTILE


def the_sample() -> RunReport:
    return run_report.build_run_report(recording.find_recording("sample"))[0]


def test_sample_report_begins_with_its_label(snapshot):
    """Random weights are said before any figure; phases, requests and acceptance follow with their n."""
    assert benchmark_text.render_run(the_sample()) == snapshot


def test_names_open_no_path_nor_secret():
    """Markup, control characters and tokens of a plan that anybody may have written."""
    report = the_sample()
    plan = replace(
        report.plan, title=f"{HOSTILE}\x1b[31m| x |", argv=("vllm", "```", "--api-key", "hf_abcdefghijklmnopqrstuv")
    )
    hostile = {"status": "[s](https://evil.example)", "cache": "[c](https://evil.example)"}
    said = benchmark_text.render_run(replace(report, plan=plan, **hostile))
    assert "[s]" not in said
    assert "[c]" not in said
    assert "\\[/\\] \\[red\\]evil" in said
    assert "\\| x \\|" in said
    assert "\x1b" not in said
    assert "hf_abcdefghijklmnopqrstuv" not in said
    assert "\n````text\n" in said


def test_run_without_requests_is_reported(snapshot):
    report = replace(the_sample(), requests=(), rates=None, ready=None, phases={})
    assert benchmark_text.render_run(report) == snapshot


def disturbed(at: float, folder: Path) -> RunReport:
    """Return the report of a run whose GPU was hot and not alone around `at` seconds after the launch."""
    path, changed = folder / "changed.zip", 0
    with zipfile.ZipFile(RUNS / "h200-eager.zip") as before, zipfile.ZipFile(path, "w") as after:
        began = msgspec.json.decode(before.read("run.json"))["started_at"]
        lines, blender = [], {"pid": 7, "name": "blender", "memory": 1 << 30}
        for line in before.read("samples.jsonl").splitlines():
            event = msgspec.json.decode(line)
            if event["event"] == "gpus" and abs(event["at"] - began - at) < 3:
                event["gpus"][0] |= {"throttle": ["thermal (hardware)"], "foreign": [blender]}
                changed += 1
            lines.append(msgspec.json.encode(event))
        for part in before.namelist():
            after.writestr(part, b"\n".join(lines) if part == "samples.jsonl" else before.read(part))
    assert changed
    return run_report.build_run_report(recording.find_recording(str(path)))[0]


def test_worst_gpu_condition_during_measurement_is_kept(tmp_path):
    """Its requests ran from 111 s to 144 s after the launch, at 1980 MHz and with nothing in the way."""
    usual = present(run_report.build_run_report(recording.find_recording(str(RUNS / "h200-eager.zip")))[0].conditions)
    assert (usual.clock_mhz, usual.power_limit_w, usual.throttle, usual.foreign) == (1980, 700.0, (), ())
    assert usual.power_w == pytest.approx(203, abs=1)
    meanwhile = present(disturbed(125, tmp_path).conditions)
    assert (meanwhile.throttle, meanwhile.foreign) == (("thermal (hardware)",), ("blender (pid 7)",))
    assert disturbed(60, tmp_path).conditions == usual


def test_report_without_conditions_is_read():
    """They are not known then."""
    report = the_sample()
    told = msgspec.json.decode(msgspec.json.encode(report))
    assert told.pop("conditions")
    assert msgspec.convert(told, RunReport) == replace(report, conditions=None)
