"""The figures of a running server, and the widget that lays them out in two rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from textual.app import RenderResult
from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from dflash_tui.common.formatting import (
    UNKNOWN,
    format_duration,
    format_gib,
    format_number,
    format_percent,
    pluralize,
    truncate,
)
from dflash_tui.events import Histogram, SpeculationLogged
from dflash_tui.planning.plan import Plan
from dflash_tui.run_state.series import MAX_GAP, CounterReading
from dflash_tui.run_state.speculation import (
    choose_published_figures,
    compare_with_published,
    list_published_ranges,
)
from dflash_tui.run_state.state import RunState
from dflash_tui.tui.widgets.basic import MUTED
from dflash_tui.vllm_output.metrics import Quantile, Rates, estimate_quantile

RECENT = 10.0
_FEWEST = 5  # requests that have a percentile
_TIGHT = 4  # cells that a row may be short of before a tile is left out
_LOGGED_OFTEN = 20.0  # vLLM logs speculation every ten seconds while it answers


class Tile(NamedTuple):
    """One figure above the charts."""

    name: str
    """What it is; no two names begin with the same word."""
    value: str
    """The figure with its unit, or a dash."""
    note: str = ""
    """What stands beside the value where there is room."""
    short: str = ""
    """The name where name and value are on one line."""
    columns: int = 16
    """How many of 80 columns the tile takes there; those of a row are 80 at most."""
    good: bool = True
    """Whether the figure is as it should be; one that is not is drawn as an error."""
    rank: int = 0
    """Where there is no room for all of a row, the tiles of the highest ranks are left out first."""
    own: bool = True
    """Whether the figure is of this set-up; one of another is drawn dimmed."""
    past: str = ""
    """The figure over the window, as `short` then says, in place of one that is not known now."""
    is_none: bool = False
    """Whether there is no such figure; such a tile is left out where name and value are on one line."""

    @property
    def style(self) -> str:
        """How the figure is drawn."""
        return "bold $error" if not self.good else "bold" if self.own else MUTED


def build_tiles(state: RunState, plan: Plan | None, tokens: int, now: float, span: float) -> list[list[Tile]]:
    """Return two rows of figures: of the last ten seconds, with the window or the quantiles of the window.

    A server that does not answer or has exited has no current figures.

    Args:
        state: The state of the run.
        plan: What was launched, for the published figures of the pair.
        tokens: How many tokens are drafted per step.
        now: The present time, in seconds since the epoch.
        span: The seconds of the window.
    """
    last = state.readings[-1] if state.readings else None
    fresh = last is not None and state.exit is None and now - last.at <= MAX_GAP
    recent = state.window(RECENT, now) if fresh else None
    window = state.mean(span, now)
    minutes = f"{span / 60:.0f} min"
    tok_s, tok_s_note = (format_number(rates.tok_s if rates else None) for rates in (recent, window))
    steps_s, steps_s_note = (format_number(rates.steps_s if rates else None) for rates in (recent, window))
    length, length_note = (format_number(rates.acceptance_length if rates else None, 2) for rates in (recent, window))
    acceptance, acceptance_note = (format_percent(rates.acceptance if rates else None, 1) for rates in (recent, window))
    most = f"of {tokens + 1}, " if tokens else ""
    prefix = format_percent(window.prefix_hit if window else None, 1)
    length_tile = Tile("accept length", length, f"{most}{length_note}", "AL", 9)
    acceptance_tile = Tile("acceptance", acceptance, acceptance_note, "acceptance", 19)
    if recent is None and window is None and (logged := state.logged_speculation):
        length_tile, acceptance_tile = _build_logged(logged, most, now)
    published = _build_published(state, plan, window)
    rates = [
        Tile(f"tok/s mean {RECENT:.0f} s", tok_s, f"{tok_s_note} in {minutes}", "tok/s", 14),
        Tile("steps/s", steps_s, f"{steps_s_note} in {minutes}", "steps/s", 15, rank=2),
        length_tile,
        acceptance_tile,
    ]
    if recent is None and window:
        means = (tok_s_note, steps_s_note, length_note, acceptance_note)
        rates = [_show_past(tile, mean, minutes) for tile, mean in zip(rates, means, strict=True)]
    return [
        [
            *rates,
            (_build_processors(state, plan, now, published) or published)._replace(rank=1),
        ],
        [
            _build_latency("TTFT", 18, state.ttft(span, now)),
            _build_latency("TPOT", 17, state.tpot(span, now))._replace(rank=1),
            _build_queue(last if fresh else None, window),
            Tile("prefix hits", prefix, f"in {minutes}", "prefix", 14, rank=2),
            _build_memory(state, now),
        ],
    ]


def _show_past(tile: Tile, mean: str, minutes: str) -> Tile:
    """Return the tile with its mean over the window for a single line, where nothing is known of the present."""
    short = f"{tile.short} {minutes}"
    return tile._replace(short=short, past=mean, columns=len(short) + len(mean) + 2)


def _build_logged(logged: SpeculationLogged, most: str, now: float) -> tuple[Tile, Tile]:
    """Return what the log says of speculation, where /metrics says nothing: of ten seconds that ended some time ago."""
    age = max(0.0, now - logged.at)
    source = "by the log" if age < _LOGGED_OFTEN else f"by the log, {format_duration(age)} ago"
    share = logged.accepted / logged.drafted if logged.drafted else None
    return (
        Tile("accept length", format_number(logged.acceptance_length, 2), f"{most}{source}", "AL log", 14),
        Tile("acceptance", format_percent(share, 1), source, "acc. log", 17),
    )


def _build_queue(last: CounterReading | None, window: Rates | None) -> Tile:
    """Return how many requests run and wait, and how many were preempted in the window."""
    if last is None:
        return Tile("run/wait/preempt", UNKNOWN, "", "queue", 13)
    preempted = format_number(window.preemptions if window else None, 0)
    running, waiting = (format_number(n, 0) for n in (last.counters.running, last.counters.waiting))
    counts = f"{running}/{waiting}/{preempted}"
    return Tile("run/wait/preempt", counts, "", "queue", 13, good=not window or (window.preemptions or 0.0) < 1)


def _build_memory(state: RunState, now: float) -> Tile:
    memory = state.memory.latest(now, MAX_GAP) if state.exit is None else None
    if memory is None:
        return Tile("memory", UNKNOWN, "", "memory", 17)
    share = format_percent(memory.used / memory.total) if memory.total else ""
    return Tile(f"memory {memory.source}", format_gib(memory.used), share, "memory", 17)


def _build_processors(state: RunState, plan: Plan | None, now: float, published: Tile) -> Tile | None:
    """Return the processors that a server without a GPU keeps busy, where there are no published figures to show."""
    last = state.processors.latest(now, MAX_GAP) if state.exit is None and not state.gpus else None
    if published.value != UNKNOWN or state.gpus:
        return None
    if last is None:
        return Tile("processor", UNKNOWN, "", "CPU", 23) if plan and plan.on_cpu else None
    return Tile(
        "processor", f"{last.busy:.1f} of {pluralize(last.total, 'core')}", pluralize(last.threads, "thread"), "CPU", 23
    )


def _build_published(state: RunState, plan: Plan | None, window: Rates | None) -> Tile:
    """Return the run against the nearest published figures: the first that is outside its range, else the speed.

    Figures of another set-up are shown with what they are of, and nothing is judged by them.
    """
    none = Tile("published", UNKNOWN, "no figures", "band", 23, is_none=True)
    if plan is None or plan.synthetic:
        return none
    speculative = plan.num_speculative_tokens > 0
    band = choose_published_figures(plan.expected, speculative=speculative)
    if band is None:
        return none
    comparisons = compare_with_published(band, window, state.finished.requests, speculative=speculative)
    if band.set_up or not comparisons:
        name, bounds = list_published_ranges(band, speculative=speculative)[0]
        of = band.set_up.replace(" profile", "")  # room for 23 cells
        value = f"{_format_bounds(name, *bounds)} {of}".rstrip()
        return Tile("published", value, name, "band", 23, own=not band.set_up)
    reading = next((reading for reading in comparisons if reading.position != "within"), comparisons[0])
    value = f"{reading.position} {_format_bounds(reading.name, reading.low, reading.high)}"
    return Tile("published", value, reading.name, "band", 23, good=reading.position != "below")


def _format_bounds(name: str, low: float, high: float) -> str:
    first, last = (format_percent(bound) if name == "acceptance" else f"{bound:g}" for bound in (low, high))
    return first if first == last else f"{first} to {last}"


def _build_latency(name: str, columns: int, histogram: Histogram | None) -> Tile:
    """Return the median and the 95th percentile of a histogram, and of how many requests; of a few, their mean."""
    if histogram and histogram.total > 0 and 0 < (count := sum(histogram.counts)) < _FEWEST:
        value, unit = _format_seconds(histogram.total / count)
        return Tile(f"{name} mean", f"{value} {unit}", pluralize(round(count), "request"), name, columns)
    middle, high = (estimate_quantile(histogram, part) if histogram else None for part in (0.5, 0.95))
    if histogram is None or middle is None or high is None:
        return Tile(f"{name} p50/p95", UNKNOWN, "", name, columns)
    (middle_text, unit), (high_text, same) = format_quantile(middle), format_quantile(high)
    both = f"{middle_text}/{high_text} {unit}" if unit == same else f"{middle_text} {unit}/{high_text} {same}"
    return Tile(f"{name} p50/p95", both, pluralize(round(sum(histogram.counts)), "request"), name, columns)


def format_quantile(value: Quantile) -> tuple[str, str]:
    """Return a quantile as `85`, `ms` or `1.2`, `s`; as a bound where the histogram says no more."""
    if value.high is None:
        sign, bound = ">", value.low
    else:
        sign, bound = ("<", value.high) if value.low == 0 else ("", value.value)
    seconds, unit = _format_seconds(bound)
    return f"{sign}{seconds}", unit


def _format_seconds(seconds: float) -> tuple[str, str]:
    if seconds >= 0.9995:
        return f"{seconds:.1f}", "s"
    return f"{seconds * 1000:.{1 if seconds < 0.01 else 0}f}", "ms"


class Tiles(Widget):
    """The figures in two rows of equal columns, so that nothing jumps when a number grows.

    Each row takes two lines, names above values; in a widget of two lines name and value share one.
    """

    rows: reactive[Sequence[Sequence[Tile]]] = reactive(())

    def __init__(self) -> None:
        super().__init__(id="tiles")

    def show(self, rows: Sequence[Sequence[Tile]]) -> None:
        """Replace the figures."""
        self.rows = rows

    def render(self) -> RenderResult:
        compact = self.size.height < 2 * len(self.rows)
        lines: list[Content] = []
        for tiles in self.rows:
            row = leave_out(tiles, self.size.width) if compact else tiles
            widths = _widths([tile.columns if compact else 1 for tile in row], self.size.width)
            if compact:
                lines.append(_join([_short(tile, width) for tile, width in zip(row, widths, strict=True)]))
                continue
            names = [
                (truncate(tile.name, width - 1).ljust(width), MUTED) for tile, width in zip(row, widths, strict=True)
            ]
            lines.append(Content.assemble(*names))
            lines.append(_join([_value(tile, width) for tile, width in zip(row, widths, strict=True)]))
        return Content("\n").join(lines)


def leave_out(row: Sequence[Tile], width: int) -> list[Tile]:
    """Return the tiles of a row that say something and fit; half a tile says nothing."""
    tiles = [tile for tile in row if not tile.is_none]
    while sum(tile.columns for tile in tiles) > max(width, 1) + _TIGHT and any(tile.rank for tile in tiles):
        tiles.remove(max(tiles, key=lambda tile: tile.rank))
    return tiles


def _widths(shares: Sequence[int], width: int) -> list[int]:
    """Return the widths of columns that share `width`."""
    ends = [width * end // max(1, sum(shares)) for end in accumulate(shares)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def _join(parts: Sequence[Content]) -> Content:
    return Content("").join(parts)


def _value(tile: Tile, width: int) -> Content:
    note = tile.note if len(tile.value) + len(tile.note) + 2 <= width else ""
    value = truncate(tile.value, width - 1)
    return Content.assemble((value, tile.style), (f" {note}".ljust(width - len(value)), MUTED))


def _short(tile: Tile, width: int) -> Content:
    name = truncate(tile.short or tile.name, width - 1)
    value = truncate(tile.past or tile.value, max(0, width - len(name) - 2))
    padding = " " * max(0, width - len(name) - len(value) - 1)
    return Content.assemble((f"{name} ", MUTED), (value, tile.style), padding)
