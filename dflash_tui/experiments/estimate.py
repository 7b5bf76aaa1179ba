"""An estimate of how long an experiment takes, by earlier boots, earlier starts or published figures."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from dflash_tui.experiments import store
from dflash_tui.experiments.design import Arm, Boot, Design
from dflash_tui.monitoring import startup_history
from dflash_tui.planning.resolution import ResolvedRecipe


class DurationEstimate(NamedTuple):
    """Seconds of all boots, None when unknown; `whole` is whether the answers are in it, `source` says where from."""

    seconds: float | None
    whole: bool
    source: str


def estimate_duration(design: Design, setups: Sequence[ResolvedRecipe]) -> DurationEstimate:
    """Return how long the boots of `design` will take; one arm that nobody knows makes all of it unknown."""
    before = _find_earlier_boots(design)
    whole = [_median([boot.took for boot in before[place]]) for place in range(len(design.arms))]
    if known := _add_boots(design, whole):
        count = sum(map(len, before))
        return DurationEstimate(known, True, f"by {count} earlier boots of such experiments")
    starts = [_estimate_start(arm, setup) for arm, setup in zip(design.arms, setups, strict=True)]
    if known := _add_boots(design, [seconds for seconds, _ in starts]):
        return DurationEstimate(known, False, ", ".join(dict.fromkeys(source for _, source in starts)))
    return DurationEstimate(None, False, "")


def _add_boots(design: Design, arms: Sequence[float | None]) -> float | None:
    known = [seconds for place in design.order if (seconds := arms[place]) is not None]
    return sum(known) if len(known) == len(design.order) else None


def _find_earlier_boots(design: Design) -> list[list[Boot]]:
    """Return by arm the good boots of earlier experiments that launched the same and sent as much."""
    boots_by_arm: list[list[Boot]] = [[] for _ in design.arms]
    for other in store.list_experiments():
        if _workload(other) != _workload(design):
            continue
        for boot in store.read_progress(store.experiment_folder(other.id)).boots:
            kind = other.arms[boot.arm].plan.kind
            for place, arm in enumerate(design.arms):
                if not boot.error and arm.plan.kind == kind:
                    boots_by_arm[place].append(boot)
    return boots_by_arm


def _workload(design: Design) -> tuple[object, ...]:
    return design.digest, design.rounds, design.scale, design.concurrency, design.own_cache


def _estimate_start(arm: Arm, setup: ResolvedRecipe) -> tuple[float | None, str]:
    if ready := startup_history.estimate_ready(arm.plan):
        return ready.seconds, "by earlier starts here"
    bands = [band for band in setup.expected if band.ready_s and band.mode in {None, arm.plan.mode}]
    if bands and bands[0].ready_s:
        return statistics.fmean(bands[0].ready_s), f"by published starts ({bands[0].source})"
    return None, ""


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
