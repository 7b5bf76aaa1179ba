"""Download a model or a data set into the Hugging Face cache, several files at once, and report the progress.

huggingface_hub 2 deletes a partial file when its process ends, so a cancelled download of 16 GB would start over.
Large files are therefore fetched here by its HTTP function, each into `blobs/<etag>.incomplete`, and resumed.
`hf_hub_download` handles the rest: small files, files over 50 GB, which only xet carries, and the links.
"""

from __future__ import annotations

import asyncio
import errno
import fnmatch
import hashlib
import itertools
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dflash_tui.benchmark import suites
from dflash_tui.common import paths, private_files
from dflash_tui.common.daemon_thread import start_daemon
from dflash_tui.common.errors import DflashError
from dflash_tui.common.formatting import format_duration, format_gigabytes
from dflash_tui.engines import model_hub
from dflash_tui.engines.model_hub import Access, HubAccessError, HubFile, ModelAvailability
from dflash_tui.events import Preparing, Step

if TYPE_CHECKING:
    from huggingface_hub.utils import tqdm


_AT_ONCE = 4
_HTTP_LIMIT = 50_000_000_000
_CHUNK = 1 << 20
_RESERVE = 1_000_000_000
_INTERVAL = 0.5
_RETRY = "run the same command again: the download resumes where it stopped"
_DAMAGED = "run the same command again: the damaged file was removed and is downloaded again"
_NO_ROOM = "free some space, or put the cache elsewhere with HF_HOME"
_NOT_WRITABLE = "make the cache writable, or put it elsewhere with HF_HOME"


class _Damaged(Exception):
    """The SHA-256 of a downloaded file differs from its name."""


class _Cancelled(Exception):
    """The caller no longer waits for the download."""


async def download_model(model: ModelAvailability, report: Callable[[Preparing], None]) -> Path:
    """Download the missing files of `model` and return its snapshot folder.

    A cancelled download keeps its files, and a later call resumes it.

    Raises:
        DflashError: the model may not be downloaded, the disk is too small, or the download failed.
    """
    if model.complete and model.folder:
        report(Preparing(time.time(), Step.MODELS, f"{model.repo}, in the cache", 1.0, done=True))
        return Path(model.folder)
    if not model.access.ok or not model.commit or model.missing_bytes is None:
        evidence = f"{model.access}: {model.detail}" if model.detail else str(model.access)
        raise DflashError(f"{model.repo} cannot be downloaded", evidence=evidence, hint=model_hub.advise_access(model))
    _check_space(model.repo, model.missing_bytes)
    measure = partial(model_hub.measure_cached_bytes, model.repo, model.commit, model.files)
    progress = ByteProgress(model.repo, model.total_bytes or 0, measure(), report)
    cancelled = threading.Event()
    fetching = asyncio.ensure_future(_fetch_files(model, cancelled))
    try:
        while not fetching.done():
            progress.report(await asyncio.to_thread(measure))
            await asyncio.wait({fetching}, timeout=_INTERVAL)
        await fetching
    except Exception as error:  # noqa: BLE001 - from huggingface_hub, its HTTP library or the disk
        raise _explain_failure(model, error) from None
    finally:
        cancelled.set()
        fetching.cancel()
    if not model_hub.has_all_files(model.repo, model.commit, model.files):
        evidence = f"{measure()} of {model.total_bytes} bytes in the cache"
        raise DflashError(f"{model.repo} is incomplete after its download", evidence=evidence, hint=_RETRY)
    progress.finish("downloaded")
    return model_hub.snapshot_folder(model.repo, model.commit)


def _check_space(repo: str, missing: int) -> None:
    folder = model_hub.hub_cache_folder()
    free, needed = shutil.disk_usage(paths.find_existing(folder)).free, missing + _RESERVE
    if free < needed:
        raise DflashError(
            f"not enough disk space for {repo}: {format_gigabytes(missing)} to download, "
            f"and {format_gigabytes(_RESERVE)} to stay free",
            evidence=f"{format_gigabytes(free)} free on the disk of {folder}",
            hint=_NO_ROOM,
        )


