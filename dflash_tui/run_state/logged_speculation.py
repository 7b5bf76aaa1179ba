"""Sums of what the log says of speculation, ten seconds a line, and what they say against the launch. Pure."""

from __future__ import annotations

from typing import NamedTuple

from dflash_tui.common.formatting import format_percent
from dflash_tui.events import SpeculationLogged

# Fewer steps do not show whether a position is never accepted.
_MIN_STEPS = 50
# A draft that is accepted less often costs about what it gives.
_WORTH = 0.05
_NO_DRAFTS = 0.01
_MIN_POSITIONS = 4


class SpeculationTotals(NamedTuple):
    """Drafts of all lines together: tokens drafted and accepted, steps, and accepted drafts by position."""

    drafted: int = 0
    accepted: int = 0
    steps: float = 0.0
    positions: tuple[float, ...] = ()

    def add(self, logged: SpeculationLogged) -> SpeculationTotals:
        """Return the totals with another line; a line without positions tells no steps."""
        steps = logged.drafted / len(logged.per_position) if logged.per_position else 0.0
        accepted = [share * steps for share in logged.per_position]
        before = [*self.positions, *[0.0] * (len(accepted) - len(self.positions))]
        after = [*accepted, *[0.0] * (len(before) - len(accepted))]
        return SpeculationTotals(
            self.drafted + logged.drafted,
            self.accepted + logged.accepted,
            self.steps + steps,
            tuple(a + b for a, b in zip(before, after, strict=True)),
        )

    @property
    def accepts_nothing(self) -> bool:
        """Whether hardly any draft was accepted, of enough of them to tell."""
        return self.steps >= _MIN_STEPS and self.accepted < _NO_DRAFTS * self.drafted

    @property
    def useful_drafts(self) -> int | None:
        """How many drafts per step are worth their cost, where at least half of them never are; else None."""
        shares = [accepted / self.steps for accepted in self.positions] if self.steps >= _MIN_STEPS else []
        if len(shares) < _MIN_POSITIONS or any(shares[len(shares) // 2 :]):
            return None
        return max((place for place, share in enumerate(shares, 1) if share >= _WORTH), default=1)

    def describe_positions(self) -> str:
        """Return the share of steps in which the draft at each position was accepted."""
        return " ".join(format_percent(accepted / self.steps) for accepted in self.positions)
