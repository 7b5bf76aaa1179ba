"""The rounds of a tune: what competes next, given what the boots before have measured; pure but for planning.

One thing is varied after the other (axes), each on the best setting so far, by successive halving: every candidate
gets a boot, the better half another one, until one is left or they are told apart. What has been gone through is gone
through again while that changes the best. The last rounds boot the best and the published setting in turn: they were
chosen by chance, too, and only boots after the choice tell by how much they differ. How many there are follows from the
budget and how long a boot takes, never from whether they show a difference.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dflash_tui.experiments import variation
from dflash_tui.experiments.analysis.verdict import NEAR
from dflash_tui.experiments.design import CONFIRM, PUBLISHED, Arm, RoundBegan, Tuning
from dflash_tui.experiments.progress import Progress
from dflash_tui.experiments.runner import NextRound
from dflash_tui.experiments.tuning import outcome, ranking
from dflash_tui.experiments.tuning.axes import judges_starts
from dflash_tui.experiments.tuning.candidates import Candidate, Proposal

# What turns an axis and the best arm so far into candidates; the arms that there are, and those of the axis that are
# shown to be worse.
Propose = Callable[[str, Arm, Sequence[Arm], Sequence[Arm]], Proposal]
_MOST_ROUNDS, _MOST_TURNS = 3, 3
# Boots of each arm in the last rounds: two show a spread, more than five make little of the interval.
_LEAST_CONFIRMING, _MOST_CONFIRMING = 2, 5
_TRIES_OF_PUBLISHED = 2


class _Position(NamedTuple):
    """A place in the axes: which turn through them, and which axis."""

    turn: int
    axis: int


class _Search(NamedTuple):
    """A tune in which the published setting has been measured: its progress, what it may do, its best arm."""

    progress: Progress
    tuning: Tuning
    leader: int

    @property
    def left(self) -> float:
        """The seconds of the budget that no boot has taken."""
        return self.tuning.budget - self.progress.spent

    @property
    def room(self) -> float:
        """The seconds that are left beside the fewest boots of the last rounds."""
        return self.left - _LEAST_CONFIRMING * self.cost_of_pair

    @property
    def cost_of_pair(self) -> float:
        """The seconds of a boot of the published setting and one of the best."""
        return ranking.median_cost(self.progress, 0) + ranking.median_cost(self.progress, self.leader)

    @property
    def keys(self) -> list[str]:
        """What is varied by each axis."""
        return [list_key(axis) for axis in self.tuning.axes]


def plan_round(progress: Progress, propose: Propose) -> NextRound | None:
    """Return the next round of a tune; None when it is over."""
    last = progress.rounds[-1] if progress.rounds else None
    if progress.design.tuning is None:
        return None
    if not any(boot.arm == 0 and not boot.error for boot in progress.boots):
        again = sum(boot.arm == 0 for boot in progress.boots) < _TRIES_OF_PUBLISHED
        return NextRound(RoundBegan(time.time(), PUBLISHED, 1, (0,), (0,)), []) if again else None
    if last and last.key == CONFIRM:  # the choice is made, whatever its own boots measure
        return _confirm_further(_Search(progress, progress.design.tuning, last.field[-1]), last)
    search = _Search(progress, progress.design.tuning, ranking.choose_leader(progress))
    return (_narrow_field(search, last) if last else None) or _open_field(search, propose)


def list_key(axis: str) -> str:
    """Return what an axis varies, such as `mode`."""
    return variation.parse_variation(axis, least=1).key


def _narrow_field(search: _Search, last: RoundBegan) -> NextRound | None:
    """Return a round with the better half of a field; None where it is decided, or too dear to decide."""
    progress = search.progress
    ranked = ranking.rank_field(progress, last)
    staying = tuple(entry.arm for entry in ranked[: max(2, -(-len(ranked) // 2))] if not entry.is_shown)
    rounds = sum((entry.key, entry.turn) == (last.key, last.turn) for entry in progress.rounds)
    cost = sum(ranking.median_cost(progress, arm) for arm in staying)
    # Twice measured and so near that it matters little which of them is kept.
    alike = rounds > 1 and all(-entry.behind < NEAR for entry in ranked if entry.arm in staying)
    if len(staying) < 2 or alike or rounds >= _MOST_ROUNDS or cost > search.room:
        return None
    return NextRound(RoundBegan(time.time(), last.key, last.turn, staying, staying), [])


def _open_field(search: _Search, propose: Propose) -> NextRound:
    """Return a round of the next axis that has candidates, or else the last one."""
    arms, leader = search.progress.design.arms, search.leader
    left_out: dict[str, str] = {}
    for place in _list_positions(search):
        key = search.keys[place.axis]
        worse = [arms[arm] for arm in _find_worse(search.progress, key)]
        proposal = propose(search.tuning.axes[place.axis], arms[leader], arms, worse)
        again = (leader,) if judges_starts(key) else ()  # a start is compared with others of its own round
        fitting = _select_affordable(search, proposal.candidates, again)
        left_out |= proposal.left_out
        left_out |= {candidate.arm.name: outcome.NO_ROOM for candidate in proposal.candidates[len(fitting) :]}
        if fitting:
            added = tuple(range(len(arms), len(arms) + len(fitting)))
            entering = tuple(candidate.arm for candidate in fitting)
            event = RoundBegan(
                time.time(), key, place.turn, (leader, *added), (*again, *added), arms=entering, left_out=left_out
            )
            return NextRound(event, [candidate.resolved for candidate in fitting])
    field = (0, leader) if leader else (0,)
    return NextRound(RoundBegan(time.time(), CONFIRM, 1, field, _order_confirming(search), left_out=left_out), [])


def _list_positions(search: _Search) -> list[_Position]:
    """Return the axes that follow; after the last one the first again, where this turn has changed the best."""
    keys = search.keys
    searched = [began for began in search.progress.rounds if began.key in keys]
    turn, axis = (searched[-1].turn, keys.index(searched[-1].key)) if searched else (1, -1)
    positions = [_Position(turn, place) for place in range(axis + 1, len(keys))]
    begun_with = next((began.field[0] for began in searched if began.turn == turn), search.leader)
    if begun_with != search.leader and turn < _MOST_TURNS:
        positions += [_Position(turn + 1, place) for place in range(len(keys))]
    return positions


def _find_worse(progress: Progress, key: str) -> set[int]:
    """Return the arms that an axis has brought in and that failed, or are shown to be slower than the field's best."""
    opened = [began for began in progress.rounds if began.key == key and began.arms]
    worse: set[int] = set()
    for began in opened:
        ranked = ranking.rank_field(progress, began)
        worse |= {*began.field[1:]} - {standing.arm for standing in ranked if not standing.is_shown}
    return worse


