"""The phases of the starts of an experiment, arm by arm: medians in seconds, the same in reports and on a terminal."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from dflash_tui.common.formatting import UNKNOWN, format_number
from dflash_tui.events import Phase
from dflash_tui.experiments.analysis.measures import measure_seconds_to_ready
from dflash_tui.experiments.design import Boot, Design

WHOLE = "ready"
"""The name of the row of a whole start."""
_INSPECTED, _FIRST = "inspected before", "first answer"
_ORDER = [_INSPECTED, *(phase.value for phase in Phase), _FIRST, WHOLE]


class PhaseRow(NamedTuple):
    """A phase: the median seconds of each arm's boots, None where no boot of it has the phase."""

    name: str
    seconds: tuple[float | None, ...]

    def cells(self) -> tuple[str, ...]:
        """Return the row as text."""
        return self.name, *(UNKNOWN if value is None else format_number(value, 1, "s") for value in self.seconds)


def list_phase_rows(design: Design, boots: Sequence[Boot]) -> list[PhaseRow]:
    """Return a row for each phase, and one for the whole; none where starts were not what was measured."""
    if not design.measures_start:
        return []
    arms = [[_split_start(boot) for boot in boots if _counts(boot, arm)] for arm in range(len(design.arms))]
    rows = []
    for name in _ORDER:
        seconds = tuple(_median([start[name] for start in starts if name in start]) for starts in arms)
        if any(seconds):
            rows.append(PhaseRow(name, seconds))
    return rows


def _counts(boot: Boot, arm: int) -> bool:
    return boot.arm == arm and not boot.error and boot.start == "measured"


def _split_start(boot: Boot) -> dict[str, float]:
    """Return the seconds of a start by what they went into."""
    parts = dict(boot.phases)
    if boot.inspected:
        parts[_INSPECTED] = boot.inspected
    if boot.ready is not None and boot.up is not None:
        parts[_FIRST] = boot.ready - boot.up
    if (whole := measure_seconds_to_ready(boot)) is not None:
        parts[WHOLE] = whole
    return parts


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
