"""The figures of a running server: what they are, and a widget that lays them out in two rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from textual.app import RenderResult
from textual.content import Content
from textual.widget import Widget

from dflash_tui.core.events import Histogram
from dflash_tui.core.histogram import Quantile, quantile
from dflash_tui.core.state import RunState
from dflash_tui.core.track import LONGEST_GAP
from dflash_tui.core.vllm_metrics import Rates
from dflash_tui.text import UNKNOWN, cut, gib, number, percent
from dflash_tui.tui.widgets import MUTED

RECENT = 10.0


class Tile(NamedTuple):
    """One figure: its name, value and a note that is dropped when there is no room; `good` False marks it."""

    name: str
    value: str
    note: str = ""
    good: bool = True


def tiles(state: RunState, tokens: int, now: float, span: float) -> list[list[Tile]]:
    """Return two rows of figures: of the last ten seconds, with the mean or the quantiles of the window.

    A server that is silent or gone has no present figures. `tokens` is how many are drafted per step.
    """
    last = state.readings[-1] if state.readings else None
    fresh = last is not None and state.exit is None and now - last.at <= LONGEST_GAP
    recent = state.window(RECENT, now) if fresh else None
    mean = state.window(span, now)
    minutes = f"{span / 60:.0f} min"
    memory = state.memory[-1] if state.memory else None
    counters = last.counters if last and fresh else None
    speeds = [
        Tile(f"tok/s {RECENT:.0f} s", number(_of(recent, "tok_s")), f"{number(_of(mean, 'tok_s'))} in {minutes}"),
        Tile("steps/s", number(_of(recent, "steps_s")), number(_of(mean, "steps_s"))),
        Tile("accept len", number(_of(recent, "acceptance_length"), 2), f"of {tokens + 1}" if tokens else ""),
        Tile("acceptance", percent(_of(recent, "acceptance"), 1), percent(_of(mean, "acceptance"), 1)),
    ]
    queue = f"{counters.running} / {counters.waiting} / {mean.preemptions if mean else 0:.0f}" if counters else UNKNOWN
    return [
        speeds,
        [
            _latency("TTFT", state.ttft(span, now)),
            _latency("TPOT", state.tpot(span, now)),
            Tile("run/wait/preempt", queue),
            Tile("prefix hits", percent(_of(mean, "prefix_hit"), 1)),
            Tile(
                f"memory {memory.source}" if memory else "memory",
                gib(memory.used if memory else None),
                percent(memory.used / memory.total) if memory and memory.total else "",
            ),
        ],
    ]


def _of(rates: Rates | None, figure: str) -> float | None:
    value: float | None = getattr(rates, figure, None)
    return value


def _latency(name: str, histogram: Histogram | None) -> Tile:
    """Return the median and the 95th percentile of a histogram, and of how many requests."""
    middle, high = (quantile(histogram, share) if histogram else None for share in (0.5, 0.95))
    if histogram is None or middle is None or high is None:
        return Tile(f"{name} p50/p95", UNKNOWN)
    return Tile(f"{name} p50/p95", f"{seconds(middle)} / {seconds(high)}", f"n={sum(histogram.counts):.0f}")


def seconds(value: Quantile) -> str:
    """Return a quantile as `85 ms` or `1.2 s`; as a bound where the histogram says no more."""
    if value.high is None:
        return f">{_seconds(value.low)}"
    return f"<{_seconds(value.high)}" if value.low == 0 else _seconds(value.value)


def _seconds(value: float) -> str:
    if value < 0.01:
        return f"{value * 1000:.1f} ms"
    return f"{value * 1000:.0f} ms" if value < 0.9995 else f"{value:.1f} s"


class Tiles(Widget):
    """The figures in two rows of equal columns, so that nothing jumps when a number grows.

    Each row takes two lines, names above values; in a widget of two lines name and value share one.
    """

    def __init__(self) -> None:
        super().__init__(id="tiles")
        self.rows: Sequence[Sequence[Tile]] = ()

    def show(self, rows: Sequence[Sequence[Tile]]) -> None:
        """Replace the figures."""
        if rows != self.rows:
            self.rows = rows
            self.refresh()

    def render(self) -> RenderResult:
        compact = self.size.height < 2 * len(self.rows)
        lines: list[Content] = []
        for row in self.rows:
            ends = [self.size.width * (place + 1) // max(1, len(row)) for place in range(len(row))]
            widths = [end - start for start, end in zip([0, *ends], ends, strict=False)]
            if compact:
                lines.append(_joined([_short(tile, width) for tile, width in zip(row, widths, strict=True)]))
                continue
            names = [(cut(tile.name, width - 1).ljust(width), MUTED) for tile, width in zip(row, widths, strict=True)]
            lines.append(Content.assemble(*names))
            lines.append(_joined([_value(tile, width) for tile, width in zip(row, widths, strict=True)]))
        return Content("\n").join(lines)


def _joined(parts: Sequence[Content]) -> Content:
    return Content("").join(parts)


def _value(tile: Tile, width: int) -> Content:
    note = tile.note if len(tile.value) + len(tile.note) + 2 <= width else ""
    value = cut(tile.value, width - 1)
    style = "bold" if tile.good else "bold $error"
    return Content.assemble((value, style), (f" {note}".ljust(width - len(value)), MUTED))


def _short(tile: Tile, width: int) -> Content:
    name = cut(tile.name.split()[0] if len(tile.name) + len(tile.value) + 2 > width else tile.name, width - 1)
    value = cut(tile.value, max(0, width - len(name) - 2))
    rest = " " * max(0, width - len(name) - len(value) - 1)
    return Content.assemble((f"{name} ", MUTED), (value, "bold" if tile.good else "bold $error"), rest)
