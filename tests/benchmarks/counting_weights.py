"""Makes weights of a real shape whose right answer is known, so that answers can be held against each other.

Random weights have near ties everywhere: greedy answers of two boots of one server part after a few tokens. These
count: after the word `w41` comes `w42`, which one attention layer over the whole context finds in the prompt. They do
not tell a broken kernel: keys are values here and no direction is preferred, so that attention over words of which none
is the right one points the query's way, to the next word (reckoned, not measured). On an H200 a reduction that left out
half of the context still answered seven of eight prompts right. The drafter knows the next word alone, so that of each
step one draft is accepted and the others are rejected.

For Gemma 4 (text) with a DFlash drafter; the folders hold a config.json each. An engine's Python runs it:

    ENGINE/bin/python tests/benchmarks/counting_weights.py TARGET DRAFTER OUT

A suite for it stays small, as `{n}` is the number of a sentence: this context holds the words w10 to w30009, each once.

    prompts:
      - {kind: 30k, max_tokens: 192, text: w18024, context: {count: 3000, sentences:
         ['w{n}7 w{n}2 w{n}9 w{n}0 w{n}5 w{n}1 w{n}8 w{n}3 w{n}6 w{n}4']}}
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM

SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<turn>")
MASK = SPECIAL.index("<mask>")
SPREAD = 0.02
# What the other layers add to the residual stream, against what the layer that looks up adds. What it adds is spread
# over the quarter of the directions that its heads keep: with 0.1 and 3 the right word was 1.2 times the second best at
# the shape of the 26B-A4B after 30,000 words (that layer alone, on a CPU), with 0.03 and 8 it is 3.7 times.
ELSEWHERE, FOUND = 0.03, 8.0
# Scales that layer's queries. With 0.025 the right word has 0.4 of the attention among 30,000, with 0.04 all of it.
SHARPNESS = 0.05
# The share of a head that RoPE turns: where a word stands must not matter.
TURNED = 0.25
# Lifts what a mask reads of its one word, averaged with zeros over the whole context, above the epsilon of RMSNorm.
DRAFTED = 50.0


def make_successor(hidden: int, vocabulary: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the embeddings [vocabulary, hidden] and the rotation [hidden, hidden] that turns each into the next."""
    turn, upper = torch.linalg.qr(torch.randn(hidden, hidden, device=device, dtype=torch.float64))
    turn = turn * torch.sign(torch.diagonal(upper))
    first = torch.randn(1, hidden, device=device, dtype=torch.float64)
    embeddings, power = first / first.norm() * SPREAD * hidden**0.5, turn
    while len(embeddings) < vocabulary:
        embeddings, power = torch.cat([embeddings, embeddings @ power.T]), power @ power
    embeddings = embeddings[:vocabulary].float()
    embeddings[MASK] = 0
    return embeddings, turn.float()


def make_lookup(config: dict[str, Any], turn: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the projections of a layer in which each word asks for the next one and passes on what it finds."""
    hidden, width = config["hidden_size"], config["global_head_dim"]
    groups, heads = config["num_global_key_value_heads"], config["num_attention_heads"]
    keys = torch.randn(groups, width, hidden, device=turn.device) * SPREAD
    turned = int(width * TURNED) // 2
    keys[:, :turned] = 0
    keys[:, width // 2 : width // 2 + turned] = 0
    shared = heads // groups
    return {
        "q_proj": torch.cat([keys[head // shared] @ turn for head in range(heads)]),
        "k_proj": keys.reshape(-1, hidden),
        "o_proj": torch.cat([keys[head // shared].T for head in range(heads)], dim=1),
        "q_norm": torch.full((width,), SHARPNESS, device=turn.device),
    }


def write_target(folder: Path, embeddings: torch.Tensor, turn: torch.Tensor) -> None:
    """Fill a target's folder with weights; the middle one of its layers with full attention looks up."""
    config = json.loads((folder / "config.json").read_text())
    full = [place for place, kind in enumerate(config["layer_types"]) if kind == "full_attention"]
    layer = f"layers.{full[len(full) // 2]}."
    with torch.device(turn.device):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16)
    looked_up = make_lookup(config, turn)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            part = name.removesuffix(".weight").rpartition(".")[2]
            if f"{layer}self_attn." in name and part in looked_up:
                weight.copy_(looked_up[part])
            elif part == "embed_tokens":
                weight.copy_(embeddings)
            elif part in {"post_attention_layernorm", "post_feedforward_layernorm"}:
                weight.fill_(FOUND if f"{layer}post_attention" in name else ELSEWHERE)
            elif weight.dim() > 1:
                weight.normal_(0, SPREAD)
    kept = {name: (folder / name).read_bytes() for name in ("config.json", "generation_config.json")}
    model.save_pretrained(folder, max_shard_size="5GB")
    for name, content in kept.items():
        (folder / name).write_bytes(content)
    write_tokenizer(folder, len(embeddings))


def write_drafter(folder: Path, turn: torch.Tensor) -> None:
    """Fill a drafter's folder with weights: all masks see the one word of their block and say the next."""
    config = json.loads((folder / "config.json").read_text())
    hidden, inner, width = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    read = len(config["dflash_config"]["target_layer_ids"])

    def scatter(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=turn.device) * SPREAD

    weights = {"fc": scatter(hidden, read * hidden), "hidden_norm": torch.zeros(hidden), "norm": torch.ones(hidden)}
    for place in range(config["num_hidden_layers"]):
        values = scatter(groups * width, hidden)
        parts = [turn @ values[head // (heads // groups) * width :][:width].T for head in range(heads)]
        layer = {
            "input_layernorm": torch.ones(hidden), "post_attention_layernorm": torch.ones(hidden),
            "self_attn.q_proj": scatter(heads * width, hidden), "self_attn.k_proj": scatter(groups * width, hidden),
            "self_attn.v_proj": values, "self_attn.o_proj": torch.cat(parts, dim=1) * (DRAFTED if place == 0 else 0.0),
            "self_attn.q_norm": torch.ones(width), "self_attn.k_norm": torch.ones(width),
            "mlp.gate_proj": scatter(inner, hidden), "mlp.up_proj": scatter(inner, hidden),
            "mlp.down_proj": torch.zeros(hidden, inner),
        }  # fmt: skip
        weights |= {f"layers.{place}.{name}": weight for name, weight in layer.items()}
    kept = {f"{name}.weight": weight.to("cpu", torch.bfloat16).contiguous() for name, weight in weights.items()}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def write_tokenizer(folder: Path, vocabulary: int) -> None:
    """Write a tokenizer with a token for each word; a chat ends with its last word, which is counted on from."""
    words = [*SPECIAL, *(f"w{number}" for number in range(len(SPECIAL), vocabulary))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 1 << 18, "unk_token": "<unk>",
                "eos_token": "<eos>", "bos_token": "<bos>", "pad_token": "<pad>",
                "chat_template": "{% for m in messages %}<turn> {{ m['content'] }}{% endfor %}"}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def main() -> None:
    """Copy the two folders and fill the copies with weights."""
    sources, out = [Path(word) for word in sys.argv[1:3]], Path(sys.argv[3])
    torch.manual_seed(5)
    target, drafter = (Path(shutil.copytree(source, out / source.name)) for source in sources)
    config = json.loads((target / "config.json").read_text())
    device = "cuda" if torch.cuda.is_available() else "cpu"
    embeddings, turn = make_successor(config["hidden_size"], config["vocab_size"], device)
    write_target(target, embeddings, turn)
    write_drafter(drafter, turn)


if __name__ == "__main__":
    main()
