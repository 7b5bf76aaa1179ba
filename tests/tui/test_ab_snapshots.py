"""Pictures of an A/B: on its way, found faster, no difference, refused; update with `--snapshot-update`."""

from collections.abc import Awaitable, Callable, Sequence

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from dflash_tui.experiments import progress
from dflash_tui.experiments.analysis import verdict
from dflash_tui.experiments.analysis.report import ExperimentReport
from dflash_tui.experiments.builder import BootEstimate
from dflash_tui.experiments.design import BootBegan, Design, Happened, RequestMeasured
from dflash_tui.run_state.state import RunState
from dflash_tui.tui.app import LIGHT
from dflash_tui.tui.render.experiment import Outlook
from dflash_tui.tui.screens import experiment
from dflash_tui.tui.screens.experiment import ExperimentView, name_by_stage
from tests.support.experiment_factories import BASE, KINDS, a_design, a_plan, boots, told
from tests.tui.panel import app, panel_of, text, wait_for

pytest.importorskip("pytest_textual_snapshot")
pytestmark = pytest.mark.usefixtures("no_folders")


def found(*speeds: float, **changes) -> ExperimentReport:
    """Return a report of arms of these speeds, the compiled one with a cold and a cached start."""
    design = a_design()
    made = list(boots(design, speeds, start=(40.0, 85.0)))
    made[1] = replace(made[1], cache="cold", ready=120.0)
    made[2] = replace(made[2], cache="cached", ready=61.0)
    return verdict.build_report(design, [replace(boot, **changes) if boot.arm else boot for boot in made])


def shown(report: ExperimentReport, theme: str = "") -> Callable[[Pilot[str]], Awaitable[None]]:
    async def act(pilot: Pilot[str]) -> None:
        panel = panel_of(pilot)
        panel.theme = theme or panel.theme
        panel.compare_screen.begin(report)
        panel.switch_mode("compare")
        await wait_for(pilot, lambda: "q Quit" in text(panel) and "verdict" in text(panel))
        await pilot.pause(0.2)

    return act


def under_way(
    design: Design,
    happened: Sequence[Happened],
    monkeypatch: pytest.MonkeyPatch,
    start: RunState | None = None,
    now: float = BASE,
) -> Callable[[Pilot[str]], Awaitable[None]]:
    """Show an A/B that runs, with boots of before that say how long each arm takes."""
    folded = progress.fold_progress(design, happened, due=10, driven=True, now=now)
    here = folded.current.number if folded.current else -1
    requests = tuple(
        name_by_stage(event) for event in happened if isinstance(event, RequestMeasured) and event.number == here
    )
    view = ExperimentView(folded, start, requests)
    monkeypatch.setattr(experiment, "read_experiment", lambda _folder: view)
    outlook = Outlook(BootEstimate((100.0, 160.0), True, "by 6 earlier boots of such experiments"), tuple(KINDS))
    monkeypatch.setattr(experiment, "read_outlook", lambda _design, _before: outlook)

    async def act(pilot: Pilot[str]) -> None:
        panel = panel_of(pilot)
        panel.show_experiment(design.id)
        await wait_for(pilot, lambda: "q Quit" in text(panel) and f"boot {here + 1} of 4" in text(panel))
        await wait_for(pilot, lambda: panel.ab_screen.outlook is outlook)
        for _ in range(2):  # the first drawing gives the panes their size
            panel.ab_screen.draw()
            await pilot.pause(0.1)

    return act


def measured(now: float) -> list[Happened]:
    """Return what happened of an A/B whose second boot has answered six of ten requests."""
    design = a_design()
    first, second, *_ = boots(design, (10.0, 18.5), start=(40.0, 85.0))
    done = [replace(one, at=now - 300 + 9 * place, total=8.0) for place, one in enumerate(first.requests)]
    first = replace(first, began=now - 390, requests=tuple(done))
    events = [*told(design, [first]), BootBegan(now - 150, 1, 1, second.run)]
    assert second.cold_request
    events.append(RequestMeasured(now - 40, 1, "cold", replace(second.cold_request, at=now - 40, total=9.0)))
    timed = [replace(one, at=now - 30 + 5 * place, total=4.6) for place, one in enumerate(second.requests[:6])]
    return [*events, *(RequestMeasured(one.at, 1, "round", one) for one in timed)]


def test_progress(snap_compare, starting, monkeypatch):
    """The second boot starts; an arm that was measured says how long its boots take, the other one by history."""
    events, now = starting
    design = a_design(made_at=now - 400)
    made = boots(design, (10.0, 18.5), start=(40.0, 85.0))
    state = RunState()
    for event in events:
        state.apply(event)
    began = BootBegan(now - 30, 1, 1, "20261121-012400-toy")
    act = under_way(design, [*told(design, made[:1]), began], monkeypatch, state, now)
    assert snap_compare(app(now=now), terminal_size=(120, 36), run_before=act)


def test_measuring(text_compare, monkeypatch):
    act = under_way(a_design(made_at=BASE - 400), measured(BASE), monkeypatch)
    assert text_compare(app(now=BASE), terminal_size=(80, 24), run_before=act)


def test_faster(snap_compare):
    assert snap_compare(app(), terminal_size=(120, 36), run_before=shown(found(10.0, 18.5)))


def test_arms_of_long_names(text_compare):
    """They differ in the middle; columns fall away whole."""
    names = [f"attention-backend=flash_attn, max-num-batched-tokens={count}, FLASHINFER" for count in (4096, 8192)]
    design = a_design({name: a_plan(tokens=place + 2) for place, name in enumerate(names)}, vary="flags")
    report = verdict.build_report(design, list(boots(design, (10.0, 14.0), start=(40.0, 45.0))))

    async def act(pilot: Pilot[str]) -> None:
        panel = panel_of(pilot)
        panel.compare_screen.begin(report)
        panel.switch_mode("compare")
        await wait_for(pilot, lambda: "q Quit" in text(panel) and "verdict" in text(panel))
        await wait_for(pilot, lambda: panel.screen.query_one("#report").size.height > 1)
        panel.screen.query_one("#compared").scroll_end(animate=False)
        await wait_for(pilot, lambda: "0.65 " in text(panel))
        await pilot.pause(0.2)

    assert text_compare(app(), terminal_size=(60, 20), run_before=act)


def test_starts(text_compare):
    """The ratio is one of seconds, the boots that filled the caches have not failed, and the phases have the room."""
    design = a_design(order=(0, 1, 1, 0, 0, 1), measures_start=True)
    made = [
        replace(
            boot,
            requests=(),
            cold_request=None,
            generated=0.0,
            start="measured" if boot.number > 1 else "filling",
            phases={"import": 12.0, "weights": 10.0, "engine": (boot.up or 0.0) - 22.0},
        )
        for boot in boots(design, (10.0, 10.0), start=(85.0, 40.0))
    ]
    made[:2] = [replace(boot, ready=boot.ready and 2.5 * boot.ready) for boot in made[:2]]
    report = verdict.build_report(design, made)
    assert text_compare(app(), terminal_size=(80, 24), run_before=shown(report))


def test_refused(snap_compare):
    refused = found(10.0, 12.0, versions={"vllm": "0.31.0"}, preemptions=3.0)
    assert snap_compare(app(), terminal_size=(120, 36), run_before=shown(refused, LIGHT.name))