def _select_affordable(search: _Search, candidates: Sequence[Candidate], again: Sequence[int]) -> list[Candidate]:
    """Return the first of the candidates, as many as there is room for beside boots of the arms `again`."""
    room = search.room - sum(ranking.median_cost(search.progress, arm) for arm in again)
    fitting: list[Candidate] = []
    for candidate in candidates:
        room -= ranking.guess_cost(search.progress, candidate.arm.plan.mode)
        if room < 0:
            break
        fitting.append(candidate)
    return fitting


def _confirm_further(search: _Search, last: RoundBegan) -> NextRound | None:
    """Return another last round where its boots took less than was reckoned; None where there is no room or need.

    A boot of it that failed ends the tune.
    """
    fresh = outcome.select_boots_of_last_rounds(search.progress)
    if any(boot.error for boot in fresh):
        return None
    order = _order_confirming(search, before=len(fresh) // 2)
    return NextRound(RoundBegan(time.time(), CONFIRM, 1, last.field, order), []) if order else None


def _order_confirming(search: _Search, before: int = 0) -> tuple[int, ...]:
    """Return the boots of another last round: the published setting and the best in turn, as long as there is room.

    `before` is how many pairs of them there were.
    """
    pairs = int(search.left / max(1e-9, search.cost_of_pair)) if search.leader else 0
    arms = variation.order_boots(2, min(before + pairs, _MOST_CONFIRMING))
    return tuple((0, search.leader)[place] for place in arms[2 * before :])
