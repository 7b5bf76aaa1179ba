"""The secrets in our own environment, which a server may have: known by value, they are hidden in any form of text."""

from __future__ import annotations

import os
from functools import cache

from dflash_tui.common.redaction import LEFT_OUT, is_secret, redact_secrets

_SHORTEST = 8


def read_env_secrets() -> tuple[bytes, ...]:
    """Return what variables hold that are secret by their names, the longest first; paths and short words are none."""
    return _values(tuple(sorted((name, value) for name, value in os.environ.items() if is_secret(name))))


@cache
def _values(env: tuple[tuple[str, str], ...]) -> tuple[bytes, ...]:
    found = {value.strip() for _, value in env}
    kept = [value for value in found if len(value) >= _SHORTEST and not value.startswith(("/", "~"))]
    return tuple(os.fsencode(value) for value in sorted(kept, key=len, reverse=True))


def redact_env_values(data: bytes, secrets: tuple[bytes, ...]) -> bytes:
    """Return `data` without these secrets."""
    for secret in secrets:
        if secret in data:
            data = data.replace(secret, LEFT_OUT.encode())
    return data


def redact_text(text: str) -> str:
    """Return `text` without our own secrets, and without what looks like one."""
    data = text.encode(errors="surrogatepass")
    return redact_secrets(redact_env_values(data, read_env_secrets()).decode(errors="surrogatepass"))
