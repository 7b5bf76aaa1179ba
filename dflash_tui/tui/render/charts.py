"""Run state -> the lines of the four charts. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dflash_tui.common.formatting import GIB, format_number, format_percent, format_usage, pluralize
from dflash_tui.events import GpuLoad, GpusSampled
from dflash_tui.planning.plan import Plan
from dflash_tui.run_state.series import MAX_GAP, CounterReading
from dflash_tui.run_state.state import RunState, sample_series
from dflash_tui.tui.widgets.chart import ChartLine, round_axis_limit
from dflash_tui.vllm_output.metrics import Rates

# The order in which a key goes through them where there is room for one only.
NAMES = ("tok_s", "acceptance", "memory", "gpu")
GPU_LOAD, _CPU_LOAD = "GPU %", "CPU %"
_A, _B, _C = "series-a", "series-b", "series-c"


def build_chart_lines(
    state: RunState, now: float, span: float, columns: int
) -> dict[str, tuple[list[ChartLine], float | None]]:
    """Return the lines of each chart over the last `span` seconds, and the height of its axis, or None to keep it."""
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
    # Prompts are read much faster than answers are made, and would flatten their line.
    by = round_axis_limit(max(1.0, _peak(read) / max(_peak(generated), 10.0)))
    name = "prefill" if by == 1 else f"prefill ÷ {by:g}"
    return [ChartLine(generated, _A, "generation"), ChartLine([value / by for value in read], _C, name)]


def _acceptance(rates: Sequence[Rates | None]) -> list[ChartLine]:
    """Return acceptance in per cent; the acceptance length says the same on another scale and has its tile."""
    return [ChartLine(_numbers(rates, lambda r: None if r.acceptance is None else r.acceptance * 100), _B)]


def _memory(state: RunState, now: float, span: float, columns: int) -> tuple[list[ChartLine], float | None]:
    """Return GiB in use, and how full the KV cache is, full being the top."""
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
    """Return power and clock in per cent of their limits, and °C: of several GPUs all, the slowest, the hottest."""
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
    values = (_power, _clock, _degrees)
    return [
        ChartLine(sample_series(state.gpus, now, span, columns, lambda sample, v=value: v(sample.gpus)), color, name)  # type: ignore[misc]
        for value, color, name in zip(values, (_A, _C, _B), names, strict=True)
    ]


def name_load_chart(state: RunState, plan: Plan | None) -> str:
    """Return the title of the chart that shows how busy the GPUs are, or the processors where there is none.

    A plan for the CPU tells it before the first sample does.
    """
    return _CPU_LOAD if not state.gpus and (state.processors or (plan and plan.on_cpu)) else GPU_LOAD


def _processors(state: RunState, now: float, span: float, columns: int) -> list[ChartLine]:
    """Return the processors that the server keeps busy, in per cent of those that it may run on."""
    if not state.processors:
        return []
    last = state.processors.latest(now, MAX_GAP)
    name = f"{last.busy:.1f} of {pluralize(last.total, 'core')}, {pluralize(last.threads, 'thread')}" if last else ""
    values = sample_series(
        state.processors, now, span, columns, lambda sample: 100 * sample.busy / sample.total if sample.total else None
    )
    return [ChartLine(values, _A, name)]


def _power(gpus: Sequence[GpuLoad]) -> float | None:
    drawn, limit = _sum([gpu.power_w for gpu in gpus]), _sum([gpu.power_limit_w for gpu in gpus])
    return None if drawn is None or not limit else 100 * drawn / limit


def _clock(gpus: Sequence[GpuLoad]) -> float | None:
    shares = [100 * gpu.clock_mhz / gpu.clock_max_mhz for gpu in gpus if gpu.clock_mhz and gpu.clock_max_mhz]
    return min(shares, default=None)


def _degrees(gpus: Sequence[GpuLoad]) -> float | None:
    return max((gpu.temperature_c for gpu in gpus if gpu.temperature_c is not None), default=None)


def _sum(values: Sequence[float | None], by: float = 1.0) -> float | None:
    """Return the sum of values times `by`, None unless all are known."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) * by if numbers and len(numbers) == len(values) else None


def _peak(values: Sequence[float]) -> float:
    return max((value for value in values if math.isfinite(value)), default=0.0)
