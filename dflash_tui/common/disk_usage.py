"""How much room folders take on their disks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_BLOCK = 512  # what st_blocks counts in, whatever the disk's own blocks are


class DiskCount:
    """Counts the bytes of folders; a file that several of them share by hard links counts in the first."""

    def __init__(self) -> None:
        self._counted_files: set[tuple[int, int]] = set()

    def measure_folder(self, folder: Path) -> int:
        """Return the bytes on disk below `folder`, 0 where it is not there; links are not followed."""
        return sum(self._measure_file(entry) for entry in _walk(folder))

    def _measure_file(self, entry: os.DirEntry[str]) -> int:
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:  # it is gone by now
            return 0
        if status.st_nlink > 1:
            identity = (status.st_dev, status.st_ino)
            if identity in self._counted_files:
                return 0
            self._counted_files.add(identity)
        return status.st_blocks * _BLOCK


def _walk(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield what is not a folder; what cannot be read is left out."""
    try:
        with os.scandir(folder) as entries:
            listed = list(entries)
    except OSError:
        return
    for entry in listed:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path))
        else:
            yield entry
