"""Find secrets in what a user sets: flags, variables and values inside them, which others would see. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from dflash_tui.common.secrets.own_secrets import hide_own_secrets
from dflash_tui.common.secrets.redaction import looks_secret, redact_secrets
from dflash_tui.common.secrets.secret_names import holds_secret, is_secret

_STRUCTURED = re.compile(r"\s*[\[{]")
# As in an address or a list, and as in a header; what a header of authorization holds is known by its form.
_PAIRS = (
    re.compile(r"(?<![\w.-])-{0,2}([\w.-]{1,64})['\"]?\s{0,3}=\s{0,3}['\"]?([^$=&;,\s'\"][^&;,\s'\"]{3,})"),
    re.compile(r"(?<![\w-])--([\w-]{1,64})\s{1,3}['\"]?([^-$\s'\"][^\s'\"]{3,})"),
    re.compile(r"(?<![\w.-])(?!(?i:authorization)\b)([\w.-]{1,64})['\"]?:\s{0,3}['\"]([^$'\"][^'\"]{3,})"),
    re.compile(r"(?<![\w./-])((?i:[\w-]{0,60}(?:password|passwd|pwd|secret|api[-_]?key|token))):([^\s'\"]{4,})"),
    re.compile(r"(?:^|[;,'\"\n])\s{0,9}(?!(?i:authorization:))([\w.-]{1,64}): {1,9}([^$;,\s'\"][^;,\s'\"]{3,})"),
)
# Beside `value` in a list of variables or headers.
_NAMES = ("name", "key", "header")


def find_secret(name: str, value: object) -> str | None:
    """Return where in a flag, a variable or a setting a secret stands, such as `a.auth_token`; None without one.

    Nested values are looked into, also where they are JSON in a text.
    """
    left = [(name, value)]
    while left:
        place, value = left.pop()
        key = place.rpartition(".")[2]
        if looks_secret(key) or hide_own_secrets(key) != key:
            return "a key in it"
        if isinstance(value, Mapping):
            left += [(f"{place}.{key}", item) for key, item in value.items()]
            if any(key in value and holds_secret(str(value[key]), value.get("value", "")) for key in _NAMES):
                return place
        elif isinstance(value, list | tuple | set | frozenset):
            left += [(place, item) for item in value]
        elif (
            looks_secret(value)
            or hide_own_secrets(str(value)) != str(value)
            or any(holds_secret(part, value) for part in place.rstrip("+").split("."))
            or any(holds_secret(key, item) for pair in _PAIRS for key, item in pair.findall(str(value)))
        ):
            return place
        elif isinstance(value, str) and _STRUCTURED.match(value):
            try:
                left.append((place, msgspec.json.decode(value)))
            except (msgspec.MsgspecError, RecursionError, UnicodeError):
                if redact_secrets(value) != value:
                    return place
    return None


def explain_secrets(part: str, values: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield each name in a part of a recipe or patch whose value looks like a secret, and what to do instead."""
    for name, value in values.items():
        if place := find_secret(f"{part}.{name}", value):
            yield name, f"{place} looks like a secret; {advise_on_secret(place)}"


def advise_on_secret(place: str) -> str:
    """Return how a secret reaches a server without a command or a file that holds it."""
    last = place.rstrip("+").rpartition(".")[2].replace("-", "_").upper()
    if last == "API_KEY" and not place.startswith("env."):
        last = "VLLM_API_KEY"
    if last == "SSL_KEYFILE_PASSWORD":
        return "take a key file without a passphrase, which only you can read"
    return f"export {last if is_secret(last) else 'it'} in your shell: the server inherits it, and no command shows it"
