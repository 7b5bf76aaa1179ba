"""Prompts, suites of prompts, and the sampling of their answers."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.resolution import ExpectedFigures

# Limits of options and experiment files: a boot that sends more would never end.
MOST_ROUNDS, MOST_SCALE = 100_000, 100.0
# vLLM accepts no larger ones.
MOST_SEED, MOST_TEMPERATURE = (1 << 31) - 1, 2.0
_FAST = "FlashInfer"
GREEDY = "none, greedy"


class Prompt(msgspec.Struct, frozen=True):
    """A prompt, the `max_tokens` of its answer, and how often a round sends it.

    The prefix cache may answer a prompt that is not `salted`. `follows` is the kind of the previous prompt in a
    conversation. A turn of a recorded `session` has all `messages` before its answer, of which `text` is the last, and
    the `tools` offered; the prefix cache may answer it from earlier turns only.
    """

    kind: str
    text: str
    max_tokens: int
    repeat: int = 1
    salted: bool = True
    follows: str = ""
    session: str = ""
    messages: tuple[dict[str, Any], ...] = ()
    tools: tuple[dict[str, Any], ...] = ()


class TokenVariety(StrEnum):
    """Whether the prompts of a suite of `any_text` have different tokens under the server's tokenizer."""

    UNCHECKED = ""
    DIFFERENT = "different"
    RANDOM = "random"
    """The suite's own text has not, so text of random tokens was sent."""
    REPEATED = "repeated"
    UNKNOWN = "unknown"
    """The server has no /tokenize."""


class Suite(msgspec.Struct, frozen=True):
    """Prompts of different kinds; `digest` is the SHA-256 of the prompts and their order.

    A suite `in_order` is never shuffled. With `levels` the prompts are levels of one quantity, such as context length,
    not a sample of requests. With `any_text` another text with as many tokens would do.
    """

    name: str
    prompts: tuple[Prompt, ...]
    digest: str
    in_order: bool = False
    levels: bool = False
    any_text: bool = False

    @property
    def requests(self) -> int:
        """How many requests a round sends."""
        return sum(prompt.repeat for prompt in self.prompts)

    def rounds(self, least: int, streams: int) -> int:
        """Return the number of counted rounds: `least`, or as many as give each stream two requests."""
        return max(least, math.ceil(2 * streams / self.requests)) if streams > 1 else least

    def split_kinds(self) -> tuple[Suite, ...]:
        """Return a suite per kind of prompt."""
        groups: dict[str, list[Prompt]] = {}
        for prompt in self.prompts:
            groups.setdefault(name_kind(prompt.kind), []).append(prompt)
        return tuple(msgspec.structs.replace(self, prompts=tuple(prompts)) for prompts in groups.values())

    @property
    def repeats(self) -> bool:
        """Whether texts are repeated, so that the prefix cache may answer."""
        return any(prompt.session or not prompt.salted for prompt in self.prompts)


def name_kind(prompt: str) -> str:
    """Return the kind that a prompt shares with others: its name without its number, such as `code` of `code 2`."""
    return re.sub(r" \d+$", "", prompt)


def build_suite(
    name: str, prompts: tuple[Prompt, ...], *, in_order: bool = False, levels: bool = False, any_text: bool = False
) -> Suite:
    """Return a suite of `prompts` with its digest."""
    # Fields added later are digested only if they are used, so that the digests of old experiments stay valid.
    sent = [{name: getattr(prompt, name) for name in ("kind", "text", "max_tokens", "repeat")} for prompt in prompts]
    more = [prompt.salted for prompt in prompts]
    parts: tuple[object, ...] = (sent, in_order) if all(more) else (sent, in_order, more)
    parts += ([prompt.follows for prompt in prompts],) if any(prompt.follows for prompt in prompts) else ()
    sessions = [(prompt.messages, prompt.tools) for prompt in prompts]
    parts += (sessions,) if any(messages for messages, _ in sessions) else ()
    return Suite(name, prompts, hashlib.sha256(msgspec.json.encode(parts)).hexdigest(), in_order, levels, any_text)


def name_sampling(temperature: float | None, top_p: float | None, top_k: int | None) -> str:
    """Return the sampling parameters that are set, as text."""
    values = {"temperature": temperature, "top-p": top_p, "top-k": top_k}
    return ", ".join(f"{name} {value:g}" for name, value in values.items() if value is not None)


def name_template(sampling: str, plan: Plan) -> str:
    """Return `sampling` with the chat template that the server was launched with, if any."""
    template = plan.find_flag("chat-template")
    return f"{sampling}, chat template {template}" if template else sampling


class Sampling(NamedTuple):
    """The length and sampling of answers."""

    scale: float = 1.0
    """Factor of the answers' usual length."""
    seed: int = 0
    """Shuffles the suite and makes texts unique; also sent with each request if `seeded`."""
    temperature: float | None = 0.0
    """None, also for `top_p` and `top_k`, is the server's default (the model's generation_config)."""
    fixed: bool = True
    """Whether answers continue past the model's own end (`ignore_eos`)."""
    tokens: bool = False
    """Whether to request token ids, and sampling without a repetition penalty."""
    seeded: bool = True
    top_p: float | None = None
    top_k: int | None = None
    source: str = ""
    """Who published this sampling; empty if it is not a published one."""

    @classmethod
    def from_plan(cls, plan: Plan) -> Sampling:
        """Return the default sampling of a plan: to the model's own end, with published parameters."""
        return cls(plan.bench_scale, temperature=None, fixed=False).as_published(plan.expected)

    def as_published(self, expected: Iterable[ExpectedFigures]) -> Sampling:
        """Return a copy with the published sampling parameters, unless some are set already."""
        if any(value is not None for value in (self.temperature, self.top_p, self.top_k)):
            return self
        for figures in expected:
            if not figures.set_up and name_sampling(figures.temperature, figures.top_p, figures.top_k):
                return self._replace(
                    temperature=figures.temperature, top_p=figures.top_p, top_k=figures.top_k, source=figures.source
                )
        return self

    @property
    def options(self) -> dict[str, float]:
        """The request fields that limit the tokens to sample from."""
        limits = {"top_p": self.top_p, "top_k": self.top_k}
        return {name: value for name, value in limits.items() if value is not None}

    @property
    def words(self) -> str:
        """The sampling parameters and their publisher, as text."""
        words = name_sampling(self.temperature, self.top_p, self.top_k)
        return (f"{words}, as published ({self.source})" if self.source else words) or "the model's own"

    def suit_to(self, samplers: Sequence[str]) -> Sampling:
        """Return a copy without a seed if a seed would make the server change its sampler.

        A seed gives a request its own generator, for which vLLM uses PyTorch's top-k and top-p, not FlashInfer's.
        """
        return self._replace(seeded=self.temperature == 0 or _FAST not in samplers)

    def name_sampler(self, samplers: Sequence[str]) -> str:
        """Return the sampler that draws the tokens of these answers."""
        if self.temperature == 0:
            return GREEDY
        if _FAST in samplers and not self.seeded:
            return _FAST
        return f"PyTorch, seed {self.seed}" if self.seeded else "PyTorch"
