"""The caches of what is compiled at a start, which each arm of an experiment has for itself, on every host. Pure."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from dflash_tui.planning.plan import Plan

# What compiles at a start, and where it keeps the result: vLLM, Inductor, Triton, FlashInfer.
_CACHES = {
    "VLLM_CACHE_ROOT": "vllm",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
}
# What stands for the folder in reports, where it has the same name in every arm, since it makes no difference.
OWN_CACHE = "{own cache}"


class ArmCache(msgspec.Struct, frozen=True):
    """The caches that an arm of an experiment has for itself on each of its hosts."""

    arm: Annotated[int, Meta(ge=0, le=999)]
    """The place of the arm in the experiment."""
    is_fresh: bool
    """Whether they are to be empty; else the boot takes what those before it have compiled."""


def separate_caches(plan: Plan, settings: Collection[str], folder: Path | str) -> Plan:
    """Return the plan with all its caches in a folder; one that `settings` name, as by hand, stays as it is."""
    own = {name: str(Path(folder) / part) for name, part in _CACHES.items() if f"env.{name}" not in settings}
    return replace(plan, env=plan.env | own)
