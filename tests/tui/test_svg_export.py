"""The picture of a report: that of a tune rests on the boots after its choice, as its text does."""

import html

from msgspec.structs import replace

from dflash_tui.experiments import tune_schedule
from dflash_tui.experiments.analysis import verdict
from dflash_tui.presentation.experiment_text import format_best
from dflash_tui.tui import svg_export
from tests.support.tune_simulation import Truth, a_tune, run_tune


def test_tune_drawing_uses_boots_after_choice():
    progress, _ = run_tune(a_tune(1200.0, ("mode=graphs",)), Truth({"mode=graphs": 2.0}), 1)
    tune = tune_schedule.judge_tune(progress)
    assert tune.comparison
    report = replace(verdict.build_report(progress.design, progress.boots), tune=tune)
    assert report.comparisons[0].boots != tune.comparison.boots
    drawn = html.unescape(svg_export.draw_experiment(report)).replace("\xa0", " ")
    assert format_best(report.design, tune)[:60] in drawn
    assert "Tune" in drawn
