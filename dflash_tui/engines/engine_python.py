"""Run a script of `in_engine/` with an engine's own Python, and kill it if the caller is cancelled."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

from dflash_tui.common import paths
from dflash_tui.common.errors import DflashError, EngineError, explain_resource_limit
from dflash_tui.common.sanitizer import join_last_lines
from dflash_tui.machine.process_environment import build_helper_environment

IMPORT_TIMEOUT = 180.0  # importing vLLM took 13 s on two CPU cores and 25 s on a fresh GPU machine
_HINT = "reinstall it"
_INTERVAL = 0.05
T = TypeVar("T")


class Cancelled(DflashError):
    """The caller was cancelled, so the script did not finish."""


_cancelled: ContextVar[threading.Event | None] = ContextVar("cancelled", default=None)


async def run_in_cancellable_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread and return its result; if the caller is cancelled, its script is killed.

    `run_script` then raises `Cancelled` in the thread, so that the rest of `work` is not done.
    """
    ended = threading.Event()
    token = _cancelled.set(ended)  # the thread inherits this task's context
    try:
        return await asyncio.to_thread(work)
    finally:
        ended.set()
        _cancelled.reset(token)


def raise_if_cancelled() -> None:
    """Raise `Cancelled` if the caller of this thread was cancelled; for loops that wait by themselves."""
    if (cancelled := _cancelled.get()) and cancelled.is_set():
        raise Cancelled("it was cancelled")


def run_script(python: Path, script: str, *words: str, timeout: float, env: Mapping[str, str] | None = None) -> bytes:
    """Run a script of `in_engine/` and return what it writes to the file that is its first argument.

    `words` are its further arguments; `env` is added to the environment of a helper.

    Raises:
        EngineError: the script fails, or takes longer than `timeout` seconds.
        Cancelled: the caller was cancelled.
    """
    raise_if_cancelled()
    with tempfile.TemporaryDirectory(prefix="dflash-") as folder:
        answer, errors = Path(folder) / "answer.json", Path(folder) / "stderr"
        # Inspecting an environment must not write to it, not even byte code.
        quiet = {"PYTHONDONTWRITEBYTECODE": "1", "VLLM_NO_USAGE_STATS": "1"}
        argv = [str(word) for word in (python, paths.PACKAGE_ROOT / "in_engine" / script, answer, *words)]
        try:
            with errors.open("wb") as stderr:
                process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                    env=build_helper_environment() | quiet | dict(env or {}),
                    cwd=folder,
                )
        except OSError as error:
            limit = explain_resource_limit(error)
            raise _script_error(python, words, str(error), hint=limit.hint if limit else _HINT) from None
        deadline = time.monotonic() + timeout
        try:
            while process.poll() is None:
                raise_if_cancelled()
                if time.monotonic() > deadline:
                    raise _script_error(python, words, f"no answer within {timeout:.0f} s")
                time.sleep(_INTERVAL)
        finally:
            process.kill()
            process.wait()
        if process.returncode == 0:
            return answer.read_bytes()
        raise _script_error(python, words, join_last_lines(errors.read_text(errors="replace"), 1))


def _script_error(python: Path, words: tuple[str, ...], evidence: str, hint: str = _HINT) -> EngineError:
    what = "could not list the flags of vllm serve" if words == ("options",) else "could not inspect the engine"
    return EngineError(f"{python}: {what}", evidence=evidence[:500], hint=hint)
