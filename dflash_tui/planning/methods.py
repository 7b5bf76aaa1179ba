"""Speculation methods: which releases of vLLM have each, and whether it takes a drafter. Pure.

Read from the sources of vLLM 0.20.0 to 0.33.0 (config/speculative.py).
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from dflash_tui.common.errors import UsageError


class Method(StrEnum):
    """How tokens are proposed; the values are vLLM's names, but for `none`, which proposes nothing.

    DFlash2 is no method of its own but an architecture of `dflash` drafters.
    """

    DFLASH = "dflash"
    DSPARK = "dspark"
    MTP = "mtp"
    EAGLE3 = "eagle3"
    EAGLE = "eagle"
    DRAFT_MODEL = "draft_model"
    NGRAM = "ngram"
    SUFFIX = "suffix"
    NONE = "none"


class DrafterUse(StrEnum):
    """Whether a method takes a model that drafts."""

    REQUIRED = "required"
    OPTIONAL = "optional"
    NEVER = "never"


class MethodFacts(NamedTuple):
    """What vLLM does with a method."""

    drafter: DrafterUse
    """Whether it takes a drafter; where it may, the target can have one of its own."""
    default_tokens: int | None = None
    """Tokens drafted per step where nobody says how many; None where vLLM or we cannot know."""
    since: str = ""
    """The first release that has it; empty where each that we know does."""
    package: str = ""
    """What has to be installed beside vLLM."""


FACTS = {
    Method.DFLASH: MethodFacts(DrafterUse.REQUIRED, since="0.20.0"),
    Method.DSPARK: MethodFacts(DrafterUse.OPTIONAL, since="0.25.0"),
    # vLLM takes the number of layers of the head, which is 1 in nearly all.
    Method.MTP: MethodFacts(DrafterUse.OPTIONAL, default_tokens=1),
    Method.EAGLE3: MethodFacts(DrafterUse.REQUIRED),
    Method.EAGLE: MethodFacts(DrafterUse.REQUIRED),
    Method.DRAFT_MODEL: MethodFacts(DrafterUse.REQUIRED),
    # As many as the words that vLLM looks up by itself.
    Method.NGRAM: MethodFacts(DrafterUse.NEVER, default_tokens=5),
    # The depth of the tree that vLLM takes by itself.
    Method.SUFFIX: MethodFacts(DrafterUse.NEVER, default_tokens=24, package="arctic-inference"),
    Method.NONE: MethodFacts(DrafterUse.NEVER, default_tokens=0),
}
WITHOUT_DRAFTER = tuple(method for method, facts in FACTS.items() if facts.drafter is DrafterUse.NEVER)


def check_release(method: Method, vllm: str) -> None:
    """Raise UsageError where release `vllm` does not have the method."""
    from packaging.version import Version

    since = FACTS[method].since
    if since and Version(vllm) < Version(since):
        raise UsageError(f"{method} is in vLLM from {since} on; the plan has {vllm}", hint=f"--vllm {since}")
