"""Pictures of an A/B: on its way, found faster, no difference, refused; update with `--snapshot-update`."""

from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from dflash_tui.experiments import progress
from dflash_tui.experiments.analysis import verdict
from dflash_tui.experiments.analysis.report import ExperimentReport
from dflash_tui.experiments.design import BootBegan
from dflash_tui.run_state.state import RunState
from dflash_tui.tui.app import DflashApp
from dflash_tui.tui.screens import experiment
from dflash_tui.tui.theme import LIGHT
from tests.support.experiment_factories import a_design, boots, told
from tests.tui.panel import app, text, wait_for

pytest.importorskip("pytest_textual_snapshot")


@pytest.fixture(autouse=True)
def fixed(monkeypatch):
    """Take the folders of this machine out of the pictures."""
    for kind in ("DATA", "CACHE", "STATE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", f"/nonexistent/{kind.lower()}")


def found(*speeds: float, **changes) -> ExperimentReport:
    """Return a report of arms of these speeds, the compiled one with a cold and a cached start."""
    design = a_design()
    made = list(boots(design, speeds, start=(40.0, 85.0)))
    made[1] = replace(made[1], cache="cold", ready=120.0)
    made[2] = replace(made[2], cache="cached", ready=61.0)
    return verdict.build_report(design, [replace(boot, **changes) if boot.arm else boot for boot in made])


def shown(report: ExperimentReport, theme: str = "") -> Callable[[Pilot[str]], Awaitable[None]]:
    async def act(pilot: Pilot[str]) -> None:
        panel = pilot.app
        assert isinstance(panel, DflashApp)
        panel.theme = theme or panel.theme
        panel.compare_screen.begin(report)
        panel.switch_mode("compare")
        await wait_for(pilot, lambda: "q Quit" in text(panel) and "◆ B compile" in text(panel))
        await pilot.pause(0.2)

    return act


def test_progress(snap_compare, starting, monkeypatch):
    events, now = starting
    design = a_design(made_at=now - 400)
    made = boots(design, (10.0, 18.5), start=(40.0, 85.0))
    state = RunState()
    for event in events:
        state.apply(event)
    began = BootBegan(now - 30, 1, 1, "20261121-012400-toy")
    folded = progress.fold_progress(design, [*told(design, made[:1]), began], due=10, driven=True, now=now)
    monkeypatch.setattr(experiment, "read_experiment", lambda _folder: experiment.ExperimentView(folded, state, ()))

    async def act(pilot: Pilot[str]) -> None:
        panel = pilot.app
        assert isinstance(panel, DflashApp)
        panel.show_experiment(design.id)
        await wait_for(pilot, lambda: "S Stop" in text(panel) and "boot 2 of 4" in text(panel))
        panel.ab_screen.draw()  # the first drawing gives the pane its height
        await pilot.pause(0.2)

    assert snap_compare(app(now=now), terminal_size=(120, 36), run_before=act)


def test_faster(snap_compare):
    assert snap_compare(app(), terminal_size=(120, 36), run_before=shown(found(10.0, 18.5)))


def test_no_difference(snap_compare):
    assert snap_compare(app(), terminal_size=(80, 24), run_before=shown(found(10.0, 10.05)))


def test_refused(snap_compare):
    refused = found(10.0, 12.0, versions={"vllm": "0.31.0"}, preemptions=3.0)
    assert snap_compare(app(), terminal_size=(120, 36), run_before=shown(refused, LIGHT.name))
