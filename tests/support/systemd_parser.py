"""Reads unit files as systemd.syntax(7) specifies them, for tests of those that we write."""

import re

_ESCAPE = re.compile(r"""\\(?:x(?P<x>[0-9a-f]{2})|u(?P<u>[0-9a-f]{4})|U(?P<U>[0-9a-f]{8})|(?P<c>["\\]))""")
_WORD = re.compile(r'(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^\s"\\]+))(?:\s+|$)')


def fields(text: str) -> dict[str, list[str]]:
    """Return the settings of a unit by name; words of Environment= are unquoted."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            found.setdefault(name, []).extend(unquoted(value) if name == "Environment" else [value])
    return found


def unquoted(line: str) -> list[str]:
    """Return the words of a line, with escapes and specifiers read."""
    words, at = [], 0
    while at < len(line):
        found = _WORD.match(line, at)
        assert found, line[at:]
        text = found["plain"] if found["quoted"] is None else _ESCAPE.sub(_letter, found["quoted"])
        assert re.fullmatch(r"(?:[^%]|%%)*", text, re.DOTALL), f"a specifier in {text}"
        words.append(text.replace("%%", "%"))
        at = found.end()
    return words


def _letter(found: re.Match[str]) -> str:
    code = found["x"] or found["u"] or found["U"]
    return chr(int(code, 16)) if code else found["c"]
