"""What is said of a tune: the best and how sure that is, the settings, and why something was not tried."""

import pytest
from msgspec.structs import replace

from dflash_tui.experiments import tune_schedule
from dflash_tui.experiments.analysis import verdict
from dflash_tui.experiments.builder import DurationEstimate
from dflash_tui.experiments.progress import Progress
from dflash_tui.presentation import experiment_report, experiment_text
from dflash_tui.presentation.report import lay_out
from tests.support.tune_simulation import Truth, a_tune, run_tune

AXES = ("mode=graphs,compile", "attention-backend=flash_attn,flashinfer")
TRUTH = Truth({"mode=graphs": 2.0, "mode=compile": 1.5}, failing=frozenset({"attention-backend=flashinfer"}))


def a_progress(truth: Truth = TRUTH, boots: int = 1000, budget: float = 1200.0) -> Progress:
    return run_tune(a_tune(budget, AXES), truth, 2, boots=boots)[0]


@pytest.mark.parametrize(
    "progress",
    [
        a_progress(),
        a_progress(Truth({}), budget=600.0),
        a_progress(boots=0),
        a_progress(boots=4),
        a_progress(budget=100.0),
        a_progress(Truth({"mode=graphs": 0.5, "mode=compile": 0.5, "attention-backend=flash_attn": 0.5})),
    ],
    ids=["faster", "alike", "at first", "halfway", "too short", "published"],
)
def test_tune_outcome_names_best_setting_so_far(progress, snapshot):
    found = tune_schedule.judge_tune(progress)
    assert "\n".join(map(str, experiment_text.list_outcome(progress.design, progress.boots, found))) == snapshot


def test_every_tuned_setting_row_shows_its_standing():
    table = experiment_text.list_setting_parts(a_progress())[0]
    lines = [" ".join("".join(span.text for span in line).split()) for line in lay_out(table, 0)]
    assert [line.split()[:2] for line in lines[1:4]] == [["▲", "graphs"], ["●", "published"], ["▾", "graphs"]]
    assert [line.rsplit("  ")[-1].endswith(("ahead", "in the field", "out")) for line in lines[1:4]] == [True] * 3
    assert lines[-1].startswith("✗ graphs attention-backend=flashinfer — — — failed: attention-backend=flashinfer: out")


def test_tune_plan_names_budget_candidates_and_omissions():
    design = a_tune(1200.0, AXES)
    assert design.tuning
    design = replace(design, tuning=replace(design.tuning, left_out={"load-format": "the other loaders need a GPU"}))
    rows = experiment_text.list_design_rows(design, DurationEstimate(90.0, True, "by 3 earlier boots"), ["a-server"])
    labels = dict(rows)
    assert labels["budget"].startswith("20:00")
    assert "13 boots of 1:30" in labels["budget"]
    assert [text for _, text in rows if text in AXES] == [*AXES]
    assert labels["not"].startswith("load-format: ")
    assert "a-server" in labels["stops"]
    assert "varies" not in labels


def test_tune_report_has_verdict_on_best_only():
    progress = a_progress()
    report = verdict.build_report(progress.design, progress.boots)
    report = replace(report, tune=tune_schedule.judge_tune(progress))
    text = experiment_report.render_markdown(report)
    assert text.startswith("# Tune of ")
    assert "times the tok/s" in text
    assert text.count("graphs is faster than") == 1
    assert text.count("vllm serve") == 2
    assert text.count("\n") <= 60
