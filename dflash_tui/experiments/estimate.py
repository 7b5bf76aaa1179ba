"""An estimate of how long an experiment takes, by earlier boots, earlier starts or published figures."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from dflash_tui.common.formatting import pluralize
from dflash_tui.experiments import boot_requests, store
from dflash_tui.experiments.design import Arm, Boot, Design
from dflash_tui.monitoring import startup_history
from dflash_tui.planning.methods import Method


class DurationEstimate(NamedTuple):
    """Seconds of all boots, None when unknown; `whole` is whether the answers are in it, `source` says where from.

    Where they are not, `answers` is what they take at most by published speeds, whose source is `published`.
    """

    seconds: float | None
    whole: bool
    source: str
    answers: float | None = None
    published: str = ""


class BootEstimate(NamedTuple):
    """Seconds that a boot of each arm takes, None where nobody knows, without the answers unless `whole`."""

    seconds: tuple[float | None, ...]
    whole: bool
    source: str


def estimate_duration(design: Design) -> DurationEstimate:
    """Return how long the boots of `design` will take; one arm that nobody knows makes all of it unknown."""
    boots = estimate_boots(design)
    estimate = DurationEstimate(_add_boots(design, boots.seconds), boots.whole, boots.source)
    return estimate if boots.whole else estimate._replace(**_estimate_answers(design))


def estimate_boots(design: Design) -> BootEstimate:
    """Return how long a boot of each arm will take: by whole boots where all are known, else what starts tell."""
    before = _find_earlier_boots(design)
    whole = tuple(_median([boot.took for boot in boots]) for boots in before)
    if _add_boots(design, whole):
        count = sum(map(len, before))
        return BootEstimate(whole, True, f"by {pluralize(count, 'earlier boot')} of such experiments")
    starts = [_estimate_start(arm) for arm in design.arms]
    sources = dict.fromkeys(source for seconds, source in starts if seconds is not None)
    return BootEstimate(tuple(seconds for seconds, _ in starts), False, ", ".join(sources))


def _add_boots(design: Design, arms: Sequence[float | None]) -> float | None:
    durations = [seconds for place in design.order if (seconds := arms[place]) is not None]
    return sum(durations) if len(durations) == len(design.order) else None


def _estimate_answers(design: Design) -> dict[str, Any]:
    """Return what the answers take at their full length, one at a time; nothing where a speed was not published."""
    published = [_find_published_speed(arm) for arm in design.arms]
    tokens = 0 if design.measures_start or design.concurrency != (1,) else boot_requests.count_most_tokens(design)
    speeds = [speed for speed, _ in published if speed is not None]
    if not tokens or len(speeds) < len(published):
        return {}
    sources = dict.fromkeys(source for _, source in published)
    return {"answers": sum(tokens / speeds[place] for place in design.order), "published": ", ".join(sources)}


def _find_published_speed(arm: Arm) -> tuple[float | None, str]:
    """Return the middle of the speeds that were published of the same launch and one stream, and their source."""
    is_plain = arm.plan.method is Method.NONE
    for figures in arm.plan.expected:
        speeds = figures.baseline_tok_s if is_plain else figures.tok_s
        if speeds and not figures.set_up and (figures.streams or 1) == 1:
            return statistics.fmean(speeds), figures.source
    return None, ""


def _find_earlier_boots(design: Design) -> list[list[Boot]]:
    """Return by arm the good boots of earlier experiments that launched the same and sent as much."""
    boots_by_arm: list[list[Boot]] = [[] for _ in design.arms]
    for other in store.list_experiments():
        if _workload(other) != _workload(design):
            continue
        progress = store.read_progress(store.experiment_folder(other.id))
        for boot in progress.boots:
            kind = progress.design.arms[boot.arm].plan.kind
            for place, arm in enumerate(design.arms):
                if not boot.error and arm.plan.kind == kind:
                    boots_by_arm[place].append(boot)
    return boots_by_arm


def _workload(design: Design) -> tuple[object, ...]:
    return (
        design.digest,
        design.rounds,
        design.scale,
        design.fixed,
        design.concurrency,
        design.own_cache,
        design.measures_start,
        design.cold,
    )


def _estimate_start(arm: Arm) -> tuple[float | None, str]:
    if ready := startup_history.estimate_ready(arm.plan):
        return ready.seconds, "by earlier starts here"
    bands = [band for band in arm.plan.expected if band.ready_s and not band.set_up]
    if bands and bands[0].ready_s:
        return statistics.fmean(bands[0].ready_s), f"by published starts ({bands[0].source})"
    return None, ""


def _median(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return statistics.median(numbers) if numbers else None
