"""Pictures of a tune: asked for, at its beginning, on its way, stopped, over; update with `--snapshot-update`."""

from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from dflash_tui.common.errors import UsageError
from dflash_tui.experiments import tune_schedule
from dflash_tui.experiments.design import BootBegan
from dflash_tui.experiments.progress import fold_progress
from dflash_tui.tui.screens import experiment
from dflash_tui.tui.screens.experiment import ExperimentView
from tests.support.experiment_factories import BASE
from tests.support.tune_simulation import Truth, a_tune, run_tune
from tests.tui.panel import app, panel_of, text, wait_for

pytest.importorskip("pytest_textual_snapshot")
pytestmark = pytest.mark.usefixtures("no_folders")
AXES = (
    "mode=graphs,compile",
    "patch.triton-split-verify=on",
    "n=8,12,4,2,0",
    "attention-backend=flash_attn,flashinfer",
)
TRUTH = Truth(
    {"mode=graphs": 2.0, "mode=compile": 1.8, "patches.triton-split-verify=true": 1.2, "n=12": 1.12, "n=2": 0.7},
    failing=frozenset({"attention-backend=flashinfer"}),
)


def a_view(boots: int, *, driven: bool, budget: float = 1800.0, synthetic: str = "") -> ExperimentView:
    """Return a tune after so many boots, with one under way if it is driven."""
    design = replace(a_tune(budget, AXES), recipe="gemma-4-26b-a4b", made_at=BASE - 60, synthetic=synthetic)
    progress, happened = run_tune(design, TRUTH, 11, boots=boots)
    if driven and progress.next:
        number = progress.next[0]
        happened.append(BootBegan(BASE - 20, number, progress.design.order[number], "20261121-012400-gemma"))
    progress = fold_progress(design, happened, due=10, driven=driven, now=BASE)
    return ExperimentView(progress, None, (), tune_schedule.judge_tune(progress))


def shown(words: str, theme: str = "") -> Callable[[Pilot[str]], Awaitable[None]]:
    async def act(pilot: Pilot[str]) -> None:
        panel = panel_of(pilot)
        panel.theme = theme or panel.theme
        panel.show_experiment("tune")
        await wait_for(pilot, lambda: words in text(panel) and "q Quit" in text(panel))
        panel.ab_screen.draw()  # the first drawing gives the pane its height
        await pilot.pause(0.2)

    return act


def use(monkeypatch: pytest.MonkeyPatch, view: ExperimentView) -> None:
    monkeypatch.setattr(experiment, "read_experiment", lambda _folder: view)


def test_on_its_way(snap_compare, monkeypatch):
    use(monkeypatch, a_view(11, driven=True))
    assert snap_compare(app(now=BASE), terminal_size=(120, 36), run_before=shown("TUNE RUNNING"))


def test_tune_at_its_beginning(text_compare, monkeypatch):
    """Nothing is measured yet, and what follows depends on it."""
    use(monkeypatch, a_view(0, driven=True, synthetic="random weights"))
    assert text_compare(app(now=BASE), terminal_size=(120, 36), run_before=shown("TUNE RUNNING SYNTHETIC"))


def an_ended_tune() -> ExperimentView:
    view = a_view(100, driven=False)
    assert view.tune
    recipe = "/home/me/.config/dflash-tui/recipes/gemma-4-26b-a4b-tuned.yaml"
    return view._replace(tune=replace(view.tune, recipe=recipe))


def test_over(snap_compare, monkeypatch):
    use(monkeypatch, an_ended_tune())
    assert snap_compare(app(now=BASE), terminal_size=(120, 36), run_before=shown("TUNE FINISHED"))


def test_unreadable_tune_shows_error(text_compare, monkeypatch):
    def broken(_folder: object) -> ExperimentView:
        raise UsageError(
            "it is not an experiment", evidence="its experiment.json cannot be read", hint="dflash-tui ab list"
        )

    monkeypatch.setattr(experiment, "read_experiment", broken)
    assert text_compare(app(now=BASE), terminal_size=(80, 24), run_before=shown("CANNOT BE READ"))
