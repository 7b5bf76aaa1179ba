"""Recipes that were read before, by their text, so that a list of them reads no YAML.

The file is a convenience: it is believed only where it is ours alone and was written by this very program, and whatever
is wrong with it means that the recipes are read anew. Whether a file may be used, and what of a recipe depends on where
it lies, is looked at in any case.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from dflash_tui import __version__
from dflash_tui.common import paths, private_files
from dflash_tui.common.errors import UsageError
from dflash_tui.planning.recipes.recipe import Recipe

_LARGEST = 8 << 20
# What decides how a text is read: modules and tables of these folders, which change in a checkout without a release.
_DECIDING = ("", "common", "common/secrets", "machine", "planning", "planning/recipes")


class _Stored(msgspec.Struct, frozen=True):
    """What the file holds."""

    program: str
    """Which program wrote it."""
    recipes: dict[str, Recipe]
    """The recipes by their text, without a name."""


_DECODER = msgspec.msgpack.Decoder(_Stored)


class RecipeCache:
    """The recipes that are known by their text; those that nobody asked for are forgotten when it is saved."""

    def __init__(self, program: str = "", recipes: dict[str, Recipe] | None = None) -> None:
        self._program, self._stored = program, recipes or {}
        self._used: dict[str, Recipe] = {}

    @classmethod
    def load(cls) -> RecipeCache:
        """Return what the file holds; nothing where it is not there, not ours alone or of another program."""
        program = _identify_program()
        with suppress(OSError, UsageError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            path = _cache_file()
            if not private_files.ownership_problem(path, paths.cache_folder()):
                stored = _DECODER.decode(private_files.read_file(path, _LARGEST))
                return cls(program, stored.recipes if stored.program == program else {})
        return cls(program)

    def find(self, text: str) -> Recipe | None:
        """Return the recipe that the text was before."""
        if recipe := self._stored.get(text):
            self._used[text] = recipe
        return recipe

    def keep(self, text: str, recipe: Recipe) -> None:
        """Remember what the text is."""
        self._used[text] = recipe

    def save(self) -> None:
        """Write what was used where that is something else than before; a disk that takes no file is no error."""
        if self._used.keys() == self._stored.keys():
            return
        with suppress(OSError, UsageError):
            private_files.ensure_private_folder(paths.cache_folder())
            stored = _Stored(self._program, self._used)
            private_files.replace_private_file(_cache_file(), msgspec.msgpack.encode(stored))


def _cache_file() -> Path:
    return paths.cache_folder() / "recipes.msgpack"


def _identify_program() -> str:
    """Return the release and the files that decide how a text is read, by name, size and time of change."""
    return f"{__version__} {[*_list_files()]}"


def _list_files() -> Iterator[tuple[str, str, int, int]]:
    for folder in _DECIDING:
        with os.scandir(paths.PACKAGE_ROOT / folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.name.endswith((".py", ".yaml")):
                    status = entry.stat()
                    yield folder, entry.name, status.st_size, status.st_mtime_ns
