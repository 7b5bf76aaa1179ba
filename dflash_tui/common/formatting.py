"""Text for users: numbers, durations, tables, and this program's commands; unknown values are a dash, never 0."""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path

UNKNOWN = "—"
GIB = 1 << 30
_EIGHTHS = " ▏▎▍▌▋▊▉"
# Set by dflash-tui on the user's machine for the one that it runs here: its name for this host.
CALLED_AS = "DFLASH_TUI_CALLED_AS"
_HOST = re.compile(r"[A-Za-z0-9_][\w.:%@-]{0,254}", re.ASCII)
_PROGRAM = "dflash-tui"
# Commands for a third host ("on HOST: …", "ssh HOST …") stay as they are, as does a name without a command.
_COMMAND = re.compile(
    r"(?<![\w/.-])(?P<elsewhere>\b[Oo]n \S+: |\bssh \S+ )?dflash-tui (?=(?:"
    r"up|attach|bench|ab|verify|tune|replay|export|ps|logs|stop|chat|runs|why|report"
    r"|service|disk|completion|gpus|plan|doctor|recipes|engine|patch)(?![\w-]))"
)


def format_duration(seconds: float | None) -> str:
    """Return seconds as `<1 s`, `42 s`, `9:31` or `1:02:03`, whole as in log timestamps; a dash if unknown."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    whole = int(seconds)
    if seconds < 1:
        return "<1 s"
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02}"
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def format_time(at: float) -> str:
    """Return a time (seconds since the epoch) as `2026-11-21 01:24 UTC`; a dash if it is out of range."""
    try:
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at))
    except (OverflowError, OSError, ValueError):
        return UNKNOWN


def format_age(seconds: float) -> str:
    """Return an age in seconds for a time axis, as `-m:ss` or `now`."""
    if not math.isfinite(seconds):
        return UNKNOWN
    return "now" if seconds < 1 else f"-{int(seconds) // 60}:{int(seconds) % 60:02}"


def format_number(value: float | None, digits: int = 1, unit: str = "") -> str:
    """Return the value rounded, with its unit; a dash if unknown."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value:.{digits}f}{f' {unit}' if unit else ''}"


def format_percent(share: float | None, digits: int = 0) -> str:
    """Return a fraction as a percentage, or a dash."""
    return format_number(None if share is None else share * 100, digits, "%")


def format_gib(amount: float | None) -> str:
    """Return bytes as GiB, or a dash."""
    return format_number(None if amount is None else amount / GIB, 1, "GiB")


def format_usage(value: float | None, limit: float | None, unit: str, scale: int = 1) -> str:
    """Return a value and its limit, both divided by `scale`, as `12 of 80 W`; without a limit only the value."""
    if value is None or limit is None:
        return format_number(None if value is None else value / scale, 0, unit)
    digits = 1 if scale > 1 else 0
    return f"{value / scale:.{digits}f} of {format_number(limit / scale, digits, unit)}"


def format_megabytes(amount: int) -> str:
    """Return megabytes as `585 MB` or `2.6 GB`."""
    return f"{amount} MB" if amount < 1000 else f"{amount / 1000:.1f} GB"


def format_gigabytes(amount: int | None) -> str:
    """Return bytes as `62.0 GB` or `585 MB` (powers of ten, as for files and downloads), or a dash."""
    return UNKNOWN if amount is None else format_megabytes(round(amount / 1e6))


def pluralize(count: int, noun: str) -> str:
    """Return `1 patch`, `2 patches`, `3 processes` and the like."""
    ending = "" if count == 1 else "es" if noun.endswith(("ch", "s")) else "s"
    return f"{count} {noun}{ending}"


def format_synthetic(why: str) -> str:
    """Return the label of figures that are not a real model's, and why; empty if they are."""
    return f"not a real model's figures: {why}" if why else ""


def truncate(text: str, width: int) -> str:
    """Return `text` in at most `width` characters, with an ellipsis if it is cut."""
    if len(text) <= width:
        return text
    return f"{text[: width - 1]}…" if width > 0 else ""


def truncate_middle(text: str, width: int) -> str:
    """Return `text` in at most `width` characters, cut in the middle: model names differ at both ends."""
    if len(text) <= width:
        return text
    letters = max(0, width - 1)
    return f"{text[: letters - letters // 2]}…{text[len(text) - letters // 2 :]}" if width > 0 else ""


