"""Pairs whose files say what architecture and names do not: parsers, method, MTP head and drafts by cards and index."""

from typing import Any, NamedTuple

import pytest

from dflash_tui.common.errors import UsageError
from dflash_tui.planning.derivation.checkpoint import Checkpoint, read_checkpoint
from dflash_tui.planning.derivation.pair import derive_pair
from dflash_tui.planning.methods import Method

CHATML = "{% for m in messages %}<|im_start|>{{m.role}}\n{{m.content}}<|im_end|>\n{% endfor %}"
THINK = CHATML + "{{'<think>\n'}}"
IM, TAGS = ("<|im_start|>", "<|im_end|>"), ("<think>", "</think>", "<tool_call>", "</tool_call>")
EMBED = "model.embed_tokens.weight"


def shape(architecture: str, hidden: int, layers: int, vocabulary: int, **more: Any) -> dict[str, Any]:
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "vocab_size": vocabulary}
    return {"architectures": [architecture], **heads, **sizes, **more}


def llama(hidden: int, layers: int, vocabulary: int, **more: Any) -> dict[str, Any]:
    return shape("LlamaForCausalLM", hidden, layers, vocabulary, model_type="llama", **more)


GLM = {"model_type": "glm4_moe", "num_nextn_predict_layers": 1}
DRAFT = {"draft_vocab_size": 32000}
MASK = {"mask_token_id": 151669}
SSM = {"hybrid_override_pattern": "M-" * 28}
MODELS: dict[str, tuple[dict[str, Any], str | None, tuple[str, ...], tuple[str, ...]]] = {
    "DeepSeek-R1-Distill-Llama-8B": (
        llama(4096, 32, 128256), "<｜User｜>{{content}}<｜Assistant｜><think>\n", ("<think>", "</think>"), ()
    ),
    "EAGLE3-DeepSeek-R1-Distill-LLaMA-8B": (llama(4096, 1, 128256, **DRAFT), None, (), ()),
    "GLM-4.7-FP8": (
        shape("Glm4MoeForCausalLM", 5120, 92, 151552, **GLM), "[gMASK]<sop>{{m}}<think>", TAGS,
        (EMBED, "model.layers.92.eh_proj.weight"),
    ),
    "INTELLECT-3-FP8": (
        shape("Glm4MoeForCausalLM", 4096, 46, 151552, **GLM), CHATML + "<think>", TAGS,
        (EMBED, "model.layers.45.mlp.gate.weight"),
    ),
    "NVIDIA-Nemotron-Nano-9B-v2": (
        shape("NemotronHForCausalLM", 4480, 56, 131072, **SSM), "{{m}}<TOOLCALL>[]</TOOLCALL><think>", (), ()
    ),
    "Qwen3-8B-x": (shape("Qwen3ForCausalLM", 4096, 36, 151936), THINK, (*IM, "<think>", "</think>"), ()),
    "eagle3-of-qwen3-8b": (shape("LlamaForCausalLMEagle3", 4096, 1, 151936, **DRAFT), None, (), ()),
    "automodel-eagle3-of-qwen3-8b": (shape("LlamaEagle3DraftModel", 4096, 1, 151936, **DRAFT), None, (), ()),
    "dspark-block7-of-qwen3-8b": (shape("Qwen3DSparkModel", 4096, 3, 151936, block_size=7, **MASK), None, (), ()),
}  # fmt: skip


def model(name: str) -> Checkpoint:
    config, template, tokens, weights = MODELS[name]
    found = frozenset(tokens) if template else None
    return read_checkpoint(f"./{name}", config, chat_template=template, tokens=found, weight_names=weights)


class Right(NamedTuple):
    """What is right for a pair: method, drafts per step, parsers of tools and thoughts, and how many warnings."""

    method: str
    tokens: int
    parsers: tuple[str, str] = ("", "")
    warnings: int = 0


@pytest.mark.parametrize(
    ("target", "drafter", "asked", "right"),
    [
        ("DeepSeek-R1-Distill-Llama-8B", "EAGLE3-DeepSeek-R1-Distill-LLaMA-8B", {},
         Right("eagle3", 3, ("", "deepseek_r1"))),
        ("GLM-4.7-FP8", None, {}, Right("mtp", 1, ("glm47", "glm45"))),
        ("INTELLECT-3-FP8", None, {"method": Method.NONE}, Right("none", 0, ("qwen3_coder", "deepseek_r1"))),
        ("NVIDIA-Nemotron-Nano-9B-v2", None, {"method": Method.NGRAM}, Right("ngram", 5)),
        ("Qwen3-8B-x", "dspark-block7-of-qwen3-8b", {"tokens": 3}, Right("dspark", 7, warnings=1)),
        ("Qwen3-8B-x", "dspark-block7-of-qwen3-8b", {"tokens": 12}, Right("dspark", 7, warnings=1)),
    ],
)  # fmt: skip
def test_pairs_follow_their_files_and_cards(target, drafter, asked, right):
    """None of vLLM's parsers rather than a wrong one."""
    pair = derive_pair(model(target), model(drafter) if drafter else None, **asked)
    parsers = tuple(pair.flags.get(flag, "") for flag in ("tool-call-parser", "reasoning-parser"))
    assert Right(pair.method.value, pair.tokens, parsers, len(pair.warnings)) == right


@pytest.mark.parametrize(
    ("target", "drafter", "method", "words"),
    [
        ("INTELLECT-3-FP8", None, None, "ships no MTP head"),
        ("Qwen3-8B-x", "eagle3-of-qwen3-8b", Method.EAGLE, "for eagle3"),
        ("Qwen3-8B-x", "eagle3-of-qwen3-8b", Method.DRAFT_MODEL, "for eagle3"),
        ("Qwen3-8B-x", "automodel-eagle3-of-qwen3-8b", None, "LlamaEagle3DraftModel"),
    ],
)
def test_misfits_are_refused_with_their_reason(target, drafter, method, words):
    with pytest.raises(UsageError) as error:
        derive_pair(model(target), model(drafter) if drafter else None, method=method)
    assert words in error.value.what
