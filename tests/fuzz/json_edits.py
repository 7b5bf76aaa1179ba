"""Turns bytes into edits of good JSON, since what is changed byte by byte is nearly never JSON any more."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

from tests.support import escapes

# An input that begins with this byte is a base and edits of it; any other stands for itself.
EDITED = 0
_GONE = object()
_ODD: list[Any] = [
    _GONE, None, True, False, 0, 1, -1, 2, 65_535, 65_536, 1 << 31, -(1 << 31), (1 << 63) - 1, 1 << 64, 10**30, 10**400,
    0.5, -0.5, 5e-324, 1e308, -1e308, math.nan, math.inf, -math.inf, 4_102_444_799.0, 4_102_444_800.0, 1e18,
    "", " ", "x", "0", "-1", "1e400", "../x", "/dev/zero", "a/b", "x\0y", "\ud800", "x" * 3000, "9" * 5000,
    "e\u0301" * 50, "0.0.0.0", "::", "::1", "fe80::1%eth0", "[::1]", "192.0.2.1", "localhost", "01.2.3.4",
    "hf_" + "t" * 30,
    [], {}, [[]], [None], ["x"], {"": None}, {"x": {}}, {"x": "y"}, [1, 2], ["\x1b[31m"], {"\x1b[31m": "\u202e"},
    *escapes.texts().values(),
]  # fmt: skip


def edited(bases: list[Any], data: bytes) -> bytes:
    """Return one of `bases`, by the first byte, as JSON, after an edit for each three bytes that follow."""
    tree = copy.deepcopy([bases[data[0] % len(bases)]]) if data else [bases[0]]
    for at in range(1, len(data) - 2, 3):
        places = _list_places(tree)
        holder, key = places[(data[at] << 8 | data[at + 1]) % len(places)]
        odd = _ODD[data[at + 2] % len(_ODD)]
        if odd is not _GONE:
            holder[key] = copy.deepcopy(odd)
        elif holder is not tree:
            del holder[key]
    return json.dumps(tree[0]).encode()


def _list_places(tree: Any) -> list[tuple[Any, Any]]:
    """Return each container in `tree` with each of its keys or indices."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [place for key, part in items for place in [(tree, key), *_list_places(part)]]
