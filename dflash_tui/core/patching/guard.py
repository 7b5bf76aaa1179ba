"""Which environments and files a patch may touch: ours or released to us, nothing running, nobody else's file."""

from __future__ import annotations

import os
import re
from base64 import urlsafe_b64decode
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions
from pathlib import Path

import psutil

from dflash_tui.core import server
from dflash_tui.core.engine import Engine
from dflash_tui.errors import PatchError


def allow(engine: Engine, paths: Iterable[str]) -> None:
    """Return when the files `paths` of the engine's vLLM may be changed now.

    Raises:
        PatchError: the user has not allowed it, a server runs from it, it holds another vLLM than it is known for,
            or a file is not that vLLM's.
    """
    if not engine.patchable:
        raise PatchError(
            f"{engine.folder} was adopted without leave to patch it",
            do=f"dflash-tui engine adopt --patch {engine.folder}",
        )
    idle(engine)
    holder = _holder(engine)
    mine = f"{holder.name} {holder.version}"
    for path in paths:
        if (owners := _owners(engine, path)) != [mine]:
            alone = " alone" if mine in owners else ""
            raise PatchError(
                f"vllm/{path} does not belong to {engine.distribution} {engine.vllm}{alone}",
                evidence=f"claimed by {' and '.join(owners) or 'no installed distribution'}",
                do=f"reinstall vLLM in {engine.folder}",
            )


def idle(engine: Engine) -> None:
    """Return when no server runs from the engine.

    Raises:
        PatchError: one does.
    """
    if users := in_use(engine):
        raise PatchError(
            "a server runs from this engine, so its files are not changed",
            evidence=", ".join(users),
            do="stop it first: dflash-tui ps, dflash-tui stop",
        )


def in_use(engine: Engine) -> list[str]:
    """Return the servers that run from the engine, ours and those that were started by hand, in words."""
    ours = [run for run in server.runs() if run.plan.engine_folder == engine.folder and server.alive(run)]
    found = [f"{run.id} on port {run.plan.port}" for run in ours]
    members = {process.pid for run in ours for process in server.members(run)}
    others = (process for process in psutil.process_iter() if process.pid not in members)
    return found + [f"process {process.pid}" for process in others if _serves(process, engine)]


def _serves(process: psutil.Process, engine: Engine) -> bool:
    """Whether the process is a vLLM server from this environment; its workers have names, but no command, of vLLM's."""
    try:
        words = process.cmdline()
        named = process.name().startswith("VLLM::")
        if named:
            return f" {engine.folder}/" in Path(f"/proc/{process.pid}/maps").read_text(errors="replace")
    except (psutil.Error, OSError):
        return False
    if not any(re.search(r"(?:^|/)vllm$|^vllm\.", word) for word in words[:6]):
        return False
    return _is_from(process, words, engine)


def _is_from(process: psutil.Process, words: list[str], engine: Engine) -> bool:
    """Whether a program was started from the environment, by path or activated, or has mapped a library of it."""
    folders = {engine.folder, str(Path(engine.folder).resolve())}
    try:
        started = {os.path.normpath(os.path.join(process.cwd(), word)) for word in words[:2]}  # noqa: PTH118 - links stay
        if any(path.startswith(f"{folder}/bin/") for path in started for folder in folders):
            return True
        if process.environ().get("VIRTUAL_ENV") in folders:
            return True
        mapped = Path(f"/proc/{process.pid}/maps").read_text(errors="replace")
    except (psutil.Error, OSError):
        return False
    return any(f" {folder}/" in mapped for folder in folders)


def _holder(engine: Engine) -> Distribution:
    """Return the installed distribution that carries vLLM."""
    wanted = _plain(engine.distribution)
    found = next((dist for dist in _installed(engine) if _plain(dist.name) == wanted), None)
    version = found.version.partition("+")[0] if found else "none"
    if found is None or version != engine.vllm:
        again = f"dflash-tui engine adopt --patch {engine.folder}" if engine.adopted else "dflash-tui engine install"
        raise PatchError(
            f"{engine.folder} is known for {engine.distribution} {engine.vllm} and holds {version} now", do=again
        )
    return found


def _owners(engine: Engine, path: str) -> list[str]:
    """Return the installed distributions whose RECORD lists the file: two have overwritten each other's."""
    line = re.compile(rf'^"?vllm/{re.escape(path)}"?,', re.MULTILINE)
    return [f"{dist.name} {dist.version}" for dist in _installed(engine) if line.search(dist.read_text("RECORD") or "")]


def recorded(engine: Engine) -> dict[str, str]:
    """Return the SHA-256 in hexadecimal that the wheel's RECORD states for each file of the `vllm` package."""
    wanted = _plain(engine.distribution)
    found = next((dist for dist in _installed(engine) if _plain(dist.name) == wanted), None)
    files = (found.files or ()) if found else ()
    hashed = ((str(file), file.hash) for file in files)
    return {
        path.removeprefix("vllm/"): urlsafe_b64decode(digest.value + "=" * (-len(digest.value) % 4)).hex()
        for path, digest in hashed
        if path.startswith("vllm/") and digest and digest.mode == "sha256"
    }


def _installed(engine: Engine) -> list[Distribution]:
    return list(distributions(path=[str(engine.site_packages)]))


def _plain(name: str | None) -> str:
    return re.sub(r"[-_.]+", "-", name or "").lower()
