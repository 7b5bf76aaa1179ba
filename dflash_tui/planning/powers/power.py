"""A power, as a value: one thing that a recipe may do beyond serving a model."""

from enum import StrEnum

import msgspec


class PowerKind(StrEnum):
    """What a power is to do, the worst first."""

    CODE = "code"
    PORT = "port"
    SENDS = "sends"
    STEERS = "steers"
    UNKNOWN = "unknown"


class Power(msgspec.Struct, frozen=True):
    """One thing that a recipe may do beyond serving a model, and what in it says so."""

    kind: PowerKind
    """What it may do."""
    source: str
    """The flag, the variable or the package, as the recipe has it."""
    words: str
    """What that does."""
    is_open: bool = False
    """Whether other machines can connect by it."""

    def __str__(self) -> str:
        return f"{self.source}: {self.words}"
