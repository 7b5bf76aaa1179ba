"""Load each of many files: one that cannot be used is named with its reason and hides no other."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from dflash_tui.common.errors import DflashError

T = TypeVar("T")


def load_each(files: Mapping[str, Path], load: Callable[[Path], T]) -> tuple[dict[str, T], dict[str, str]]:
    """Return what `load` returns for each file, and why each other one cannot be used, both by name.

    Names and reasons of the latter can be written anywhere: a name may hold bytes that are no text.
    """
    usable: dict[str, T] = {}
    broken: dict[str, str] = {}
    for name, path in files.items():
        try:
            usable[name] = load(path)
        except (DflashError, OSError) as error:
            broken[ascii(name)[1:-1]] = str(error).encode(errors="backslashreplace").decode()
    return usable, broken


def find_in_folders(root: Path, name: str) -> dict[str, Path]:
    """Return what is called `name` in the folders of `root`, by the folder's name; it may be no file.

    A `root` that is there and cannot be read stands for all of them, as `.`: whoever loads what is in it is told why.
    """
    try:
        folders = sorted(root.iterdir())
    except FileNotFoundError:
        return {}
    except OSError:
        return {".": root / name}
    return {folder.name: folder / name for folder in folders if os.path.lexists(folder / name)}
