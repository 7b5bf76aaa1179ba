"""Questions to an engine's own Python: scripts of ours that it runs, ended when whoever asked has given up."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import threading
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

from dflash_tui.common import paths
from dflash_tui.common.errors import DflashError, EngineError, explain_resource_limit
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.machine.processes import build_clean_environment

IMPORT_TIMEOUT = 180.0  # importing vLLM took 13 s on two CPU cores and 25 s on a fresh GPU machine
_HINT = "reinstall it"
T = TypeVar("T")


class Cancelled(DflashError):
    """Whoever asked an engine has gone, so it was not asked to the end."""


class _ScriptRunner:
    """The question that one caller waits for; once it has given up, none is asked any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._gone = False

    def start(self, argv: list[str], env: dict[str, str], folder: str) -> subprocess.Popen[bytes]:
        with self._lock:
            self.check()
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env, cwd=folder
            )
            return self._process

    def check(self) -> None:
        if self._gone:
            raise Cancelled("it was given up")

    def give_up(self) -> None:
        with self._lock:
            self._gone = True
            if self._process and self._process.returncode is None:
                self._process.kill()


_asker: ContextVar[_ScriptRunner | None] = ContextVar("asker", default=None)


async def run_in_cancellable_thread(work: Callable[[], T]) -> T:
    """Return what `work`, which may ask an engine, returns in a thread; when the caller is cancelled its question ends.

    In the thread `ask` then raises `Cancelled`, so that whatever was to follow the answer is not done.
    """
    asker = _ScriptRunner()
    before = _asker.set(asker)  # a thread is given the context of the task that starts it
    try:
        return await asyncio.to_thread(work)
    except asyncio.CancelledError:
        asker.give_up()
        raise
    finally:
        _asker.reset(before)


def raise_if_cancelled() -> None:
    """Return as long as somebody waits for the work that runs in this thread; what waits itself asks now and then.

    Raises:
        Cancelled: whoever asked for it was cancelled.
    """
    if asker := _asker.get():
        asker.check()


def run_script(python: Path, script: str, *words: str, timeout: float) -> bytes:
    """Return what a script of ours, run by an engine's Python with `words`, writes into the file it is given first.

    Raises:
        EngineError: it fails, or takes longer than `timeout` seconds.
        Cancelled: whoever asked was cancelled.
    """
    asker = _asker.get() or _ScriptRunner()
    with tempfile.TemporaryDirectory(prefix="dflash-") as folder:
        answer = Path(folder) / "answer.json"
        # Nothing is written into an environment that is only looked at, not even byte code.
        env = build_clean_environment() | {"PYTHONDONTWRITEBYTECODE": "1", "VLLM_NO_USAGE_STATS": "1"}
        argv = [str(word) for word in (python, paths.engine_script(script), answer, *words)]
        try:
            process = asker.start(argv, env, folder)
        except OSError as error:
            refused = explain_resource_limit(error)
            raise _unasked(python, words, str(error), hint=refused.hint if refused else _HINT) from None
        try:
            _, told = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise _unasked(python, words, f"no answer within {timeout:.0f} s") from None
        finally:
            process.kill()
            process.wait()
        asker.check()
        if process.returncode == 0:
            return answer.read_bytes()
        raise _unasked(python, words, "".join(told.decode(errors="replace").strip().splitlines()[-1:]))


def _unasked(python: Path, words: tuple[str, ...], evidence: str, hint: str = _HINT) -> EngineError:
    failed = "it could not be asked for its flags" if words == ("options",) else "it could not be inspected"
    return EngineError(f"{python}: {failed}", evidence=clean_line(evidence)[:500], hint=hint)
