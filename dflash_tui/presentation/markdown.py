"""Markdown with escaped text: what others wrote cannot end a block, open a table or become a link."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from dflash_tui.common.sanitizer import clean_line
from dflash_tui.common.secrets import redact_secrets

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~]|&(?=#?\w+;))")
# What GitHub makes a link of by itself. It looks for names and numbers in what is shown, so that only something without
# a width helps between the characters; for addresses in what is written, so that another way to write them does.
_LINKS = (
    (re.compile(r"@|#(?=\d)"), r"\g<0>&#8203;"),
    (re.compile(r"://"), "&#58;&#47;&#47;"),
    (re.compile(r"(?<=www)\.", re.IGNORECASE), "&#46;"),
)


def escape_text(text: str) -> str:
    """Return text of others for a paragraph or a cell: one line, without secrets, nothing in it meaning anything."""
    body = _SPECIAL.sub(r"\\\1", redact_secrets(" ".join(clean_line(line) for line in text.split("\n"))))
    for meant, instead in _LINKS:
        body = meant.sub(instead, body)
    return body


def quote_code(text: str) -> str:
    """Return text of others as code within a line."""
    body = redact_secrets(clean_line(text)).replace("|", "\\|")
    if not body:
        return ""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", body)), default=0))
    pad = " " if "`" in body else ""
    return f"{fence}{pad}{body}{pad}{fence}"


def quote_block(*lines: str) -> str:
    """Return lines as a block of code that no line of theirs can end."""
    body = redact_secrets("\n".join(clean_line(part) for line in lines for part in line.split("\n")))
    longest = max((len(run) for run in re.findall("`+", body)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{body}\n{fence}"


def render_table(header: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Return a table; the cells are Markdown already, the columns in `right` are aligned to the right."""
    rule = ["---:" if column in right else "---" for column in range(len(header))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))


def escape_cells(rows: Iterable[Sequence[str]]) -> list[list[str]]:
    """Return the rows of a table with text of others escaped in every cell."""
    return [[escape_text(cell) for cell in row] for row in rows]


def render_bullets(lines: Iterable[str]) -> str:
    """Return a list of lines that are Markdown already."""
    return "\n".join(f"- {line}" for line in lines)
