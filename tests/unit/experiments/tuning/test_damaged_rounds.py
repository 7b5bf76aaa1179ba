"""Rounds and outcomes of a tune as somebody else may have written them: read, judged and drawn without a failure."""

import random
from typing import Any

import pytest
from msgspec.structs import replace

from dflash_tui.experiments import store
from dflash_tui.experiments.analysis import verdict
from dflash_tui.experiments.analysis.report import find_misplaced_arms
from dflash_tui.experiments.design import CONFIRM, PUBLISHED, RoundBegan
from dflash_tui.experiments.progress import fold_progress
from dflash_tui.experiments.tuning import schedule
from dflash_tui.presentation import experiment_text
from dflash_tui.tui.render import experiment, tune
from dflash_tui.tui.render.report import to_content
from tests.support.experiment_factories import written
from tests.support.tune_simulation import Truth, a_tune, run_tune

AXES = ("mode=graphs,compile", "n=8,12,0", "load-format=fastsafetensors")
TRUTH = Truth({"mode=graphs": 2.0, "n=12": 1.1}, failing=frozenset({"mode=compile"}))
HOSTILE = "\x1b[2Jx\n[red]y"


def damage(event: RoundBegan, rng: random.Random) -> RoundBegan:
    """Return a round with one part as it should not be."""
    arms = tuple(rng.randrange(-2, 9) for _ in range(rng.randrange(4)))
    changes: list[dict[str, Any]] = [
        {"key": rng.choice([HOSTILE, "", CONFIRM, PUBLISHED, "load-format"])},
        {"turn": rng.choice([-1, 0, 10**18])},
        {"field": arms},
        {"order": arms},
        {"arms": ()},
        {"left_out": {HOSTILE: HOSTILE}},
    ]
    return replace(event, **rng.choice(changes))


@pytest.mark.parametrize("seed", range(16))
def test_a_damaged_round_hides_nothing_else_and_no_drawing_fails(seed):
    rng = random.Random(seed)
    design = a_tune(1200.0, AXES)
    _, happened = run_tune(design, TRUTH, 3)
    rounds = [place for place, event in enumerate(happened) if isinstance(event, RoundBegan)]
    place = rng.choice(rounds)
    event = happened[place]
    assert isinstance(event, RoundBegan)
    happened[place] = damage(event, rng)
    rng.shuffle(happened) if seed % 4 == 0 else None
    progress = fold_progress(design, happened, driven=bool(seed % 2), now=1.0)
    found = schedule.judge_tune(progress)
    lines = [
        *experiment_text.list_outcome_lines(progress.design, progress.boots, found),
        str(experiment_text.list_candidates(progress)),
    ]
    drawn = [
        experiment.render_progress(progress, 1.0, 80),
        tune.render_rounds(progress, 80, 6),
        tune.render_field(progress, 80, 6),
        to_content(tune.list_outcome_notes(progress.design, progress.boots, found), 80),
        tune.render_tune_remaining(progress, found, 1.0, 80),
    ]
    assert not any("\x1b" in text for text in (*lines, *(each.plain for each in drawn)))
    assert find_misplaced_arms(replace(verdict.build_report(progress.design, progress.boots), tune=found)) == ""


def test_a_report_by_earlier_rules_keeps_what_the_tune_has_found(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    design = a_tune(1200.0, AXES)
    progress, happened = run_tune(design, TRUTH, 3)
    report = verdict.build_report(progress.design, progress.boots)
    report = replace(report, tune=schedule.judge_tune(progress), rules=report.rules - 1)
    again = store.read_report(written(design, happened, report))
    assert again
    assert (again.rules, again.tune) == (report.rules + 1, report.tune)


def test_an_outcome_that_names_an_arm_that_is_not_there_is_found():
    progress, _ = run_tune(a_tune(1200.0, AXES), TRUTH, 3)
    found = schedule.judge_tune(progress)
    assert found.comparison
    report = verdict.build_report(progress.design, progress.boots)
    for wrong in (replace(found, best=99), replace(found, comparison=replace(found.comparison, b=99))):
        assert find_misplaced_arms(replace(report, tune=wrong))
