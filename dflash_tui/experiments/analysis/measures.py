"""The measures that an experiment is judged by, as logarithms by prompt, and how far answers agree; pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from dflash_tui.benchmark import stats
from dflash_tui.benchmark.stats import CLOSEST, ONE_TEXT, ArmDifference, Logs, PromptCell
from dflash_tui.events import RequestDone
from dflash_tui.experiments.design import Arm, Boot, Design

STEPS, TOKENS, AL = "steps/s", "tok/s", "AL"
# Plans that differ in one of these may draft or accept other tokens.
_DRAFTING = ("target", "drafter", "num_speculative_tokens", "patches", "profile", "variant", "vllm", "engine_folder")


def select_measured_boots(boots: Sequence[Boot], arm: int) -> list[Boot]:
    """Return the boots of an arm that measured something."""
    return [boot for boot in boots if boot.arm == arm and not boot.error and boot.requests]


def classify_start(boot: Boot) -> str:
    """Return what a start was: `cold` when it compiled all there is, `cached`, or empty when it does not say."""
    return {"recompiled": "cold", "partly cached": "cached"}.get(boot.cache, boot.cache)


def is_speculating(arm: Arm) -> bool:
    """Whether the arm drafts at all."""
    return arm.plan.num_speculative_tokens > 0


def changes_drafting(a: Arm, b: Arm) -> bool:
    """Whether the arms differ in what is drafted or accepted, so that their steps are not worth the same."""
    options = "--speculative-config"
    return any(getattr(a.plan, name) != getattr(b.plan, name) for name in _DRAFTING) or (
        _option_value(a.plan.argv, options) != _option_value(b.plan.argv, options)
    )


def collect_measure(design: Design, boots: Sequence[Boot], measure: str) -> list[list[dict[PromptCell, list[float]]]]:
    """Return for each arm and each of its boots the logarithms of a measure by prompt."""
    return [
        [_collect_logs(boot, measure) for boot in select_measured_boots(boots, arm)]
        if _arm_has(design.arms[arm], measure)
        else []
        for arm in range(len(design.arms))
    ]


def compare_measure(arms: Sequence[Sequence[Logs]], a: int, b: int, measure: str) -> ArmDifference | None:
    """Return how far two arms are apart in a measure, None when they share no prompt.

    The same text has the same AL in every boot: there it is no chance that boots come out alike, but it is one which
    text an arm came to.

    Args:
        arms: the logarithms of the measure by arm and boot.
        a: the arm that is compared with.
        b: the arm that is judged.
        measure: which it is.
    """
    return stats.compare_arms(arms, a, b, 0.0 if measure == AL else CLOSEST, 0.0 if measure == STEPS else ONE_TEXT)


def list_concurrency_levels(design: Design, boots: Sequence[Boot], measure: str, arms: Iterable[int]) -> set[int]:
    """Return the numbers of streams at which a measure is known.

    Args:
        design: the experiment.
        boots: its boots.
        measure: which it is.
        arms: the arms that are asked about.
    """
    of_all = collect_measure(design, boots, measure)
    return {cell.streams for arm in arms for boot in of_all[arm] for cell in boot}


def _arm_has(arm: Arm, measure: str) -> bool:
    return measure == TOKENS or is_speculating(arm)


def _collect_logs(boot: Boot, measure: str) -> dict[PromptCell, list[float]]:
    logs: dict[PromptCell, list[float]] = {}
    for request in boot.requests:
        value = None if request.error else _measure_of(request, measure)
        if value:
            logs.setdefault(PromptCell(request.kind, request.streams), []).append(math.log(value))
    return logs


def _measure_of(request: RequestDone, measure: str) -> float | None:
    if measure == TOKENS:
        return request.decode_tok_s
    return request.acceptance_length if measure == AL else request.steps_s


def _option_value(words: Sequence[str], option: str) -> str:
    return words[words.index(option) + 1] if option in words[:-1] else ""


_Answers = dict[tuple[str, int, int], str]


def measure_agreement(design: Design, boots: Sequence[Boot], a: int, b: int) -> float | None:
    """Return the share of answers at temperature 0 that begin alike in two arms, over all pairs of their boots.

    Only the beginning counts: once the least rounding has turned one token, the rest of a greedy answer is another.

    Args:
        design: the experiment.
        boots: its boots.
        a: one arm.
        b: the other arm, or the same for pairs within it.
    """
    if design.temperature != 0:
        return None
    ours, theirs = ([_digest_beginnings(boot) for boot in select_measured_boots(boots, arm)] for arm in (a, b))
    return _share_alike((x, y) for i, x in enumerate(ours) for j, y in enumerate(theirs) if a != b or i < j)


def _digest_beginnings(boot: Boot) -> _Answers:
    return {(each.kind, each.streams, each.round): each.digests[0] for each in boot.requests if each.digests}


def _share_alike(pairs: Iterable[tuple[_Answers, _Answers]]) -> float | None:
    same = [ours[each] == theirs[each] for ours, theirs in pairs for each in ours if each in theirs]
    return sum(same) / len(same) if same else None
