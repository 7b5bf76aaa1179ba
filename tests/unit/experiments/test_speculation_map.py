"""The map of `tune --map`: a cell per kind of prompt and number of streams, and the launch that follows."""

import pytest
from msgspec.structs import replace

from dflash_tui.experiments.analysis import verdict
from dflash_tui.experiments.analysis.report import ALL_KINDS, ExperimentReport, SpeculationMap, Verdict
from dflash_tui.experiments.design import Conditions
from dflash_tui.presentation.experiment_report import build_report, render_markdown
from dflash_tui.presentation.report import to_terminal
from tests.support.experiment_factories import BASE, a_boot, a_design, a_plan, a_request

STREAMS = (1, 16)
# How many times as fast speculation is, by kind and streams.
GAINS = {("code", 1): 2.1, ("code", 16): 1.4, ("prose", 1): 1.3, ("prose", 16): 0.6}


def mapped(gains=GAINS, arms=None, vary="spec", starts=(40.0, 40.0, 40.0), **changes) -> ExperimentReport:
    plans = arms or {"off": a_plan(tokens=0), "on": a_plan()}
    order = (*range(len(plans)), *reversed(range(len(plans))))
    design = a_design(plans, order, vary, by_kind=True, concurrency=STREAMS, temperature=0.0)
    boots = []
    for number, arm in enumerate(order):
        requests = tuple(
            a_request(f"{kind} {place}", 0, (gain if arm else 1.0) * (10 + place + 0.01 * number), 1.0, streams=streams)
            for (kind, streams), gain in gains.items()
            for place in range(4)
        )
        plan = design.arms[arm].plan
        boots.append(a_boot(number, arm, start=starts[arm], requests=requests, argv=plan.argv, env=plan.env, **changes))
    return verdict.build_report(design, boots)


def found_of(*args, **changes) -> SpeculationMap:
    found = mapped(*args, **changes).map
    assert found
    return found


def test_each_cell_has_its_own_verdict():
    cells = {(cell.kind, cell.streams): cell for cell in found_of().cells}
    assert cells["code", 1].word is Verdict.FASTER
    assert cells["code", 1].ratio.ratio == pytest.approx(2.1, rel=0.02)
    assert cells["prose", 16].word is Verdict.SLOWER
    assert {kind for kind, _ in cells} == {"code", "prose", ALL_KINDS}


def test_drafts_stop_where_speculation_costs():
    """Only where it is shown to be slower over all kinds; vLLM's schedule is by ranges of streams."""
    found = found_of(GAINS | {("code", 16): 0.7})
    assert [(level.streams, level.tokens, level.is_shown) for level in found.levels] == [(1, 7, True), (16, 0, True)]
    schedule = "speculation.num_speculative_tokens_per_batch_size=[[1,1,7],[2,16,0]]"
    assert found.launch.endswith(f"--num-speculative-tokens 7 --set '{schedule}'")
    assert "--port" not in found.launch
    undecided = found_of(GAINS)
    assert [level.tokens for level in undecided.levels] == [7, 7]
    assert undecided.launch.endswith("--num-speculative-tokens 7")


def test_an_old_release_takes_no_schedule():
    old = {name: replace(plan, vllm="0.23.0") for name, plan in {"off": a_plan(tokens=0), "on": a_plan()}.items()}
    report = mapped(GAINS | {("code", 16): 0.7}, old)
    assert report.map
    assert report.map.launch.endswith("--num-speculative-tokens 7")
    assert "no schedule" in to_terminal(build_report(report))


def test_fastest_number_of_drafts_is_chosen():
    arms = {"0": a_plan(tokens=0), "4": a_plan(tokens=4), "7": a_plan(tokens=7)}
    found = found_of(dict.fromkeys(GAINS, 1.5), arms, "n")
    assert {cell.arm for cell in found.cells} == {1, 2}
    assert found.launch.partition("--num-speculative-tokens ")[2] in {"4", "7"}


def test_a_refused_map_has_no_launch():
    assert found_of(preemptions=3.0).launch
    found = found_of(after=Conditions(BASE, power="battery"))
    assert {cell.word for cell in found.cells} == {Verdict.REFUSED}
    assert not found.launch


def test_map_is_shown_as_one_table():
    report = mapped(GAINS | {("code", 16): 0.7})
    text = to_terminal(build_report(report), 100)
    assert "KIND" in text
    assert "1 STREAM" in text
    assert "16 streams: no speculation" in text
    assert "| code | 2.1" in render_markdown(report)


def test_break_even_survives_gains_that_turn_with_load():
    """Faster over all cells and slower at the fewest streams, where seconds are saved: it never catches up."""
    report = mapped({("code", 1): 0.9, ("code", 16): 3.0}, starts=(40.0, 60.0))
    assert all(even.tokens is None for even in report.comparisons[0].break_even)
    assert to_terminal(build_report(report, details=True))
