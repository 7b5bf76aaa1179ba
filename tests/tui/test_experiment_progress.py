"""What the screen of a running A/B says before anything is over: the rest by history, what is measured, the speeds."""

import pytest
from msgspec.structs import replace

from dflash_tui.experiments.builder import BootEstimate
from dflash_tui.experiments.design import BootBegan, RequestMeasured
from dflash_tui.experiments.progress import fold_progress
from dflash_tui.presentation.experiment_text import describe_stage
from dflash_tui.tui.render.experiment import Outlook, render_left
from tests.support.experiment_factories import BASE, a_design, a_request, boots, told

DESIGN = a_design(made_at=BASE - 10)
UNKNOWN = Outlook(BootEstimate((None, None), False, ""))
BEFORE = Outlook(BootEstimate((100.0, 160.0), True, "by 6 earlier boots of such experiments"))
PART = Outlook(BootEstimate((None, 60.0), False, "by earlier starts here"))
STARTS = Outlook(BootEstimate((40.0, 60.0), False, "by earlier starts here"))


def standing(*happened, now: float = BASE):
    return fold_progress(DESIGN, happened, due=10, driven=True, now=now)


@pytest.mark.parametrize("outlook", [BEFORE, PART], ids=["boots", "a start"])
def test_remaining_time_is_shown_from_first_second(outlook, snapshot):
    """What is unknown of an arm makes it a least."""
    assert render_left(standing(BootBegan(BASE - 20, 0, 0, "run")), outlook, BASE, 120).plain == snapshot


def test_unmeasured_slow_start_makes_estimate_minimum():
    over = told(DESIGN, boots(DESIGN, (10.0, 18.5))[:1])
    line = render_left(standing(*over), UNKNOWN, BASE, 160).plain
    assert "at least" in line
    assert "a longer start with compile not counted (estimate from 1 boot)" in line


@pytest.mark.parametrize(("over", "outlook"), [(0, STARTS), (3, UNKNOWN)], ids=["a start", "the last boot"])
def test_exceeded_estimate_is_unknown(over, outlook, snapshot):
    """A start took no longer before, or a boot of the same arm: how much is left is then unknown, and not nothing."""
    design = replace(DESIGN, order=(0, 1, 0, 1) if over else (1,))
    events = [
        *told(design, boots(design, (10.0, 18.5))[:over]),
        BootBegan(BASE - 2000, over, design.order[over], "run"),
    ]
    progress = fold_progress(design, events, due=10, driven=True, now=BASE)
    assert render_left(progress, outlook, BASE, 120).plain == snapshot


@pytest.mark.parametrize(("stage", "requests"), [("cold", 1), ("round", 3)], ids=str)
def test_current_measurement_is_named(stage, requests, snapshot):
    events = [RequestMeasured(BASE, 0, stage, a_request("Code", 0, 10.0, 3.0))] * requests if stage else []
    assert describe_stage(standing(BootBegan(BASE - 20, 0, 0, "run"), *events)) == snapshot
