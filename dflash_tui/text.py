"""Numbers and tables as text, the same in the panel and on the command line."""

from __future__ import annotations

from collections.abc import Sequence

UNKNOWN = "—"


def seconds(value: float | None) -> str:
    """Return `9.3 s` below a minute, `6:55` below an hour, `1:02:33` above."""
    if value is None:
        return UNKNOWN
    if value < 60:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02}"
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def whole(value: float | None) -> str:
    """Return a duration to the second, which is what the stamps of a log can tell: `9 s`, `6:55`, `1:02:33`."""
    return f"{round(value)} s" if value is not None and round(value) < 60 else seconds(value)


def gib(value: float | None) -> str:
    """Return bytes as GiB, e.g. `87.1 GiB`."""
    if value is None:
        return UNKNOWN
    return f"{value / 2**30:.1f} GiB" if value >= 10 * 2**30 else f"{value / 2**30:.2f} GiB"


def number(value: float | None, digits: int = 1) -> str:
    """Return the number with `digits` decimals."""
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def percent(share: float | None) -> str:
    """Return a share of 0 to 1 as `28.8 %`."""
    return UNKNOWN if share is None else f"{share * 100:.1f} %"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
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