async def _fetch_files(model: ModelAvailability, cancelled: threading.Event) -> None:
    from huggingface_hub.utils import tqdm

    class Bar(tqdm):
        """A hidden progress bar that aborts the download when it is cancelled."""

        def update(self, n: float | None = 1) -> None:
            if cancelled.is_set():
                raise _Cancelled
            super().update(n)

    limit = asyncio.Semaphore(_AT_ONCE)

    async def fetch(file: HubFile) -> None:
        async with limit:
            await asyncio.wrap_future(start_daemon(partial(_fetch_file, model, file, Bar)))

    await asyncio.gather(*map(fetch, model.files))


def _fetch_file(model: ModelAvailability, file: HubFile, bar: type[tqdm]) -> None:
    hub = model_hub.open_hub()
    if file.large and file.size <= _HTTP_LIMIT:
        _fetch_blob(model, file, bar)
    kind, name = model_hub.split_repository(model.repo)
    hub.hf_hub_download(
        name, file.name, repo_type=kind, revision=model.revision, cache_dir=model_hub.hub_cache_folder(), tqdm_class=bar
    )


def _fetch_blob(model: ModelAvailability, file: HubFile, bar: type[tqdm]) -> None:
    """Download a large file into `blobs`, resuming an earlier call.

    The hash is computed from the disk: a power cut may have left zeros in the partial file.
    """
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.utils import WeakFileLock, build_hf_headers

    constants.DOWNLOAD_CHUNK_SIZE = _CHUNK  # written and counted per chunk; 10 MB takes ten seconds on a slow line
    folder = model_hub.repository_folder(model.repo)
    blob = folder / "blobs" / file.etag
    lock = folder.parent / ".locks" / folder.name / f"{file.etag}.lock"
    for needed in (blob.parent, lock.parent):
        needed.mkdir(parents=True, exist_ok=True)
    kind, name = model_hub.split_repository(model.repo)
    url = hf_hub_url(name, file.name, repo_type=kind, revision=model.commit, endpoint=model_hub.hub_endpoint())
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    with WeakFileLock(lock):
        if blob.exists():
            return
        part = blob.with_name(f"{file.etag}.incomplete")
        _complete(part, url, headers, file.size, bar)
        with part.open("rb") as written:
            digest = hashlib.file_digest(written, "sha256").hexdigest()
        if digest != file.etag:
            part.unlink()
            raise _Damaged(f"{file.name} does not have the SHA-256 that the hub states")
        part.rename(blob)


def _complete(part: Path, url: str, headers: dict[str, str], size: int, bar: type[tqdm]) -> None:
    """Append the missing bytes to `part`, retrying as long as each attempt adds some."""
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.file_download import http_get

    with part.open("ab", buffering=0) as out:
        while (before := part.stat().st_size) < size:
            try:
                http_get(url, out, resume_size=before, headers=headers, expected_size=size, tqdm_class=bar)
            except (HfHubHTTPError, _Cancelled):
                raise
            except Exception:  # the class depends on the HTTP library of huggingface_hub
                if part.stat().st_size <= before:
                    raise


def _explain_failure(model: ModelAvailability, error: Exception) -> DflashError:
    refusal = model_hub.explain_error(error)
    if isinstance(error, _Damaged):
        hint = _DAMAGED
    elif isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        hint = f"{_NO_ROOM}, and run the same command again"
    elif isinstance(error, PermissionError):
        hint = _NOT_WRITABLE
    elif refusal.access is Access.UNREACHABLE:
        hint = _RETRY
    else:
        hint = model_hub.advise_access(msgspec.structs.replace(model, access=refusal.access))
    return DflashError(f"{model.repo} could not be downloaded", evidence=refusal.detail, hint=hint)


_WINDOW = 10.0
_STALLED = 60.0


