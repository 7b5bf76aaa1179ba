"""Fetch a known data set from the hub, as models are, then copy it as the prompts of a suite."""

from __future__ import annotations

import asyncio
import fnmatch
import itertools
from collections.abc import Callable
from pathlib import Path

import msgspec

from dflash_tui.benchmark import suites
from dflash_tui.common import private_files
from dflash_tui.common.errors import DflashError
from dflash_tui.engines.hub import cache, client, download, model_lookup
from dflash_tui.engines.hub.client import HubAccessError
from dflash_tui.events import Preparing

_REVISION = "main"
_PARQUET = ".parquet"
_ROWS = 2000


async def fetch_dataset(name: str, report: Callable[[Preparing], None]) -> Path:
    """Fetch a data set and return the file with its prompts; without the hub, what is in its cache is taken.

    Args:
        name: one of `suites.DATASETS`.
        report: takes the progress.

    Raises:
        DflashError: it is on no hub, may not be fetched, or what came is no file of questions.
    """
    dataset = suites.DATASETS[name]
    if not dataset.repository:
        raise suites.build_missing_error(name)
    repo = f"{cache.DATASETS}{dataset.repository}"
    try:
        info = await client.fetch_repository(repo, _REVISION)
    except HubAccessError as error:
        source = _find_cached(repo, dataset.file)
        if source is None:
            evidence = f"{error.access}: {error.detail}"
            do = "try again where the hub answers, or give a file: --dataset FILE"
            raise DflashError(f"{repo} cannot be fetched", evidence=evidence, hint=do) from None
    else:
        files = [file for file in model_lookup.list_files(info) if fnmatch.fnmatchcase(file.name, dataset.file)]
        if not files:
            raise DflashError(f"{repo} has no file {dataset.file} any more", hint="give a file: --dataset FILE")
        first = min(files, key=lambda file: file.name)
        model = model_lookup.describe_files(repo, _REVISION, info, (first,))
        source = await download.download_model(model, report) / first.name
    return await asyncio.to_thread(_store, name, source)


def _find_cached(repo: str, pattern: str) -> Path | None:
    folder = cache.snapshot_folder(repo, cache.read_cached_commit(repo, _REVISION) or "none")
    return next((path for path in sorted(folder.glob(pattern)) if path.is_file()), None)


def _store(name: str, source: Path) -> Path:
    """Copy the questions of a file of any known form as those of a suite."""
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
    """Return the first rows of a Parquet file as lines of JSON."""
    try:
        from pyarrow.parquet import ParquetFile

        rows = (row for batch in ParquetFile(source).iter_batches(64) for row in batch.to_pylist())
        return b"\n".join(msgspec.json.encode(row, enc_hook=str) for row in itertools.islice(rows, _ROWS))
    except Exception as error:  # noqa: BLE001 - pyarrow is missing, or says what the file is not
        do = "install pyarrow beside dflash-tui (its extra `datasets`), or give a file of JSON lines: --dataset FILE"
        evidence = client.quote_hub_text(str(error))
        raise DflashError(
            f"{name} comes as a Parquet file that could not be read", evidence=evidence, hint=do
        ) from None
