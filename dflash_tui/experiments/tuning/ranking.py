"""The ranking of settings that compete in a round of a tune, by the statistics of an A/B; pure."""

from __future__ import annotations

import math
from statistics import median
from typing import NamedTuple

from dflash_tui.events import Phase
from dflash_tui.experiments.analysis.measures import START, TOKENS, collect_measure, compare_measure
from dflash_tui.experiments.analysis.verdict import NEAR
from dflash_tui.experiments.design import CONFIRM, Boot, RoundBegan
from dflash_tui.experiments.progress import Progress
from dflash_tui.experiments.tuning.axes import judges_starts
from dflash_tui.planning.recipes.recipe import Mode


class Standing(NamedTuple):
    """An arm of a field: the logarithm of its ratio to the field's best, and whether it is shown to be worse."""

    arm: int
    behind: float
    is_shown: bool


def rank_field(progress: Progress, of: RoundBegan) -> list[Standing]:
    """Return the arms of a round's field that came up and measured something, the best first.

    What changes the start alone, such as a loader, is judged by the seconds of starts within its own rounds, which find
    the same in the page cache; anything else by tok/s, prompt by prompt.
    """
    design, boots = progress.design, progress.boots
    failed = {boot.arm for boot in boots if boot.error}
    measure = START if judges_starts(of.key) else TOKENS
    since = _first_boot_of(progress, of) if measure == START else 0
    logs = collect_measure(design, [boot for boot in boots if boot.number >= since], measure)
    alive = [arm for arm in of.field if arm not in failed - {0} and logs[arm]]
    apart = {arm: compare_measure(logs, alive[0], arm, measure) for arm in alive}
    means = {arm: mean.log for arm, mean in apart.items() if mean}
    ranked = sorted(means, key=lambda arm: -means[arm])
    standings = []
    for arm in ranked:
        difference = compare_measure(logs, ranked[0], arm, measure)
        is_shown = arm != ranked[0] and difference is not None and difference.is_shown
        standings.append(Standing(arm, means[arm] - means[ranked[0]], is_shown))
    return standings


def choose_leader(progress: Progress) -> int:
    """Return the best arm so far: that of the last field, unless the one before it is nearly as good, as in a sweep."""
    searched = [entry for entry in progress.rounds if entry.key != CONFIRM]
    if not searched or not (ranked := rank_field(progress, searched[-1])):
        return 0
    last = searched[-1]
    before = next(entry.field[0] for entry in searched if (entry.key, entry.turn) == (last.key, last.turn))
    behind = {entry.arm: -entry.behind for entry in ranked}
    return before if behind.get(before, math.inf) < NEAR else ranked[0].arm


def median_cost(progress: Progress, arm: int) -> float:
    """Return the seconds that another boot of an arm takes: as its own did, or as `guess_cost` says."""
    own = [reckon_again(boot) for boot in progress.boots if boot.arm == arm and not boot.error]
    return median(own) if own else guess_cost(progress, progress.design.arms[arm].plan.mode)


def guess_cost(progress: Progress, mode: Mode) -> float:
    """Return the seconds that a first boot of a setting takes: as those of its mode before did, or as the longest."""
    good = [boot for boot in progress.boots if not boot.error]
    alike = [reckon_anew(boot) for boot in good if progress.design.arms[boot.arm].plan.mode is mode]
    reckon = reckon_anew if mode is Mode.COMPILE else reckon_again
    return median(alike) if alike else max(map(reckon, good), default=0.0)


def reckon_again(boot: Boot) -> float:
    """Return the seconds that a boot takes once more: a cold one has compiled what the next one finds."""
    return reckon_anew(boot) - (boot.phases.get(Phase.COMPILE, 0.0) if boot.cache == "cold" else 0.0)


def reckon_anew(boot: Boot) -> float:
    """Return the seconds that a boot of another setting takes: it finds what the first one prepared."""
    return (boot.took or 0.0) + ((boot.prepared or 0.0) if boot.cache != "cold" else 0.0)


def _first_boot_of(progress: Progress, of: RoundBegan) -> int:
    """Return the number of the first boot of the rounds that vary the same in the same turn."""
    after = len(progress.design.order)
    for search_round in reversed(progress.rounds):
        after -= len(search_round.order)
        if (search_round.key, search_round.turn) == (of.key, of.turn):
            first = after
    return first
