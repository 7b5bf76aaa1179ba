"""The lock of an engine: the versions and hashes of its packages, recorded when it is installed for the first time.

It stays when the engine is removed, so that installing the same engine again installs the same files or none. Another
Python or machine takes other files and has a lock of its own. The format is that of requirements with `--hash`.
"""

from __future__ import annotations

import platform
import re
import sys
from itertools import takewhile
from pathlib import Path

from dflash_tui.common import private_files
from dflash_tui.common.errors import EngineError
from dflash_tui.planning.recipes.recipe import EngineSpec

FOLDER = "locked"
_MISMATCH = re.compile(r"Hash mismatch for `([^`]{1,200})`\s+Expected:")
_COMPUTED = "Computed:"
_HASH = re.compile(r"\w+:\w+")
_MOST_HASHES = 3


def lock_file(folder: Path) -> Path:
    """Return the file with the lock of the engine in `folder`, whether it is there or not."""
    made_for = f"py{sys.version_info.major}.{sys.version_info.minor}-{platform.machine()}"
    return folder.parent / FOLDER / f"{folder.name}-{made_for}.txt"


def build_compile_command(spec: EngineSpec, python: str, folder: Path, lock: Path) -> list[str]:
    """Return uv's words that resolve what `spec` asks for into `lock`, by files that are written into `folder`."""
    packages, overrides = folder / "dflash-requirements.txt", folder / "dflash-overrides.txt"
    for path, lines in ((packages, spec.packages), (overrides, spec.overrides)):
        private_files.write_private_file(path, "".join(f"{line}\n" for line in lines).encode())
    argv = ["pip", "compile", str(packages), "--python", python, "--generate-hashes", "--overrides", str(overrides)]
    argv += ["--no-header", "--no-annotate", "--output-file", str(lock)]
    argv += ["--exclude-newer", spec.exclude_newer] if spec.exclude_newer else []
    return argv if spec.source_builds else [*argv, "--only-binary", ":all:"]


def build_install_command(spec: EngineSpec, python: str, lock: Path) -> list[str]:
    """Return uv's words that install what is in `lock`, and nothing else.

    What is built from source has no hash that a second build would have again; every other file is checked.
    """
    argv = ["pip", "install", "--python", python, "--compile-bytecode", "--no-deps", "--requirements", str(lock)]
    argv += ["--exclude-newer", spec.exclude_newer] if spec.exclude_newer else []
    return argv if spec.source_builds else [*argv, "--only-binary", ":all:", "--require-hashes"]


def record_lock(folder: Path, lock: Path) -> None:
    """Record the lock with which the engine in `folder` was installed for the first time."""
    recorded = lock_file(folder)
    private_files.ensure_private_folder(recorded.parent)
    private_files.replace_private_file(recorded, lock.read_bytes())


def explain_mismatch(stderr: str, recorded: Path) -> EngineError | None:
    """Return the error for a package whose hash is not the one that was expected; None when that is not what uv says.

    Args:
        stderr: What uv says.
        recorded: The engine's lock, which is there when the engine was installed before.
    """
    mismatch = _read_mismatch(stderr)
    if mismatch is None:
        return None
    package, expected, computed = mismatch
    more = f" or {len(expected) - _MOST_HASHES} others" if len(expected) > _MOST_HASHES else ""
    evidence = f"expected {' or '.join(expected[:_MOST_HASHES])}{more}, got {' '.join(computed)}"
    if recorded.exists():
        what = f"{package} differs from the file that was installed the first time, so nothing was installed"
        hint = f"find out who changed it; if you did: rm {recorded}, and run the same command again"
    else:
        what = f"{package} does not have the hash that it must have, so nothing was installed"
        hint = "try again, perhaps with another mirror (UV_DEFAULT_INDEX); if it persists, tell who runs the index"
    return EngineError(what, evidence=evidence, hint=hint)


def _read_mismatch(stderr: str) -> tuple[str, list[str], list[str]] | None:
    """Return the package, and the hashes that were expected and computed; None where uv says nothing of them.

    By words, one after the other: a pattern over all of it would try each end for each blank.
    """
    match = _MISMATCH.search(stderr)
    if match is None:
        return None
    words = iter(stderr[match.end() :].split())
    expected = list(takewhile(_COMPUTED.__ne__, words))
    computed = list(takewhile(_HASH.fullmatch, words))
    return (match[1], expected, computed) if expected and computed else None
