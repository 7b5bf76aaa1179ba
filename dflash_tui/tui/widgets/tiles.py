"""The figures of a running server, and the widget that lays them out in two rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from textual.app import RenderResult
from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from dflash_tui.common.formatting import UNKNOWN, format_gib, format_number, format_percent, truncate
from dflash_tui.events import Histogram
from dflash_tui.planning.plan import Plan
from dflash_tui.run_state.counters import MAX_GAP, CounterReading
from dflash_tui.run_state.speculation import choose_published_figures, compare_with_published
from dflash_tui.run_state.state import RunState
from dflash_tui.tui.widgets.basic import MUTED
from dflash_tui.vllm_output.histogram import Quantile, estimate_quantile
from dflash_tui.vllm_output.metrics import Rates

RECENT = 10.0


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
    window = state.window(span, now)
    minutes = f"{span / 60:.0f} min"
    tok_s, tok_s_note = (format_number(rates.tok_s if rates else None) for rates in (recent, window))
    steps_s, steps_s_note = (format_number(rates.steps_s if rates else None) for rates in (recent, window))
    length, length_note = (format_number(rates.acceptance_length if rates else None, 2) for rates in (recent, window))
    acceptance, acceptance_note = (format_percent(rates.acceptance if rates else None, 1) for rates in (recent, window))
    most = f"of {tokens + 1}, " if tokens else ""
    return [
        [
            Tile(f"tok/s {RECENT:.0f} s", tok_s, f"{tok_s_note} in {minutes}", "tok/s", 14),
            Tile("steps/s", steps_s, f"{steps_s_note} in {minutes}", "steps/s", 15),
            Tile("accept length", length, f"{most}{length_note}", "AL", 9),
            Tile("acceptance", acceptance, acceptance_note, "acceptance", 19),
            _build_published(state, plan, window),
        ],
        [
            _build_latency("TTFT", 18, state.ttft(span, now)),
            _build_latency("TPOT", 17, state.tpot(span, now)),
            _build_queue(last if fresh else None, window),
            Tile(
                "prefix hits", format_percent(window.prefix_hit if window else None, 1), f"in {minutes}", "prefix", 14
            ),
            _build_memory(state, now),
        ],
    ]


def _build_queue(last: CounterReading | None, window: Rates | None) -> Tile:
    """Return how many requests run and wait, and how many were preempted in the window."""
    if last is None:
        return Tile("run/wait/preempt", UNKNOWN, "", "queue", 13)
    preempted = format_number(window.preemptions if window else None, 0)
    counts = f"{last.counters.running}/{last.counters.waiting}/{preempted}"
    return Tile("run/wait/preempt", counts, "", "queue", 13, good=not window or window.preemptions < 1)


def _build_memory(state: RunState, now: float) -> Tile:
    memory = state.memory.latest(now, MAX_GAP) if state.exit is None else None
    if memory is None:
        return Tile("memory", UNKNOWN, "", "memory", 17)
    share = format_percent(memory.used / memory.total) if memory.total else ""
    return Tile(f"memory {memory.source}", format_gib(memory.used), share, "memory", 17)


def _build_published(state: RunState, plan: Plan | None, window: Rates | None) -> Tile:
    """Return the run against published figures: the first figure that is outside their range, else the speed."""
    band = choose_published_figures(plan.expected, plan.mode) if plan and not plan.synthetic else None
    comparisons = compare_with_published(band, window, state.finished.requests) if band else []
    if not comparisons:
        return Tile("published", UNKNOWN, "no data yet" if band else "no figures", "band", 23)
    one = next((reading for reading in comparisons if reading.position != "within"), comparisons[0])
    low, high = (format_percent(x) if one.name == "acceptance" else f"{x:g}" for x in (one.low, one.high))
    good = one.position != "below"
    return Tile("published", f"{one.position} {low} to {high}", one.name, "band", 23, good=good)


def _build_latency(name: str, columns: int, histogram: Histogram | None) -> Tile:
    """Return the median and the 95th percentile of a histogram, and of how many requests."""
    middle, high = (estimate_quantile(histogram, part) if histogram else None for part in (0.5, 0.95))
    if histogram is None or middle is None or high is None:
        return Tile(f"{name} p50/p95", UNKNOWN, "", name, columns)
    (one, unit), (other, same) = format_quantile(middle), format_quantile(high)
    both = f"{one}/{other} {unit}" if unit == same else f"{one} {unit}/{other} {same}"
    return Tile(f"{name} p50/p95", both, f"n={sum(histogram.counts):.0f}", name, columns)


def format_quantile(value: Quantile) -> tuple[str, str]:
    """Return a quantile as `85`, `ms` or `1.2`, `s`; as a bound where the histogram says no more."""
    if value.high is None:
        sign, shown = ">", value.low
    else:
        sign, shown = ("<", value.high) if value.low == 0 else ("", value.value)
    if shown >= 0.9995:
        return f"{sign}{shown:.1f}", "s"
    return f"{sign}{shown * 1000:.{1 if shown < 0.01 else 0}f}", "ms"


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
        for row in self.rows:
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


def _widths(shares: Sequence[int], width: int) -> list[int]:
    """Return the widths of columns that share `width`."""
    ends = [width * end // max(1, sum(shares)) for end in accumulate(shares)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def _join(parts: Sequence[Content]) -> Content:
    return Content("").join(parts)


def _value(tile: Tile, width: int) -> Content:
    note = tile.note if len(tile.value) + len(tile.note) + 2 <= width else ""
    value = truncate(tile.value, width - 1)
    style = "bold" if tile.good else "bold $error"
    return Content.assemble((value, style), (f" {note}".ljust(width - len(value)), MUTED))


def _short(tile: Tile, width: int) -> Content:
    name = truncate(tile.short or tile.name, width - 1)
    value = truncate(tile.value, max(0, width - len(name) - 2))
    rest = " " * max(0, width - len(name) - len(value) - 1)
    return Content.assemble((f"{name} ", MUTED), (value, "bold" if tile.good else "bold $error"), rest)
