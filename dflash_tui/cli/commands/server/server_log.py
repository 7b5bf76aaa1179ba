"""`logs`: print a server's log."""

from __future__ import annotations

import argparse
import os
import shlex
import time
from pathlib import Path
from typing import BinaryIO

from dflash_tui.cli.console import print_data, print_json
from dflash_tui.cli.json_lines import LogText
from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.common.untrusted_json import LineBuffer
from dflash_tui.monitoring import observer
from dflash_tui.runs import registry, server_process
from dflash_tui.runs.run import Run

_LONGEST_LINE = 1 << 20
_BLOCK = 1 << 16


def logs(args: argparse.Namespace) -> int:
    """`logs [RUN] [-f] [-n N]`: print the log or its end, without control characters and secrets of our environment."""
    run = registry.find_run(args.run)
    log = _find_rank_log(run, args.rank) if args.rank else run.log
    if not log.exists():
        raise DflashError(f"the log of {run.id} is gone", evidence=str(log))
    buffer = LineBuffer(_LONGEST_LINE, keep_end=True)
    with _open_log(run, log) as file:
        if args.tail:
            file.seek(_find_tail(file, args.tail))
        while True:
            ended = not server_process.is_alive(run)
            while data := file.read(1 << 20):
                for line in buffer.feed(data):
                    _print_line(line, as_json=args.json)
            if ended or not args.follow:
                break
            time.sleep(observer.LOG_INTERVAL)
    if line := buffer.unfinished_line:
        _print_line(line, as_json=args.json)
    return 0


def _open_log(run: Run, log: Path) -> BinaryIO:
    """Return the opened log of a run.

    Raises:
        DflashError: something else lies in its place, or it may not be read.
    """
    try:
        return log.open("rb")
    except OSError as error:
        hint = f"see what lies there: ls -l {shlex.quote(str(log))}; `dflash-tui why` reads a copy of a log by its path"
        raise DflashError(
            f"the log of {run.id} cannot be read", evidence=f"{error.strerror}: {log}", hint=hint
        ) from None


def _print_line(line: bytes, *, as_json: bool) -> None:
    text = _clean_end(line)
    if as_json:
        print_json(LogText(text))
    else:
        print_data(text)


def _find_rank_log(run: Run, rank: int) -> Path:
    """Return the copy of the log of a rank on another host.

    Raises:
        UsageError: there is no such rank.
    """
    far = next((far for far in run.far_ranks if far.rank == rank), None)
    if far is None:
        others = ", ".join(str(far.rank) for far in run.far_ranks) or "none"
        raise UsageError(f"{run.id} has no rank {rank} on another host", hint=f"there is {others}")
    return run.folder / far.log_name


def _find_tail(file: BinaryIO, count: int) -> int:
    """Return where the last `count` lines begin; the file is read from its end."""
    place = size = file.seek(0, os.SEEK_END)
    breaks = 0
    while place:
        length = min(_BLOCK, place)
        place = file.seek(place - length)
        block = file.read(length)
        end = length - 1 if place + length == size else length  # the last line's own break begins no other
        while (line_end := block.rfind(b"\n", 0, end)) >= 0:
            breaks, end = breaks + 1, line_end
            if breaks == count:
                return place + line_end + 1
    return 0


def _clean_end(line: bytes) -> str:
    """Return what a terminal would show of a line in the end; a long one has lost its beginning."""
    text = line.rsplit(b"\r", 1)[-1].decode(errors="replace")
    return clean_line(text)
