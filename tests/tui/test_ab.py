"""An A/B on the panel: its boots while it runs, its verdict, the list of all; from folders as a driver writes them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from textual.pilot import Pilot
from textual.widgets import OptionList

from dflash_tui.common import paths
from dflash_tui.experiments import controller, store
from dflash_tui.experiments.analysis import verdict
from dflash_tui.experiments.design import BootBegan, ExperimentFinished, ExperimentHalted, RequestMeasured
from dflash_tui.runs import registry
from dflash_tui.tui.app import DflashApp
from dflash_tui.tui.dialogs.experiments import ExperimentList
from dflash_tui.tui.palette import PanelCommands
from dflash_tui.tui.screens import verdict as verdict_screen
from tests.support.experiment_factories import BASE, a_design, a_plan, boots, told, written
from tests.tui.conftest import HOSTILE, a_recipe
from tests.tui.panel import NO_GPU, app, shows, text, wait_for
from tests.tui.test_runs import written as a_written_run
from tests.unit.experiments.test_speculation_map import mapped
from tests.unit.presentation.test_experiment_report import a_report

NOW = BASE + 1000


def running(design, *, stage: str = "starting", answered: int = 4) -> None:
    """Write an experiment whose second boot runs, driven by this process."""
    made = boots(design, (10.0, 18.5), start=(40.0, 85.0))
    run = a_written_run("20261121-020000-toy", 900)
    events = [*told(design, made[:1]), BootBegan(BASE + 900, 1, 1, run.id)]
    if stage != "starting":
        events += [RequestMeasured(BASE + 950, 1, "cold", made[1].cold_request or made[1].requests[0])]
        events += [RequestMeasured(BASE + 960, 1, "round", request) for request in made[1].requests[:answered]]
    store.record_driver(written(design, events))


def has(panel: DflashApp, words: str) -> bool:
    return words in text(panel)


@asynccontextmanager
async def opened(
    identity: str, words: str, *, size: tuple[int, int] = (120, 36)
) -> AsyncIterator[tuple[DflashApp, Pilot[str]]]:
    """Open the panel on an experiment, and wait for these words."""
    panel = DflashApp(now=lambda: NOW, probe=lambda: NO_GPU)
    async with panel.run_test(size=size) as pilot:
        panel.show_experiment(identity)
        await wait_for(pilot, lambda: words in text(panel))
        yield panel, pilot


async def test_watching_experiment_asks_its_server_nothing():
    """What is shown of the boot is in the picture of test_progress."""
    running(a_design())
    async with opened(a_design().id, "boot 2 of 4: B compile", size=(120, 40)) as (_, pilot):
        await shows(pilot, "compile        <1 s", "order   A✓   B◐   B·   A·")
        recorded = next(run for run in registry.list_runs() if run.id == "20261121-020000-toy")
        assert not recorded.samples.exists()


async def test_halted_experiment_shows_reason_and_resume_key():
    design = a_design()
    made = boots(design, (10.0, 18.5))
    written(
        design,
        [*told(design, made[:2]), BootBegan(BASE + 900, 2, 1, "x"), ExperimentHalted(BASE + 990, f"stopped {HOSTILE}")],
    )
    async with opened(design.id, "■ A/B HALTED", size=(60, 20)) as (panel, pilot):
        await shows(pilot, "nothing runs", f"\n stopped {HOSTILE[:9]}", "halted: stopped [/] [red]evil")
        assert "preparing" not in text(panel)
        await wait_for(pilot, lambda: "⏎ Resume" in text(panel))
        assert "S Stop" not in text(panel)


async def test_finished_experiment_opens_verdict_by_itself():
    """When the last boot is over the verdict is shown by itself; `v` shows the boots again."""
    report = a_report()
    folder = written(report.design, told(report.design, report.boots))
    store.record_driver(folder)
    async with opened(report.design.id, "4 of 4 boots") as (panel, pilot):
        store.write_json(folder / store.REPORT, report)
        store.append_event(folder, ExperimentFinished(BASE + 2000))
        await wait_for(pilot, lambda: "is faster than eager: 1.8" in text(panel))
        await pilot.press("v")
        await wait_for(pilot, lambda: "✓ A/B FINISHED" in text(panel))
        await pilot.press("v")
        await wait_for(pilot, lambda: "▲ compile is faster" in text(panel))
        await pilot.press("1", "3")
        await wait_for(pilot, lambda: "▲ compile is faster" in text(panel))


async def test_report_shows_verdict_before_arms_and_prompts():
    report = a_report()
    written(report.design, told(report.design, report.boots), report)
    async with opened(report.design.id, "is faster than eager: 1.8", size=(80, 24)) as (panel, pilot):
        await shows(pilot, "real model's figures", "● A eager")
        assert text(panel).index("▲ compile is faster") < text(panel).index("● A eager")
        parts = {"caught up after", "◆ B compile", "LongCode", "all ", "│", "━", "first request"}
        assert "Welch" not in text(panel)
        await pilot.press("d")
        parts |= {"Welch", "cached   1:01", "p50", "B compile        1  all     E2E"}
        panel.screen.query_one("#compared").scroll_home(animate=False)
        await pilot.pause()
        compared, seen = panel.screen.query_one("#compared"), text(panel)
        while compared.scroll_offset.y < compared.max_scroll_y:
            compared.scroll_relative(y=10, animate=False)
            await pilot.pause()
            seen += text(panel)
        assert not [part for part in parts if part not in seen]


async def test_sweep_shows_plateau():
    """Of several comparisons one is shown at a time."""
    plans = {str(n): a_plan("eager", n) for n in (4, 6, 8, 15)}
    design = a_design(plans, order=(0, 1, 2, 3, 3, 2, 1, 0), vary="n")
    report = verdict.build_report(design, boots(design, (10.0, 10.0, 10.0, 8.0), al=(2.6, 3.1, 3.1, 3.2)))
    written(design, told(design, report.boots), report)
    async with opened(design.id, "1 of 3", size=(120, 44)) as (_, pilot):
        await shows(pilot, "★ n=6", "★ recommended: n=6", "fastest measured: n=", "= n=8", "= as fast as")
        await pilot.press("right")
        await shows(pilot, "2 of 3", "n=8 is faster than n=4")


async def test_the_report_is_written_beside_the_experiment():
    report = a_report()
    folder = written(report.design, told(report.design, report.boots), report)
    async with opened(report.design.id, "▲ compile is faster") as (panel, pilot):
        await shows(pilot, "→ share it: s; keep the faster one as a recipe: k")
        await pilot.press("s")
        path = folder / "report.md"
        await wait_for(pilot, lambda: path.exists() and "**compile is faster than eager" in path.read_text())
        await wait_for(pilot, lambda: "</svg>" in (folder / "report.svg").read_text())
        assert "compile is faster" in panel.clipboard
        commands = [command for query in ("share", "extend", "copy", "picture") async for command in find(panel, query)]
        assert {"Share", "Boots"} <= set(commands)


async def find(panel: DflashApp, query: str) -> AsyncIterator[str]:
    provider = PanelCommands(panel.screen)
    await provider.startup()
    async for hit in provider.search(query):
        yield str(hit.text)


async def test_plus_adds_boots_after_a_question(monkeypatch):
    report = a_report()
    written(report.design, told(report.design, report.boots), report)
    extended = list[tuple[str, int]]()

    async def trust(*_) -> bool:
        return True

    monkeypatch.setattr(controller, "extend_experiment", lambda design, boots: extended.append((design.id, boots)))
    monkeypatch.setattr(verdict_screen, "confirm_design", trust)
    async with opened(report.design.id, "▲ compile is faster") as (panel, pilot):
        await pilot.press("+")
        await shows(pilot, "Add boots?")
        await pilot.press("y")
        await wait_for(pilot, lambda: extended == [(report.design.id, 2)])
        await wait_for(pilot, lambda: panel.current_mode == "ab")


async def test_k_keeps_faster_arm_as_recipe():
    report = a_report()
    written(report.design, told(report.design, report.boots), report)
    async with opened(report.design.id, "▲ compile is faster") as (_, pilot):
        await pilot.press("k")
        await shows(pilot, "wrote ", "demo-cpu-tuned.yaml")
        await pilot.press("1")
        await shows(pilot, "✓ demo-cpu-tuned")
    recipe = (paths.user_recipes_folder() / "demo-cpu-tuned.yaml").read_text()
    assert "mode: compile" in recipe
    assert "× eager's tok/s" in recipe


async def test_all_experiments_are_listed():
    """From the palette or by `o`; one that runs shows its boots, one that is over its verdict."""
    report = a_report(id="20261120-over", made_at=BASE - 9000)
    written(report.design, told(report.design, report.boots), report)
    running(a_design(recipe=HOSTILE))
    store.append_event(store.experiment_folder(report.design.id), ExperimentFinished(BASE))
    panel = app(now=NOW)
    async with panel.run_test(size=(120, 36)) as pilot:
        panel.action_experiments()
        await wait_for(pilot, lambda: isinstance(panel.screen, ExperimentList) and bool(panel.screen.rows))
        await shows(pilot, "◐ running", "[/] [red]", "✓ finished")
        panel.screen.query_one(OptionList).highlighted = 1
        await pilot.press("enter")
        await wait_for(pilot, lambda: "▲ compile is faster" in text(panel))
        await pilot.press("o")
        await wait_for(pilot, lambda: isinstance(panel.screen, ExperimentList) and bool(panel.screen.rows))
        await pilot.press("enter")
        await wait_for(pilot, lambda: "boot 2 of 4" in text(panel))


async def test_empty_experiment_screen_explains_how_to_begin():
    panel = app({"toy": a_recipe()})
    async with panel.run_test(size=(80, 24)) as pilot:
        await pilot.press("3")
        await wait_for(pilot, lambda: "no A/B yet" in text(panel))
        panel.action_experiments()
        await wait_for(pilot, lambda: "none yet; a on" in text(panel))


async def test_a_map_is_a_table_with_its_launch():
    panel = app(now=NOW)
    async with panel.run_test(size=(120, 40)) as pilot:
        panel.compare_screen.begin(mapped())
        panel.switch_mode("compare")
        await wait_for(pilot, lambda: has(panel, "what follows: 1 stream: n=7"))
        for words in ("2.10 (1.97–2.24)", "0.60 (0.56–0.64)", "prose ×16", "--num-speculative-tokens 7"):
            assert has(panel, words)
