"""Take terminal escapes, control characters and what nobody sees out of a text. Pure."""

from __future__ import annotations

import re
from functools import cache

_STRING = r"[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
# Control characters in a sequence are obeyed, and the sequence goes on. One that a text was cut in ends with it.
_CSI = r"[\x00-\x09\x0b-\x17\x19\x1c-\x1f\x7f0-?]*+[\x00-\x09\x0b-\x17\x19\x1c-\x1f\x7f -/]*+(?:[@-~]|\Z)"
_ESCAPES = (
    rf"\x1b(?:\[{_CSI}|[\]PX^_]{_STRING}|[ -/]+(?:[0-~]|\Z)|[0-~])"
    rf"|\x9b{_CSI}|[\x90\x98\x9d-\x9f]{_STRING}"
)
# Unicode's format characters (Cf) and line ends, which reorder or hide text, letters that nobody sees, and the two
# that are no characters, which no XML may hold, so no picture either.
UNSEEN = (
    r"\u2028\u2029\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    r"\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    r"\U000e0000-\U000e00ff\U000e01f0-\U000e0fff\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\uffa0\ufff0-\ufff8"
    r"\ufffe\uffff"
)
_CONTROL = rf"[\x00-\x08\x0a-\x1f\x7f-\x9f{UNSEEN}]"
# Marks that pile up on one letter; no language needs more than three.
_MARK = (
    r"[\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u1ab0-\u1aff"
    r"\u1dc0-\u1dff\u20d0-\u20ff\ufe00-\ufe0f\ufe20-\ufe2f\U000e0100-\U000e01ef]"
)
_FLOOD = rf"({_MARK}{{3}}){_MARK}+"
_compile = cache(re.compile)  # when a text needs it, since that takes as long as a tenth of a bare Python


def strip_control_characters(text: str) -> str:
    """Return `text`, of one line, with nothing in it that a terminal acts on or that nobody sees."""
    if text.isascii() and text.isprintable():
        return text
    plain = _compile(_CONTROL).sub("", _compile(_ESCAPES).sub("", text))
    return _compile(_FLOOD).sub(r"\1", plain.expandtabs(4))


def strip_lines(text: str) -> str:
    """Return `text` with each of its lines as `strip_control_characters` has it."""
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    return "\n".join(map(strip_control_characters, text.split("\n")))


def strip_marks(text: str) -> str:
    """Return `text` without accents and other marks that are put on the letter before them."""
    return text if text.isascii() else _compile(_MARK).sub("", text)
