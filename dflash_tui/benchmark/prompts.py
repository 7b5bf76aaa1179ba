"""Prompts that are sent together, each with the length of its answer."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.resolution import ExpectedFigures

# What may be asked for, by options as by the file of an experiment: a boot that sends more would never end.
MOST_ROUNDS, MOST_SCALE = 100_000, 100.0
# vLLM takes no larger ones.
MOST_SEED, MOST_TEMPERATURE = (1 << 31) - 1, 2.0
_FAST = "FlashInfer"
GREEDY = "none, greedy"


class Prompt(msgspec.Struct, frozen=True):
    """A prompt, how many tokens its answer may have, and how often a round sends it.

    A prefix cache may answer one that is not `salted`. `follows` is the kind of the prompt before it in a conversation.
    """

    kind: str
    text: str
    max_tokens: int
    repeat: int = 1
    salted: bool = True
    follows: str = ""


class Suite(msgspec.Struct, frozen=True):
    """Prompts that are sent together, each kind once; `digest` is the SHA-256 of the prompts and their order.

    Those of a suite `in_order` are never shuffled. `levels`: the prompts are levels of one thing, such as the length of
    context, and no sample of what may be asked.
    """

    name: str
    prompts: tuple[Prompt, ...]
    digest: str
    in_order: bool = False
    levels: bool = False

    @property
    def requests(self) -> int:
        """How many requests a round sends."""
        return sum(prompt.repeat for prompt in self.prompts)

    def rounds(self, least: int, streams: int) -> int:
        """Return how many rounds count with so many requests under way: two requests for each of them at least."""
        return max(least, math.ceil(2 * streams / self.requests)) if streams > 1 else least

    @property
    def repeats(self) -> bool:
        """Whether a prefix cache may answer, as the same texts come again."""
        return not all(prompt.salted for prompt in self.prompts)


def build_suite(name: str, prompts: tuple[Prompt, ...], *, in_order: bool = False, levels: bool = False) -> Suite:
    """Return a suite of `prompts` with its digest."""
    # By the fields that there were when the first experiments were begun, and the others where they are in use.
    sent = [{name: getattr(prompt, name) for name in ("kind", "text", "max_tokens", "repeat")} for prompt in prompts]
    more = [prompt.salted for prompt in prompts]
    parts: tuple[object, ...] = (sent, in_order) if all(more) else (sent, in_order, more)
    parts += ([prompt.follows for prompt in prompts],) if any(prompt.follows for prompt in prompts) else ()
    return Suite(name, prompts, hashlib.sha256(msgspec.json.encode(parts)).hexdigest(), in_order, levels)


def name_sampling(temperature: float | None, top_p: float | None, top_k: int | None) -> str:
    """Return how tokens are drawn, as far as that is asked for."""
    values = {"temperature": temperature, "top-p": top_p, "top-k": top_k}
    return ", ".join(f"{name} {value:g}" for name, value in values.items() if value is not None)


def name_template(sampling: str, plan: Plan) -> str:
    """Return how answers were sampled, and the chat template that the server was launched with, where it was one."""
    template = plan.find_flag("chat-template")
    return f"{sampling}, chat template {template}" if template else sampling


class Sampling(NamedTuple):
    """How a server is to answer prompts: how long, and by which choice of tokens."""

    scale: float = 1.0
    """How many times their usual length answers have."""
    seed: int = 0
    """A suite is shuffled by it, and texts are made unique; sent with each request, too, where `seeded`."""
    temperature: float | None = 0.0
    """None, as of `top_p` and `top_k`, leaves it to the server (the model's generation_config)."""
    fixed: bool = True
    """Whether answers go on past the model's own end (`ignore_eos`)."""
    tokens: bool = False
    """Whether the server is to name the tokens of its answers, and choose them by the model alone, without penalty."""
    seeded: bool = True
    top_p: float | None = None
    top_k: int | None = None
    source: str = ""
    """Who published requests with this sampling, where it is theirs."""

    @classmethod
    def from_plan(cls, plan: Plan) -> Sampling:
        """Return how its server is asked where nothing is said: to the model's own end, sampled as was published."""
        return cls(plan.bench_scale, temperature=None, fixed=False).as_published(plan.expected)

    def as_published(self, expected: Iterable[ExpectedFigures]) -> Sampling:
        """Return the same, sampled as published requests to such a launch were, where nothing else was asked for."""
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
        """The fields of a request that limit what is drawn from."""
        limits = {"top_p": self.top_p, "top_k": self.top_k}
        return {name: value for name, value in limits.items() if value is not None}

    @property
    def words(self) -> str:
        """How tokens are drawn, and who published that."""
        words = name_sampling(self.temperature, self.top_p, self.top_k)
        return (f"{words}, as published ({self.source})" if self.source else words) or "the model's own"

    def suit_to(self, samplers: Sequence[str]) -> Sampling:
        """Return the same without a seed where one would make the server use another sampler than its users meet.

        A request with a seed has a generator of its own, for which vLLM leaves FlashInfer's sampler of top-k and top-p.
        """
        return self._replace(seeded=self.temperature == 0 or _FAST not in samplers)

    def name_sampler(self, samplers: Sequence[str]) -> str:
        """Return what draws the tokens of these answers."""
        if self.temperature == 0:
            return GREEDY
        if _FAST in samplers and not self.seeded:
            return _FAST
        return f"PyTorch, seed {self.seed}" if self.seeded else "PyTorch"
