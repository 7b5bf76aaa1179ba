"""What one reading of a server holds: its counters, its histograms, the load of its GPUs."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

import msgspec

# No server counts further, and sums, differences and quotients of such numbers are still numbers.
MOST = 1e15
MOST_POSITIONS = 64
# Of a histogram; those of vLLM have some 20.
MOST_BUCKETS = 256
# What is read from a file, which anybody may have written, must lie within these.
Amount = Annotated[float, msgspec.Meta(ge=0, le=MOST)]
Whole = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]
# Its reciprocal, the seconds of a token, is such an amount, too.
Speed = Annotated[float, msgspec.Meta(ge=1 / MOST, le=MOST)]
LEAST_STEPS = 1e-6  # less than a millionth of a step was never measured


class Counters(msgspec.Struct, frozen=True, omit_defaults=True):
    """One reading of the server's counters and gauges, summed over engines.

    The three speculation counters are None when the server does not speculate, `per_position` is then empty. A position
    that was not told is None.
    `steps` counts drafts: one per sequence and verification step. `finished` counts requests, `finished_tokens` what
    they generated, `decode_seconds` how long that took from their first token on, and `finished_prompt_tokens` what
    they asked. The prefix cache is asked for `prefix_queries` tokens and has `prefix_hits` of them. `series` is a
    number that changes when an engine, whose tokens `generated` adds up, comes or goes; None in earlier recordings.
    `prompt`, `running`, `waiting` and `preemptions` are None where the server does not tell them. All the same their
    default is 0: recordings leave out defaults, and those that were made before left out zeros.
    """

    generated: Amount
    prompt: Amount | None = 0.0
    steps: Amount | None = None
    proposed: Amount | None = None
    accepted: Amount | None = None
    per_position: Annotated[tuple[Amount | None, ...], msgspec.Meta(max_length=MOST_POSITIONS)] = ()
    running: Whole | None = 0
    waiting: Whole | None = 0
    kv_usage: float | None = None
    preemptions: Amount | None = 0.0
    prefix_queries: Amount = 0.0
    prefix_hits: Amount = 0.0
    finished: Amount = 0.0
    finished_tokens: Amount = 0.0
    decode_seconds: Amount = 0.0
    finished_prompt_tokens: Amount | None = None
    series: Whole | None = None

    def __post_init__(self) -> None:
        """Take a share of the KV cache that cannot be for one that was not told, as a file may hold it."""
        if self.kv_usage is not None and not 0 <= self.kv_usage <= 1:
            msgspec.structs.force_setattr(self, "kv_usage", None)

    def is_of_same_series(self, other: Counters) -> bool:
        """Whether both add up the same engines' counters, as far as both tell: otherwise no difference is a growth."""
        return self.series is None or other.series is None or self.series == other.series


class Histogram(msgspec.Struct, frozen=True):
    """How many values fell up to each of `bounds` and above the one before; the last count is of what is above all.

    Raises:
        ValueError: the bounds do not rise, or there is not one count more than there are bounds.
    """

    bounds: Annotated[tuple[Amount, ...], msgspec.Meta(max_length=MOST_BUCKETS)]
    counts: Annotated[tuple[Amount, ...], msgspec.Meta(max_length=MOST_BUCKETS)]
    total: Amount = 0.0

    def __post_init__(self) -> None:
        if len(self.counts) != len(self.bounds) + 1 or any(low >= high for low, high in pairwise(self.bounds)):
            raise ValueError("these counts are no histogram")


class Foreign(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process that is not the server's on one of its GPUs, and the bytes that it uses there, None when unknown."""

    pid: int
    name: str = ""
    memory: Whole | None = None


class GpuLoad(msgspec.Struct, frozen=True, omit_defaults=True):
    """One GPU of a server at work: watts, MHz, degrees Celsius, bytes; None where the driver does not say.

    `throttle` is what keeps the clocks down. `foreign` are processes that are not the server's, None when the driver
    shows none of the server's own, so that nobody can tell whose they are.
    """

    index: int
    power_w: Amount | None = None
    power_limit_w: Amount | None = None
    clock_mhz: Whole | None = None
    clock_max_mhz: Whole | None = None
    temperature_c: Annotated[int, msgspec.Meta(ge=-300, le=10_000)] | None = None
    utilisation: Amount | None = None
    memory_used: Whole | None = None
    memory_total: Whole | None = None
    throttle: tuple[str, ...] | None = None
    foreign: tuple[Foreign, ...] | None = None


def measure_acceptance_length(
    steps: float | None, accepted: float | None, tokens: float, requests: int = 1
) -> float | None:
    """Return the tokens that a verification step adds to an answer; None where steps are not known.

    vLLM counts each draft that it accepts, also those that the last step accepts beyond the end of the answer. So
    1 + accepted / steps is too much by what was cut there: 5 % for answers of 64 tokens, n=15 (vllm-project/vllm#56101;
    #56137 counts what is emitted). An answer begins with a token of the prefill, and each step adds its accepted drafts
    and one more, so that

        cut = requests + steps + accepted - tokens,  acceptance length = 1 + (accepted - cut) / steps

    which is (tokens - requests) / steps. Steps without a draft are in no counter and make the cut seem less than
    nothing, steps of other clients make it more than the last steps can hold; there it is not known and taken for none.

    Args:
        steps: how many verification steps there were.
        accepted: how many drafts they accepted.
        tokens: how many tokens all answers have; 0 where that is not known.
        requests: how many answers there are.
    """
    if steps is None or accepted is None or steps < LEAST_STEPS:
        return None
    cut = requests + steps + accepted - tokens
    believed = tokens > requests and 0 < cut <= min(accepted, requests * MOST_POSITIONS)
    return 1 + (accepted - (cut if believed else 0.0)) / steps
