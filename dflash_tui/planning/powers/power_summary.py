"""What is said of many powers: some of each kind, how many more there are, and how many of each kind."""

from collections import Counter
from collections.abc import Collection

from dflash_tui.common.formatting import pluralize
from dflash_tui.planning.powers.power import Power, PowerKind

# More of a kind would push those of another, or the question below them, off the terminal.
_MOST_OF_KIND = 10
_FEW = 5
_KIND_WORDS = {
    PowerKind.CODE: "to run code",
    PowerKind.PORT: "to open ports",
    PowerKind.SENDS: "to send to other servers",
    PowerKind.STEERS: "to steer what is run or answered",
    PowerKind.UNKNOWN: "not known to be harmless",
}


def list_power_lines(powers: Collection[Power], listing: str = "") -> list[str]:
    """Return the lines about powers, the worst kind first; last, where they are many, how many of each kind.

    Args:
        powers: what is told of.
        listing: the command that lists all of them, or empty.
    """
    lines = []
    for kind in PowerKind:
        of_kind = [power for power in powers if power.kind is kind]
        lines += [str(power) for power in of_kind[:_MOST_OF_KIND]]
        if (more := len(of_kind) - _MOST_OF_KIND) > 0:
            lines.append(f"… and {more:,} more {_KIND_WORDS[kind]}{f'; {listing} lists all' if listing else ''}")
    return [*lines, count_powers(powers)] if len(powers) > _FEW else lines


def count_powers(powers: Collection[Power]) -> str:
    """Return how many powers there are, and of more than a few how many of each kind."""
    if len(powers) <= _FEW:
        return pluralize(len(powers), "power")
    counts = Counter(power.kind for power in powers)
    kinds = ", ".join(f"{counts[kind]:,} {words}" for kind, words in _KIND_WORDS.items() if counts[kind])
    return f"{len(powers):,} powers: {kinds}"
