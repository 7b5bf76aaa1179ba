"""How long each arm takes to start, and after how many tokens the faster one has made up for a later start; pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from msgspec.structs import replace

from dflash_tui.benchmark.stats import ArmDifference
from dflash_tui.experiments.analysis.measures import classify_start, select_measured_boots
from dflash_tui.experiments.analysis.report import BreakEven, PromptRatio, StartComparison
from dflash_tui.experiments.design import Boot

# A start that is later by less than boots differ anyway, or by less than a second, has nothing to make up for.
_MIN_SHARE, _MIN_SECONDS = 0.05, 1.0


def compare_starts(boots: Sequence[Boot], a: int, b: int) -> StartComparison:
    """Return the mean seconds that the starts and the first requests of two arms took."""
    cold, cached = (
        tuple(_mean(boot.ready for boot in arm) for arm in _select_starts(boots, a, b, cold=state))
        for state in (True, False)
    )
    ours, theirs = (_mean(map(_first_request_seconds, select_measured_boots(boots, arm))) for arm in (a, b))
    return StartComparison((cold[0], cold[1]), (cached[0], cached[1]), (ours, theirs))


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
    for cold in (True, False):
        starts = _select_starts(boots, a, b, cold=cold)
        ours, theirs = (_mean(map(_seconds_to_first_answer, arm)) for arm in starts)
        if judged is None or ours is None or theirs is None:
            continue
        later = theirs - ours
        if abs(later) > max(_MIN_SECONDS, _MIN_SHARE * max(ours, theirs)):
            by, other = (b, a) if later > 0 else (a, b)
            towards = judged if later > 0 else judged._replace(log=-judged.log)
            ratios = {(each.kind, each.streams): each.ratio.ratio for each in prompts}
            ratios = ratios if later > 0 else {prompt: 1 / ratio for prompt, ratio in ratios.items()}
            made_up = _compute_break_even(
                abs(later), by, select_measured_boots(boots, other), towards, ratios, cold=cold
            )
            counts = [sum(_seconds_to_first_answer(boot) is not None for boot in arm) for arm in starts]
            break_evens.append(replace(made_up, starts=(counts[0], counts[1])))
    return tuple(break_evens)


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


def _compute_break_even(
    seconds: float,
    by: int,
    others: Sequence[Boot],
    faster: ArmDifference,
    ratios: Mapping[tuple[str, int], float],
    *,
    cold: bool,
) -> BreakEven:
    """Return after how many tokens `seconds` are made up: those over what a token of the other arm takes longer.

    A prompt counts by the seconds that its tokens take, not as one of so many, and at the fewest streams that were
    sent. The interval is as wide as that of the verdict.
    """
    sent = [
        (each, each.tokens / each.decode_tok_s)
        for boot in others
        for each in boot.requests
        if each.decode_tok_s and each.tokens and (each.kind, each.streams) in ratios
    ]
    if not sent:
        return BreakEven(by, seconds, cold)
    fewest = min(each.streams for each, _ in sent)
    alone = [(each, took) for each, took in sent if each.streams == fewest]
    tokens = fmean(each.tokens for each, _ in alone)
    a_token = fmean(took for _, took in alone) / tokens
    whole = sum(took for _, took in alone) / sum(took / ratios[each.kind, each.streams] for each, took in alone)
    ratio = faster._replace(log=math.log(whole)).ratio()

    def after(times: float) -> float | None:
        return seconds / (a_token * (1 - 1 / times)) if times > 1 else None

    pays = after(ratio.ratio) if faster.is_shown and faster.log > 0 else None
    return BreakEven(by, seconds, cold, pays, pays / tokens if pays else None, after(ratio.high), after(ratio.low))


def _seconds_to_first_answer(boot: Boot) -> float | None:
    """Return the seconds from the launch to the end of the first real request; None when that failed."""
    failed = boot.cold_request is not None and boot.cold_request.error
    return None if boot.ready is None or failed else boot.ready + (_first_request_seconds(boot) or 0.0)


def _first_request_seconds(boot: Boot) -> float | None:
    return boot.cold_request.total if boot.cold_request and not boot.cold_request.error else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
