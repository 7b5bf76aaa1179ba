"""Recipes, patches and tables that were read before, by their text, so that a list of them reads no YAML.

The file is a convenience: it is believed only where it is ours alone and was written by this very program, and whatever
is wrong with it means that the texts are read anew. Whether a file may be used, and what depends on where it lies or on
this machine, is looked at in any case.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from dflash_tui import __version__
from dflash_tui.common import paths, private_files, yaml_loader
from dflash_tui.common.errors import UsageError

_LARGEST = 8 << 20
# What decides how a text is read: modules and tables of these folders, which change in a checkout without a release.
_DECIDING = (
    "", "common", "machine", "planning", "planning/advice", "planning/derivation", "planning/recipes"
)  # fmt: skip
T = TypeVar("T")
_unsaved: list["TextCache[Any]"] = []


class _Stored(msgspec.Struct, Generic[T], frozen=True):
    """What the file holds."""

    program: str
    """Which program wrote it."""
    values: dict[str, T]
    """What each text says."""


class TextCache(Generic[T]):
    """What texts of one kind of file say; those that nobody asked for are forgotten when it is saved.

    Args:
        name: The file's name in our cache folder, without its ending.
        stored: What each text was before.
    """

    def __init__(self, name: str, stored: dict[str, T]) -> None:
        self._name, self._stored = name, stored
        self._used: dict[str, T] = {}

    @classmethod
    def load(cls, name: str, kind: type[T]) -> "TextCache[T]":
        """Return what the file holds; nothing where it is not there or of another program."""
        with suppress(OSError, UsageError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            path = paths.cache_folder() / f"{name}.msgpack"
            stored = msgspec.msgpack.decode(private_files.read_file(path, _LARGEST), type=_Stored[kind])  # type: ignore[valid-type]
            return cls(name, stored.values if stored.program == _identify_program() else {})
        return cls(name, {})

    def find(self, text: str) -> T | None:
        """Return what the text was before."""
        if value := self._stored.get(text):
            self._used[text] = value
        return value

    def keep(self, text: str, value: T) -> None:
        """Remember what the text is."""
        self._used[text] = value

    def save(self) -> None:
        """Write what was used where that is something else than before; a disk that takes no file is no error."""
        if self._used.keys() == self._stored.keys():
            return
        with suppress(OSError, UsageError):
            private_files.ensure_private_folder(paths.cache_folder())
            data = msgspec.msgpack.encode(_Stored(_identify_program(), self._used))
            private_files.replace_private_file(paths.cache_folder() / f"{self._name}.msgpack", data)
            self._stored = {**self._used}


def load_table(path: Path, kind: type[T]) -> T:
    """Return the value of type `kind` that one of our own YAML files holds; `save_tables` remembers it.

    Raises:
        RecipeError: it cannot be read, is not YAML, or does not fit `kind`.
    """
    text, texts = yaml_loader.read_yaml_text(path), TextCache.load(path.stem, kind)
    value = texts.find(text)
    if value is None:
        value = yaml_loader.convert_yaml(path, text, kind)
        texts.keep(text, value)
        _unsaved.append(texts)
    return value


def save_tables() -> None:
    """Write the tables that were read as YAML; the panel does, while a command may be one that writes nothing."""
    while _unsaved:
        _unsaved.pop().save()


@cache
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
