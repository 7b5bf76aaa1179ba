"""A copy of an engine that takes no room: hard links, of which a patch replaces those that it changes."""

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path

from dflash_tui.engines import environments


def copy_engine(data: Path, copy: Path) -> None:
    """Copy our data folder with its engines, each of which then names its new place.

    Nothing may write into a file: patches, pip and byte code put a new one in its place.
    """
    shutil.copytree(data, copy, symlinks=True, copy_function=_link)
    for folder in (copy / "engines").iterdir():
        marker = folder / environments.MARKER
        if not marker.is_file():
            continue
        _replace(marker, json.dumps(json.loads(marker.read_bytes()) | {"folder": str(folder)}).encode())
        old = str(data / "engines" / folder.name).encode()
        for script in (folder / "bin").iterdir():
            if not script.is_symlink() and (text := script.read_bytes()).startswith(b"#!") and old in text:
                _replace(script, text.replace(old, str(folder).encode()))


def _link(file: str, place: str) -> None:
    with suppress(FileNotFoundError):  # byte code of a server that runs from it, which has its name by now
        os.link(file, place)


def _replace(file: Path, text: bytes) -> None:
    mode = file.stat().st_mode
    file.unlink()
    file.write_bytes(text)
    file.chmod(mode)
