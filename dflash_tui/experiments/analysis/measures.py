"""The measures of an experiment, as logarithms by prompt, and the summary of an arm. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from dflash_tui.events import RequestDone
from dflash_tui.experiments.analysis import stats
from dflash_tui.experiments.analysis.stats import ONE_TEXT, ArmDifference, BootLogs, PromptCell
from dflash_tui.experiments.design import Arm, Boot, Design

STEPS, TOKENS, AL = "steps/s", "tok/s", "AL"
# The seconds until a server is ready; as the inverse, so that more is better as for the others.
START = "time to ready"
# TTFT and E2E are in seconds too; OUTPUT is the total rate of all concurrent requests.
TTFT, E2E, OUTPUT = "TTFT", "end-to-end time", "output tok/s"
FURTHER = (TTFT, E2E, OUTPUT)
_SECONDS = frozenset({START, TTFT, E2E})
# Measures that do not depend on the text of the answer.
_WITHOUT_TEXT = frozenset({STEPS, START, TTFT})
# Plans that differ in one of these may draft or accept other tokens.
_DRAFTING = (
    "method", "target", "drafter", "num_speculative_tokens", "patches", "profile", "variant", "vllm", "engine_folder",
)  # fmt: skip


def select_measured_boots(boots: Sequence[Boot], arm: int) -> list[Boot]:
    """Return the boots of an arm that measured something."""
    return [
        boot for boot in boots if boot.arm == arm and not boot.error and (boot.requests or boot.start == "measured")
    ]


def join_turns(design: Design, boots: Sequence[Boot], arm: int) -> list[Boot]:
    """Return the measured boots of an arm; the turns at a running server between two of its starts are one boot."""
    measured = select_measured_boots(boots, arm)
    if design.arms[arm].server is None:
        return measured
    joined: dict[str, Boot] = {}
    for boot in measured:
        first = joined.setdefault(boot.process, boot)
        if first is not boot:
            requests, windows = (*first.requests, *boot.requests), (*first.windows, *boot.windows)
            joined[boot.process] = replace(first, requests=requests, windows=windows)
    return [*joined.values()]


def measure_seconds_to_ready(boot: Boot) -> float | None:
    """Return the seconds from the launch to the first answer, plus those of inspecting models before it."""
    return None if boot.ready is None else boot.ready + boot.inspected


def median_speed(boot: Boot) -> float | None:
    """Return the median tok/s of a boot's measured requests, or None if it has none."""
    speeds = [done.decode_tok_s for done in boot.requests if not done.error and done.decode_tok_s is not None]
    return statistics.median(speeds) if speeds else None


def classify_start(boot: Boot) -> str:
    """Return `cold` if the start compiled everything, `cached`, or empty if unknown."""
    return {"recompiled": "cold", "partly cached": "cached"}.get(boot.cache, boot.cache)


def is_speculating(arm: Arm) -> bool:
    """Whether the arm uses speculation, or may: a running server reports steps if it does."""
    return arm.plan.num_speculative_tokens > 0 or arm.server is not None


def changes_drafting(a: Arm, b: Arm) -> bool:
    """Whether the arms differ in what is drafted or accepted, so that their steps are not comparable."""
    options = "--speculative-config"
    return (
        bool(a.server or b.server)
        or any(getattr(a.plan, name) != getattr(b.plan, name) for name in _DRAFTING)
        or (_option_value(a.plan.argv, options) != _option_value(b.plan.argv, options))
    )


def collect_measure(design: Design, boots: Sequence[Boot], measure: str) -> list[list[BootLogs]]:
    """Return the logarithms of a measure by prompt, for each boot of each arm."""
    return [
        [BootLogs(_collect_logs(boot, measure), boot.number) for boot in join_turns(design, boots, arm)]
        if measure not in {STEPS, AL} or is_speculating(design.arms[arm])
        else []
        for arm in range(len(design.arms))
    ]


def compare_measure(
    arms: Sequence[Sequence[BootLogs]],
    a: int,
    b: int,
    measure: str,
    comparisons: int = 1,
    *,
    levels: bool = False,
) -> ArmDifference | None:
    """Return the difference of two arms in a measure, or None if they share no prompt.

    The same text has the same AL in every boot, so the spread of AL between boots has no lower bound; the text itself
    is random. For `comparisons` and `levels` see `stats.compare_arms`.
    """
    closest, text = 0.0 if measure == AL else None, 0.0 if measure in _WITHOUT_TEXT else ONE_TEXT
    return stats.compare_arms(arms, a, b, closest=closest, text=text, comparisons=comparisons, levels=levels)


