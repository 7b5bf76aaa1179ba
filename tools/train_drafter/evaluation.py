"""Acceptance on held-out prompts: greedy answers of the target, and how far each drafted block agrees with them."""

from __future__ import annotations

import argparse
from collections import defaultdict
from typing import Any

import torch
from checkpoint import select_trained, store_weights, widen
from prompts import held_out
from sampling import ANSWER, follow_scripts
from speculators.models.dflash import DFlashDraftModel
from speculators.models.dflash.utils import get_base_indices_for_anchored_blocks
from target_states import TargetStates
from torch.nn.attention.flex_attention import create_mask
from transformers import PreTrainedModel, PreTrainedTokenizerBase


@torch.no_grad()
def draft_blocks(
    drafter: DFlashDraftModel, tapped: torch.Tensor, tokens: torch.Tensor, anchors: torch.Tensor
) -> torch.Tensor:
    """Return the drafted tokens [anchors, block - 1] behind each of `anchors`, positions in `tokens` [length]."""
    block, length = drafter.block_size, len(tokens)
    mask = drafter._create_attention_mask(  # noqa: SLF001
        torch.zeros(1, length, dtype=torch.long, device=tokens.device), length, anchors, tokens.device
    )
    queries = torch.full((len(anchors), block), drafter.mask_token_id, device=tokens.device)
    queries[:, 0] = tokens[anchors]
    hidden = drafter.embed_tokens(queries.flatten()[None])
    context = drafter.hidden_norm(drafter.fc(tapped.to(drafter.fc.weight.dtype)))
    places = torch.cat(
        [torch.arange(length, device=tokens.device), get_base_indices_for_anchored_blocks(anchors, block)]
    )
    rotary = drafter.rotary_emb(context, places[None])
    for layer in drafter.layers:
        hidden = layer(hidden_states=hidden, target_hidden=context, attention_mask=mask, position_embeddings=rotary)
    drafted = drafter.lm_head(drafter.norm(hidden)).argmax(-1)
    return drafted.view(len(anchors), block)[:, 1:]


def walk(drafted: list[list[int]], answer: list[int]) -> list[int]:
    """Return how many drafted tokens each step accepts, when a step begins behind what the one before it gave."""
    accepted, place = [], 0
    while place + 1 < len(answer):
        right = answer[place + 1 : place + 1 + len(drafted[place])]
        count = 0
        while count < len(right) and drafted[place][count] == right[count]:
            count += 1
        accepted.append(count)
        place += count + 1
    return accepted


@torch.no_grad()
def evaluate(
    target: PreTrainedModel, drafter: DFlashDraftModel, states: TargetStates, tokenizer: PreTrainedTokenizerBase,
    options: argparse.Namespace,
) -> dict[str, Any]:  # fmt: skip
    """Return the acceptance by kind and by position at temperature 0, of the weights as they are stored."""
    drafter.eval()
    drafter._create_mask_fn = create_mask  # noqa: SLF001
    drafter.config.transformer_layer_config._attn_implementation = "sdpa"  # noqa: SLF001
    stored = widen(store_weights(select_trained(drafter), options.bf16))
    drafter.load_state_dict({name: weight.float() for name, weight in stored.items()}, strict=False)
    end = int(tokenizer.convert_tokens_to_ids("<|im_end|>"))
    prompts = held_out()
    chats = [[{"role": "user", "content": text}] for _, text in prompts]
    texts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) for chat in chats]
    scripts = [[*tokenizer.encode(text, add_special_tokens=False), ANSWER] for text in texts]
    length = max(map(len, scripts)) + options.answer_tokens
    scripts = [script + [end] * (length - len(script)) for script in scripts]
    rows = follow_scripts(target, scripts, [0.0] * len(scripts), end, options.answer_tokens)
    steps: dict[str, list[int]] = defaultdict(list)
    for (kind, _), tokens, answered in zip(prompts, rows.tokens.long(), rows.answered, strict=True):
        anchors = answered.nonzero()[:, 0]
        answer = tokens[: int(anchors[-1]) + 1]
        tapped, _ = states.read(answer[None])
        drafted = draft_blocks(drafter, tapped, answer, anchors)
        steps[kind] += walk(drafted.tolist(), answer[anchors].tolist())
    every = [count for counts in steps.values() for count in counts]
    kinds = {kind: {"acceptance_length": 1 + mean(counts), "steps": len(counts)} for kind, counts in steps.items()}
    overall = mean([figure["acceptance_length"] for figure in kinds.values()])
    by_position = [mean([count > place for count in every]) for place in range(drafter.block_size - 1)]
    lines = [
        f"{kind:9} acceptance length {figure['acceptance_length']:.2f}, {figure['steps']} steps"
        for kind, figure in kinds.items()
    ]
    lines.append(f"mean of the kinds {overall:.2f}; by position " + " ".join(f"{share:.0%}" for share in by_position))
    return {"kinds": kinds, "acceptance_length": overall, "by_position": by_position, "lines": lines}


def mean(values: list[Any]) -> float:
    """Return the mean of at least one value."""
    return sum(values) / len(values)
