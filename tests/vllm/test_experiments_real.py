"""A quick A/B on a real vLLM, from the key `a` to its verdict: a patch in and out of the engine."""

import time

import pytest

from dflash_tui.experiments import store
from dflash_tui.experiments.analysis.report import Verdict
from dflash_tui.experiments.design import Boot
from dflash_tui.monitoring import observer
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.presentation import verdict_text
from dflash_tui.runs import registry, server_process
from dflash_tui.tui.app import DflashApp
from dflash_tui.tui.dialogs.experiments import NewExperiment
from tests.support.values import present
from tests.tui.panel import NO_GPU, shows, text, wait_for

VARY = "patch.cpu-expand-kernel=on,off"
PATIENCE = 1200.0


def read_shares(boot: Boot) -> tuple[float, ...]:
    """Return in how many of a boot's steps the draft of each position was accepted."""
    [run] = [run for run in registry.list_runs() if run.id == boot.run]
    readings = observer.replay_run(run).readings
    whole = present(readings.window(readings[-1].at - readings[0].at, readings[-1].at))
    return tuple(map(present, whole.per_position))


@pytest.mark.vllm
@pytest.mark.long
@pytest.mark.chain("arms")
@pytest.mark.timeout(1500)
@pytest.mark.usefixtures("nothing_left", "with_engine")
async def test_experiment_finds_and_explains_patch_effect():
    """Without the patch nothing beyond the first drafted token is accepted when sampling: AL falls, and only AL.

    The arms run from two engines, one made from the other.
    """
    panel = DflashApp(probe=lambda: NO_GPU, load=lambda: {"toy": recipe_loader.find_recipe("toy")})
    async with panel.run_test(size=(120, 36)) as pilot:
        await wait_for(pilot, lambda: "toy" in text(panel))
        await pilot.press("a")
        await wait_for(pilot, lambda: isinstance(panel.screen, NewExperiment))
        await pilot.press("v", "end", "enter", "ctrl+u", *VARY, "enter")
        await shows(pilot, ": on off off on", "sends    the suite quick")  # the demo takes no long context
        await pilot.press("h")
        await wait_for(pilot, lambda: "boots    2 boots: on off" in text(panel))
        await pilot.press("enter")
        deadline = time.monotonic() + PATIENCE
        while "arms, medians of boots" not in text(panel):
            assert time.monotonic() < deadline, text(panel)
            await pilot.pause(1)
        report = present(store.read_report(store.experiment_folder(store.list_experiments()[0].id)))
        (found,) = report.comparisons
        assert verdict_text.format_headline(report, found)[:50] in text(panel)
    # Others may have kept a boot from succeeding at once.
    measured = [boot for boot in report.boots if not boot.error]
    assert len(measured) == 2, [boot.error for boot in report.boots]
    on, off = measured
    assert ("cpu-expand-kernel" in on.patches, "cpu-expand-kernel" in off.patches) == (True, False)
    assert all((boot.up or 0) > 0 and (boot.ready or 0) > (boot.up or 0) for boot in measured)
    assert found.al
    assert found.al.high < 0.8, found
    with_it, without = map(read_shares, measured)
    assert 1 + sum(with_it) >= 4
    # Drafts are sampled: one of 1407 steps had a second token. With the patch it is more than every second step.
    assert max(without[1:]) < 0.01
    # How fast it is depends on who else works here, and too much of that refuses; what shows is explained by AL.
    shown = {Verdict.SLOWER: {"AL", "both"}, Verdict.NO_DIFFERENCE: {""}}
    # A reader that waits for a processor gets an answer in one piece, which has no speed.
    busy = [each.what for each in found.confounds if each.refuses]
    assert all(what.startswith(("other processes ", "requests without a figure ")) for what in busy), found
    assert not busy or any(what.startswith("other processes ") for what in busy), found
    assert busy or found.cause in shown.get(found.word, set()), found
    made = [arm.plan for arm in report.design.arms]
    assert made[0].engine_folder != made[1].engine_folder
    assert made[0].unpatched_folder == made[1].unpatched_folder
    assert not any(server_process.list_processes(run) for run in registry.list_runs())
