"""Time series in a widget, drawn by plotext.

plotext 6 draws in C++ and calls abort() on bad input instead of raising an exception: a NaN, an infinity or a point
outside the limits kills the process. All values pass through `fit_columns` first, which yields only finite values
inside the limits, at most one per column.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import accumulate
from types import ModuleType
from typing import NamedTuple

from rich.text import Text
from textual.app import RenderResult
from textual.color import Color
from textual.content import Content
from textual.widget import Widget

from dflash_tui.common.formatting import GIB, format_age, format_number, format_percent, format_usage, pluralize
from dflash_tui.events import GpusSampled
from dflash_tui.planning.plan import Plan
from dflash_tui.run_state.series import MAX_GAP, CounterReading
from dflash_tui.run_state.state import RunState, sample_series
from dflash_tui.vllm_output.metrics import Rates

_HUGE = 1e15
_AXIS = 6
# The characters of the second and later lines: lines differ in shape, not only in colour.
_SHAPES = ("•", "+")


@cache
def load_plotext() -> ModuleType:
    """Import and configure plotext; deferred because the import takes 0.1 s."""
    module = importlib.import_module("plotext")
    module.terminal.limit(False, False)
    for axis in (0, 1):
        module.figure.axes(False, axis=axis, side=1)
    return module


def choose_marker() -> str:
    """Return plotext's marker: braille, or quadrant blocks for fonts without braille (pictures)."""
    return "hd" if os.environ.get("DFLASH_TUI_MARKER") in {"block", "hd"} else "braille"


def fit_columns(values: Sequence[float], columns: int, low: float, high: float) -> Iterator[tuple[float, float]]:
    """Yield (x, mean) for each column with a finite value, clamped to the limits."""
    step = max(1.0, len(values) / max(1, columns))
    start = 0.0
    while start < len(values):
        last = max(int(start) + 1, int(start + step))
        finite = [max(-_HUGE, min(value, _HUGE)) for value in values[int(start) : last] if math.isfinite(value)]
        if finite:
            yield start, min(max(sum(finite) / len(finite), low), high)
        start += step


def split_line(points: Sequence[tuple[float, float]], gap: float, step: float) -> Iterator[list[tuple[float, float]]]:
    """Yield the pieces of a line between gaps wider than `gap`, dropping interior points of flat stretches.

    Points that differ by less than `step`, the height of a dot, are flat; each point costs plotext 50 µs.
    """
    piece: list[tuple[float, float]] = []
    for x, y in points:
        if piece and x - piece[-1][0] > gap:
            yield piece
            piece = []
        if len(piece) > 1 and abs(piece[-2][1] - y) < step and abs(piece[-1][1] - y) < step:
            piece[-1] = (x, piece[-1][1])
        else:
            piece.append((x, y))
    if piece:
        yield piece


def round_axis_limit(value: float) -> float:
    """Return the axis limit at or above `value`: 1, 2, 2.5, 4, 5, 6 or 8 times a power of ten."""
    if not math.isfinite(value) or value <= 0:
        return 1.0
    value = min(value, _HUGE)
    base = 10.0 ** math.floor(math.log10(value))
    return next((base * step for step in (1, 2, 2.5, 4, 5, 6, 8) if base * step >= value), base * 10)


def choose_ticks(top: float, parts: int) -> list[float]:
    """Return the tick positions of an axis from 0 to `top`: fractions of a round top, else round numbers."""
    step = top / parts if math.isclose(round_axis_limit(top), top) else round_axis_limit(top / (parts + 1))
    return [step * part for part in range(parts + 1) if step * part <= top * (1 + 1e-9)]


NOTHING_YET = "nothing measured yet"


class ChartLine(NamedTuple):
    """A line of a chart: values, theme variable of its colour, name in the title."""

    values: Sequence[float]
    color: str
    name: str = ""


