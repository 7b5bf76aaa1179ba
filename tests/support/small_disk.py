"""A small disk of a test's own, which needs root."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mount_disk(folder: Path, options: str) -> Iterator[Path]:
    """Mount a disk in memory there; skip where that is not permitted."""
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=False).returncode != 0:
        pytest.skip("a disk can be mounted by root only")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
