"""Download a model with the engine's own huggingface_hub, in a process that ends with ours, and report its progress."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from dflash_tui.common import paths
from dflash_tui.common.errors import DflashError
from dflash_tui.common.formatting import format_gigabytes
from dflash_tui.common.sanitizer import join_last_lines
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.engines.byte_progress import ByteProgress
from dflash_tui.engines.hub import cache, client, model_lookup
from dflash_tui.engines.hub.client import Access
from dflash_tui.engines.hub.model_lookup import ModelAvailability
from dflash_tui.events import Preparing, Step
from dflash_tui.machine import process_group
from dflash_tui.machine.process_environment import HUB_TOKEN_PLACES, PROXIES, build_helper_environment

_RESERVE = 1_000_000_000
_INTERVAL = 0.5
_GRACE = 5.0
_KEPT = 64_000
_RETRY = "run the same command again: the download resumes where it stopped"
_HINTS = {
    "damaged": "run the same command again: the damaged file was removed and is downloaded again",
    "disk": "free some space, or put the cache elsewhere with HF_HOME, and run the same command again",
    "hostile": "check HF_ENDPOINT and the proxy: the answer is not that of a hub",
    "folder": "make the cache writable, or put it elsewhere with HF_HOME",
    "library": "the engine has no usable huggingface_hub: remove the engine's folder and start again",
}
_ACCESS = {"gated": Access.TERMS_NOT_ACCEPTED, "not found": Access.NOT_FOUND}


class _Failure(msgspec.Struct):
    """The error that fetch_model.py prints."""

    kind: str
    error: str


register_type(_Failure)


async def download_model(model: ModelAvailability, python: Path, report: Callable[[Preparing], None]) -> Path:
    """Download the missing files of `model` with the engine's `python` and return the folder of the snapshot.

    Cancelling ends the process. What was downloaded stays, and a later call resumes from there.

    Raises:
        DflashError: the model may not be downloaded, the disk is too small, or the download failed.
    """
    if model.complete and model.folder:
        report(Preparing(time.time(), Step.MODELS, f"{model.repo}, in the cache", 1.0, done=True))
        return Path(model.folder)
    if not model.access.ok or not model.commit or model.missing_bytes is None:
        evidence = f"{model.access}: {model.detail}" if model.detail else str(model.access)
        raise DflashError(
            f"{model.repo} cannot be downloaded", evidence=evidence, hint=model_lookup.advise_access(model)
        )
    _check_space(model.repo, model.missing_bytes)
    progress = _DownloadProgress(model, model.commit, report)
    await _fetch(model, python, progress)
    if not cache.has_all_files(model.repo, model.commit, model.files):
        evidence = f"{progress.measure_cached()} of {model.total_bytes} bytes in the cache"
        raise DflashError(f"{model.repo} is incomplete after its download", evidence=evidence, hint=_RETRY)
    progress.finish()
    return cache.snapshot_folder(model.repo, model.commit)


def _check_space(repo: str, missing: int) -> None:
    folder = cache.hub_cache_folder()
    existing = next(path for path in (folder, *folder.parents) if path.is_dir())
    free, needed = shutil.disk_usage(existing).free, missing + _RESERVE
    if free < needed:
        raise DflashError(
            f"not enough disk space for {repo}: {format_gigabytes(missing)} to download, "
            f"and {format_gigabytes(_RESERVE)} to stay free",
            evidence=f"{format_gigabytes(free)} free on the disk of {folder}",
            hint="free some space, or put the cache elsewhere with HF_HOME",
        )


class _DownloadProgress:
    """Measures how much of a model is in the cache, and reports it."""

    def __init__(self, model: ModelAvailability, commit: str, report: Callable[[Preparing], None]) -> None:
        self._model, self._commit, self._since = model, commit, time.time()
        self._progress = ByteProgress(model.repo, model.total_bytes or 0, self.measure_cached(), report)

    def measure_cached(self) -> int:
        """Return the bytes that are in the cache."""
        return cache.measure_cached_bytes(self._model.repo, self._commit, self._model.files, self._since)

    def report(self, cached_bytes: int) -> None:
        """Report that `cached_bytes` bytes are in the cache."""
        self._progress.report(cached_bytes)

    def finish(self) -> None:
        """Report the end."""
        self._progress.finish("downloaded")


async def _fetch(model: ModelAvailability, python: Path, progress: _DownloadProgress) -> None:
    request = {
        "repo": model.repo,
        "revision": model.revision,
        "commit": model.commit,
        "cache": str(cache.hub_cache_folder()),
        "files": model.files,
    }
    process = await asyncio.create_subprocess_exec(
        python,
        paths.engine_script("fetch_model.py"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=_environment(),
        cwd="/",
        start_new_session=True,
    )
    assert process.stdin is not None  # noqa: S101 - both are PIPE
    assert process.stdout is not None  # noqa: S101
    output = asyncio.create_task(_tail(process.stdout))
    try:
        # It ends when its stdin does: kept open, it says that we live.
        process.stdin.write(msgspec.json.encode(request) + b"\n")
        while not output.done():
            progress.report(await asyncio.to_thread(progress.measure_cached))
            await asyncio.wait({output}, timeout=_INTERVAL)
        if await process.wait() != 0:
            raise _failure(model, process.returncode, output.result())
    finally:
        output.cancel()
        process.stdin.close()
        await process_group.end_group(process, _GRACE)


async def _tail(stream: asyncio.StreamReader) -> str:
    """Return the end of what a process prints."""
    tail = b""
    while chunk := await stream.read(_KEPT):
        tail = (tail + chunk)[-_KEPT:]
    return tail.decode(errors="replace")


def _environment() -> dict[str, str]:
    """Return the environment of the script: of all secrets the hub's token alone."""
    env = build_helper_environment(*PROXIES, *HUB_TOKEN_PLACES)
    # What is not in the order of its bytes cannot be resumed, and hf_transfer is not.
    env.pop("HF_HUB_ENABLE_HF_TRANSFER", None)
    env |= {"HF_ENDPOINT": cache.hub_endpoint(), "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    token = cache.read_hub_token()
    return env | ({"HF_TOKEN": token} if token else {})


def _failure(model: ModelAvailability, code: int | None, output: str) -> DflashError:
    """Return the error for the last lines of the script."""
    failure = _Failure("", f"exit code {code}: {join_last_lines(output, 3)}")
    for line in output.split("\n"):
        with contextlib.suppress(msgspec.MsgspecError):
            failure = msgspec.json.decode(line, type=_Failure)
    access = _ACCESS.get(failure.kind)
    hint = (
        model_lookup.advise_access(msgspec.structs.replace(model, access=access))
        if access
        else _HINTS.get(failure.kind, _RETRY)
    )
    # The address of a file on the storage carries a signature that opens it.
    evidence = re.sub(r"\?[^\s'\"]+", "?…", failure.error)
    return DflashError(f"{model.repo} could not be downloaded", evidence=client.quote_hub_text(evidence), hint=hint)
