"""Makes weights of a real shape whose right answer is known, so that answers can be held against each other.

Random weights have near ties everywhere: greedy answers of two boots of one server part after a few tokens. These
count: after the word `w41` comes `w42`, which one attention layer over the whole context finds in the prompt. What
attention finds must outweigh one wrong word, the last of the vocabulary, which that layer says with the same strength
always: without it, attention over words of which none is the right one points the query's way, and so to the right one.
The drafter knows the next word alone, so that of each step one draft is accepted and the others are rejected.

What they tell, of that one layer simulated on a CPU: the 26B-A4B's shape, 16 segments, contexts of 2,000 to 30,000
words, the right one at 24 places in each. Read as it should be, the right word's logit is 2.2 times the second best or
more. With the segment that holds it left out, alone or with its half of the context, the wrong word's is 2.4 times the
second best or more; without a wrong word the right one won in all of these. Segments' maxima that are not rescaled, and
segments that all weigh the same, give the wrong word as well. They do not tell

* what is wrong with a segment that holds no right word: a suite has to walk through the context
* a segment that weighs up to exp(8) times too much or too little; exp(20) times is told
* the first word of an answer, which the prefill finds, and the other layers, windows among them, which are noise

For Gemma 4 (text) with a DFlash drafter; the folders hold a config.json each. An engine's Python runs it:

    ENGINE/bin/python tools/benchmarks/counting_weights.py TARGET DRAFTER OUT

`counting_suite.yaml` beside this file walks through contexts of 2k to 30k words.

A suite for it stays small, as `{n}` is the number of a sentence. The next word is a sentence further on, so that these
192 walk through the last two thirds of 2,044 words, and 89 from w10010 on through most of what is before. A sentence of
w100{n} to w202{n} makes 30,076 words.

    title: Count on
    prompts:
      - {kind: 2k, max_tokens: 192, text: w103100, context: {count: 292, sentences:
         ['w100{n} w101{n} w102{n} w103{n} w104{n} w105{n} w106{n}']}}
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
# over the quarter of the directions that its heads keep: with 0.1 and 3 the right word is 1.05 times the second best.
ELSEWHERE, FOUND = 0.03, 8.0
# Scales that layer's queries. Of the attention among 30,000 the right word has 0.98 with 0.03, and all with 0.04. With
# more, only larger errors of what a segment weighs are told.
SHARPNESS = 0.04
# The share of a head that RoPE turns: where a word stands must not matter.
TURNED = 0.25
# All words share one direction of the residual stream, so many times as strong as any other of a word's. One number of
# each head reads it and says the wrong word. With 15 that is 2.3 times the second best where the right one is left out,
# with 20 it is 2.7 times, and the right one as far ahead as without; with 30 only 1.75 times.
SHARED, LOST = 5.0, 20.0
# Lifts what a mask reads of its one word, averaged with zeros over the whole context, above the epsilon of RMSNorm.
DRAFTED = 50.0


def make_successor(hidden: int, vocabulary: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the embeddings [vocabulary, hidden] and the rotation [hidden, hidden] that turns each into the next.

    The first direction is the one that all words share; the rotation leaves it as it is.
    """
    part, upper = torch.linalg.qr(torch.randn(hidden - 1, hidden - 1, device=device, dtype=torch.float64))
    turn = torch.block_diag(torch.ones_like(part[:1, :1]), part * torch.sign(torch.diagonal(upper)))
    first = torch.randn(1, hidden, device=device, dtype=torch.float64)
    first[:, 0] = 0
    embeddings, power = first / first.norm() * SPREAD * hidden**0.5, turn
    while len(embeddings) < vocabulary:
        embeddings, power = torch.cat([embeddings, embeddings @ power.T]), power @ power
    embeddings = embeddings[:vocabulary].float()
    embeddings[:, 0] = SHARED * SPREAD
    embeddings[MASK] = 0
    return embeddings, turn.float()


def make_lookup(config: dict[str, Any], turn: torch.Tensor, lost: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the projections of a layer in which each word asks for the next one and passes on what it finds.

    The last number of a head is the shared direction's: no query asks for it, and as a value it says `lost`.
    """
    hidden, width = config["hidden_size"], config["global_head_dim"]
    groups, heads = config["num_global_key_value_heads"], config["num_attention_heads"]
    keys = torch.randn(groups, width, hidden, device=turn.device) * SPREAD
    turned = int(width * TURNED) // 2
    keys[:, :turned] = 0
    keys[:, width // 2 : width // 2 + turned] = 0
    keys[:, -1] = keys[:, :, 0] = 0
    queries, values = keys @ turn, keys.clone()
    keys[:, -1, 0] = LOST * SPREAD
    values[:, -1, 1:] = lost[1:]
    shared = heads // groups
    return {
        "q_proj": torch.cat([queries[head // shared] for head in range(heads)]),
        "k_proj": keys.reshape(-1, hidden),
        "o_proj": torch.cat([values[head // shared].T for head in range(heads)], dim=1),
        "q_norm": torch.full((width,), SHARPNESS, device=turn.device),
    }


def write_target(folder: Path, embeddings: torch.Tensor, turn: torch.Tensor) -> None:
    """Fill a target's folder with weights; the middle one of its layers with full attention looks up."""
    config = json.loads((folder / "config.json").read_text())
    full = [place for place, kind in enumerate(config["layer_types"]) if kind == "full_attention"]
    layer = f"layers.{full[len(full) // 2]}."
    with torch.device(turn.device):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16)
    looked_up = make_lookup(config, turn, embeddings[-1])
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
