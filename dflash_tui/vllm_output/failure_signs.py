"""Signs of failures: patterns that are searched in the messages of errors, hundreds in each of thousands. Pure.

Most messages show none of them. What a pattern demands as plain text is looked for first, which takes a hundredth of
the time, and a pattern is compiled when that text is there for the first time.
"""

from __future__ import annotations

import re
from functools import cache

import msgspec

_LEAST_LETTERS = 3
_TOKEN = re.compile(
    r"(?P<escape>\\.)|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])|(?P<open>\((?:\?(?:P<\w+>|<?[=!]|:))?)|(?P<close>\))|"
    r"(?P<quantifier>[*+?]\??|\{\d*,?\d*\}\??)|(?P<other>[.^$])|(?P<bar>\|)|(?P<letter>.)", re.DOTALL
)  # fmt: skip


class Sign(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the message of an error says when a failure happens, with a message that says so."""

    sign: str
    """The pattern."""
    line: str
    """A message that it fits; with a frame, below a line of the traceback."""
    frame: str = ""
    """A pattern that a line of the traceback above the message has to fit; empty for any."""

    def __post_init__(self) -> None:
        if not all(list_plain_texts(self.sign)):
            raise ValueError(
                f"each alternative of a sign needs {_LEAST_LETTERS} letters in a row that stand for themselves"
            )

    def search(self, message: str, frames: tuple[str, ...] = ()) -> re.Match[str] | None:
        """Return where the message, below these lines of its traceback, shows the sign, or None."""
        if not any(text in message for text in list_plain_texts(self.sign)):
            return None
        match = _compile(self.sign).search(message)
        if match and self.frame and not any(_compile(self.frame).search(frame) for frame in frames):
            return None
        return match


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


@cache
def list_plain_texts(pattern: str) -> tuple[str, ...]:
    """Return texts of which whatever fits a pattern contains one; an empty one where it need not contain any."""
    return _list_texts(list(_TOKEN.finditer(pattern))[::-1])


def _list_texts(tokens: list[re.Match[str]]) -> tuple[str, ...]:
    """Return the same for the tokens up to the end of the group, which are taken from the end of the list."""
    texts: list[str] = []
    best: tuple[str, ...] = ("",)
    run = ""
    while tokens and tokens[-1].lastgroup != "close":
        token = tokens.pop()
        kind, text = token.lastgroup, token[0]
        group: tuple[str, ...] = ("",)
        if kind == "open":
            group = _list_texts(tokens)
            tokens.pop()
            if text[-1] in "=!":  # what only looks ahead or back
                group = ("",)
        quantifier = tokens.pop()[0] if tokens and tokens[-1].lastgroup == "quantifier" else ""
        may_be_missing = quantifier[:1] in {"*", "?", "{"}
        stands_for_itself = kind == "letter" or (kind == "escape" and not text[1].isalnum())
        if stands_for_itself:
            run += "" if may_be_missing else text[-1]
            group = (run,)
        elif may_be_missing:
            group = ("",)
        best = max(best, group, key=lambda texts: min(map(len, texts)))
        if quantifier or not stands_for_itself:
            run = ""
        if kind == "bar":
            texts += best
            best = ("",)
    return tuple(text if len(text) >= _LEAST_LETTERS else "" for text in (*texts, *best))
