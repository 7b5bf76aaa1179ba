"""The table of architectures: what vLLM's releases make of a checkpoint, read from `architectures.yaml`."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from dflash_tui.common import paths
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.planning.field_types import VllmVersion
from dflash_tui.planning.methods import Method
from dflash_tui.planning.text_cache import load_table

_FILE = paths.PACKAGE_ROOT / "architectures.yaml"


class TargetArchitecture(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What vLLM does with a target of an architecture."""

    since: VllmVersion | None = None
    """The first release that serves it; None where each from 0.20.0 on does."""
    states: VllmVersion | None = None
    """The first release in which it hands hidden states to a drafter; None where each that serves it does."""
    hands_states: bool = True
    """Whether any release up to 0.33.0 does."""
    flags: dict[str, Any] = {}
    """Flags that the published commands have on every machine."""


class DrafterArchitecture(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What vLLM does with a drafter of an architecture, a model_type or a kind of speculators."""

    method: Method
    """The method that it drafts with."""
    since: VllmVersion | None = None
    """The first release that has it; None where each from 0.20.0 on does."""
    speculation: dict[str, Any] = {}
    """Keys of the speculative config without which it does not draft as it was trained to."""


class ArchitectureTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that is known, by the names that config.json has."""

    targets: dict[str, TargetArchitecture]
    drafters: dict[str, DrafterArchitecture]
    model_types: dict[str, DrafterArchitecture]
    speculators: dict[str, DrafterArchitecture]


register_type(ArchitectureTable)


@cache
def load_architectures() -> ArchitectureTable:
    """Return the table that is shipped."""
    return load_table(_FILE, ArchitectureTable)
