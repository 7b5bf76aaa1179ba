"""Format numbers, durations and tables, for the panel and the command line; what is unknown is a dash, never 0."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

UNKNOWN = "—"
GIB = 1 << 30


def format_duration(seconds: float | None) -> str:
    """Return seconds as `<1 s`, `42 s`, `9:31` or `1:02:03`: to the second, the precision of a log's stamps."""
    if seconds is None:
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
    """Return a time (seconds since the epoch) as `2026-11-21 01:24 UTC`, or a dash for one that no calendar has."""
    try:
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at))
    except (OverflowError, OSError, ValueError):
        return UNKNOWN


def format_age(seconds: float) -> str:
    """Return an age for a time axis, `-m:ss` or `now`."""
    return "now" if seconds < 1 else f"-{int(seconds) // 60}:{int(seconds) % 60:02}"


def format_number(value: float | None, digits: int = 1, unit: str = "") -> str:
    """Return the value rounded, with its unit, or a dash when it is not known."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value:.{digits}f}{f' {unit}' if unit else ''}"


def format_percent(share: float | None, digits: int = 0) -> str:
    """Return a share of one as a percentage, or a dash."""
    return format_number(None if share is None else share * 100, digits, "%")


def format_gib(amount: float | None) -> str:
    """Return bytes as GiB, or a dash."""
    return format_number(None if amount is None else amount / GIB, 1, "GiB")


def format_usage(value: float | None, limit: float | None, unit: str, scale: int = 1) -> str:
    """Return a value and its limit, both divided by `scale`, as `12 of 80 W`; only the value without a limit."""
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


def truncate(text: str, width: int) -> str:
    """Return `text` in at most `width` characters, with an ellipsis where it was cut."""
    if len(text) <= width:
        return text
    return f"{text[: width - 1]}…" if width > 0 else ""


def truncate_middle(text: str, width: int) -> str:
    """Return `text` in at most `width` characters, cut in the middle: names of models differ at both ends."""
    if len(text) <= width:
        return text
    kept = max(0, width - 1)
    return f"{text[: kept - kept // 2]}…{text[len(text) - kept // 2 :]}" if width > 0 else ""


def format_host_and_port(host: str, port: int | None = None) -> str:
    """Return an address as URLs have it: `127.0.0.1:8000`, `[::1]:8000`."""
    bracketed = f"[{host}]" if ":" in host else host
    return f"{bracketed}:{port}" if port else bracketed


def describe_attach_and_stop(run: str) -> str:
    """Return the commands that watch and stop the server of `run`, one per line."""
    return f"  watch: dflash-tui attach {run}\n  log:   dflash-tui logs {run} -f\n  stop:  dflash-tui stop {run}"


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Return rows in columns, two blanks apart; the columns in `right` are aligned to the right."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    text = []
    for line in lines:
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        text.append("  ".join(cells).rstrip())
    return "\n".join(text)
