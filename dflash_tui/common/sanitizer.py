r"""Strip terminal escapes, control characters and invisible characters from untrusted text. Pure.

Logs, names, answers of servers and files are cleaned where they are read (`clean_line`, `clean_lines`,
`clean_json_value`), so that no screen has to. All output passes `escape_control_characters`, which shows what is still
in there as \u1234.
"""

from __future__ import annotations

import re
from typing import Any

LINE_LIMIT = 2000
_TEXT_LIMIT = 1 << 16
_STRING = r"[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
_ESCAPES = re.compile(
    rf"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_]{_STRING}|[ -/]+[0-~]|[0-~])"
    rf"|\x9b[0-?]*[ -/]*[@-~]|[\x90\x98\x9d-\x9f]{_STRING}"
)
# Unicode's format characters (Cf) and line ends, which reorder or hide text, and letters that nobody sees.
_UNSEEN = (
    r"\u2028\u2029\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    r"\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    r"\U000e0001-\U000e007f\u115f\u1160\u3164\uffa0"
)
_CONTROL = re.compile(rf"[\x00-\x08\x0a-\x1f\x7f-\x9f{_UNSEEN}]")
# Only line ends and tabs may stay in what is written.
ACTS = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{_UNSEEN}]")
# Marks that pile up on one letter; no language needs more than three.
_MARK = (
    r"[\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u1ab0-\u1aff"
    r"\u1dc0-\u1dff\u20d0-\u20ff\ufe00-\ufe0f\ufe20-\ufe2f\U000e0100-\U000e01ef]"
)
_FLOOD = re.compile(rf"({_MARK}{{3}}){_MARK}+")


def clean_line(text: str) -> str:
    """Return `text` as one line without escape sequences and control characters, cut at `LINE_LIMIT` characters."""
    text = _tame(text[:_TEXT_LIMIT]).rstrip()  # cleaning costs more than reading, and a line may be as long as a file
    return text if len(text) <= LINE_LIMIT else text[: LINE_LIMIT - 1] + "…"


def _tame(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    return _FLOOD.sub(r"\1", _CONTROL.sub("", _ESCAPES.sub("", text)).expandtabs(4))


def clean_lines(text: str) -> str:
    """Return `text` with each of its lines as `clean_line` has it."""
    return "\n".join(clean_line(part) for part in text.split("\n"))


def escape_control_characters(text: str) -> str:
    r"""Return `text`, of several lines and in any form, with \u1234 for whatever a terminal would act on.

    In JSON that is the same text.
    """
    if text.isprintable():
        return text
    return ACTS.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be").hex()
    return "".join(rf"\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def clean_json_value(value: Any, *, one_line: bool = True) -> Any:
    """Return JSON data whose texts, keys included, do nothing to a terminal; each is one line, or keeps its lines."""
    if isinstance(value, str):
        text = value[:_TEXT_LIMIT]
        return _tame(text) if one_line else "\n".join(map(_tame, text.split("\n")))
    if isinstance(value, list | tuple):
        return [clean_json_value(item, one_line=one_line) for item in value]
    if isinstance(value, dict):
        return {clean_json_value(key): clean_json_value(item, one_line=one_line) for key, item in value.items()}
    return value
