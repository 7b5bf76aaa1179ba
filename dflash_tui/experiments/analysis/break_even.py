"""How long each arm takes to start, and after how many tokens the faster one has made up for a later start; pure.

Tokens are seconds lost over seconds saved per token. Both are means of few boots, so that the interval is that of a
quotient (Fieller 1954): of a numerator that is spread as starts are, and a denominator that is spread as the speed is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

from msgspec.structs import replace

from dflash_tui.benchmark.stats import LEVEL, ArmDifference, VariancePart, combine_parts, student_t_quantile
from dflash_tui.experiments.analysis.measures import classify_start, measure_seconds_to_ready, select_measured_boots
from dflash_tui.experiments.analysis.report import PromptRatio
from dflash_tui.experiments.analysis.starts import BreakEven, StartComparison
from dflash_tui.experiments.design import Boot

# A start that is later by less than boots differ anyway, or by less than a second, has nothing to make up for.
_MIN_SHARE, _MIN_SECONDS = 0.05, 1.0
# Starts of one server were seen to vary by 3 to 10 %. No spread below the first is believed of few starts, and where no
# start was repeated the second one stands in.
CLOSEST_STARTS, ASSUMED_STARTS = 0.03, 0.10
_ENOUGH_STARTS = 4


def compare_starts(boots: Sequence[Boot], a: int, b: int) -> StartComparison:
    """Return the mean seconds that the starts and the first requests of two arms took."""
    cold, cached = (
        tuple(_mean(boot.ready for boot in arm) for arm in _select_starts(boots, a, b, cold=state))
        for state in (True, False)
    )
    arms = [select_measured_boots(boots, arm) for arm in (a, b)]
    ours, theirs = (_mean(map(_first_request_seconds, arm)) for arm in arms)
    has_cache = [any(map(classify_start, arm)) for arm in arms]
    uncached = (has_cache[1] and not has_cache[0], has_cache[0] and not has_cache[1])
    filled = [
        [measure_seconds_to_ready(boot) for boot in boots if boot.arm == arm and _has_filled(boot)] for arm in (a, b)
    ]
    return StartComparison(
        (cold[0], cold[1]), (cached[0], cached[1]), (ours, theirs), uncached, (_mean(filled[0]), _mean(filled[1]))
    )


def _has_filled(boot: Boot) -> bool:
    return boot.start == "filling" and not boot.error


def find_break_even(
    boots: Sequence[Boot], a: int, b: int, judged: ArmDifference | None, prompts: Sequence[PromptRatio]
) -> tuple[BreakEven, ...]:
    """Return when the arm that starts later has made up for it, for cold and for cached starts.

    Args:
        boots: the boots of both arms.
        a: the arm that is compared with.
        b: the arm that is judged.
        judged: how far `b` is from `a` in the judged measure; where that is steps/s, AL is the same.
        prompts: the same prompt by prompt.
    """
    break_evens = []
    spread = _measure_start_spread([select_measured_boots(boots, arm) for arm in (a, b)])
    for cold in (True, False):
        arms = [
            [seconds for boot in arm if (seconds := _seconds_to_first_answer(boot)) is not None]
            for arm in _select_starts(boots, a, b, cold=cold)
        ]
        if judged is None or not all(arms):
            continue
        ours, theirs = map(fmean, arms)
        later = theirs - ours
        if abs(later) > max(_MIN_SECONDS, _MIN_SHARE * max(ours, theirs)):
            by, other = (b, a) if later > 0 else (a, b)
            variance = sum(fmean(arm) ** 2 * spread.variance / len(arm) for arm in arms)
            saving = _measure_saving(select_measured_boots(boots, other), judged, prompts, forward=later > 0)
            break_evens.append(
                replace(
                    _compute_break_even(abs(later), VariancePart(variance, spread.df), by, saving, cold=cold),
                    starts=(len(arms[0]), len(arms[1])),
                    start_cv=math.sqrt(spread.variance),
                    start_df=spread.df,
                )
            )
    return tuple(break_evens)


def _measure_start_spread(arms: Sequence[Sequence[Boot]]) -> VariancePart:
    """Return the variance of the logarithms of starts around those of the same arm and kind."""
    groups: dict[tuple[int, str], list[float]] = {}
    for place, arm in enumerate(arms):
        for boot in arm:
            if seconds := _seconds_to_first_answer(boot):
                groups.setdefault((place, classify_start(boot)), []).append(math.log(seconds))
    df = sum(len(logs) - 1 for logs in groups.values())
    if not df:
        return VariancePart(ASSUMED_STARTS**2, None)
    variance = sum((log - fmean(logs)) ** 2 for logs in groups.values() for log in logs) / df
    return VariancePart(max(variance, CLOSEST_STARTS**2 if df < _ENOUGH_STARTS else 0.0), df)


def _select_starts(boots: Sequence[Boot], a: int, b: int, *, cold: bool) -> tuple[list[Boot], list[Boot]]:
    """Return the boots of both arms that started so.

    One that does not say what it found has no cache: each start of it is like any other. When no arm has one, they are
    all told as cached.
    """
    ours, theirs = select_measured_boots(boots, a), select_measured_boots(boots, b)
    states = {classify_start(boot) for boot in (*ours, *theirs)} - {""}
    state = "cold" if cold else "cached"
    if state not in (states or {"cached"}):
        return [], []
    like = {state, ""}
    return [boot for boot in ours if classify_start(boot) in like], [
        boot for boot in theirs if classify_start(boot) in like
    ]


class _Saving(NamedTuple):
    """What the arm that starts later saves: seconds per token, and tokens of a request of the suite."""

    seconds: float
    part: VariancePart
    tokens: float
    is_shown: bool


def _measure_saving(
    others: Sequence[Boot], judged: ArmDifference, prompts: Sequence[PromptRatio], *, forward: bool
) -> _Saving | None:
    """Return the seconds that a token of the arm that starts later saves against the boots of the other one.

    A prompt counts by the seconds that its tokens take, not as one of so many, and at the fewest streams that were
    sent.

    Args:
        others: the boots of the arm that starts earlier.
        judged: how far the arms are apart.
        prompts: the same prompt by prompt.
        forward: whether the arm that is judged is the one that starts later.
    """
    faster = judged if forward else judged._replace(log=-judged.log)
    ratios = {(request.kind, request.streams): request.ratio.ratio for request in prompts}
    sent = [
        (request, request.tokens / request.decode_tok_s)
        for boot in others
        for request in boot.requests
        if request.decode_tok_s and request.tokens and (request.kind, request.streams) in ratios
    ]
    if not sent:
        return None
    fewest = min(request.streams for request, _ in sent)
    alone = [(request, took) for request, took in sent if request.streams == fewest]
    times = [(took, ratios[request.kind, request.streams] ** (1 if forward else -1)) for request, took in alone]
    tokens = fmean(request.tokens for request, _ in alone)
    a_token = sum(took for took, _ in times) / sum(request.tokens for request, _ in alone)
    whole = sum(took for took, _ in times) / sum(took / ratio for took, ratio in times)
    # Of the variance of the logarithm the part of the boots that were slower counts in full, the rest over the ratio.
    slower = min(faster.error**2, (faster.cvs[0 if forward else 1] or 0.0) ** 2 / len(others))
    variance = a_token**2 * (slower + (faster.error**2 - slower) / whole**2)
    is_shown = faster.is_shown and faster.log > 0
    return _Saving(a_token * (1 - 1 / whole), VariancePart(variance, faster.df), tokens, is_shown)


def _compute_break_even(
    seconds: float, part: VariancePart, by: int, saving: _Saving | None, *, cold: bool
) -> BreakEven:
    """Return after how many tokens `seconds` are made up, with the interval of a quotient (Fieller's)."""
    if saving is None:
        return BreakEven(by, seconds, cold)
    middle = seconds / saving.seconds if saving.seconds > 0 else math.inf
    scaled = VariancePart(saving.part.variance * min(middle, 1e12) ** 2, saving.part.df)
    df = combine_parts([part, scaled]).df
    t2 = student_t_quantile((1 + LEVEL) / 2, None if df is None else max(1.0, df)) ** 2
    # The tokens T for which seconds - T x saving is within t standard errors of nothing: a T² - 2 b T + c <= 0.
    a = saving.seconds**2 - t2 * saving.part.variance
    b, c = seconds * saving.seconds, seconds**2 - t2 * part.variance
    root = math.sqrt(max(0.0, b * b - a * c))
    pays = middle if saving.is_shown else None
    if a > 0 and saving.seconds < 0:
        return BreakEven(by, seconds, cold)  # no speed within its interval makes up for anything
    low = c / (b + root) if c > 0 else 0.0  # 0: both may start alike
    high = (b + root) / a if a > 0 else None
    return BreakEven(by, seconds, cold, pays, pays / saving.tokens if pays else None, low, high)


def _seconds_to_first_answer(boot: Boot) -> float | None:
    """Return the seconds from the launch to the end of the first real request; None when that failed."""
    failed = boot.cold_request is not None and boot.cold_request.error
    return None if boot.ready is None or failed else boot.ready + (_first_request_seconds(boot) or 0.0)


def _first_request_seconds(boot: Boot) -> float | None:
    return boot.cold_request.total if boot.cold_request and not boot.cold_request.error else None


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if numbers else None
