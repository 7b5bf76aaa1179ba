"""A recipe on one kind of machine, in one profile, with what the user changed -> a resolved recipe. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from dflash_tui.common.errors import UsageError
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.field_types import FlagValue
from dflash_tui.planning.methods import Method
from dflash_tui.planning.recipes import method_layers, published_figures, standing
from dflash_tui.planning.recipes.artifacts import Drafter, EngineSpec, Target
from dflash_tui.planning.recipes.published_figures import ExpectedFigures
from dflash_tui.planning.recipes.recipe import Layer, Mode, Recipe, ReleaseDefect, RestartPolicy, Trust
from dflash_tui.planning.recipes.recipe_loader import (
    engine_for_release,
)
from dflash_tui.planning.recipes.settings import (
    HOST,
    AnyModel,
    build_settings_layer,
    list_disabled_patches,
    merge_restart,
    read_host,
    read_start_measures,
)

STOCK = "stock"
_RANDOM_WEIGHTS, _SYNTHETIC_ACCEPTANCE = "random weights (load-format dummy)", "synthetic acceptance"
# Why the answers of a server are not those of its weights.
NOT_ANSWERED_BY_THE_MODEL = frozenset({_RANDOM_WEIGHTS, _SYNTHETIC_ACCEPTANCE})
# What recipes call that differs, by the setting that it is.
_SETTING_NAMES = {"target.served_name": "served-model-name", "n": "num_speculative_tokens"}


class ResolvedRecipe(msgspec.Struct, frozen=True):
    """What is served, with what and how: a recipe whose layers have been merged.

    Later layers win: recipe, hardware, profile, variant, and last what the user set by hand.
    """

    recipe: Recipe
    """The recipe."""
    hardware: Hardware
    """The class of hardware that it is resolved for."""
    profile: str
    """The profile; a recipe without any has `stock`."""
    variant: str
    """The variant; empty without one."""
    engine: EngineSpec
    """What the vLLM environment is made of."""
    target: Target
    """The model that is served."""
    method: Method
    """How tokens are drafted."""
    drafter: Drafter | None
    """The model that drafts; None for a method that takes none."""
    weights_gb: float | None
    """What the target's weights take on the GPU, where that is not the size of its files."""
    oldest_vllm: str | None
    """The oldest release that runs the pair right; None where every one does."""
    oldest_patched: str | None
    """The oldest release that runs it right with the recipe's patches."""
    last_patched: str | None
    """The last release that does; None where all up to `oldest_vllm` do."""
    defects: tuple[ReleaseDefect, ...]
    """What is wrong with the pair in some releases."""
    num_speculative_tokens: int
    """Tokens that the drafter proposes per step; 0 is without speculation, the baseline."""
    speculation: dict[str, Any]
    """Further keys of --speculative-config."""
    mode: Mode
    """Eager, graphs or compile."""
    modes: dict[Mode, str]
    """The modes that the recipe knows, and what it says of each."""
    flags: dict[str, FlagValue]
    """Flags of `vllm serve`."""
    env: dict[str, str]
    """Environment variables of the server."""
    patches: tuple[str, ...]
    """The patches that it may need."""
    disabled_patches: tuple[str, ...]
    """The patches that the user left out."""
    warnings: tuple[str, ...]
    """What somebody should know before a launch."""
    deviations: dict[str, str]
    """By name, what was published otherwise and why the recipe deviates from it."""
    standing: Trust
    """How far it is known to work on this hardware."""
    expected: tuple[ExpectedFigures, ...]
    """What others measured, nearest first."""
    synthetic: str
    """Why figures say nothing about a real model; empty where they do."""
    changed: tuple[str, ...] = ()
    """Names of what the user set by hand."""
    host: str = HOST
    """The address to listen on."""
    restart: RestartPolicy = RestartPolicy()
    """Whether and how often a server that crashed is launched again."""
    start: dict[str, bool] = {}
    """By name, which measures for a shorter start the user wants or leaves out."""
    hosts: int = 1
    """How many machines serve it by vLLM's own executor; 1 over Ray, too, which finds its hosts itself."""


class RecipeOutline(NamedTuple):
    """What a list says of a recipe."""

    standing: Trust
    """How far it is known to work on this hardware."""
    num_speculative_tokens: int
    """Tokens that the drafter proposes per step."""
    vllm: str
    """The release that serves it."""


def list_profiles(recipe: Recipe) -> tuple[str, ...]:
    """Return the names of the recipe's profiles, the one that is taken unasked first."""
    names = list(recipe.profiles) or [STOCK]
    return tuple(sorted(names, key=lambda name: name != STOCK))