class Chart(Widget):
    """Draws lines on an axis from zero.

    `top` is the minimum height of the axis, or its exact height if `fixed`. `nothing` is shown while no value is known.
    """

    DEFAULT_CSS = "Chart { width: 1fr; height: 1fr; }"

    def __init__(
        self,
        title: str,
        *,
        top: float,
        fixed: bool = False,
        nothing: str = NOTHING_YET,
        id: str,  # noqa: A002 - Textual's name
    ) -> None:
        super().__init__(id=id)
        self.title, self.border_title = title, Content(title)
        self.top, self.fixed, self.nothing = top, fixed, nothing
        self.lines: Sequence[ChartLine] = ()
        self.span = 600.0
        self.labels: Sequence[str] = ()

    @property
    def columns(self) -> int:
        """The number of values that one row can show."""
        return max(1, self.size.width - _AXIS)

    def show(
        self, lines: Sequence[ChartLine], span: float, top: float | None = None, labels: Sequence[str] = ()
    ) -> None:
        """Replace the lines; `span` is the seconds of the time axis, NaN leaves a gap.

        With `labels` the axis is labelled with them instead of time, as far as they fit.
        """
        self.lines, self.span, self.top, self.labels = lines, span, top or self.top, tuple(labels)
        named = [(shape or "━", line) for shape, line in zip(_shapes(len(lines)), lines, strict=True) if line.name]
        parts = [(f"  {sign} {line.name}", f"${line.color}") for sign, line in named]
        self.border_title = Content.assemble(self.title, *parts)
        self.refresh()

    def rename(self, title: str, nothing: str) -> None:
        """Set the title and the text for no values, for the next `show`."""
        self.title, self.nothing = title, nothing

    def render(self) -> RenderResult:
        return self.draw(*self.size)

    def draw(self, width: int, height: int) -> Text | Content:
        """Return the drawing in `width` cells and `height` rows."""
        if width <= 10 or height <= 2:
            return Content("")
        top = self._height()
        if top is None:
            return Content("\n" * (height // 2) + self.nothing.center(width))
        return Text.from_ansi(self._plot(width, height, top), no_wrap=True)

    def _height(self) -> float | None:
        peaks = [value for line in self.lines for value in line.values if math.isfinite(value)]
        if not peaks:
            return None
        return max(1e-3, min(self.top, _HUGE)) if self.fixed else round_axis_limit(max(*peaks, self.top))

    def _plot(self, width: int, height: int, top: float) -> str:
        background, library = self.background_colors[1], load_plotext()
        if background.ansi is None:
            ink = _rgb(self.app.theme_variables["foreground"], background, 0.55)
            library.add_theme("app", canvas=background.rgb, text=library.pixel(ink, background.rgb))
        else:  # the terminal's own colours are unknown, so nothing can be blended with them
            library.add_theme("app", canvas=None, text=None)
        figure = library.figure
        figure.clear.data()  # everything else is set again below
        figure.plot_size(width, height)
        figure.theme("app")
        last = max(max(len(line.values) for line in self.lines) - 1, 1)
        figure.ruler("y").lim(0, top)
        marks = choose_ticks(top, 1 if height < 7 else 2 if height < 12 else 4)
        figure.ruler("y").ticks(marks, [_format_tick(mark) for mark in marks])
        figure.ruler("x").lim(0, last)
        figure.ruler("x").ticks(*self._below(width, last))
        # The first line is the most important, so it is drawn last, over the others.
        for line, shape in reversed(list(zip(self.lines, _shapes(len(self.lines)), strict=True))):
            self._line(line, shape or choose_marker(), width, top, background)
        return str(figure.build().string())

    def _below(self, width: int, last: int) -> tuple[list[float], list[str]]:
        if self.labels:
            every = -(-sum(len(label) + 2 for label in self.labels) // max(1, width - _AXIS))
            places = range(0, min(last + 1, len(self.labels)), every)
            return [float(place) for place in places], [self.labels[place] for place in places]
        parts = 2 if width < 60 else 4
        ages = [format_age(self.span * (1 - part / parts)) for part in range(parts + 1)]
        return [last * part / parts for part in range(parts + 1)], ages

    def _line(self, line: ChartLine, shape: str, width: int, top: float, background: Color) -> None:
        columns = max(1, width - _AXIS)
        points = list(fit_columns(line.values, columns, 0, top))
        if not points:
            return
        library = load_plotext()
        color = _rgb(self.app.theme_variables[line.color], background, 1)
        drawn = library.marker(shape, pixel=library.pixel(color, background.rgb if background.ansi is None else None))
        pieces = list(split_line(points, 1.5 * max(1.0, len(line.values) / columns), top / (4 * self.size.height or 1)))
        joined = [point for piece in pieces for point in piece]
        signal = library.figure.signal([x for x, _ in joined], [y for _, y in joined], marker=drawn)
        signal.density("full", scope="line").lines()
        for start in list(accumulate(len(piece) for piece in pieces))[:-1]:
            signal.line(start, False)
        library.figure.draw(signal)


def _shapes(count: int) -> list[str]:
    return ["", *(_SHAPES[place % len(_SHAPES)] for place in range(count - 1))][:count]


def _format_tick(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:g}" if value < 1e5 else f"{value:.1e}"


def _rgb(color: str, background: Color, alpha: float) -> tuple[int, int, int]:
    return background.blend(Color.parse(color), alpha).rgb


# The order in which a key cycles through them if only one fits.
NAMES = ("tok_s", "acceptance", "memory", "gpu")
GPU_LOAD, _CPU_LOAD = "GPU %", "CPU %"
_A, _B, _C = "series-a", "series-b", "series-c"


def build_chart_lines(
    state: RunState, now: float, span: float, columns: int
) -> dict[str, tuple[list[ChartLine], float | None]]:
    """Return the lines of each chart over the last `span` seconds, and its axis limit or None to keep it."""
    rates = state.readings.columns(now, span, columns)
    return {
        "tok_s": (_speeds(rates), None),
        "acceptance": (_acceptance(rates), None),
        "memory": _memory(state, now, span, columns),
        "gpu": (_gpu(state, now, span, columns) or _processors(state, now, span, columns), None),
    }


def _numbers(rates: Sequence[Rates | None], value: Callable[[Rates], float | None]) -> list[float]:
    values = [None if reading is None else value(reading) for reading in rates]
    return [math.nan if reading is None else reading for reading in values]


def _speeds(rates: Sequence[Rates | None]) -> list[ChartLine]:
    generated, read = _numbers(rates, lambda r: r.tok_s), _numbers(rates, lambda r: r.prefill_s)
    # Prefill is much faster than decode and would flatten its line.
    by = round_axis_limit(max(1.0, _peak(read) / max(_peak(generated), 10.0)))
    name = "prefill" if by == 1 else f"prefill ÷ {by:g}"
    return [ChartLine(generated, _A, "generation"), ChartLine([value / by for value in read], _C, name)]


def _acceptance(rates: Sequence[Rates | None]) -> list[ChartLine]:
    """Return acceptance in per cent; the acceptance length is redundant and has its own tile."""
    return [ChartLine(_numbers(rates, lambda r: None if r.acceptance is None else r.acceptance * 100), _B)]


def _memory(state: RunState, now: float, span: float, columns: int) -> tuple[list[ChartLine], float | None]:
    """Return memory in use in GiB, and KV cache usage scaled so that a full cache reaches the top."""
    last = state.memory[-1] if state.memory else None
    top = last.total / GIB if last else 1.0
    used = sample_series(state.memory, now, span, columns, lambda sample: sample.used / GIB)
    lines = [ChartLine(used, _C, "server" if last and last.source in {"GPU", "resident"} else "all in use")]
    whole = sample_series(state.gpus, now, span, columns, _memory_of_all)
    if last and last.source == "GPU" and _peak(whole):
        lines.append(ChartLine(whole, "series-dim", "all in use"))
    filled = sample_series(state.readings, now, span, columns, lambda reading: _kv(reading, top))
    if not all(map(math.isnan, filled)):
        reading = state.readings.latest(now, MAX_GAP)
        share = reading.counters.kv_usage if reading else None
        lines.append(ChartLine(filled, _B, f"KV cache {format_percent(share, 1)} full"))
    return lines, top if last else None


def _kv(reading: CounterReading, top: float) -> float | None:
    share = reading.counters.kv_usage
    return None if share is None else share * top


def _memory_of_all(sample: GpusSampled) -> float | None:
    return _sum([gpu.memory_used for gpu in sample.gpus], 1 / GIB)


def _gpu(state: RunState, now: float, span: float, columns: int) -> list[ChartLine]:
    """Return power and clock in per cent of their limits, and °C: the sum, minimum and maximum over the GPUs."""
    if not state.gpus:
        return []
    last = state.gpus.latest(now, MAX_GAP)
    gpus = last.gpus if last else ()
    power, limit = _sum([gpu.power_w for gpu in gpus]), _sum([gpu.power_limit_w for gpu in gpus])
    clocks = [gpu.clock_mhz for gpu in gpus if gpu.clock_mhz is not None]
    degrees = [gpu.temperature_c for gpu in gpus if gpu.temperature_c is not None]
    names = (
        f"power {format_usage(power, limit, 'W')}",
        format_number(min(clocks) / 1000 if clocks else None, 2, "GHz"),
        format_number(max(degrees, default=None), 0, "°C"),
    )
    return [
        ChartLine(sample_series(state.gpus, now, span, columns, value), color, name)
        for value, color, name in zip((_power, _clock, _degrees), (_A, _C, _B), names, strict=True)
    ]


def name_load_chart(state: RunState, plan: Plan | None) -> str:
    """Return the title of the load chart: GPUs, or CPU cores if there are none.

    A plan for the CPU decides before the first sample.
    """
    return _CPU_LOAD if not state.gpus and (state.processors or (plan and plan.on_cpu)) else GPU_LOAD


def _processors(state: RunState, now: float, span: float, columns: int) -> list[ChartLine]:
    """Return the CPU cores kept busy by the server, in per cent of those it may use."""
    if not state.processors:
        return []
    last = state.processors.latest(now, MAX_GAP)
    name = f"{last.busy:.1f} of {pluralize(last.total, 'core')}, {pluralize(last.threads, 'thread')}" if last else ""
    values = sample_series(
        state.processors, now, span, columns, lambda sample: 100 * sample.busy / sample.total if sample.total else None
    )
    return [ChartLine(values, _A, name)]


def _power(sample: GpusSampled) -> float | None:
    drawn, limit = _sum([gpu.power_w for gpu in sample.gpus]), _sum([gpu.power_limit_w for gpu in sample.gpus])
    return None if drawn is None or not limit else 100 * drawn / limit


def _clock(sample: GpusSampled) -> float | None:
    shares = [100 * gpu.clock_mhz / gpu.clock_max_mhz for gpu in sample.gpus if gpu.clock_mhz and gpu.clock_max_mhz]
    return min(shares, default=None)


def _degrees(sample: GpusSampled) -> float | None:
    return max((gpu.temperature_c for gpu in sample.gpus if gpu.temperature_c is not None), default=None)


def _sum(values: Sequence[float | None], by: float = 1.0) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) * by if numbers and len(numbers) == len(values) else None


def _peak(values: Sequence[float]) -> float:
    return max((value for value in values if math.isfinite(value)), default=0.0)
