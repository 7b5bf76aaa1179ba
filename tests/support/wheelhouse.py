"""What hosts without a network install this program from: a folder of wheels."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement


def list_needed() -> list[Requirement]:
    """Return the packages that this program needs, without extras."""
    return [each for each in map(Requirement, importlib.metadata.requires("dflash-tui") or ()) if each.marker is None]


def fill_wheelhouse(folder: Path) -> None:
    """Put the wheels that this program needs into a folder; skip where there is no package index."""
    words = [sys.executable, "-m", "pip", "download", "--only-binary=:all:", "--dest", str(folder)]
    got = subprocess.run([*words, *map(str, list_needed())], capture_output=True, text=True, check=False)
    if got.returncode:
        pytest.skip(f"no package index: {got.stderr[-200:]}")
