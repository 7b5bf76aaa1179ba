"""Speculation methods: which releases of vLLM have each, and whether it takes a drafter. Pure.

From the sources of vLLM 0.20.0 to 0.33.0 (config/speculative.py).
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from dflash_tui.common.errors import UsageError


class Method(StrEnum):
    """A speculation method, by vLLM's name; `none` is without speculation.

    DFlash2 is not a method but an architecture of `dflash` drafters.
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
    """Whether a method takes a drafter."""

    REQUIRED = "required"
    OPTIONAL = "optional"
    NEVER = "never"


class MethodFacts(NamedTuple):
    """How vLLM supports a method."""

    drafter: DrafterUse
    """Whether it takes a drafter; if that is optional, the target may have its own."""
    default_tokens: int | None = None
    """Drafts per step by default; None if it depends on the drafter."""
    since: str = ""
    """The first release that has it; empty if all known releases do."""
    package: str = ""
    """The package it needs beside vLLM."""


FACTS = {
    Method.DFLASH: MethodFacts(DrafterUse.REQUIRED, since="0.20.0"),
    Method.DSPARK: MethodFacts(DrafterUse.OPTIONAL, since="0.25.0"),
    # vLLM drafts one token per layer of the head, which has one in nearly all models.
    Method.MTP: MethodFacts(DrafterUse.OPTIONAL, default_tokens=1),
    Method.EAGLE3: MethodFacts(DrafterUse.REQUIRED),
    Method.EAGLE: MethodFacts(DrafterUse.REQUIRED),
    Method.DRAFT_MODEL: MethodFacts(DrafterUse.REQUIRED),
    # vLLM's default length of the n-grams that it looks up.
    Method.NGRAM: MethodFacts(DrafterUse.NEVER, default_tokens=5),
    # vLLM's default depth of the tree.
    Method.SUFFIX: MethodFacts(DrafterUse.NEVER, default_tokens=24, package="arctic-inference"),
    Method.NONE: MethodFacts(DrafterUse.NEVER, default_tokens=0),
}
WITHOUT_DRAFTER = tuple(method for method, facts in FACTS.items() if facts.drafter is DrafterUse.NEVER)


def check_release(method: Method, vllm: str) -> None:
    """Raise UsageError if release `vllm` does not have the method."""
    from packaging.version import Version

    since = FACTS[method].since
    if since and Version(vllm) < Version(since):
        raise UsageError(f"{method} needs vLLM {since} or newer; the plan has {vllm}", hint=f"--vllm {since}")
