"""A server to measure: its address, its model, and which API features it supports."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from dflash_tui.events import Event
from dflash_tui.runs.run import Run


class TokenCount(StrEnum):
    """How the tokens of a server's answers are counted."""

    USAGE = "usage"
    """The server counts them in the stream."""
    TOKENIZE = "tokenize"
    """The server's /tokenize counts those of the complete answer."""
    CHUNKS = "chunks"
    """The chunks of the stream are counted; a chunk may hold several tokens or none."""


class ServerFacts(msgspec.Struct, frozen=True):
    """What a server reports and supports; empty or None is unknown. The defaults are those of a launched vLLM."""

    engine: str = "vLLM"
    version: str = ""
    settings: dict[str, str] = {}
    context: int | None = None
    """Most tokens of a prompt and its answer together."""
    tokens: TokenCount = TokenCount.USAGE
    has_counters: bool = True
    """Whether its /metrics has vLLM's counters."""
    takes_extras: bool = True
    """Whether it accepts request fields beyond OpenAI's, such as `ignore_eos`."""
    takes_usage: bool = True
    """Whether it accepts `stream_options`."""
    answers_as: str = ""
    """The model that its answers have to name; empty is not checked."""


class ServerSeen(Event, frozen=True, tag="server"):
    """The event of a server that is measured by its address, with its facts."""

    url: str
    model: str
    facts: ServerFacts


class Server(msgspec.Struct, frozen=True):
    """A server to measure: a run, or any OpenAI-compatible server by its address."""

    url: str
    model: str
    """The model's name for clients."""
    key: str = ""
    """The API key; empty if it needs none."""
    facts: ServerFacts = ServerFacts()
    run: Run | None = None
    """Its run; None if only its address is known."""

    @classmethod
    def from_run(cls, run: Run) -> Server:
        """Return the server of a run."""
        facts = ServerFacts(version=run.plan.vllm, context=run.plan.context)
        return cls(run.url, run.plan.served_name, run.api_key, facts, run)

    @property
    def name(self) -> str:
        """The id of its run, else its address."""
        return self.run.id if self.run else self.url

    @property
    def synthetic(self) -> str:
        """Why its figures say nothing about a real model; empty if they do, or if that is unknown."""
        return self.run.plan.synthetic if self.run else ""
