"""Hide the user's own secrets, by their values: those of the environment and the hub's token, in whatever form.

A server is given them or finds them, and may write them into its log and its answers. What is looked for are values
as they are, in capitals or small letters, in base64, and as JSON, HTML, Python or an address quotes them, once or a few
times over. What is hidden has been cleaned before, or an escape sequence in the middle of a value would keep it from
being known.
"""

from __future__ import annotations

import binascii
import os
import re
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from pathlib import Path

from dflash_tui.common.control_characters import strip_control_characters, strip_lines, strip_marks
from dflash_tui.common.secrets import hub_token
from dflash_tui.common.secrets.secret_names import is_secret

LEFT_OUT = "[left out]"
# A shorter value stands in any text by chance: `enabled`, `default`, a year with a month.
_SHORTEST = 8
# A value that may be an ordinary word is hidden only where it stands alone, one that may be a time or a size never.
_LONG = 16
# What stands for a secret where there is none, or names who keeps it.
_NO_SECRETS = frozenset({"disabled", "subprocess", "localhost", "required", "undefined", "not-needed", "anonymous"})
# What stands before the host of an address, also with a slash or an @ in it that nobody quoted.
_PASSWORDS = (re.compile(r"://[^/\s:@]*:([^/\s@]+)@"), re.compile(r"://[^/\s:@]*:(?!\d{1,5}/)(\S+)@"))
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})
_GO = str.maketrans(
    {"&": "\\u0026", "<": "\\u003c", ">": "\\u003e"}
)  # what Go's JSON quotes, as Caddy's and other proxies'
# Characters and escape sequences as JSON and Python quote them, also where that is quoted once more.
_QUOTED = (
    r"(?i)(?<!\\)\\++(?:(?:u00|x)1b(?:\[[0-?]*[ -/]*[@-~]|\][^\\]{0,99}\\++(?:u00|x)07)|(?:u00|x)9b[0-?]*[ -/]*[@-~]"
    r"|(?-i:U)[0-9a-f]{8}|(?-i:u)[0-9a-f]{4}|x[0-9a-f]{2})"
)
# One character as JSON, JavaScript or Python quote it, and what may be quoted by them, by HTML or by an address.
_ESCAPE = (
    r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|U000([0-9a-fA-F]{5})|u\{([0-9a-fA-F]{1,5})\}|([\"'/\\`])"
    r"|([bfnr])|(0?33))"
)
# A quoted line end is left out as other characters are: one in a value would keep it from being known.
_CONTROLS = {"b": "\b", "f": "\f", "n": "\r", "r": "\r"}
_LINE_END_IN_HTML, _LINE_END_IN_ADDRESS = r"&(?:#(?:0*10|[xX]0*[aA])|NewLine);", r"%0[aA]"
# HTML has no name for what begins an escape sequence.
_ESCAPE_IN_HTML = r"&#(?:0*27|[xX]0*1[bB]);"
# After what a value may stand, beside what is no letter: a quoted line end or tab.
_LINE_END_BEFORE = r"(?<=\\[abfnrtv])|(?<=%0[ad])|(?<=\\x0[ad])|(?<=\\u000[ad])"
_QUOTES = rb"\\|&[#a-zA-Z]|%[0-9a-fA-F]{2}"
_TIMES_QUOTED = 3
# How a word ends that was cut in a quoted character, and how much of a quoted value is known for its start.
_HALF_ESCAPE, _LEAST_HALF, _LONGEST_WORD = r"(?:\\[uUx]?[0-9a-fA-F]{0,7}|%[0-9a-fA-F]?|&#?\w{0,8})\Z", 4, 2000
# How a text begins that was cut in a quoted character, quoted once or twice.
_ESCAPES_REST, _LONGEST_REST = r"(?:#?\w{0,8};){1,2}|[ux]?[0-9a-f]{1,8}|u?\{?[0-9a-f]{0,5}\}|[nr]", 14
_LINES = re.compile(r"[\x00-\x1f\x7f]+")


class OwnSecrets:
    """The values that are hidden, and the search for them."""

    def __init__(self, values: Iterable[str]) -> None:
        self._stands_alone = {form: alone for value in values for form, alone in _list_forms(value)}
        cases = {case for form in self._stands_alone for case in (form, form.lower(), form.upper())}
        self._needles = tuple(sorted({case.encode().lower() for case in cases}))  # bytes have ASCII's cases only

    def occurs_in(self, data: bytes) -> bool:
        """Whether one of the values may stand in `data`; quick, for logs are long."""
        if not self._needles:
            return False
        if self._has_needle(data):
            return True
        # Compiled by `re` when a text is looked through first: most commands look through none.
        return bool(re.search(_QUOTES, data)) and any(
            map(self._occurs_plainly, _list_unquoted(data.decode(errors="replace")))
        )

    def hide(self, text: str, instead: str = LEFT_OUT) -> str:
        """Return clean `text` with `instead` in the place of each of the values."""
        if not self._needles:
            return text
        if self._occurs_plainly(text):
            text = self._pattern.sub(lambda _: instead, text)
        # With marks on its letters, with quoted characters between them, or quoted as a whole, one can still read it.
        for plain in _list_unquoted(text):
            if self._occurs_plainly(plain) and (hidden := self._pattern.sub(lambda _: instead, plain)) != plain:
                return self.hide(hidden, instead)
        return text

    def hide_cut(self, text: str, *, start: bool = False, end: bool = False, least: int = 1) -> str:
        """Return a clean text that was cut at its start or end without the values, and without half a one there.

        A half of fewer than `least` characters stays.
        """
        # Where bytes were cut within a character, what is left of it would keep the half of a value from being known.
        text = text.lstrip("\ufffd") if start else text
        text = text.rstrip("\ufffd") if end else text
        text, forms = self.hide(text), [form.lower() for form in self._stands_alone]
        bare = strip_marks(text)
        if bare != text and self._cut_halves(bare, forms, least, start=start, end=end) != bare:
            text = bare
        return self._cut_halves(text, forms, least, start=start, end=end)

    def _cut_halves(self, text: str, forms: list[str], least: int, *, start: bool, end: bool) -> str:
        if end:
            text = text[: len(text) - self._count_quoted_half(text, forms, at_start=False)]
            halves = [n for form in forms for n in range(least, len(form)) if text[-n:].lower() == form[:n]]
            text = text[: len(text) - max(halves, default=0)]
        if start:
            text = text[self._count_quoted_half(text, forms, at_start=True) :]
            skips = [n for n in range(1, _LONGEST_REST) if re.fullmatch(_ESCAPES_REST, text[:n], re.IGNORECASE)]
            starts = [(0, least), *((skip, max(least, _LEAST_HALF)) for skip in skips)]
            text = text[max(_count_half(text, skip, forms, shortest) for skip, shortest in starts) :]
        return text

    @staticmethod
    def _count_quoted_half(text: str, forms: list[str], *, at_start: bool) -> int:
        """Return the length of the words that begin or end a text where they are a half of a quoted value, else 0."""
        near = text[:_LONGEST_WORD] if at_start else text[-_LONGEST_WORD:]
        if not any(mark in near for mark in "\\%&"):
            return 0
        half, words, longest = slice(-_LEAST_HALF, None) if at_start else slice(_LEAST_HALF), near.split(" "), 0
        for blanks in {form.count(" ") for form in forms}:  # a half has as many blanks as its value, or fewer
            part = " ".join(words[: blanks + 1] if at_start else words[-blanks - 1 :])
            quoted = part if at_start else re.sub(_HALF_ESCAPE, "", part)
            ends = {form[half] for form in forms if len(form) > _LEAST_HALF and form.count(" ") == blanks}
            plain_parts = [plain.lower() for plain in (quoted, *_list_unquoted(quoted))]
            if any(mark in part for mark in "\\%&") and any(end in plain for plain in plain_parts for end in ends):
                longest = max(longest, len(part))
        return longest

    def hide_continued(self, before: str, text: str) -> str:
        """Return a clean text without the rest of a value that began at the end of `before`, which is clean, too."""
        if not self._needles:
            return text
        joined = before[-len(max(self._needles, key=len)) :] + text
        hidden = self.hide(joined)
        if hidden == joined:
            return text
        alike = next((at for at, (a, b) in enumerate(zip(hidden, joined, strict=False)) if a != b), len(hidden))
        return hidden[min(alike, len(joined) - len(text)) :]

    def _occurs_plainly(self, text: str) -> bool:
        return self._has_needle(text.encode(errors="surrogatepass"))

    def _has_needle(self, data: bytes) -> bool:
        small = data.lower()
        # One pattern of them all, which looks at each place for each of them, takes six times as long.
        for needle in self._needles:  # noqa: SIM110 - a generator would take as long as the search in a line
            if needle in small:
                return True
        return False

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        """The longest form first, so that nothing of it is left when another is a part of it."""
        forms = sorted(self._stands_alone.items(), key=lambda item: len(item[0]), reverse=True)
        return re.compile("|".join(_word(form) if alone else re.escape(form) for form, alone in forms), re.IGNORECASE)


def _count_half(text: str, skip: int, forms: list[str], least: int) -> int:
    """Return where the end of a value stops that stands after the first `skip` characters of a text, 0 without one."""
    ends = (form[-n:] for form in forms for n in range(len(form) - 1, least - 1, -1))
    small = text[skip : skip + max(map(len, forms), default=0)].lower()
    return max((skip + len(end) for end in ends if small.startswith(end)), default=0)


def _list_unquoted(text: str) -> Iterator[str]:
    """Yield what a clean text says where quoted characters are left out of it, then with one quoting less each time.

    All of it is clean and without marks on its letters. What is as the text before is left out.
    """
    before = text
    bare = re.sub(_QUOTED, "", text) if "\\" in text else text
    for _ in range(_TIMES_QUOTED + 1):
        plain = strip_marks(bare)
        if plain != before:
            yield plain
        if (unquoted := _unquote(text)) == text:
            return
        before, text, bare = plain, unquoted, strip_lines(unquoted)


def _unquote(text: str) -> str:
    """Return a text whose quoted characters stand for themselves."""
    if "\\" in text:
        text = re.sub(_ESCAPE, _read_escape, text)
    if "&" in text:
        import html

        text = html.unescape(re.sub(_LINE_END_IN_HTML, "\r", re.sub(_ESCAPE_IN_HTML, "\x1b", text)))
    return _unquote_address(re.sub(_LINE_END_IN_ADDRESS, "\r", text))


def _unquote_address(text: str) -> str:
    """Return a text as an address means it."""
    if "%" not in text:
        return text
    from urllib.parse import unquote

    return unquote(text)


def _read_escape(escape: re.Match[str]) -> str:
    if digits := next(filter(None, escape.groups()[:4]), ""):
        return chr(int(digits, 16)).replace("\n", "\r")
    return escape[5] or _CONTROLS.get(escape[6], "\x1b")


def _word(form: str) -> str:
    return rf"(?:(?<![A-Za-z0-9])|{_LINE_END_BEFORE}){re.escape(form)}(?![A-Za-z0-9])"


def _list_forms(value: str) -> Iterator[tuple[str, bool]]:
    """Yield what a value looks like in a text, and whether only where it stands alone."""
    import json
    from urllib.parse import quote, quote_plus

    alone = len(value) < _LONG
    yield value, alone
    in_python = (repr(value)[1:-1], repr(value.encode(errors="replace"))[2:-1])
    for quoted in (quote(value, safe=""), quote(value), quote_plus(value), value.translate(_HTML), *in_python):
        yield quoted, alone
    yield value.upper(), alone
    for in_json in (json.dumps(value, ensure_ascii=False)[1:-1], json.dumps(value)[1:-1]):
        for quoted in (in_json, in_json.replace("/", "\\/"), in_json.translate(_GO)):
            yield quoted, alone
    data = value.encode(errors="replace")
    for offset in range(3):  # where in three bytes it begins decides what its base64 is
        coded = binascii.b2a_base64(b"\0" * offset + data, newline=False).decode()
        whole = (offset + len(data)) * 8 // 6
        inner = coded[(offset * 8 + 5) // 6 : whole]
        yield inner, False
        yield inner.replace("+", "-").replace("/", "_"), False


def own_secrets() -> OwnSecrets:
    """Return the secrets as they were read last; reads them the first time."""
    return _current[0] if _current else read_own_secrets()


def read_own_secrets() -> OwnSecrets:
    """Read the environment and the token's file and return the secrets, which `own_secrets` has from now on.

    A command does when it begins, and a reader of a log when it opens one: the user may have logged in meanwhile.
    """
    _current[:] = [_collect(frozenset(_list_values()))]
    return _current[0]


_current: list[OwnSecrets] = []


def hide_own_secrets(text: str, instead: str = LEFT_OUT) -> str:
    """Return clean `text` without our own secrets."""
    return own_secrets().hide(text, instead)


@lru_cache(maxsize=8)
def _collect(values: frozenset[str]) -> OwnSecrets:
    return OwnSecrets(sorted(values))


def _list_values() -> Iterator[str]:
    """Yield the values that are secrets."""
    public_names = _list_known_names()
    values = [value for name, value in os.environ.items() if is_secret(name) and not _is_path(value)]
    addresses = [value for value in os.environ.values() if "://" in value]
    passwords = [word for value in addresses for pattern in _PASSWORDS for word in pattern.findall(value)]
    values += [*passwords, *map(_unquote_address, passwords)]
    for value in (*values, hub_token.read_token_file()):
        lines = [_clean(line) for line in _LINES.split(value) if line.strip()]
        shortest = _SHORTEST if len(lines) == 1 else _LONG  # of a private key each line is one, of JSON not `{`
        lines = [line for line in lines if len(line) >= shortest and line.lower() not in public_names | _NO_SECRETS]
        yield from (line for line in lines if len(line) >= _LONG or not line.isdecimal())


def _clean(value: str) -> str:
    """Return a value as it is in a clean text."""
    return strip_control_characters(os.fsencode(value).decode(errors="replace")).strip()


def _is_path(value: str) -> bool:
    """Whether a value names a file: one that is there, or whose folder is."""
    if not value.startswith(("/", "~")):
        return False
    try:
        path = Path(value).expanduser()
        return path.exists() or (path.parent != Path("/") and path.parent.is_dir())
    except (OSError, ValueError, RuntimeError):  # too long, no text, no such user
        return False


def _list_known_names() -> set[str]:
    """Return, in small letters, names that stand in every path of ours: hiding them would tell them."""
    places = (os.environ.get("HOME", ""), os.environ.get("USER", ""), os.environ.get("LOGNAME", ""))
    return {part.lower() for place in places for part in place.split("/")}
