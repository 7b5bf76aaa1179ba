"""Whether two arms answer alike; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dflash_tui.experiments.analysis.measures import select_measured_boots
from dflash_tui.experiments.design import Boot, Design

_Answers = dict[tuple[str, int, int], str]


def measure_agreement(design: Design, boots: Sequence[Boot], a: int, b: int) -> float | None:
    """Return the share of answers at temperature 0 that begin alike in two arms, over all pairs of their boots.

    Only the beginning counts: once the least rounding has turned one token, the rest of a greedy answer is another.
    """
    if design.temperature != 0:
        return None
    ours, theirs = ([_beginnings(boot) for boot in select_measured_boots(boots, arm)] for arm in (a, b))
    return _alike((x, y) for i, x in enumerate(ours) for j, y in enumerate(theirs) if a != b or i < j)


def _beginnings(boot: Boot) -> _Answers:
    return {(each.kind, each.streams, each.round): each.digests[0] for each in boot.requests if each.digests}


def _alike(pairs: Iterable[tuple[_Answers, _Answers]]) -> float | None:
    same = [ours[each] == theirs[each] for ours, theirs in pairs for each in ours if each in theirs]
    return sum(same) / len(same) if same else None
