r"""Remove from a text what acts on a terminal or is invisible, before it is drawn or printed.

All command-line output passes through `escape_control_characters`, which shows what remains as \u1234.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import islice

LINE_LIMIT = 2000
_TEXT_LIMIT = 1 << 16
_STRING = r"[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
# A terminal obeys control characters in a sequence and continues it. A sequence that is cut ends with the text.
_CSI = r"[\x00-\x09\x0b-\x17\x19\x1c-\x1f\x7f0-?]*+[\x00-\x09\x0b-\x17\x19\x1c-\x1f\x7f -/]*+(?:[@-~]|\Z)"
_ESCAPES = (
    rf"\x1b(?:\[{_CSI}|[\]PX^_]{_STRING}|[ -/]+(?:[0-~]|\Z)|[0-~])"
    rf"|\x9b{_CSI}|[\x90\x98\x9d-\x9f]{_STRING}"
)
# Unicode's format characters (Cf) and line ends, which reorder or hide text, invisible letters, and the two
# noncharacters that XML, and so a picture, may not contain.
UNSEEN = (
    r"\u2028\u2029\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    r"\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    r"\U000e0000-\U000e00ff\U000e01f0-\U000e0fff\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\uffa0\ufff0-\ufff8"
    r"\ufffe\uffff"
)
_CONTROL = rf"[\x00-\x08\x0a-\x1f\x7f-\x9f{UNSEEN}]"
_compile = cache(re.compile)  # compiled on first use: that takes a tenth of the start of a bare Python
# Of these characters, output may contain only line ends and tabs.
ACTS = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{UNSEEN}]")


def clean_line(text: str) -> str:
    """Return `text` as one clean line, cut at `LINE_LIMIT` characters."""
    text = clean_text(text).rstrip()
    return text if len(text) <= LINE_LIMIT else text[: LINE_LIMIT - 1] + "…"


def clean_text(text: str, limit: int = _TEXT_LIMIT) -> str:
    """Return the first `limit` characters of `text` (one line) without control sequences and invisible characters."""
    text = text[:limit]
    if text.isascii() and text.isprintable():
        return text
    return _compile(_CONTROL).sub("", _compile(_ESCAPES).sub("", text)).expandtabs(4)


def clean_lines(text: str) -> str:
    """Return `text` with `clean_line` applied to each line."""
    return "\n".join(clean_line(part) for part in text.split("\n"))


def clean_end(data: bytes) -> str:
    """Return the end of an output as clean lines."""
    return clean_lines(data.decode(errors="replace"))


def join_clean_lines(text: str) -> str:
    """Return a text of several lines as one clean line with single spaces."""
    return " ".join(clean_lines(text).split())


def join_last_lines(output: str, count: int) -> str:
    """Return the last `count` non-empty lines of a program's output, cleaned and joined to one line."""
    lines = filter(None, (clean_line(line).strip() for line in reversed(output.split("\n"))))
    return " | ".join([*islice(lines, count)][::-1])


def escape_control_characters(text: str) -> str:
    r"""Return `text` (any number of lines) with \u1234 for each character that a terminal would act on.

    In JSON that is the same text.
    """
    if text.isascii() and text.isprintable():
        return text
    return ACTS.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be").hex()
    return "".join(rf"\u{units[at : at + 4]}" for at in range(0, len(units), 4))
