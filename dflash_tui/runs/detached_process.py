"""Processes of this program that outlive who starts them: drivers of experiments, keepers and guards of ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from dflash_tui.common import private_files
from dflash_tui.common.formatting import truncate
from dflash_tui.common.sanitizer import join_last_lines
from dflash_tui.machine.process_environment import build_own_environment


class DetachedProcess(NamedTuple):
    """A process in a session of its own, with the file that has what it writes."""

    process: subprocess.Popen[bytes]
    log: Path
    began: int
    """Where in the file its own output begins."""

    def read_last_words(self) -> str:
        """Return the last three lines that it has written as one clean line."""
        output = self.log.read_bytes()[self.began :].decode(errors="replace")
        return truncate(join_last_lines(output, 3), 500)


def start_detached(log: Path, module: str, *words: str) -> DetachedProcess:
    """Start a module of ours, detached, in the folder of its log; what it writes is added to that.

    Args:
        log: the file, which is for its owner alone.
        module: the module, which is started as a program.
        words: its arguments.
    """
    with open(log, "ab", opener=private_files.open_private) as file:
        began = file.tell()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=build_own_environment(),
            cwd=log.parent,
            start_new_session=True,
        )
        return DetachedProcess(process, log, began)