def count_comparisons(design: Design, boots: Sequence[Boot]) -> int:
    """Return the number of comparisons that hold together: pairs of measured arms, times looks."""
    measured = sum(bool(select_measured_boots(boots, arm)) for arm in range(len(design.arms)))
    return max(1, measured * (measured - 1) // 2) * design.looks


def _collect_logs(boot: Boot, measure: str) -> dict[PromptCell, list[float]]:
    logs: dict[PromptCell, list[float]] = {}
    if measure == START:
        return {PromptCell(START): [-math.log(seconds)]} if (seconds := measure_seconds_to_ready(boot)) else {}
    if measure == OUTPUT:
        return {cell: [math.log(value)] for cell, value in _measure_output(boot).items()}
    sign = -1 if is_in_seconds(measure) else 1
    for request in boot.requests:
        value = None if request.error else measure_request(request, measure)
        if value:
            logs.setdefault(PromptCell(request.kind, request.streams), []).append(sign * math.log(value))
    return logs


def is_in_seconds(measure: str) -> bool:
    """Whether a measure is in seconds, where less is better; ratios use its inverse."""
    return measure in _SECONDS


def _measure_output(boot: Boot) -> dict[PromptCell, float]:
    """Return the output tokens per second by number of streams, and by kind of prompt if each was sent alone."""
    windows = [window for window in boot.windows if window.streams > 1]
    rates = {PromptCell(window.kind or OUTPUT, window.streams): window.tok_s for window in windows}
    alone = [request for request in boot.requests if request.streams == 1 and not request.error]
    if seconds := sum(request.total for request in alone):
        rates[PromptCell(OUTPUT)] = sum(request.tokens for request in alone) / seconds
    return {cell: value for cell, value in rates.items() if value}


def measure_request(request: RequestDone, measure: str) -> float | None:
    """Return a measure of a request, or None if unknown."""
    if measure in {TTFT, E2E}:
        return request.ttft if measure == TTFT else request.total or None
    if measure == TOKENS:
        return request.decode_tok_s
    return request.acceptance_length if measure == AL else request.steps_s


def _option_value(words: Sequence[str], option: str) -> str:
    return words[words.index(option) + 1] if option in words[:-1] else ""


class MedianFigure(NamedTuple):
    """The median of `n` values, and their minimum and maximum."""

    median: float
    low: float
    high: float
    n: int


class ArmSummary(NamedTuple):
    """The boots of an arm that measured something or failed, and its figures; None if not measured.

    `cold` and `cached` are seconds to the first answer by the state of the compile cache; a start without a cache
    counts as cold. `ready` includes all starts and the inspection before them, `filling` those that filled the caches.
    """

    boots: int
    failed: int
    requests: int
    steps_s: MedianFigure | None = None
    tok_s: MedianFigure | None = None
    al: MedianFigure | None = None
    ttft: MedianFigure | None = None
    cold: MedianFigure | None = None
    cached: MedianFigure | None = None
    first: MedianFigure | None = None
    filling: MedianFigure | None = None
    ready: MedianFigure | None = None


def summarize_arm(boots: Sequence[Boot], arm: int) -> ArmSummary:
    """Return the boots and figures of an arm."""
    mine = [boot for boot in boots if boot.arm == arm]
    up = [boot for boot in mine if not boot.error]
    good = [boot for boot in up if boot.start != "filling"]

    def ready(*caches: str) -> MedianFigure | None:
        return _figure(boot.ready for boot in good if classify_start(boot) in caches)

    return ArmSummary(
        boots=len(good),
        failed=len(mine) - len(up),
        requests=sum(len(boot.requests) for boot in good),
        steps_s=_figure(_median(boot, lambda done: done.steps_s) for boot in good),
        tok_s=_figure(_median(boot, lambda done: done.decode_tok_s) for boot in good),
        al=_figure(_median(boot, lambda done: done.acceptance_length) for boot in good),
        ttft=_figure(_median(boot, lambda done: done.ttft) for boot in good),
        cold=ready("cold", ""),
        cached=ready("cached"),
        first=_figure(boot.cold_request.total for boot in good if boot.cold_request and not boot.cold_request.error),
        filling=_figure(measure_seconds_to_ready(boot) for boot in up if boot.start == "filling"),
        ready=_figure(map(measure_seconds_to_ready, good)),
    )


def is_uncached(boots: Sequence[Boot], arm: int) -> bool:
    """Whether an arm has no compile cache: it started, but no start reported a cache."""
    started = [boot for boot in boots if boot.arm == arm and boot.ready is not None]
    return bool(started) and not any(map(classify_start, started))


def _median(boot: Boot, value: Callable[[RequestDone], float | None]) -> float | None:
    numbers = [number for done in boot.requests if not done.error and (number := value(done)) is not None]
    return statistics.median(numbers) if numbers else None


def _figure(values: Iterable[float | None]) -> MedianFigure | None:
    numbers = [value for value in values if value is not None]
    return MedianFigure(statistics.median(numbers), min(numbers), max(numbers), len(numbers)) if numbers else None
