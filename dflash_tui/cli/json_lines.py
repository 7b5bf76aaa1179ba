"""Lines of `--json` of commands that otherwise print text, and what prints one that several write."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dflash_tui.cli.console import print_result
from dflash_tui.launch.preflight.check import Check, CheckLevel
from dflash_tui.launch.recipe_trust import Ingredient
from dflash_tui.planning.derivation.imported_recipe import LeftOut


class LogText(msgspec.Struct, frozen=True):
    """A line of a server's log."""

    line: str
    """As a terminal would show it, without control characters and own secrets."""


class CheckLine(msgspec.Struct, frozen=True):
    """The result of one preflight check."""

    name: str
    """What was checked."""
    level: CheckLevel
    """Whether it is right, worth a warning, or blocks the launch."""
    finding: str = msgspec.field(name="found")
    """What was found."""
    fix: str = ""
    """What to do about it; empty when it is right."""
    final: bool = False
    """Whether no reason overrules it, since the launch itself would be refused."""

    @classmethod
    def from_check(cls, check: Check) -> CheckLine:
        """Return a check as a line."""
        return cls(check.name, check.level, check.finding, check.fix, check.final)


class StoppedServer(msgspec.Struct, frozen=True):
    """A server that was to end."""

    run: str
    """The id of the run."""
    seconds: float
    """How long its end took; 0 when it had ended already."""
    ran: bool
    """Whether it had not ended already."""
    unreleased: str = ""
    """What the driver has not given back of its memory; empty for nothing."""


class WrittenFile(msgspec.Struct, frozen=True):
    """A file that was written."""

    file: str
    """Its path."""


def print_written_file(path: Path) -> None:
    """Print where a file was written."""
    print_result(WrittenFile(str(path)), str(path))


class RemovedEngine(msgspec.Struct, frozen=True):
    """An engine that was deleted, or one of the user's that is no longer listed."""

    folder: str
    """Where it is, or was."""


class UnitText(msgspec.Struct, frozen=True):
    """A unit of systemd."""

    unit: str
    """Its name."""
    text: str
    """What is in it."""


class PatchOutcome(msgspec.Struct, frozen=True):
    """What `patch apply` made, or with `--dry-run` would make; for `patch revert` no patch."""

    names: tuple[str, ...]
    """The patches that the engine needs and gets."""
    engine: str
    """The folder of the engine with them."""
    diffs: dict[str, str] = {}
    """Path of a file that differs from the unpatched one -> unified diff."""
    note: str = ""
    """What could not be checked."""


class AddedRecipe(msgspec.Struct, frozen=True):
    """A recipe that was checked and put among the user's own."""

    file: str
    """Its path."""
    ingredients: tuple[Ingredient, ...]
    """What it makes run."""
    left_out: tuple[LeftOut, ...] = ()
    """What of a command is not in it."""
    mistakes: tuple[str, ...] = ()
    """Flags that its release of vLLM does not have, and values that it refuses."""


class UpdatedCatalogue(msgspec.Struct, frozen=True):
    """The catalogue that took the place of another, and the pairs by which it differs."""

    written: str
    """The day that it is of."""
    pairs: int
    """How many it has."""
    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