class ByteProgress:
    """Reports how many bytes of a transfer have arrived."""

    def __init__(self, name: str, total: int, before: int, report: Callable[[Preparing], None], way: str = "") -> None:
        """Start with the `before` bytes of an earlier attempt.

        `way` describes the route of the bytes; with one, the figures come first, since the end of a line may be cut.
        """
        self._name, self._total, self._before, self._report, self._way = name, total, before, report, way
        self._moved = self._began = time.monotonic()
        self._readings = deque([(self._began, before)])

    def report(self, amount: int) -> None:
        """Report that `amount` bytes have arrived, with the rate and the time left."""
        now = time.monotonic()
        if amount > self._readings[-1][1]:
            self._moved = now
        self._readings.append((now, amount))
        while now - self._readings[1][0] >= _WINDOW:
            self._readings.popleft()
        began, before = self._readings[0]
        rate = (amount - before) / (now - began) if now > began else 0.0
        figures = f"{format_gigabytes(amount)} of {format_gigabytes(self._total)}"
        words = [figures if self._way else f"{self._name}: {figures}"]
        if now - self._moved >= _STALLED:
            words.append(f"stalled for {format_duration(now - self._moved)}")
        elif rate > 0:
            words += [f"{rate / 1e6:.1f} MB/s", f"{format_duration((self._total - amount) / rate)} left"]
        words += [f"{self._name} {self._way}"] if self._way else []
        fraction = min(0.99, amount / self._total) if self._total else None
        self._report(Preparing(time.time(), Step.MODELS, " · ".join(words), fraction))

    def finish(self, done: str) -> None:
        """Report the end; `done` is the verb, such as `downloaded`."""
        new, took = format_gigabytes(self._total - self._before), format_duration(time.monotonic() - self._began)
        name = f"{self._name} {self._way}".rstrip()
        words = f"{name}: {format_gigabytes(self._total)}, {new} {done} in {took}"
        self._report(Preparing(time.time(), Step.MODELS, words, 1.0, done=True))


_REVISION = "main"
_PARQUET = ".parquet"
_ROWS = 2000


async def fetch_dataset(name: str, report: Callable[[Preparing], None]) -> Path:
    """Fetch a data set and return the file of its prompts; if the hub cannot be asked, use the cache.

    Raises:
        DflashError: it is not on the hub, may not be fetched, or is not a file of questions.
    """
    dataset = suites.DATASETS[name]
    if not dataset.repository:
        raise suites.build_missing_error(name)
    repo = f"{model_hub.DATASETS}{dataset.repository}"
    try:
        info = await model_hub.fetch_repository(repo, _REVISION)
    except HubAccessError as error:
        folder = model_hub.snapshot_folder(repo, model_hub.read_cached_commit(repo, _REVISION) or "none")
        source = next((path for path in sorted(folder.glob(dataset.file)) if path.is_file()), None)
        if source is None:
            evidence = f"{error.access}: {error.detail}"
            do = "try again when the hub is reachable, or give a file: --dataset FILE"
            raise DflashError(f"{repo} cannot be fetched", evidence=evidence, hint=do) from None
    else:
        files = [file for file in model_hub.list_files(info) if fnmatch.fnmatchcase(file.name, dataset.file)]
        if not files:
            raise DflashError(f"{repo} has no file {dataset.file} any more", hint="give a file: --dataset FILE")
        first = min(files, key=lambda file: file.name)
        model = model_hub.describe_files(repo, _REVISION, info, (first,))
        source = await download_model(model, report) / first.name
    return await asyncio.to_thread(_store, name, source)


def _store(name: str, source: Path) -> Path:
    target = suites.fetched_dataset_file(name)
    lines = target.with_suffix(".rows.jsonl")
    try:
        private_files.ensure_private_folder(target.parent)
        if source.name.endswith(_PARQUET):
            private_files.replace_private_file(lines, _read_parquet(name, source))
            source = lines
        questions = suites.format_questions(suites.read_questions(source))
        private_files.replace_private_file(target, questions)
    except OSError as error:
        raise DflashError(f"{name} cannot be written", evidence=str(error)) from None
    finally:
        lines.unlink(missing_ok=True)
    return target


def _read_parquet(name: str, source: Path) -> bytes:
    try:
        from pyarrow.parquet import ParquetFile

        rows = (row for batch in ParquetFile(source).iter_batches(64) for row in batch.to_pylist())
        return b"\n".join(msgspec.json.encode(row, enc_hook=str) for row in itertools.islice(rows, _ROWS))
    except Exception as error:  # noqa: BLE001 - pyarrow is missing, or the file is invalid
        do = "install pyarrow beside dflash-tui (its extra `datasets`), or give a file of JSON lines: --dataset FILE"
        evidence = model_hub.quote_hub_text(str(error))
        raise DflashError(
            f"{name} comes as a Parquet file that could not be read", evidence=evidence, hint=do
        ) from None
