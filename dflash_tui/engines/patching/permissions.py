"""Check that patches may change an engine's files: allowed by the user, no server running, files that vLLM owns."""

from __future__ import annotations

import contextlib
import csv
import os
import re
from base64 import urlsafe_b64decode
from collections.abc import Iterable, Set
from pathlib import Path
from typing import NamedTuple

import psutil

from dflash_tui.common import private_files
from dflash_tui.common.errors import PatchError
from dflash_tui.common.paths import resolve_links
from dflash_tui.engines.environments import Engine
from dflash_tui.runs import registry, server_process

_LARGEST_RECORD = 64 << 20


def require_writable_files(engine: Engine, paths: Iterable[str]) -> None:
    """Return when the files `paths` of the engine's vLLM may be changed now.

    Raises:
        PatchError: as `find_carrying_distribution` does, or a file is not that vLLM's.
    """
    holder = find_carrying_distribution(engine)
    if engine.source_tree:  # no RECORD lists files of a source tree
        return
    claims = [(distribution, distribution.files()) for distribution in _installed(engine)]
    for path in paths:
        if (owners := [distribution for distribution, listed in claims if path in listed]) != [holder]:
            alone = " alone" if holder in owners else ""
            named = " and ".join(f"{distribution.name} {distribution.version}" for distribution in owners)
            raise PatchError(
                f"vllm/{path} does not belong to {engine.distribution} {engine.vllm}{alone}",
                evidence=f"claimed by {named or 'no installed distribution'}",
                hint=f"reinstall vLLM in {engine.folder}",
            )


def find_carrying_distribution(engine: Engine) -> _Installed:
    """Return the installed distribution that carries the engine's vLLM, when its files may be changed at all now.

    Raises:
        PatchError: the user has not allowed it, a server runs from it, or it holds another vLLM than it is known for.
    """
    if not engine.patchable:
        raise PatchError(
            f"{engine.folder} was adopted without permission to patch it",
            hint=f"dflash-tui engine adopt --patch {engine.folder}",
        )
    require_idle_engine(engine)
    return _holder(engine)


def require_idle_engine(engine: Engine) -> None:
    """Return when no server runs from the engine.

    Raises:
        PatchError: one does.
    """
    if users := list_engine_users(engine):
        raise PatchError(
            "a server runs from this engine, so its files are left as they are",
            evidence=", ".join(users),
            hint="stop it first: dflash-tui ps, dflash-tui stop",
        )


def list_engine_users(engine: Engine) -> list[str]:
    """Return the servers that run from the engine, ours and those that were started by hand, in words."""
    ours = [
        run for run in registry.list_runs() if run.plan.engine_folder == engine.folder and server_process.is_alive(run)
    ]
    users = [f"{run.id} on port {run.plan.port}" for run in ours]
    members = {process.pid for run in ours for process in server_process.list_processes(run)}
    others = (process for process in psutil.process_iter() if process.pid not in members)
    return users + [f"process {process.pid}" for process in others if _serves(process, engine)]


def _serves(process: psutil.Process, engine: Engine) -> bool:
    """Whether the process is a vLLM server from this environment; its workers have names, but no command, of vLLM's."""
    try:
        words = process.cmdline()
        named = process.name().startswith("VLLM::")
    except (psutil.Error, OSError):
        return False
    folders = {engine.folder, str(resolve_links(Path(engine.folder)))}
    if named:
        return _maps(process, folders)
    if not any(re.search(r"(?:^|/)vllm$|^vllm\.", word) for word in words[:6]):
        return False
    return _started_in(process, words[:2], folders) or _activated(process, folders) or _maps(process, folders)


def _started_in(process: psutil.Process, words: list[str], folders: set[str]) -> bool:
    """Whether one of the first words is a program of the environment; that of another user does not say where it is."""
    paths = [word for word in words if word.startswith("/")]
    with contextlib.suppress(psutil.Error, OSError):
        if len(paths) < len(words):
            paths = [os.path.join(process.cwd(), word) for word in words]  # noqa: PTH118 - links stay
    started = {os.path.normpath(path) for path in paths}
    return any(path.startswith(f"{folder}/bin/") for path in started for folder in folders)


def _activated(process: psutil.Process, folders: set[str]) -> bool:
    try:
        return process.environ().get("VIRTUAL_ENV") in folders
    except (psutil.Error, OSError):
        return False


def _maps(process: psutil.Process, folders: set[str]) -> bool:
    """Whether the process has mapped a library of the environment."""
    try:
        mapped = Path(f"/proc/{process.pid}/maps").read_text(errors="replace")
    except OSError:
        return False
    return any(f" {folder}/" in mapped for folder in folders)


class _Installed(NamedTuple):
    """A distribution in the environment: its name and version by the folder of its metadata, as installers name it."""

    name: str
    version: str
    folder: Path

    def files(self) -> dict[str, str]:
        """Return by path the SHA-256 in hexadecimal that its RECORD states for files of `vllm`; empty where none.

        The file is read as it is: `Distribution.files` leaves out what is not on the disk, from Python 3.12 on.
        """
        try:
            data = private_files.read_file(self.folder / "RECORD", _LARGEST_RECORD)
        except OSError:
            return {}
        digests = {}
        for line in data.decode(errors="replace").splitlines():
            if line.lstrip('"').startswith("vllm/"):
                with contextlib.suppress(csv.Error):
                    path, digest, *_ = *next(csv.reader([line])), ""
                    digests[path.removeprefix("vllm/")] = _hexadecimal(digest)
        return digests


def _hexadecimal(digest: str) -> str:
    """Return a RECORD's SHA-256 in hexadecimal; empty for another kind of digest and a damaged one."""
    kind, _, value = digest.partition("=")
    try:
        raw = urlsafe_b64decode(value + "=" * (-len(value) % 4))
    except ValueError:
        return ""
    return raw.hex() if kind == "sha256" and len(raw) == 32 else ""


def _installed(engine: Engine) -> list[_Installed]:
    folders = sorted(engine.site_packages.glob("*.dist-info"))
    parts = ((*folder.stem.partition("-"), folder) for folder in folders)
    return [_Installed(_plain(name), version, folder) for name, _, version, folder in parts]


def _carrier(engine: Engine) -> _Installed | None:
    wanted = _plain(engine.distribution)
    return next((carrier for carrier in _installed(engine) if carrier.name == wanted), None)


def _holder(engine: Engine) -> _Installed:
    """Return the installed distribution that carries vLLM."""
    carrier = _carrier(engine)
    version = carrier.version.partition("+")[0] if carrier else "none"
    if carrier is None or version != engine.vllm:
        register = f"dflash-tui engine adopt --patch {engine.folder}" if engine.adopted else "dflash-tui engine install"
        raise PatchError(
            f"{engine.folder} is registered with {engine.distribution} {engine.vllm}, and holds {version} now",
            hint=register,
        )
    return carrier


def read_wheel_digests(engine: Engine) -> dict[str, str]:
    """Return the SHA-256 in hexadecimal that the wheel's RECORD states for each file of the `vllm` package."""
    carrier = _carrier(engine)
    return {path: digest for path, digest in carrier.files().items() if digest} if carrier else {}


def list_wheel_files(engine: Engine) -> Set[str]:
    """Return the files of the `vllm` package that its wheel's RECORD lists, with a digest or without."""
    carrier = _carrier(engine)
    return carrier.files().keys() if carrier else frozenset()


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
