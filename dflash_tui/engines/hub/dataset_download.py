"""Fetch a known data set: by the engine's own huggingface_hub, as models are, then copied as the prompts of a suite."""

from __future__ import annotations

import asyncio
import fnmatch
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from dflash_tui.benchmark import datasets, question_files
from dflash_tui.common import paths, private_files
from dflash_tui.common.errors import DflashError
from dflash_tui.common.sanitizer import join_last_lines
from dflash_tui.engines.hub import cache, client, download
from dflash_tui.engines.hub.cache import HubFile
from dflash_tui.engines.hub.client import Access, HubAccessError, RepositoryInfo
from dflash_tui.engines.hub.model_lookup import ModelAvailability, build_hub_file
from dflash_tui.events import Preparing
from dflash_tui.machine.process_environment import build_helper_environment

_REVISION = "main"
_PARQUET = ".parquet"
_ROWS = 2000
_PATIENCE = 300.0


async def fetch_dataset(name: str, python: Path | None, report: Callable[[Preparing], None]) -> Path:
    """Fetch a data set and return the file with its prompts.

    Args:
        name: one of `datasets.DATASETS`.
        python: of the engine that fetches; without one, what is in the cache is taken.
        report: takes the progress.

    Raises:
        DflashError: it is on no hub, may not be fetched, or what came is no file of questions.
    """
    dataset = datasets.DATASETS[name]
    if not dataset.repository:
        raise datasets.build_missing_error(name)
    model = await _look_up(dataset)
    if not model.complete:
        if python is None:
            do = "install one with `dflash-tui engine install`, or give a file: --dataset FILE"
            raise DflashError(f"fetching {name} takes an engine, whose huggingface_hub does it", hint=do)
        await download.download_model(model, python, report)
    folder = cache.snapshot_folder(model.repo, model.commit or "")
    return await asyncio.to_thread(_store, name, folder / model.files[0].name)


async def _look_up(dataset: datasets.Dataset) -> ModelAvailability:
    """Return what the hub says of a data set's file, or what the cache has of it."""
    repo = f"{cache.DATASETS}{dataset.repository}"
    try:
        info = await client.ask_hub(repo, _REVISION)
    except HubAccessError as error:
        return _look_into_cache(repo, dataset.file, error)
    return _choose_file(repo, dataset.file, info)


def _choose_file(repo: str, pattern: str, info: RepositoryInfo) -> ModelAvailability:
    files = [build_hub_file(sibling) for sibling in info.siblings if fnmatch.fnmatchcase(sibling.rfilename, pattern)]
    fitting = sorted((file for file in files if cache.is_safe_name(file.name)), key=lambda file: file.name)[:1]
    if not fitting or fitting[0].size is None:
        what = f"{repo} has no file {pattern} any more" if not fitting else f"the hub does not say how large {repo} is"
        raise DflashError(what, hint="give a file: --dataset FILE")
    access = Access.GRANTED if info.private or info.gated not in {None, False} else Access.OPEN
    cached_bytes = cache.measure_cached_bytes(repo, info.sha, fitting)
    model = ModelAvailability(
        repo, _REVISION, access, commit=info.sha, total_bytes=fitting[0].size, cached_bytes=cached_bytes,
        missing_bytes=fitting[0].size - cached_bytes, files=tuple(fitting),
    )  # fmt: skip
    return replace(model, complete=cache.has_all_files(repo, info.sha, fitting))


def _look_into_cache(repo: str, pattern: str, error: HubAccessError) -> ModelAvailability:
    commit = cache.read_cached_commit(repo, _REVISION)
    folder = cache.snapshot_folder(repo, commit or "none")
    path = next((path for path in sorted(folder.glob(pattern)) if path.is_file()), None)
    if commit is None or path is None:
        evidence = f"{error.access}: {error.detail}"
        do = "try again where the hub answers, or give a file: --dataset FILE"
        raise DflashError(f"{repo} cannot be fetched", evidence=evidence, hint=do) from None
    file = HubFile(str(path.relative_to(folder)), path.stat().st_size)
    return ModelAvailability(repo, _REVISION, error.access, commit=commit, complete=True, files=(file,))


def _store(name: str, source: Path) -> Path:
    """Copy the questions of a file of any known form as those of a suite."""
    target = datasets.fetched_dataset_file(name)
    lines = target.with_suffix(".rows.jsonl")
    try:
        private_files.ensure_private_folder(target.parent)
        if source.name.endswith(_PARQUET):
            private_files.replace_private_file(lines, _read_parquet(name, source))
            source = lines
        questions = question_files.format_questions(question_files.read_questions(source))
        private_files.replace_private_file(target, questions)
    except OSError as error:
        raise DflashError(f"{name} cannot be written", evidence=str(error)) from None
    finally:
        lines.unlink(missing_ok=True)
    return target


def _read_parquet(name: str, source: Path) -> bytes:
    """Return the rows of a Parquet file as lines of JSON; another process reads it, as the file may be anything."""
    command = [sys.executable, str(paths.engine_script("read_parquet.py")), str(source), str(_ROWS)]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_PATIENCE, env=build_helper_environment(), cwd="/", check=False
        )
    except subprocess.TimeoutExpired:
        raise DflashError(f"{name} could not be read in {_PATIENCE:g} s", evidence=str(source)) from None
    if done.returncode == 0:
        return done.stdout
    why = join_last_lines(done.stderr.decode(errors="replace"), 1) or f"exit {done.returncode}"
    do = "install pyarrow beside dflash-tui (its extra `datasets`), or give a file of JSON lines: --dataset FILE"
    raise DflashError(f"{name} comes as a Parquet file that could not be read", evidence=why[:300], hint=do)
