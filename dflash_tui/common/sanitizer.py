r"""Clean untrusted text: strip what acts on a terminal or is invisible, then hide our own secrets.

Logs, names, answers of servers and files are cleaned where they are read (`clean_line`, `clean_lines`,
`clean_json_value`), so that no screen has to. The order matters: an escape sequence in the middle of a key would keep
it from being found. All output passes `escape_control_characters`, which shows what is still
in there as \u1234.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Any

from dflash_tui.common.control_characters import UNSEEN, strip_control_characters
from dflash_tui.common.secrets.own_secrets import own_secrets

LINE_LIMIT = 2000
_TEXT_LIMIT = 1 << 16
# Only line ends and tabs may stay in what is written.
ACTS = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{UNSEEN}]")


def clean_line(text: str) -> str:
    """Return `text` as one clean line, cut at `LINE_LIMIT` characters."""
    text = clean_text(text).rstrip()
    return text if len(text) <= LINE_LIMIT else text[: LINE_LIMIT - 1] + "…"


def clean_text(text: str, limit: int = _TEXT_LIMIT) -> str:
    """Return the first `limit` characters of `text` as one clean line, which takes longer than reading it."""
    clean = strip_control_characters(text[:limit])
    return own_secrets().hide_cut(clean, end=True) if len(text) > limit else own_secrets().hide(clean)


def clean_lines(text: str) -> str:
    """Return `text` with each of its lines as `clean_line` has it."""
    return "\n".join(clean_line(part) for part in text.split("\n"))


def clean_end(data: bytes, limit: int) -> str:
    """Return clean lines of the end of an output, of which the last `limit` bytes are kept: without half a secret."""
    text = clean_lines(data.decode(errors="replace"))
    return own_secrets().hide_cut(text, start=True) if len(data) >= limit else text


def join_clean_lines(text: str) -> str:
    """Return a text of several lines as one clean line with single blanks: cleaned first, since Python splits more."""
    return " ".join(clean_lines(text).split())


def join_last_lines(output: str, count: int) -> str:
    """Return the last `count` lines of a program's output that are not empty, each of them clean, as one line."""
    # Python's own line ends are characters within a secret as any others, and go when a line is cleaned.
    lines = filter(None, (clean_line(line).strip() for line in reversed(output.split("\n"))))
    return " | ".join([*islice(lines, count)][::-1])


def escape_control_characters(text: str) -> str:
    r"""Return `text`, of several lines and in any form, with \u1234 for whatever a terminal would act on.

    In JSON that is the same text.
    """
    if text.isascii() and text.isprintable():
        return text
    return ACTS.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be").hex()
    return "".join(rf"\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def clean_json_value(value: Any, *, one_line: bool = True) -> Any:
    """Return JSON data with clean texts, keys included; each is one line, or keeps its lines."""
    if isinstance(value, str):
        return clean_text(value) if one_line else _clean_paragraphs(value)
    if isinstance(value, list | tuple):
        return [clean_json_value(item, one_line=one_line) for item in value]
    if isinstance(value, dict):
        return {clean_json_value(key): clean_json_value(item, one_line=one_line) for key, item in value.items()}
    return value


def _clean_paragraphs(text: str) -> str:
    clean = "\n".join(map(clean_text, text[:_TEXT_LIMIT].split("\n")))
    return own_secrets().hide_cut(clean, end=True) if len(text) > _TEXT_LIMIT else clean
