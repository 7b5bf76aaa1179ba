"""Flags of `vllm serve` as its parser reads their names and numbers. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar

_SUFFIXES = {letter: 1000**power for power, letter in enumerate("kmgt", 1)}
_SUFFIXES |= {letter: 1024**power for power, letter in enumerate("KMGT", 1)}
T = TypeVar("T")


def normalize_flag_names(flags: Mapping[str, T]) -> dict[str, T]:
    """Return the flags by the names that vLLM knows: `_` is `-` up to a dot, and the last one counts."""
    return {_normalize_name(name): value for name, value in flags.items()}


@lru_cache(maxsize=1024)
def _normalize_name(name: str) -> str:
    return re.sub(r"^[^.]+", lambda match: match[0].replace("_", "-"), name)


def is_text_only(flags: Mapping[str, Any]) -> bool:
    """Whether a server with these flags takes neither images nor sound, so that vLLM loads no tower for them."""
    limits = flags.get("limit-mm-per-prompt")
    none = isinstance(limits, Mapping) and bool(limits) and not any(limits.values())
    return none or bool(flags.get("language-model-only"))


def read_whole_number(flags: Mapping[str, Any], name: str) -> int | None:
    """Return a flag that is a whole number, as `16384` or as vLLM's `16k` and `16K`; None without one."""
    return parse_whole_number(str(flags.get(name)))


def parse_whole_number(text: str) -> int | None:
    """Return the whole number that a flag's value is, as `read_whole_number` does; None where it is none."""
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?)([kmgtKMGT]?)", text.strip())
    return int(float(match[1]) * _SUFFIXES.get(match[2], 1)) if match else None