def resolve_recipe(
    recipe: Recipe,
    hardware: Hardware | None = None,
    *,
    profile: str = "",
    variant: str = "",
    method: Method | None = None,
    engine: EngineSpec | None = None,
    settings: Mapping[str, Any] | None = None,
) -> ResolvedRecipe:
    """Return a recipe with its layers merged.

    Args:
        recipe: The recipe.
        hardware: The class of hardware; without it the first one that the recipe knows, if any.
        profile: The profile; without it `stock`, or the recipe's first.
        variant: The variant, if any.
        method: How tokens are drafted; without it as the recipe says.
        engine: What the vLLM environment is made of, in place of the recipe's.
        settings: Changes by hand: `target.model`, `drafter.model` (and `.revision`), `n`, `host`, `hosts`, `synthetic`,
            `restart.KEY`, `env.NAME`, `speculation.KEY`, `patches.NAME` and `start.NAME` (true or false), anything else
            is a flag. None takes a flag or a variable away.

    Raises:
        UsageError: no such profile, variant or method, or a setting that may not be given.
    """
    settings = settings or {}
    hardware = hardware or _choose_hardware(recipe)
    profile = _choose_profile(recipe, profile, variant)
    method = method_layers.choose_method(recipe, method, settings)
    layers = _list_layers(recipe, hardware, profile, variant, method)
    by_hand, synthetic = build_settings_layer(settings, recipe, _merge_layers(layers))
    flat = _merge_layers([*layers, by_hand])
    disabled = list_disabled_patches(settings)
    resolved = ResolvedRecipe(
        recipe=recipe,
        hardware=hardware,
        profile=profile,
        variant=variant,
        engine=_complete_engine(engine or flat.engine),
        target=flat.target or recipe.target,
        method=method,
        drafter=method_layers.require_drafter(method, flat.drafter),
        weights_gb=flat.weights_gb,
        oldest_vllm=flat.oldest_vllm,
        oldest_patched=flat.oldest_patched,
        last_patched=flat.last_patched,
        defects=flat.defects,
        num_speculative_tokens=method_layers.choose_tokens(method, flat.num_speculative_tokens),
        speculation=flat.speculation,
        mode=flat.mode or Mode.EAGER,
        modes=flat.modes,
        flags={name: value for name, value in flat.flags.items() if value is not None},
        env={name: value for name, value in flat.env.items() if value is not None},
        patches=tuple(name for name in flat.patches if name not in disabled),
        disabled_patches=disabled,
        warnings=flat.warnings,
        deviations=_list_deviations(flat, settings),
        standing=standing.trust_by_hand(recipe, engine, tuple(settings))
        or standing.trust_method(recipe, hardware, method)
        or standing.trust_mended(standing.find_trust(recipe, hardware, profile, variant), settings),
        expected=(),
        synthetic=_label_synthetic(synthetic or recipe.synthetic, flat),
        changed=tuple(settings),
        host=read_host(settings.get("host")),
        restart=merge_restart(recipe.restart, settings),
        start=read_start_measures(settings),
        hosts=1 if flat.flags.get("distributed-executor-backend") == "ray" else flat.hosts or 1,
    )
    return msgspec.structs.replace(resolved, expected=_list_expected(resolved))


def outline_recipe(recipe: Recipe, hardware: Hardware | None = None) -> RecipeOutline:
    """Return what a list says of a recipe as it is served unasked; the table of releases is not read for it.

    Raises:
        UsageError: it cannot be served.
    """
    hardware, profile = hardware or _choose_hardware(recipe), _choose_profile(recipe, "", "")
    method = method_layers.choose_method(recipe, None, {})
    flat = _merge_layers(_list_layers(recipe, hardware, profile, "", method))
    vllm = _require_engine(flat.engine).vllm
    method_layers.require_drafter(method, flat.drafter)
    trust = standing.trust_method(recipe, hardware, method) or standing.find_trust(recipe, hardware, profile, "")
    tokens = method_layers.choose_tokens(method, flat.num_speculative_tokens)
    return RecipeOutline(trust, tokens, vllm)


def _choose_hardware(recipe: Recipe) -> Hardware:
    """Return the class of hardware that a recipe is resolved for where none is named: the first that it knows."""
    return next(iter(recipe.hardware), Hardware.CPU if recipe.for_cpu else Hardware.UNKNOWN)


