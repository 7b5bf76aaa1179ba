"""What a report of one run says, and that nothing in a run can steer it."""

import msgspec

from dflash_tui import run_markdown
from dflash_tui.core import recording, run_report
from dflash_tui.core.run_report import RunReport
from tests.tui.conftest import HOSTILE


def the_sample() -> RunReport:
    return run_report.of(recording.find("sample"))[0]


def test_the_sample_is_told_with_its_label_first():
    """Random weights are said before any figure; phases, requests and acceptance follow with their n."""
    said = run_markdown.render(the_sample())
    head = said.index("Not a real model's figures: random weights, synthetic acceptance length 7.8.")
    assert head < said.index("Up after 2:00, ready (first answer) after 2:14.") < said.index("| weights | 13 s |")
    assert "median 129.3 tok/s (128.0 to 133.9, n=3)" in said
    assert "Acceptance length 7.78 (the bonus token counted), acceptance 45.2 %, over 264 steps" in said
    assert '"synthetic_acceptance_length":7.8' in said


def test_it_is_the_same_value_after_json():
    report = the_sample()
    assert msgspec.json.decode(msgspec.json.encode(report), type=RunReport) == report


def test_names_open_nothing_and_secrets_stay_here():
    """Markup, control characters and tokens of a plan that anybody may have written."""
    report = the_sample()
    plan = msgspec.structs.replace(
        report.plan, title=f"{HOSTILE}\x1b[31m| x |", argv=("vllm", "```", "--api-key", "hf_abcdefghijklmnopqrstuv")
    )
    said = run_markdown.render(msgspec.structs.replace(report, plan=plan))
    assert "\\[/\\] \\[red\\]evil" in said
    assert "\\| x \\|" in said
    assert "\x1b" not in said
    assert "hf_abcdefghijklmnopqrstuv" not in said
    assert "\n````text\n" in said


def test_a_run_without_requests_says_so():
    report = msgspec.structs.replace(the_sample(), requests=(), rates=None, ready=None, phases={})
    said = run_markdown.render(report)
    assert "No request was measured on it." in said
    assert "ready (first answer) after —" in said
