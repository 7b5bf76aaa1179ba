"""How vLLM serves two models, by their config.json. The configs are made here at the public shapes."""

import ast
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from dflash_tui.common.errors import UsageError
from dflash_tui.planning.derivation.checkpoint import read_checkpoint
from dflash_tui.planning.derivation.pair import DerivedPair, derive_pair
from dflash_tui.planning.methods import Method
from tests.support import wheels

Config = dict[str, Any]


def a_target(architecture: str, hidden: int, layers: int, vocab: int, **more: Any) -> Config:
    shape = {"hidden_size": hidden, "num_hidden_layers": layers, "vocab_size": vocab}
    heads = {"num_key_value_heads": 4, "head_dim": 128}
    return {"architectures": [architecture], "text_config": shape | heads | more}


GEMMA_26B = a_target("Gemma4ForConditionalGeneration", 2816, 30, 262144)
GEMMA_31B = a_target("Gemma4ForConditionalGeneration", 5376, 60, 262144)
QWEN_27B = a_target("Qwen3_5ForConditionalGeneration", 5120, 64, 248320, mtp_num_hidden_layers=1)
QWEN_35B = a_target("Qwen3_5MoeForConditionalGeneration", 2048, 40, 248320, mtp_num_hidden_layers=1)
FLASH_NEXT = a_target("Qwen4ExpForConditionalGeneration", 4096, 48, 248320, mtp_num_hidden_layers=1)
QWEN_8B = a_target("Qwen3ForCausalLM", 4096, 36, 151936)
NEMOTRON = a_target("NemotronHForCausalLM", 2688, 52, 131072)
LAGUNA = a_target("LagunaForCausalLM", 2048, 40, 100352)


def dflash(hidden: int, block: int, architecture: str = "DFlashDraftModel", last: int = 20, **more: Any) -> Config:
    shape = {"hidden_size": hidden, "num_hidden_layers": 5, "num_key_value_heads": 8, "head_dim": 128}
    own = {"mask_token_id": 4, "target_layer_ids": [1, last]}
    return {"architectures": [architecture], "block_size": block, "dflash_config": own} | shape | more


NVFP4 = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}
SPECULATORS = {
    "speculators_model_type": "dflash2",
    "mask_token_id": 4,
    "transformer_layer_config": {"hidden_size": 5376, "num_hidden_layers": 5},
    "aux_hidden_state_layer_ids": [1, 17, 29, 47, 59],
    "speculators_config": {"proposal_methods": [{"speculative_tokens": 7}]},
}


def made_for(verifier: str, *architectures: str) -> Config:
    """Return the config of a drafter that names its target, as the speculators format has it."""
    asks = {"proposal_methods": [{"speculative_tokens": 7}]}
    return SPECULATORS | {
        "speculators_config": asks | {"verifier": {"name_or_path": verifier, "architectures": [*architectures]}}
    }


EAGLE3 = {
    "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 4096, "vocab_size": 151936, "draft_vocab_size": 32000,
}  # fmt: skip


def derived(
    target: Config, drafter: Config | None = None, method: Method | None = None, name: str = "owner/drafter"
) -> DerivedPair:
    second = read_checkpoint(name, drafter) if drafter is not None else None
    return derive_pair(read_checkpoint("owner/target", target), second, method)


def test_small_model_of_the_family_drafts():
    """What was published of other methods is in test_published_pairs."""
    pair = derived(QWEN_8B, a_target("Qwen3ForCausalLM", 1024, 28, 151936))
    assert (pair.method, pair.tokens) == (Method.DRAFT_MODEL, 3)