def _list_deviations(flat: Layer, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return what differs from what was published, and why; nothing of what was set by hand."""
    by_hand = {_SETTING_NAMES.get(key, key.removeprefix("env.")) for key in settings}
    return {name: why for name, why in flat.differs.items() if name not in by_hand}


def _choose_profile(recipe: Recipe, profile: str, variant: str) -> str:
    """Return the profile, or the one that is taken unasked; it and the variant must be the recipe's."""
    profiles = list_profiles(recipe)
    profile = profile or profiles[0]
    _check_name("profile", profile, profiles, recipe)
    if variant:
        _check_name("variant", variant, recipe.variants, recipe)
    return profile


def _list_layers(recipe: Recipe, hardware: Hardware, profile: str, variant: str, method: Method) -> list[Layer]:
    """Return the layers of the recipe that hold here, each winning over the ones before it."""
    layers: list[Layer | None] = [recipe, recipe.hardware.get(hardware), recipe.profiles.get(profile)]
    below = [layer for layer in layers if layer]
    return method_layers.select_method_layers(recipe, method, below, recipe.variants.get(variant))


def _list_expected(resolved: ResolvedRecipe) -> tuple[ExpectedFigures, ...]:
    """Return what others measured, nearest first; nothing for models that were named by hand."""
    if standing.has_other_models(resolved.changed):
        return ()
    return published_figures.list_expected(
        resolved.recipe,
        resolved.hardware,
        profile=resolved.profile,
        variant=resolved.variant,
        method=resolved.method,
        mode=resolved.mode,
        tokens=resolved.num_speculative_tokens,
    )


def _check_name(kind: str, name: str, names: Collection[str], recipe: Recipe) -> None:
    if name not in names:
        hint = f"it has {', '.join(names)}" if names else "it has none"
        raise UsageError(f"{recipe.name} has no {kind} called '{name}'", hint=hint)


def _merge_layers(parts: list[Layer]) -> Layer:
    """Return one layer in which each part wins over the ones before it."""
    flat = Layer()
    for part in parts:
        flat = Layer(
            engine=part.engine or flat.engine,
            target=_merge_targets(part.target, flat.target),
            drafter=_merge_models(part.drafter, flat.drafter),
            weights_gb=part.weights_gb or (None if _has_other_model(part, flat) else flat.weights_gb),
            oldest_vllm=part.oldest_vllm or flat.oldest_vllm,
            oldest_patched=part.oldest_patched or flat.oldest_patched,
            last_patched=part.last_patched or flat.last_patched,
            defects=(*flat.defects, *part.defects),
            num_speculative_tokens=(
                flat.num_speculative_tokens if part.num_speculative_tokens is None else part.num_speculative_tokens
            ),
            speculation={k: v for k, v in (flat.speculation | part.speculation).items() if v is not None},
            mode=part.mode or flat.mode,
            modes=flat.modes | part.modes,
            flags=flat.flags | part.flags,
            env=flat.env | part.env,
            patches=tuple(dict.fromkeys((*flat.patches, *part.patches))),
            warnings=(*flat.warnings, *part.warnings),
            differs=flat.differs | part.differs,
            hosts=part.hosts or flat.hosts,
        )
    return flat


def _has_other_model(upper: Layer, lower: Layer) -> bool:
    """Whether a layer brings another target, of which nothing that was measured of the one below holds."""
    return bool(upper.target and lower.target and upper.target.model != lower.target.model)


def _merge_targets(upper: Target | None, lower: Target | None) -> Target | None:
    """Return what `_merge_models` does, with the lower one's served name where the upper one says none."""
    merged = _merge_models(upper, lower)
    if merged and lower and not merged.served_name:
        return msgspec.structs.replace(merged, served_name=lower.served_name)
    return merged


def _merge_models(upper: AnyModel | None, lower: AnyModel | None) -> AnyModel | None:
    """Return the model of the upper layer, with the lower one's config when it says none of its own."""
    if upper is None or lower is None:
        return upper or lower
    return upper if upper.config else msgspec.structs.replace(upper, config=lower.config)


def _complete_engine(spec: EngineSpec | None) -> EngineSpec:
    """Return the spec with what the table of releases says; recipes are checked to have one when they are read."""
    spec = _require_engine(spec)
    return spec if spec.packages else engine_for_release(spec.vllm)


def _require_engine(spec: EngineSpec | None) -> EngineSpec:
    if spec is None:
        raise UsageError("this recipe names no engine", hint="--vllm VERSION chooses one")
    return spec


def _label_synthetic(label: str, flat: Layer) -> str:
    """Return a label by hand with what the settings say beyond it; empty where figures may be a real model's."""
    return "; ".join(filter(None, (label, *(reason for reason in _explain_synthetic(flat) if reason not in label))))


def _explain_synthetic(flat: Layer) -> Iterator[str]:
    """Yield why figures of these settings say nothing about a real model; nothing where they may."""
    if flat.flags.get("load-format") == "dummy":
        yield _RANDOM_WEIGHTS
    made_up = any(name.startswith("synthetic_") and value is not None for name, value in flat.speculation.items())
    if made_up or flat.speculation.get("rejection_sample_method") == "synthetic":
        yield _SYNTHETIC_ACCEPTANCE
