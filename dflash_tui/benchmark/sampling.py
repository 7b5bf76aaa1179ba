"""How a server is to choose and end its answers, and which sampler that makes it use; pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# What may be asked for, by options as by the file of an experiment: a boot that sends more would never end.
MOST_ROUNDS, MOST_SCALE = 100_000, 100.0
# vLLM takes no larger ones.
MOST_SEED, MOST_TEMPERATURE = (1 << 31) - 1, 2.0
_FAST = "FlashInfer"
GREEDY = "none, greedy"


class Sampling(NamedTuple):
    """How a server is to answer prompts: how long, and by which choice of tokens."""

    scale: float = 1.0
    """How many times their usual length answers have."""
    seed: int = 0
    """A suite is shuffled by it, and texts are made unique; sent with each request, too, where `seeded`."""
    temperature: float | None = 0.0
    """None leaves it to the server (the model's generation_config)."""
    fixed: bool = True
    """Whether answers go on past the model's own end, so that all have the length that was asked for."""
    tokens: bool = False
    """Whether the server is to name the tokens of its answers, and choose them by the model alone, without penalty."""
    seeded: bool = True
    """Whether requests have a seed."""
    top_p: float | None = None
    """The share of the probability that tokens are drawn from; None leaves it to the server."""

    def suit_to(self, samplers: Sequence[str]) -> Sampling:
        """Return the same without a seed where one would make the server use another sampler than its users meet.

        A request with a seed has a generator of its own, for which vLLM leaves FlashInfer's sampler of top-k and top-p.
        At temperature 0 nothing is drawn.

        Args:
            samplers: what the server's log says that it samples with.
        """
        return self._replace(seeded=self.temperature == 0 or _FAST not in samplers)

    def name_sampler(self, samplers: Sequence[str]) -> str:
        """Return what draws the tokens of these answers."""
        if self.temperature == 0:
            return GREEDY
        if _FAST in samplers and not self.seeded:
            return _FAST
        return f"PyTorch, seed {self.seed}" if self.seeded else "PyTorch"
