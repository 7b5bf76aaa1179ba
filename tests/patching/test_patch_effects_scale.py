"""What gemma4-dflash-embed-scale does: which embeddings the first layer of a drafter is given.

The drafter has no layers, and its norm does nothing, so that its forward returns what its first layer would be given.
Weights are loaded, and the target's table is shared, as vLLM's runners do it: unless the checkpoint of the drafter has
embeddings that differ from the target's.
"""

import math
import struct
from types import SimpleNamespace
from typing import Any

import pytest

from tests.patching.arms import MODELS, on
from tests.support.vllm_stubs import Module, vllm

pytestmark = pytest.mark.index
HIDDEN = 2816  # of Gemma 4 26B-A4B; its root is 53.066, in bfloat16 53
SCALE = 53.0
VOCABULARY = 7
IDS = [5, 3, 3, 3]  # the anchor and mask tokens
DTYPE = "bfloat16"


def rounded(value: float) -> float:
    """Return `value` rounded to the nearest bfloat16, ties to even."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return float(struct.unpack("<f", struct.pack("<I", (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000))[0])


class Tensor:
    """Rows of numbers, or one number, in bfloat16."""

    def __init__(self, data: Any, dtype: str) -> None:
        assert dtype == DTYPE
        self.data: Any = [[rounded(x) for x in row] for row in data] if isinstance(data, list) else rounded(data)

    def __mul__(self, other: Any) -> Any:
        return Tensor([[x * other.data for x in row] for row in self.data], DTYPE)

    def fill_(self, value: float) -> None:
        self.data = rounded(value)


class Layer(Module):
    """A module with buffers."""

    def register_buffer(self, name: str, value: Tensor, persistent: bool = True) -> None:
        assert not persistent  # it is in no checkpoint
        setattr(self, name, value)


class Norm(Layer):
    """A norm that does nothing."""

    def forward(self, hidden_states: Any, residual: Any = None) -> Any:
        return hidden_states, residual


class Embedding(Layer):
    """The table of embeddings: `weight` [tokens, hidden size]."""

    def forward(self, ids: list[int]) -> Any:
        return Tensor([self.weight.data[i] for i in ids], DTYPE)  # type: ignore[attr-defined]


class Drafting(Layer):
    """The base class: what vLLM adds to every class of drafters."""

    has_own_embed_tokens = False


class Loader:
    """Loads nothing but the embeddings."""

    def __init__(self, model: Any, **_kwargs: Any) -> None:
        self.model = model

    def load_weights(self, weights: Any, **_kwargs: Any) -> None:
        if table := dict(weights).get("model.embed_tokens.weight"):
            self.model.model.embed_tokens.weight = table


def process_eagle_weight(model: Any, name: str) -> None:
    """Do what vLLM's function of this name does for embeddings."""
    model.has_own_embed_tokens |= "embed_tokens" in name


KNOWN: dict[str, Any] = {
    "AutoWeightsLoader": Loader,
    "Module": Layer,
    "ModuleList": list,
    "Qwen3ForCausalLM": Drafting,
    "RMSNorm": Norm,
    "VocabParallelEmbedding": Embedding,
    "get_current_vllm_config": lambda: SimpleNamespace(cache_config=None),
    "get_draft_quant_config": lambda _config: None,
    "get_eagle3_aux_layers_from_config": lambda _config: (1,),
    "get_hf_file_bytes": lambda *_args: None,
    "maybe_prefix": lambda prefix, name: f"{prefix}.{name}",
    "process_eagle_weight": process_eagle_weight,
    "tensor": Tensor,
}


def table(seed: int) -> Tensor:
    """Return embeddings of the size that Gemma's have."""
    return Tensor([[math.sin(seed + 131 * i + 7 * j) / 40 for j in range(HIDDEN)] for i in range(VOCABULARY)], DTYPE)


def config(model_type: str) -> SimpleNamespace:
    """Return the part of vLLM's configuration that the drafter asks for; `model_type` is the target's."""
    draft = SimpleNamespace(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, num_hidden_layers=0, rms_norm_eps=1e-6,
        dflash_config={"target_layer_ids": [1], "mask_token_id": 3}, eagle_config={},
    )  # fmt: skip
    target = SimpleNamespace(
        hf_text_config=SimpleNamespace(model_type=model_type, hidden_size=HIDDEN),
        dtype=DTYPE,
        get_num_layers=lambda _parallel_config: 30,
        get_total_num_hidden_layers=lambda: 30,
        get_vocab_size=lambda: VOCABULARY,
        get_hidden_size=lambda: HIDDEN,
    )
    drafter = SimpleNamespace(hf_config=draft, model="drafter", revision=None)
    return SimpleNamespace(
        model_config=target, parallel_config=None, cache_config=None,
        speculative_config=SimpleNamespace(draft_model_config=drafter),
    )  # fmt: skip


TARGET, OTHER = table(0), table(1)
PLAIN, OTHERS = ([embeddings.data[i] for i in IDS] for embeddings in (TARGET, OTHER))
SCALED = [[rounded(x * SCALE) for x in row] for row in PLAIN]


def given(cls: Any, model_type: str, own: Tensor | None = None, *, loaded: bool = True) -> Any:
    """Return what the first layer is given, for a checkpoint with the embeddings `own`, or with none.

    `loaded` False is `--load-format dummy`: no weight is loaded.
    """
    drafter = cls(vllm_config=config(model_type), prefix="")
    if loaded:
        drafter.load_weights([("norm.weight", None), *([("embed_tokens.weight", own)] if own else [])])
    if not drafter.has_own_embed_tokens or (own and own.data == TARGET.data):
        drafter.model.embed_tokens = Embedding()
        drafter.model.embed_tokens.weight = TARGET
    return drafter(IDS, None).data


@on("gemma4-dflash-embed-scale")
def test_gemma_4_drafter_gets_scaled_target_embeddings(arms):
    """Scaled, in bfloat16, where it shares the target's table; embeddings of its own and other targets stay as is."""
    assert rounded(HIDDEN**0.5) == SCALE != HIDDEN**0.5
    for texts, expected in ((arms.published, PLAIN), (arms.patched, SCALED)):
        with vllm(texts, **KNOWN) as load:
            module = load(f"{MODELS}/qwen3_dflash.py")
            module.DFlashQwen3Model._build_fused_kv_buffers = lambda _self: None  # there are no layers
            drafter = module.DFlashQwen3ForCausalLM

            class Later(drafter):  # type: ignore[misc, valid-type]
                """A later kind of drafter, which says by itself how it wants to be scaled."""

            assert given(drafter, "gemma4_text") == expected
            assert given(drafter, "gemma4_unified_text") == expected
            assert given(drafter, "gemma4_text", loaded=False) == expected
            assert given(drafter, "gemma4_text", OTHER) == OTHERS
            assert given(drafter, "gemma4_text", TARGET) == PLAIN
            for model_type in ("qwen3", "qwen3_5_moe_text", "gpt_oss"):
                assert given(drafter, model_type) == PLAIN
            assert given(Later, "gemma4_text") == PLAIN
