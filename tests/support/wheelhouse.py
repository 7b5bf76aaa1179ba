"""What hosts without a network install from: a folder of wheels for this program, and uv's cache for an engine."""

import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import uv
from packaging.requirements import Requirement

from dflash_tui.engines import uv_process
from dflash_tui.planning.recipes.recipe import EngineSpec


def list_needed() -> list[Requirement]:
    """Return the packages that this program needs, without extras."""
    return [each for each in map(Requirement, importlib.metadata.requires("dflash-tui") or ()) if each.marker is None]


def fill_wheelhouse(folder: Path) -> None:
    """Put the wheels that this program needs into a folder; skip where there is no package index."""
    words = [sys.executable, "-m", "pip", "download", "--only-binary=:all:", "--dest", str(folder)]
    got = subprocess.run([*words, *map(str, list_needed())], capture_output=True, text=True, check=False)
    if got.returncode:
        pytest.skip(f"no package index: {got.stderr[-200:]}")


def fill_uv_cache(folder: Path, spec: EngineSpec) -> None:
    """Let uv's cache hold what an engine is made of today; skip where there is no package index.

    Without a network uv takes nothing from the index that it has not seen at its last answer.
    """
    folder.mkdir()
    lock, packages = folder / "packages.txt", folder / "packages"
    install = ["pip", "install", "--target", str(packages), "--no-deps", "--requirements", str(lock)]
    for words in (uv_process.build_compile_command(spec, sys.executable, folder, lock), install):
        command = [uv.find_uv_bin(), *words]
        got = subprocess.run(
            command, env=uv_process.build_uv_environment(), capture_output=True, text=True, check=False
        )
        if got.returncode:
            pytest.skip(f"no package index: {got.stderr[-200:]}")
    shutil.rmtree(packages)