@pytest.mark.parametrize(
    ("target", "drafter", "method", "word"),
    [
        (GEMMA_26B, dflash(5376, 16), None, "5376"),  # the drafter of another size
        (GEMMA_26B, dflash(2816, 16, last=47), None, "layer 48"),
        (GEMMA_26B, dflash(2816, 16, last=30), None, "layer 31"),  # these count from 0
        (GEMMA_26B, EAGLE3 | {"draft_vocab_size": 9, "eagle_aux_hidden_state_layer_ids": [31]}, None, "layer 31"),
        (GEMMA_26B, dflash(2816, 16, vocab_size=151936), None, "151936"),
        (FLASH_NEXT, dflash(4096, 16), None, "hidden states"),
        (QWEN_27B, {"architectures": ["DFlashDraftModel"], "hidden_size": 5120}, None, "block_size"),
        (QWEN_27B, {"architectures": ["DFlashDraftModel"], "mask_token_id": 4}, None, "block_size"),  # of no shape
        (QWEN_27B, dflash(5120, 16, dflash_config={"target_layer_ids": [1]}), None, "mask_token_id"),
        (QWEN_27B, {"architectures": ["DFlashDraftModel"], "block_size": 16}, None, "mask_token_id"),
        (QWEN_8B, a_target("Qwen3ForCausalLM", 1024, 28, 32000), None, "32000"),
        (QWEN_8B, a_target("Qwen3ForCausalLM", 1024, 28, 248320), None, "use_heterogeneous_vocab"),
        (QWEN_8B, None, None, "no head"),
        (QWEN_8B, None, Method.EAGLE3, "needs a drafter"),
        (QWEN_8B, None, Method.MTP, "no head"),
        (QWEN_8B, EAGLE3, Method.NGRAM, "takes no drafter"),
        (QWEN_8B, a_target("Qwen3ForCausalLM", 4096, 16, 151936), Method.EAGLE3, "no drafter for eagle3"),
        (GEMMA_31B, made_for("Qwen/Qwen3-32B", "Qwen3ForCausalLM"), None, "Qwen3ForCausalLM"),
        (GEMMA_31B, made_for("google/other-4-31B-it"), None, "google/other-4-31B-it"),
    ],
)
def test_incompatible_pair_is_refused_before_download(target, drafter, method, word):
    with pytest.raises(UsageError) as refused:
        derived(target, drafter, method)
    assert word in refused.value.what


@cache
def read_mask_lookup() -> Callable[[object], int]:
    """Return the function by which vLLM 0.33.0 looks up the mask token of a drafter, as published."""
    path = "v1/worker/gpu/spec_decode/utils.py"
    source = ast.parse(wheels.read("vllm", "0.33.0", [path])[path] or "")
    [function] = [node for node in source.body if getattr(node, "name", "") == "get_parallel_drafting_token_id"]
    namespace: dict[str, Any] = {}
    exec(compile(ast.Module([function], []), path, "exec"), namespace)
    return namespace["get_parallel_drafting_token_id"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("words", "token"),
    [
        ({"dflash_config": {"mask_token_id": 7, "target_layer_ids": [1]}}, 7),
        ({"dflash_config": {"target_layer_ids": [1]}, "mask_token_id": 0}, 0),
        ({"dspark_noise_token_id": 9}, 9),
        ({"pard_token": 9}, 9),
        ({"ptd_token_id": 9}, 9),
        ({"dflash_config": {"target_layer_ids": [1]}, "mask_token": "<mask>"}, None),
    ],
)
def test_mask_token_is_found_where_vllm_looks(words, token):
    config = {"architectures": ["DFlashDraftModel"], "block_size": 16, **words}
    assert read_checkpoint("a/b", config).mask_token == token
    if token is None:
        with pytest.raises(ValueError, match="mask_token_id"):
            read_mask_lookup()(SimpleNamespace(**config))
    else:
        assert read_mask_lookup()(SimpleNamespace(**config)) == token
        assert derived(QWEN_27B, config).method is Method.DFLASH


@pytest.mark.parametrize(
    ("target", "verifier", "warnings"),
    [
        ("RedHatAI/gemma-4-31B-it-FP8-dynamic", "google/gemma-4-31B-it", 0),  # a precision of it
        ("google/gemma-4-31B-it", "/home/them/gemma-4-31b-it/", 0),  # their folder of it
        ("/models/mine", "google/gemma-4-31B-it", 1),  # a folder has any name
        ("google/gemma-4-31B-it", "", 0),
    ],
)
def test_pair_warns_if_drafter_names_other_target(target, verifier, warnings):
    drafter = made_for(verifier, "Gemma4ForCausalLM")  # the part of it that generates text
    pair = derive_pair(read_checkpoint(target, GEMMA_31B), read_checkpoint("owner/drafter", drafter))
    assert (pair.method, len(pair.warnings)) == (Method.DFLASH, warnings)


def test_model_name_decides_method_last_with_warning():
    pair = derived(QWEN_8B, {"hidden_size": 4096, "block_size": 8, "mask_token_id": 4}, name="me/My-DFlash")
    assert pair.method is Method.DFLASH
    assert len(pair.warnings) == 1


