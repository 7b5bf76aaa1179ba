"""Prompts that are sent together, each with the length of its answer."""

from __future__ import annotations

import hashlib
import math

import msgspec


class Prompt(msgspec.Struct, frozen=True):
    """A prompt: its kind, the text, how many tokens the answer may have, and how often a round sends it.

    One that is not `salted` is sent as it is, again and
    again, so that a prefix cache may answer. `follows` is the kind of the prompt whose conversation it goes on with.
    """

    kind: str
    text: str
    max_tokens: int
    repeat: int = 1
    salted: bool = True
    follows: str = ""


class Suite(msgspec.Struct, frozen=True):
    """Prompts that are sent together, each kind once; `digest` is the SHA-256 of the prompts and their order.

    `in_order` says that the order is part of it and is never shuffled, `levels` that the prompts are levels of one
    thing, such as the length of context, and no sample of what may be asked.
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
