"""Conversations that the target writes itself: many rows at a time, each a chain of fixed and of sampled parts."""

from __future__ import annotations

import random
from dataclasses import dataclass

import prompts
import torch
from torch.nn import functional
from transformers import PreTrainedModel, PreTrainedTokenizerBase

ANSWER, USER_TURN = -1, -2  # in a script: "the target writes here until it ends its turn"
LONGEST_ANSWER, LONGEST_USER_TURN = 400, 120  # in tokens; what is longer is ended
TEMPERATURES = (0.0, 0.0, 0.0, 0.0, 0.3, 0.7, 0.7, 1.0)  # of a row's answers, drawn at random
TOP_P = 0.95


@dataclass(frozen=True)
class Rows:
    """Token ids [rows, length], and which of them the target wrote as an answer."""

    tokens: torch.Tensor
    answered: torch.Tensor


class Decoder:
    """One token a step for all rows, which are as long as each other, so that no row needs a mask."""

    def __init__(self, target: PreTrainedModel, rows: int, length: int) -> None:
        config = target.config
        self.model, self.eps = target.model, config.rms_norm_eps
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_size = config.head_dim or config.hidden_size // self.heads
        self.head = target.lm_head.weight
        shape = (len(self.model.layers), 2, rows, self.kv_heads, length, self.head_size)
        self.cache = torch.empty(shape, dtype=self.head.dtype, device=self.head.device)
        positions = torch.arange(length, device=self.head.device)[None]
        self.cos, self.sin = (part[0] for part in self.model.rotary_emb(self.cache[:0, :1].float(), positions))

    def rotate(self, values: torch.Tensor, step: int) -> torch.Tensor:
        """Return `values` [rows, heads, head size] with the rotary embedding of position `step`."""
        first, second = values.chunk(2, dim=-1)
        turned = torch.cat((-second, first), dim=-1)
        return (values * self.cos[step] + turned * self.sin[step]).to(values.dtype)

    def logits(self, tokens: torch.Tensor, step: int) -> torch.Tensor:
        """Return the logits [rows, vocabulary] after `tokens` [rows], which stand at position `step`."""
        hidden = self.model.embed_tokens(tokens)
        rows = len(tokens)
        for layer, (keys, values) in zip(self.model.layers, self.cache, strict=True):
            attention = layer.self_attn
            normed = layer.input_layernorm(hidden)
            query = attention.q_proj(normed).view(rows, self.heads, self.head_size)
            key = attention.k_proj(normed).view(rows, self.kv_heads, self.head_size)
            if hasattr(attention, "q_norm"):  # Qwen3
                query, key = attention.q_norm(query), attention.k_norm(key)
            query = self.rotate(query, step)
            keys[:, :, step] = self.rotate(key, step)
            values[:, :, step] = attention.v_proj(normed).view(rows, self.kv_heads, self.head_size)
            # The query heads of one KV head take the place of query positions.
            grouped = query.view(rows, self.kv_heads, -1, self.head_size)
            mixed = functional.scaled_dot_product_attention(grouped, keys[:, :, : step + 1], values[:, :, : step + 1])
            hidden = hidden + attention.o_proj(mixed.reshape(rows, -1))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return functional.linear(self.model.norm(hidden), self.head)


def write_script(rng: random.Random, tokenizer: PreTrainedTokenizerBase, length: int) -> list[int]:
    """Return fixed tokens and marks for what the target writes, for at least `length` tokens."""

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    script: list[int] = []
    turn = encode("<|im_start|>user\n")
    while len(script) < length:  # each mark stands for one token at least
        text = tokenizer.apply_chat_template([{"role": "user", "content": "@"}], tokenize=False)
        script += encode(text[: text.index("@")]) if not script else turn
        _, prompt = prompts.draw(rng)
        script += [USER_TURN] if prompt is None else encode(prompt + "<|im_end|>")
        script += [*encode("\n<|im_start|>assistant\n"), ANSWER, *encode("\n")]
    return script[:length]


@torch.no_grad()
def follow_scripts(
    target: PreTrainedModel,
    scripts: list[list[int]],
    temperatures: list[float],
    end: int,
    longest: int = LONGEST_ANSWER,
) -> Rows:
    """Return what the target writes for scripts of one length, each at its temperature, `longest` tokens an answer."""
    device, rows, length = target.device, len(scripts), len(scripts[0])
    script = torch.tensor(scripts, device=device)
    answer_heat = torch.tensor(temperatures, device=device)
    decoder = Decoder(target, rows, length)
    place = torch.zeros(rows, dtype=torch.long, device=device)  # in the script
    written = torch.zeros(rows, dtype=torch.long, device=device)  # of the turn that is being written
    tokens = torch.empty(rows, length, dtype=torch.int32, device=device)
    answered = torch.empty(rows, length, dtype=torch.bool, device=device)
    logits = torch.zeros(rows, target.config.vocab_size, device=device)
    for step in range(length):
        now = script.gather(1, place.clamp(max=length - 1)[:, None])[:, 0]
        heat = torch.where(now == USER_TURN, 1.0, answer_heat)
        chosen = choose_tokens(logits, heat)
        limit = torch.where(now == USER_TURN, LONGEST_USER_TURN, longest)
        chosen = torch.where(written >= limit, end, chosen)
        token = torch.where(now < 0, chosen, now)
        ended = (now >= 0) | (token == end)
        written = torch.where(ended, 0, written + 1)
        place += ended
        tokens[:, step], answered[:, step] = token, now == ANSWER
        logits = decoder.logits(token, step).float()
    return Rows(tokens, answered)


def sample_rows(target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: int, length: int, seed: int) -> Rows:
    """Return `rows` conversations of `length` tokens with the target's own answers, at several temperatures."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    scripts = [write_script(rng, tokenizer, length) for _ in range(rows)]
    end = int(tokenizer.convert_tokens_to_ids("<|im_end|>"))
    return follow_scripts(target, scripts, [rng.choice(TEMPERATURES) for _ in range(rows)], end)


def choose_tokens(logits: torch.Tensor, heat: torch.Tensor) -> torch.Tensor:
    """Return one token a row [rows]: the likeliest where its temperature is 0, else a draw from the top-p of 0.95."""
    best, ids = logits.topk(
        min(256, logits.shape[-1]), dim=-1
    )  # of 49,152: what lies beyond has hardly ever any part in the top 0.95
    chances = functional.softmax(best / heat.clamp(min=0.05)[:, None], dim=-1)
    chances = chances.masked_fill(chances.cumsum(-1) - chances > TOP_P, 0.0)
    drawn = ids.gather(1, torch.multinomial(chances, 1))[:, 0]
    return torch.where(heat == 0, ids[:, 0], drawn)
