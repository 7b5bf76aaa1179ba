"""An answer as it is kept to be compared: its text without secrets, its tokens where the server named them, bounded."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dflash_tui.common.sanitizer import clean_json_value
from dflash_tui.readings import Whole

MOST_CHARACTERS = 1 << 14
MOST_TOKENS = 1 << 14
# Of an answer's arrivals: as many as are kept of a longer one, less one.
MOST_MARKS = 1 << 12
# What is read of its text, as much as is cleaned: a secret may begin in what is kept, or be in its tokens alone.
_MOST_READ = 1 << 16
_MOST_TOKEN = 1 << 31
ArrivalMark = tuple[Whole, Whole]
"""Milliseconds since an answer was asked for, and how many of its tokens had arrived by then."""


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The text of one answer, thoughts included, and its tokens."""

    text: str = ""
    """Its beginning: of a longer one `MOST_CHARACTERS`."""
    tokens: tuple[int, ...] = ()
    """The numbers of its tokens; empty where the server did not name each, or the text held a secret."""
    cut: bool = False
    """Whether it went on."""
    prompt: tuple[int, ...] = ()
    """The numbers of the prompt's tokens; empty where `tokens` is, or the server did not name them."""


class AnswerBuffer:
    """Collects an answer that comes in pieces."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._tokens: list[int] = []
        self._prompt: list[int] = []
        self._room = _MOST_READ

    def add(self, text: str, tokens: object) -> None:
        """Add a piece of the answer, and what the server says are its tokens, whatever that is."""
        if text and self._room >= 0:
            self._pieces.append(text[: self._room + 1])
            self._room -= len(text)
        if isinstance(tokens, list) and len(self._tokens) <= MOST_TOKENS:
            self._tokens += _select_numbers(tokens[: MOST_TOKENS + 1 - len(self._tokens)])

    def set_prompt(self, tokens: object) -> None:
        """Keep what the server says are the tokens of the prompt, whatever that is."""
        self._prompt = _select_numbers(tokens) if isinstance(tokens, list) and len(tokens) <= MOST_TOKENS else []

    def to_answer(self, count: int) -> Answer:
        """Return the answer, of which the server counted so many tokens; where it named others, none is kept."""
        text = "".join(self._pieces)
        cut = self._room < 0
        clean = clean_json_value(text, one_line=False)
        names_all = len(self._tokens) == count <= MOST_TOKENS
        tokens = self._tokens if names_all and not cut else []
        prompt = self._prompt if tokens else []
        cut = cut or len(clean) > MOST_CHARACTERS
        return Answer(clean[:MOST_CHARACTERS], tuple(tokens), cut, tuple(prompt))


def _select_numbers(tokens: Iterable[object]) -> list[int]:
    return [token for token in tokens if type(token) is int and 0 <= token < _MOST_TOKEN]
