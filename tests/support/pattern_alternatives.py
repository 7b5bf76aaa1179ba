"""The alternatives of a pattern, `a|b`: a message that only one of them fits, and the pattern without it."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_TOKEN = re.compile(
    r"(?P<escape>\\.)|(?P<set>\[(?P<not>\^?)\]?(?:\\.|[^\]\\])*\])|(?P<open>\((?:\?(?:P<\w+>|<?[=!]|:))?)|(?P<close>\))|"
    r"(?P<quantifier>[*+?]\??|\{\d*,?\d*\}\??)|(?P<anchor>[$^])|(?P<any>\.)|(?P<bar>\|)|(?P<letter>.)", re.DOTALL
)  # fmt: skip
_ESCAPES = {"d": "7", "w": "x", "s": " ", "S": "x", "b": ""}


class Alternative(NamedTuple):
    """One of several alternatives: where it is in the pattern, and where they all are."""

    start: int
    end: int
    first: int
    last: int

    def cut_out(self, pattern: str) -> str:
        """Return the pattern without it."""
        start, end = (self.start, self.end + 1) if self.end < self.last else (self.start - 1, self.end)
        return pattern[:start] + pattern[end:]

    def put_into(self, pattern: str, message: str) -> str:
        """Return a message that the pattern fits with this alternative in the place of another; empty for none."""
        alternatives = f"(?P<all_of_them>{pattern[self.first : self.last]})"
        match = re.search(pattern[: self.first] + alternatives + pattern[self.last :], message)
        if match is None or match["all_of_them"] is None:
            return ""
        start, end = match.span("all_of_them")
        return message[:start] + write_sample(pattern[self.start : self.end]) + message[end:]


def find_alternatives(pattern: str) -> Iterator[Alternative]:
    """Yield the alternatives of a pattern, at any depth, but those of what must not be there."""
    groups = [("", [0])]
    for token in _TOKEN.finditer(pattern):
        if token.lastgroup == "open":
            groups.append((token[0], [token.end()]))
        elif token.lastgroup == "bar":
            groups[-1][1].append(token.end())
        elif token.lastgroup == "close":
            yield from _list_group(*groups.pop(), token.start())
    yield from _list_group(*groups.pop(), len(pattern))


def find_covered(pattern: str, messages: Iterable[str]) -> list[str]:
    """Return the alternatives without which the pattern fits the same: every message that they can be put into."""
    seen, covered = list(messages), []
    for alternative in sorted(find_alternatives(pattern), key=lambda found: found.start - found.end):
        lacking = re.compile(alternative.cut_out(pattern))
        made = [text for message in seen if (text := alternative.put_into(pattern, message))]
        needing = [text for text in (*seen, *made) if _values(re.compile(pattern), text) != _values(lacking, text)]
        if not needing:
            covered.append(pattern[alternative.start : alternative.end])
        seen += needing[:1]
    return covered


def write_sample(pattern: str) -> str:
    """Return a text that a pattern without alternatives fits, or the first of its alternatives."""
    return _write_tokens(list(_TOKEN.finditer(pattern))[::-1])


def _list_group(opening: str, starts: list[int], end: int) -> Iterator[Alternative]:
    if len(starts) > 1 and not opening.endswith("!"):
        for start, after in zip(starts, [*starts[1:], end + 1], strict=True):
            yield Alternative(start, after - 1, starts[0], end)


def _values(pattern: re.Pattern[str], text: str) -> dict[str, str] | None:
    match = pattern.search(text)
    return match.groupdict() if match else None


def _write_tokens(tokens: list[re.Match[str]]) -> str:
    written, is_first = "", True
    while tokens and (token := tokens.pop()).lastgroup != "close":
        text = token[0]
        match token.lastgroup:
            case "open":
                text = _write_tokens(tokens) if text[-1] not in "=!" else _write_tokens(tokens)[:0]
            case "escape":
                text = _ESCAPES.get(text[1], text[1])
            case "set":
                text = "x" if token["not"] else write_sample(text[1] if text[1] != "\\" else text[1:3])
            case "any":
                text = "x"
            case "anchor":
                text = ""
            case "bar":
                is_first = False
        quantifier = tokens.pop()[0] if tokens and tokens[-1].lastgroup == "quantifier" else ""
        if is_first and quantifier[:1] not in {"*", "?"}:
            written += text * int(next(iter(re.findall(r"\d+", quantifier)), 1))
    return written
