"""Make a toy target and its DFlash drafter: `python build_toy_pair.py FOLDER`, run by an engine's Python.

Nothing is trained. The target is a Qwen3 shape whose head prefers the token it has just seen: at temperature
0.7 it repeats it with a probability near 0.85, else it emits any token, and it ends now and then. The drafter
has the z-lab checkpoint layout (no embedding and no head of its own); every masked position looks back at the
one real token of its block and proposes it again. So acceptance at position k is about 0.85 ** (k + 1) at
temperature 0.7, all of it at 0 and little above 1: it moves with the request, as with a real pair.
"""

from __future__ import annotations

import builtins
import json
import keyword
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 1024
HIDDEN, FEED_FORWARD = 64, 128
HEADS, HEAD_SIZE = 2, 32  # 32 is the smallest head the CPU attention takes
TARGET_LAYERS, DRAFTER_LAYERS = 4, 2
TAPPED_LAYERS = [0, 1, 2]  # of the target; their hidden states feed the drafter
BLOCK = 8  # tokens per drafted block: the last real one and seven proposals
POSITIONS = 32768
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]
# Of the head: how much more likely the last token is than any other, and the end of the text.
REPEAT_LOGIT, END_LOGIT = 6.6, 2.0
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
)
SHARED_CONFIG = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "dtype": "bfloat16",
    "head_dim": HEAD_SIZE,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "initializer_range": 0.02,
    "intermediate_size": FEED_FORWARD,
    "max_position_embeddings": POSITIONS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "vocab_size": VOCABULARY,
}


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer trained on Python's own names, with a ChatML template."""
    names = [*keyword.kwlist, *dir(builtins), *sorted(sys.stdlib_module_names)]
    for kind in (str, bytes, list, dict, set, int, float):
        names += dir(kind)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator((f" {name} {name}" for name in names), trainer)
    tokenizer.add_special_tokens(SPECIAL)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        model_max_length=POSITIONS,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def embedding_and_head(ids: dict[str, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the target's embedding and head, both [VOCABULARY, HIDDEN].

    Dimension 0 says "an ordinary token", dimension 1 "the mask", the others hold a random unit direction per
    token. The head gives the token whose direction the hidden state has REPEAT_LOGIT.
    """
    generator = torch.Generator().manual_seed(1234)
    directions = torch.randn(VOCABULARY, HIDDEN - 2, generator=generator)
    directions /= directions.norm(dim=1, keepdim=True)
    ordinary, no_mask = torch.full((VOCABULARY, 1), 0.5), torch.zeros(VOCABULARY, 1)
    embedding = torch.cat([ordinary, no_mask, directions], 1)
    embedding[ids["<|mask|>"]] = 0
    embedding[ids["<|mask|>"], 1] = 1.0
    # The final norm scales a hidden state of length sqrt(1.25) to sqrt(HIDDEN) = 8.
    gain = 8.0 / 1.25**0.5
    head = torch.cat([torch.zeros(VOCABULARY, 2), directions * (REPEAT_LOGIT / gain)], 1)
    for token in SPECIAL:
        head[ids[token]] = 0
    head[ids["<|im_end|>"], 0] = END_LOGIT / (0.5 * gain)
    return embedding, head


def build_target(folder: Path, tokenizer: PreTrainedTokenizerFast, ids: dict[str, int]) -> None:
    """Write the target: random transformer layers between the hand-made embedding and head."""
    torch.manual_seed(0)
    tokens = {"bos_token_id": ids["<|endoftext|>"], "eos_token_id": ids["<|im_end|>"]}
    pad = {"pad_token_id": ids["<|endoftext|>"]}
    model = Qwen3ForCausalLM(Qwen3Config(**SHARED_CONFIG, **tokens, **pad, num_hidden_layers=TARGET_LAYERS))
    embedding, head = embedding_and_head(ids)
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(embedding)
        model.lm_head.weight.copy_(head)
    model = model.to(torch.bfloat16)
    sampling = {"do_sample": True, "temperature": 0.7, "top_p": 0.95}
    model.generation_config = GenerationConfig(eos_token_id=ids["<|im_end|>"], **pad, **sampling)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": CHAT_TEMPLATE}, indent=1))


def drafter_layer(index: int) -> dict[str, torch.Tensor]:
    """Return the random weights of one drafter layer under their checkpoint names."""
    generator = torch.Generator().manual_seed(100 + index)

    def random(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * 0.02

    attention = HEADS * HEAD_SIZE
    weights = {
        "self_attn.q_proj": random(attention, HIDDEN),
        "self_attn.k_proj": random(attention, HIDDEN),
        "self_attn.v_proj": random(attention, HIDDEN),
        "self_attn.o_proj": random(HIDDEN, attention),
        "self_attn.q_norm": torch.ones(HEAD_SIZE),
        "self_attn.k_norm": torch.ones(HEAD_SIZE),
        "mlp.gate_proj": random(FEED_FORWARD, HIDDEN),
        "mlp.up_proj": random(FEED_FORWARD, HIDDEN),
        "mlp.down_proj": random(HIDDEN, FEED_FORWARD),
        "input_layernorm": torch.ones(HIDDEN),
        "post_attention_layernorm": torch.ones(HIDDEN),
    }
    return {f"layers.{index}.{name}.weight": weight for name, weight in weights.items()}


def build_drafter(folder: Path, ids: dict[str, int]) -> None:
    """Write the drafter; its first layer copies the block's real token to every masked position."""
    weights = drafter_layer(0) | drafter_layer(1)
    query, key, value, out = (weights[f"layers.0.self_attn.{n}_proj.weight"] for n in "qkvo")
    query.zero_()
    key.zero_()
    value.copy_(torch.eye(HIDDEN))
    out.copy_(torch.eye(HIDDEN) * 0.5)
    slow = HEAD_SIZE // 2 - 1  # in the slowest rotary pair, so that the distance hardly matters
    for head in range(HEADS):
        query[head * HEAD_SIZE + slow, 1] = 1.0  # a mask asks ...
        key[head * HEAD_SIZE + slow, 0] = 1.0  # ... and an ordinary token answers
    for norm in "qk":
        weights[f"layers.0.self_attn.{norm}_norm.weight"].fill_(2.0)
    torch.manual_seed(7)
    mixer = torch.randn(HIDDEN, len(TAPPED_LAYERS) * HIDDEN) * 0.02
    mixer[0] = 0  # the target's hidden states do not answer
    weights |= {
        "fc.weight": mixer,
        "hidden_norm.weight": torch.ones(HIDDEN),
        "norm.weight": torch.ones(HIDDEN),
    }
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: weight.to(torch.bfloat16).contiguous() for name, weight in weights.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = SHARED_CONFIG | {
        "architectures": ["DFlashDraftModel"],
        "block_size": BLOCK,
        "bos_token_id": ids["<|endoftext|>"],
        "dflash_config": {"mask_token_id": ids["<|mask|>"], "target_layer_ids": TAPPED_LAYERS},
        "eos_token_id": ids["<|im_end|>"],
        "layer_types": ["full_attention"] * DRAFTER_LAYERS,
        "max_window_layers": DRAFTER_LAYERS,
        "model_type": "qwen3",
        "num_hidden_layers": DRAFTER_LAYERS,
        "num_target_layers": TARGET_LAYERS,
        "rope_theta": 1000000,
        "sliding_window": None,
        "use_cache": True,
        "use_sliding_window": False,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def main(folder: Path) -> None:
    """Write `target` and `drafter` below `folder`."""
    tokenizer = make_tokenizer()
    ids = {token: int(tokenizer.convert_tokens_to_ids(token)) for token in SPECIAL}
    build_target(folder / "target", tokenizer, ids)
    build_drafter(folder / "drafter", ids)
    print(f"target and drafter written to {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
