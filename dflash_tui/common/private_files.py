"""Create folders and files that only their owner can read, and tell which folders others could have written."""

from __future__ import annotations

import os
from pathlib import Path


def make_private_folder(folder: Path) -> None:
    """Make a folder that must not be there yet, and those above it that are missing, each for its owner alone.

    Raises:
        FileExistsError: it is there.
    """
    for parent in reversed(folder.parents):
        if not parent.exists():
            parent.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700)


def open_private(path: str, flags: int) -> int:
    """Open as `open` wants it, with a new file for its owner alone."""
    return os.open(path, flags, 0o600)


def write_private_file(path: Path, data: bytes) -> None:
    """Write a file for its owner alone."""
    with open(path, "wb", opener=open_private) as file:
        file.write(data)


def replace_private_file(path: Path, data: bytes) -> None:
    """Write a file for its owner alone and put it in its place in one step, so that a part of one is never there."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write_private_file(temporary, data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def ownership_problem(folder: Path) -> str:
    """Return why a folder is not trusted: others may have written what is in it; empty when it is trusted or gone."""
    try:
        status = folder.stat()
    except OSError:
        return ""
    if status.st_uid != os.geteuid():
        return f"belongs to another user (uid {status.st_uid})"
    return "can be written by everybody" if status.st_mode & 0o002 else ""


def suggest_ownership_fix(folder: Path) -> str:
    """Return what to do about a folder that is not trusted."""
    return f"if you know what is in it: chown it to yourself, and chmod go-w {folder}"