@pytest.mark.parametrize(
    ("drafter", "tokens"),
    [
        (dflash(2816, 16, last=29), 15),
        (EAGLE3 | {"eagle_aux_hidden_state_layer_ids": [2, 30], "vocab_size": 262144}, 3),
        (dflash(2816, 16, sample_from_anchor=True), 16),  # each place of its block drafts
    ],
)
def test_last_layer_is_readable_and_anchor_drafts(drafter, tokens):
    assert derived(GEMMA_26B, drafter).tokens == tokens


def test_unknown_draft_count_must_be_given():
    drafter = {"architectures": ["DSparkDraftModel"]}
    with pytest.raises(UsageError) as refused:
        derived(NEMOTRON, drafter)
    assert "--num-speculative-tokens" in refused.value.hint
    target, made = read_checkpoint("o/t", NEMOTRON), read_checkpoint("o/d", drafter)
    assert derive_pair(target, made, tokens=5).tokens == 5
    known = read_checkpoint("o/d", drafter | {"dspark_block_size": 7})
    assert derive_pair(target, known, tokens=5).tokens == 7  # the launch takes what was asked for, and warns


def test_flags_match_published_commands():
    assert derived(QWEN_27B).flags == {}
    flags = derived(LAGUNA, None, Method.NGRAM).flags
    assert (flags["trust-remote-code"], flags["kv-cache-dtype"]) == (True, "fp8")


FP8_BLOCKS = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
EXPERTS = {"num_experts": 128}
FP8_CACHE = {"kv-cache-dtype": "fp8", "attention-backend": "flashinfer"}
NO_DEEP_GEMM = {"VLLM_USE_DEEP_GEMM": "0", "VLLM_MOE_USE_DEEP_GEMM": "0"}


@pytest.mark.parametrize(
    ("target", "drafter", "on_gb10", "on_5090"),
    [
        (QWEN_27B, None, {"flags": FP8_CACHE}, None),
        (NEMOTRON, {"architectures": ["DSparkDraftModel"], "dspark_block_size": 7}, {"flags": FP8_CACHE}, None),
        (QWEN_35B | NVFP4 | EXPERTS, None,
         {"flags": FP8_CACHE | {"moe-backend": "marlin"}, "speculation": {"moe_backend": "triton"}}, None),
        (GEMMA_26B | EXPERTS | {"quantization_config": {"format": "nvfp4-pack-quantized"}}, dflash(2816, 16),
         {"flags": {"moe-backend": "marlin"}}, None),
        (GEMMA_26B | FP8_BLOCKS, dflash(2816, 16), {"env": NO_DEEP_GEMM}, {"env": NO_DEEP_GEMM}),
        (QWEN_35B | FP8_BLOCKS, None, {"flags": FP8_CACHE}, None),
        (GEMMA_26B | NVFP4, dflash(2816, 16), None, None),
    ],
)  # fmt: skip
def test_hardware_gets_flags_of_published_commands(target, drafter, on_gb10, on_5090):
    layers = derived(target, drafter).hardware
    assert (layers.get("gb10"), layers.get("rtx-5090")) == (on_gb10, on_5090)
    assert (layers.get("rtx-5090-laptop"), layers.get("b200")) == (on_5090, None)
    is_unpacked = "nvfp4" in str(target).lower()
    assert bool(layers.get("h100", {}).get("warnings")) is is_unpacked


def test_dropped_quantization_selects_last_supporting_release():
    config = {"quantization_config": {"quant_method": "bitsandbytes"}}
    assert str(derived(QWEN_8B | config, EAGLE3).newest_vllm) == "0.27.1"
    with pytest.raises(UsageError) as refused:
        derived(QWEN_27B | config, dflash(5120, 8, architecture="DFlash2DraftModel"))
    assert "0.28.0" in refused.value.what


@pytest.mark.parametrize(("block", "sequences"), [(8, 256), (16, 256), (64, 127)])
def test_batch_holds_drafts_of_all_sequences(block, sequences):
    """VLLM 0.20 to 0.27 start only where that is more than they take, which their defaults are not on a small GPU."""
    pair = derived(QWEN_27B, dflash(5120, block))
    batched, most = pair.flags["max-num-batched-tokens"], pair.flags["max-num-seqs"]
    assert (most, batched > most * (1 + pair.tokens)) == (sequences, True)
    assert "max-num-seqs" not in derived(QWEN_27B).flags
