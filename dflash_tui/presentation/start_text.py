"""The sentences on how long arms take to start, and when the later one has caught up."""

from __future__ import annotations

from dflash_tui.common.formatting import format_duration, format_percent, pluralize
from dflash_tui.experiments.analysis.report import Comparison
from dflash_tui.experiments.analysis.starts import BreakEven

_CACHED = "cached start"


def describe_starts(comparison: Comparison, a: str, b: str) -> list[str]:
    """Return how long both arms took to start and for the first request; `a` and `b` are their names."""
    start, lines = comparison.start, list[str]()
    means = [
        f"{name} {starts}"
        for name, cold, cached, without in zip((a, b), start.cold, start.cached, start.uncached, strict=True)
        if (starts := _join_starts(comparison, cold, cached, without=without))
    ]
    if means:
        lines.append(f"time to the first answer: {'; '.join(means)}")
    if None not in start.filling:
        ours, theirs = map(format_duration, start.filling)
        lines.append(f"the first start of each, which filled the caches and is in no verdict: {a} {ours}, {b} {theirs}")
    if start.first_request != (None, None):
        ours, theirs = map(_format_request, start.first_request)
        lines.append(f"time of the first request: {a} {ours}, {b} {theirs}")
    return lines


def _join_starts(comparison: Comparison, cold: float | None, cached: float | None, *, without: bool) -> str:
    """Return the starts of an arm, each with what its compile cache was; empty where none was seen."""
    if without:  # all its starts are alike
        return f"{format_duration(cold or cached)} (no compile cache)" if cold or cached else ""
    kind = " cached" if _has_cached_starts(comparison) else ""
    starts = [f"{format_duration(cold)} cold"] if cold else []
    return ", ".join([*starts, f"{format_duration(cached)}{kind}"] if cached else starts)


def _format_request(seconds: float | None) -> str:
    """Return the seconds of a request, below a minute with a tenth."""
    return f"{seconds:.1f} s" if seconds is not None and seconds < 60 else format_duration(seconds)


def describe_break_even(comparison: Comparison, even: BreakEven, a: str, b: str) -> str:
    """Return when the arm that starts later has caught up; `a` and `b` are the names of the arms."""
    late = a if even.by == comparison.a else b
    start = ", cold start" if even.cold else f", {_CACHED}" if _has_cached_starts(comparison) else ""
    event = "it is ready" if comparison.start.first_request == (None, None) else "its first request is answered"
    later = f"{event} {format_duration(even.seconds)} later{_format_spread(even)}"
    if even.tokens is not None and even.requests is not None:
        bounds = f"95 %: {_format_tokens(even.low)} to {_format_tokens(even.high)}"
        requests = pluralize(round(even.requests), "request")
        after = f"{_format_tokens(even.tokens)} output tokens ({bounds}), about {requests}"
    elif even.low is None:
        after = f"none, since {late} is not the faster one"
    elif even.low < 1:  # within the interval it may pay at once, or never
        after = "too noisy to tell"
    else:
        after = f"never, or not before {_format_tokens(even.low)} output tokens"
    return f"break-even of {late}{start}: {after}; {later}"


def _format_spread(even: BreakEven) -> str:
    """Return how far starts vary, which is in the interval; nothing in reports of before."""
    if even.start_cv is None:
        return ""
    how = "assumed " if even.start_df is None else ""
    return f" (CV of starts {how}{format_percent(even.start_cv)})"


def _has_cached_starts(comparison: Comparison) -> bool:
    """Whether a start that is not cold found a compile cache: where none is cold, there may be none."""
    start = comparison.start
    return any(start.uncached) or start.cold != (None, None)


def _format_tokens(count: float | None) -> str:
    return "no limit" if count is None else f"{float(f'{count:.2g}'):,.0f}"
