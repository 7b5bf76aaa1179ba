"""Run a script of `in_engine/` with an engine's own Python, and kill it when the caller is cancelled."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import threading
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
T = TypeVar("T")


class Cancelled(DflashError):
    """The caller was cancelled, so the script was not run to its end."""


class _ScriptRunner:
    """Starts the script that one caller waits for; once the caller is cancelled, it starts none any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._cancelled = False

    def start(self, argv: list[str], env: dict[str, str], folder: str) -> subprocess.Popen[bytes]:
        with self._lock:
            self.check()
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env, cwd=folder
            )
            return self._process

    def end(self) -> None:
        """End the script that was started, if it has not ended."""
        if self._process:
            self._process.kill()
            self._process.wait()

    def check(self) -> None:
        if self._cancelled:
            raise Cancelled("it was cancelled")

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            if self._process and self._process.returncode is None:
                self._process.kill()


_runner: ContextVar[_ScriptRunner | None] = ContextVar("runner", default=None)


async def run_in_cancellable_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread and return what it returns; when the caller is cancelled its script is killed.

    In the thread `run_script` then raises `Cancelled`, so that whatever was to follow is not done.
    """
    runner = _ScriptRunner()
    token = _runner.set(runner)  # a thread is given the context of the task that starts it
    try:
        return await asyncio.to_thread(work)
    except asyncio.CancelledError:
        runner.cancel()
        raise
    finally:
        _runner.reset(token)


def raise_if_cancelled() -> None:
    """Raise `Cancelled` when the caller of this thread was cancelled; for loops that wait by themselves."""
    if runner := _runner.get():
        runner.check()


def run_script(python: Path, script: str, *words: str, timeout: float, env: Mapping[str, str] | None = None) -> bytes:
    """Run a script of `in_engine/` and return what it writes into the file that is its first argument.

    `words` are its further arguments, and `env` has variables beside those of every helper.

    Raises:
        EngineError: it fails, or takes longer than `timeout` seconds.
        Cancelled: the caller was cancelled.
    """
    runner = _runner.get() or _ScriptRunner()
    with tempfile.TemporaryDirectory(prefix="dflash-") as folder:
        answer = Path(folder) / "answer.json"
        # Nothing is written into an environment that is only looked at, not even byte code.
        quiet = {"PYTHONDONTWRITEBYTECODE": "1", "VLLM_NO_USAGE_STATS": "1"}
        argv = [str(word) for word in (python, paths.engine_script(script), answer, *words)]
        try:  # whenever a signal comes, in between as well
            process = runner.start(argv, build_helper_environment() | quiet | dict(env or {}), folder)
            _, stderr = process.communicate(timeout=timeout)
        except OSError as error:
            limit = explain_resource_limit(error)
            raise _script_error(python, words, str(error), hint=limit.hint if limit else _HINT) from None
        except subprocess.TimeoutExpired:
            raise _script_error(python, words, f"no answer within {timeout:.0f} s") from None
        finally:
            runner.end()
        runner.check()
        if process.returncode == 0:
            return answer.read_bytes()
        raise _script_error(python, words, join_last_lines(stderr.decode(errors="replace"), 1))


def _script_error(python: Path, words: tuple[str, ...], evidence: str, hint: str = _HINT) -> EngineError:
    what = "could not list the flags of vllm serve" if words == ("options",) else "could not inspect the engine"
    return EngineError(f"{python}: {what}", evidence=evidence[:500], hint=hint)
