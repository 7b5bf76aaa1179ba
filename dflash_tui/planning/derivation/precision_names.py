"""Precisions by the names of repositories: of drafters that differ in it alone, the target's own comes first. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

T = TypeVar("T")

_SUFFIX = re.compile(
    r"[-_.](?:quantized[-_.])?(fp8|nvfp4|mxfp4|int4|int8|awq|gptq|w4a16|w8a8|bf16|fp16)"
    r"(?:[-_.](?:dynamic|block|static|autoround|int4|4bit|8bit|w4a4|ct))?$",
    re.IGNORECASE,
)
# Names of one and the same; what has no suffix is in 16 bits.
_SAME = {"awq": "int4", "gptq": "int4", "w4a16": "int4", "w8a8": "int8", "bf16": "", "fp16": ""}
OWN_PRECISION = "the target's own precision"
"""What is said of a drafter that is chosen by its precision."""


class NamedPrecision(NamedTuple):
    """A repository's name without its precision, and that precision in small letters; empty without one."""

    base: str
    precision: str


def split_precision(name: str) -> NamedPrecision:
    """Return the name of a repository or folder in its two parts."""
    name = name.rstrip("/").lower()
    suffix = _SUFFIX.search(name)
    if suffix is None:
        return NamedPrecision(name, "")
    word = suffix[1]
    return NamedPrecision(name[: suffix.start()], _SAME.get(word, word))


def arrange_by_precision(drafters: Iterable[T], target: str, read_name: Callable[[T], str]) -> list[tuple[T, bool]]:
    """Return drafters in their order, and whether each was put before others for its precision.

    Those whose names differ in the precision alone stand together, where the first of them stood: first that of the
    target, by its name.
    """
    wanted, groups = split_precision(target).precision, dict[str, list[tuple[str, T]]]()
    for drafter in drafters:
        base, precision = split_precision(read_name(drafter))
        groups.setdefault(base, []).append((precision, drafter))
    return [
        (drafter, precision == wanted and len(group) > 1)
        for group in groups.values()
        for precision, drafter in sorted(group, key=lambda member: member[0] != wanted)
    ]
