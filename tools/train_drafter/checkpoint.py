"""The checkpoint in z-lab's layout: config.json and model.safetensors, of 8 bits with a scale a row or of bf16."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from speculators.models.dflash import DFlashSpeculatorConfig

SCALE = ".scale"  # beside an int8 weight [rows, columns]: bf16 [rows]; a weight is their product


def quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int8 values and one scale a row, whose product is nearest to `weight`."""
    scale = (weight.abs().amax(dim=1) / 127).clamp(min=1e-12).to(torch.bfloat16)
    return (weight / scale.float()[:, None]).round().clamp(-127, 127).to(torch.int8), scale


def select_trained(drafter: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the weights that training changes: all but the target's embedding, head and norm."""
    return {name: weight.detach() for name, weight in drafter.named_parameters() if weight.requires_grad}


def store_weights(body: dict[str, torch.Tensor], bf16: bool) -> dict[str, torch.Tensor]:
    """Return the weights as a checkpoint has them: matrices of 8 bits beside their scales, or all of bf16."""
    tensors: dict[str, torch.Tensor] = {}
    for name, weight in body.items():
        if weight.ndim == 2 and not bf16:
            tensors[name], tensors[name + SCALE] = quantize(weight.float().cpu())
        else:
            tensors[name] = weight.to(torch.bfloat16).cpu().contiguous()
    return tensors


def widen(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the weights with int8 ones multiplied by their scales, as vLLM gets them: all bf16."""
    widened = {}
    for name, weight in weights.items():
        if name.endswith(SCALE):
            continue
        scaled = weight.float() * weights[name + SCALE].float()[:, None] if weight.dtype == torch.int8 else weight
        widened[name] = scaled.to(torch.bfloat16)
    return widened


def write_checkpoint(
    folder: Path, config: DFlashSpeculatorConfig, body: dict[str, torch.Tensor], options: argparse.Namespace
) -> None:
    """Write the drafter's own weights `body` and a config with z-lab's keys."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(store_weights(body, options.bf16), folder / "model.safetensors", metadata={"format": "pt"})
    layers = config.transformer_layer_config
    keys = (
        "attention_bias", "head_dim", "hidden_act", "hidden_size", "intermediate_size", "layer_types",
        "max_position_embeddings", "num_attention_heads", "num_hidden_layers", "num_key_value_heads", "rms_norm_eps",
        "tie_word_embeddings", "vocab_size",
    )  # fmt: skip
    values = {key: getattr(layers, key) for key in keys} | {
        "architectures": ["DFlashDraftModel"],
        "block_size": options.block,
        "dflash_config": {"mask_token_id": options.mask_token, "target_layer_ids": options.taps},
        "dtype": "bfloat16",
        "model_type": "qwen3",
        "rope_theta": layers.rope_parameters["rope_theta"],
        "sliding_window": None,
        "use_sliding_window": False,
    }
    (folder / "config.json").write_text(json.dumps(dict(sorted(values.items())), indent=1) + "\n")
