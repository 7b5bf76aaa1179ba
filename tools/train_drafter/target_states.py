"""What the drafter reads of the target: the outputs of some layers, and the last one before the final norm."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel


class TargetStates:
    """A target whose forward pass leaves the outputs of the tapped layers (counted from 0, as z-lab's config does)."""

    def __init__(self, target: PreTrainedModel, taps: list[int]) -> None:
        self.target, self.taps = target, taps
        self.outputs: dict[int, torch.Tensor] = {}
        last = len(target.model.layers) - 1
        for index in {*taps, last}:
            target.model.layers[index].register_forward_hook(
                lambda _module, _inputs, output, index=index: self.outputs.__setitem__(
                    index, output[0] if isinstance(output, tuple) else output
                )
            )
        self.last = last

    @torch.no_grad()
    def read(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tapped outputs side by side [rows, length, taps x width] and the last [rows, length, width]."""
        self.target.model(tokens, use_cache=False)
        return torch.cat([self.outputs[tap] for tap in self.taps], dim=-1), self.outputs[self.last]