def draw_bar(share: float, width: int) -> str:
    """Return a bar that fills `share` of the width, to an eighth of a cell."""
    eighths = round(max(0.0, min(share, 1.0)) * width * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def shorten_names(names: Iterable[str], width: int) -> dict[str, str]:
    """Return each name in at most `width` characters, cut so that the names still differ.

    All are cut at the same place, as near to the middle as keeps them different. If no place does, an ellipsis replaces
    their common beginning.
    """
    texts = {name: name for name in names}
    long, letter_count = [name for name in texts if len(name) > width], width - 1
    if letter_count < 1 or not long:
        return {name: truncate(name, width) for name in texts}

    def cut_all(head: int) -> dict[str, str]:
        return {name: f"{name[:head]}…{name[len(name) - letter_count + head :]}" for name in long}

    heads = sorted(range(letter_count + 1), key=lambda head: abs(2 * head - letter_count - 1))
    cut = cut_all(max(heads, key=lambda head: len(set(cut_all(head).values()))))
    for text in {text for text, times in Counter(cut.values()).items() if times > 1}:
        alike = [name for name in long if cut[name] == text]
        common = _count_common_letters(alike)
        cut |= {name: truncate(f"…{name[common:]}", width) for name in alike}
    common = _count_common_letters(long)
    if len(set(cut.values())) < len(long) and common > 1:  # the common beginning is dropped, and the rest is cut again
        endings = shorten_names((name[common:] for name in long), letter_count)
        cut = {name: f"…{endings[name[common:]]}" for name in long}
    return texts | cut


def _count_common_letters(names: Sequence[str]) -> int:
    return sum(1 for _ in takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False)))


def format_host_and_port(host: str, port: int | None = None) -> str:
    """Return an address as in URLs: `127.0.0.1:8000`, `[::1]:8000`."""
    bracketed = f"[{host}]" if ":" in host else host
    return f"{bracketed}:{port}" if port else bracketed


def describe_attach_and_stop(run: str) -> str:
    """Return the commands for watching, reading the log of and stopping the server of `run`, one per line."""
    program = name_program()
    return f"  watch: {program} attach {run}\n  log:   {program} logs {run} -f\n  stop:  {program} stop {run}"


def fold_line(line: str, width: int, hang: int = 0) -> str:
    """Return a line folded to at most `width` characters; all but the first line begin with `hang` blanks.

    A word longer than a line, such as a path, stays whole. `width` 0 means no limit.
    """
    if not width or len(line) <= width:
        return line
    room = max(width, hang + 1)
    begin = line[: len(line) - len(line.lstrip())]
    folded = textwrap.wrap(
        line.strip(),
        room,
        initial_indent=begin,
        subsequent_indent=" " * hang,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(folded)


def suggest_nearest(word: str, names: Iterable[str], form: str = "did you mean '{}'?") -> str:
    """Return a question that suggests the closest of `names`; empty if none is close."""
    import difflib

    near = difflib.get_close_matches(word, list(names), 1)
    return form.format(near[0]) if near else ""


def is_host_name(text: str) -> bool:
    """Whether ssh takes a text as a host, and neither a shell nor ssh could take it as anything else."""
    return bool(_HOST.fullmatch(text))


def read_called_name() -> str:
    """Return the user's machine's name for this one; empty if the user works at this one or in a shell on it."""
    name = os.environ.get(CALLED_AS, "")
    return name if is_host_name(name) else ""


def name_program() -> str:
    """Return the command that runs this program: `dflash-tui`, or its path if it is not in PATH.

    On a machine that is used from another one it includes `--host`.
    """
    if name := read_called_name():
        return f"{_PROGRAM} --host {name}"
    is_path = Path(sys.argv[0]).name == _PROGRAM and not shutil.which(_PROGRAM)
    return shlex.quote(sys.argv[0]) if is_path else _PROGRAM


def name_commands(text: str) -> str:
    """Return a text with dflash-tui's commands as the user types them, with `--host` if run from another machine."""
    program = name_program()
    if program == _PROGRAM:
        return text
    return _COMMAND.sub(lambda match: match[0] if match["elsewhere"] else f"{program} ", text)


def has_terminal() -> bool:
    """Whether stdin, stdout and stderr are all a terminal: keys come from stdin, Textual draws on stderr."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
