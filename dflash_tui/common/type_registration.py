"""Types that msgspec knows before a second thread can meet them."""

from __future__ import annotations

import msgspec


def register_type(kind: type[msgspec.Struct]) -> None:
    """Let msgspec get to know a type, and all types in it, while its module is imported.

    Otherwise it does so when the first text is read, and msgspec 0.22 shows a type that one thread is halfway through
    to the next one, which then reads a null pointer. For every type that `msgspec.json.decode` or `msgspec.convert`
    is given anywhere.
    """
    msgspec.json.Decoder(kind)
