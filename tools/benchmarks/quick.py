"""The command line in forks of one process that has imported it already: the same commands, a tenth of the time.

Run as `python -m tools.benchmarks.quick`, it takes one command per line as JSON and answers each with its exit code.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

_MODULES = (
    *(
        f"cli.commands.{name}"
        for name in ("plan", "engines", "servers", "up", "bench", "experiments", "report", "recordings")
    ),
    *("launch.preparation", "monitoring.observer", "monitoring.recorder"),
)


class Done(NamedTuple):
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str


class Quick:
    """A process that runs commands, one at a time, in the environment it was started with.

    Each is a process of its own, in a session of its own.
    """

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._out, self._err = folder / "out.txt", folder / "err.txt"
        self._process = subprocess.Popen([sys.executable, "-m", "tools.benchmarks.quick"], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, env=dict(env), cwd=folder, text=True)  # fmt: skip

    def run(self, *words: str, **variables: str) -> Done:
        """Run a command, with these variables besides, and return what came of it."""
        self.begin(*words, **variables)
        return self.end()

    def begin(self, *words: str, **variables: str) -> int:
        """Begin a command and return its pid, which is its session's, too; `end` has to follow."""
        assert self._process.stdin is not None
        asked = {"words": words, "env": variables, "out": str(self._out), "err": str(self._err)}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def end(self) -> Done:
        """Wait for the command and return what came of it; its code is negative when a signal ended it."""
        code = self._answer()
        return Done(code, self._out.read_text(errors="replace"), self._err.read_text(errors="replace"))

    def _answer(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    @property
    def pid(self) -> int:
        """The process that waits for commands."""
        return self._process.pid

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def _child(asked: Mapping[str, Any]) -> int:
    os.setsid()
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for number, path in ((0, os.devnull), (1, asked["out"]), (2, asked["err"])):
        os.dup2(os.open(str(path), flags if number else os.O_RDONLY, 0o600), number)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - the parent has read from the one before
    os.environ.update(asked["env"])
    from dflash_tui.cli.main import main

    try:
        code = main(asked["words"])
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
    for name in _MODULES:
        importlib.import_module(f"dflash_tui.{name}")
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os._exit(_child(json.loads(line)))
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    _main()
