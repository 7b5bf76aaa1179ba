"""A recipe on one kind of machine, in one profile, with what the user changed -> a resolved recipe. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import product
from math import prod
from typing import Any, NamedTuple

import msgspec

from dflash_tui.common.errors import UsageError
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning import serve_flags
from dflash_tui.planning.field_types import FlagValue
from dflash_tui.planning.methods import FACTS, WITHOUT_DRAFTER, DrafterUse, Method
from dflash_tui.planning.recipes.recipe import (
    Drafter,
    EngineSpec,
    Layer,
    Mode,
    PublishedFigures,
    Recipe,
    RecipePart,
    ReleaseDefect,
    RestartPolicy,
    Status,
    Target,
    Trust,
)
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
from dflash_tui.planning.serve_flags import build_flag

_MOST_OF_OTHER_CLASSES = 3


class ExpectedFigures(PublishedFigures, frozen=True, kw_only=True):
    """Published figures beside a launch."""

    set_up: str = ""
    """What they are of, where that is not what is launched; empty for figures of the same."""


def list_expected(
    recipe: Recipe, hardware: Hardware, *, profile: str, variant: str, method: Method, mode: Mode, tokens: int
) -> tuple[ExpectedFigures, ...]:
    """Return the published figures of a recipe, those that are most like the launch first.

    They are those of the class of hardware, and where it has no speeds, the nearest ones of other classes.

    Args:
        recipe: The recipe.
        hardware: The class of hardware.
        profile: The profile.
        variant: The variant; empty without one.
        method: How tokens are drafted.
        mode: Eager, graphs or compile.
        tokens: How many tokens are drafted per step.
    """

    def rate(kind: Hardware, figures: PublishedFigures) -> tuple[int, ExpectedFigures]:
        same_method = _has_method(figures, recipe, method)
        differs = (
            kind is not hardware,
            not same_method,
            bool(figures.target) or figures.variant != variant,
            _count_tokens(figures, recipe, kind) != tokens and same_method and method is not Method.NONE,
            figures.profile != profile and bool(recipe.profiles),
            figures.mode not in {None, mode},
        )
        distance = sum(weight for weight, other in zip((32, 16, 8, 4, 2, 1), differs, strict=True) if other)
        set_up = ", ".join(_describe(recipe, kind, figures, variant)) if distance else ""
        fields = {name: getattr(figures, name) for name in PublishedFigures.__struct_fields__}
        return distance, ExpectedFigures(**fields, set_up=set_up)

    def rank(classes: Iterable[Hardware]) -> list[ExpectedFigures]:
        rated = [rate(kind, figures) for kind in sorted(classes) for figures in recipe.hardware[kind].expected]
        return [figures for _, figures in sorted(rated, key=lambda pair: pair[0])]

    here = rank({hardware} & recipe.hardware.keys())
    if any(_has_speed(figures) for figures in here):
        return tuple(here)
    elsewhere = [figures for figures in rank(recipe.hardware.keys() - {hardware}) if _has_speed(figures)]
    return (*here, *elsewhere[:_MOST_OF_OTHER_CLASSES])


def _count_tokens(figures: PublishedFigures, recipe: Recipe, kind: Hardware) -> int:
    return figures.tokens or recipe.hardware[kind].num_speculative_tokens or recipe.num_speculative_tokens


def _has_speed(figures: PublishedFigures) -> bool:
    return bool(figures.tok_s or figures.baseline_tok_s or figures.acceptance or figures.acceptance_length)


def _has_method(figures: PublishedFigures, recipe: Recipe, method: Method) -> bool:
    """Whether figures are of the method; a launch without speculation is compared with the speeds without it."""
    if method is Method.NONE:
        return bool(figures.baseline_tok_s) or not figures.tok_s
    return (figures.method or recipe.method) is method


def _describe(recipe: Recipe, kind: Hardware, figures: PublishedFigures, variant: str) -> Iterator[str]:
    """Yield the words that say what figures are of; that it was no variant, where one is launched."""
    if recipe.profiles.keys() - {figures.profile}:
        yield f"{figures.profile} profile"
    if figures.method and figures.method is not recipe.method:
        yield "no speculation" if figures.method is Method.NONE else figures.method.value
    if figures.tokens:
        yield f"n={figures.tokens}"
    if figures.variant or variant:
        yield f"variant {figures.variant}" if figures.variant else "no variant"
    if figures.mode:
        yield figures.mode.value
    yield kind.value
    if figures.target:
        yield figures.target


# Aspects of `differs` that are about how the recipe's own method drafts.
_DRAFTING = ("num_speculative_tokens", "drafter", "speculation", "method")
_OF_DRAFTING = ("drafter", "num_speculative_tokens", "oldest_vllm", "oldest_patched", "last_patched")


def list_methods(recipe: Recipe) -> tuple[Method, ...]:
    """Return the methods that the recipe can be asked for without a drafter by hand, its own first."""
    return tuple(dict.fromkeys((recipe.method, *recipe.methods, *WITHOUT_DRAFTER)))


def choose_method(recipe: Recipe, wanted: Method | None, settings: Mapping[str, Any]) -> Method:
    """Return the method that is asked for, or the recipe's own.

    Raises:
        UsageError: the recipe does not offer it, and no drafter was named by hand.
    """
    method = wanted or recipe.method
    named = "drafter.model" in settings
    if named and FACTS[method].drafter is DrafterUse.NEVER:
        raise UsageError(f"{method} takes no drafter", hint="omit --set drafter.model, or choose another --method")
    if method not in list_methods(recipe) and not named:
        offered = ", ".join(list_methods(recipe))
        raise UsageError(
            f"{recipe.name} names no drafter for {method}",
            hint=f"it offers {offered}; --set drafter.model=NAME adds one",
        )
    return method


def select_method_layers(recipe: Recipe, method: Method, layers: list[Layer], variant: Layer | None) -> list[Layer]:
    """Return the layers that hold for a method, each winning over the ones before it.

    Args:
        recipe: The recipe.
        method: The method. For another than the recipe's own, what the layers say of drafting does not hold.
        layers: The recipe, its class of hardware and its profile.
        variant: The variant, which wins over the method; None without one.
    """
    last = [variant] if variant else []
    if method in {recipe.method, Method.NONE}:
        return [*layers, *last]
    own = recipe.methods.get(method)
    return [*map(_without_drafting, layers), *([own] if own else []), *map(_without_drafting, last)]


def _without_drafting(layer: Layer) -> Layer:
    fields = {name: getattr(layer, name) for name in Layer.__struct_fields__}
    differs = {name: why for name, why in layer.differs.items() if not name.startswith(_DRAFTING)}
    return Layer(**fields | dict.fromkeys(_OF_DRAFTING) | {"speculation": {}, "defects": (), "differs": differs})


def choose_tokens(method: Method, tokens: int | None) -> int:
    """Return how many tokens are drafted per step: what the recipe or the user says, else what vLLM would take.

    Raises:
        UsageError: nobody says how many, and vLLM asks for it.
    """
    if tokens is not None:
        return tokens
    default = FACTS[method].default_tokens
    if default is None:
        raise UsageError(f"{method}: how many tokens are drafted per step is not known", hint="--set n=N")
    return default


def require_drafter(method: Method, drafter: Drafter | None) -> Drafter | None:
    """Return the drafter where the method takes one, else None.

    Raises:
        UsageError: it takes one, and there is none.
    """
    use = FACTS[method].drafter
    if use is DrafterUse.REQUIRED and drafter is None:
        raise UsageError(f"{method} needs a drafter", hint="--set drafter.model=NAME")
    return None if use is DrafterUse.NEVER else drafter


def has_other_models(changed: tuple[str, ...]) -> bool:
    """Whether other models than the recipe's were named by hand; nothing that was published is about those."""
    return any(re.match(r"(?:target|drafter)\.(?:model|revision)$", key) for key in changed)


def trust_by_hand(recipe: Recipe, engine: EngineSpec | None, changed: tuple[str, ...]) -> Trust | None:
    """Return how far what was chosen by hand can be trusted; what was reported is about the recipe's own."""
    if has_other_models(changed) and not recipe.build:
        return Trust(Status.EXPERIMENTAL, "the models were chosen by hand")
    return Trust(Status.EXPERIMENTAL, f"vLLM {engine.vllm} was chosen by hand") if engine else None


def trust_method(recipe: Recipe, hardware: Hardware, method: Method) -> Trust | None:
    """Return how far another method than the recipe's own can be trusted; None for its own and for none at all."""
    if method in {recipe.method, Method.NONE}:
        return None
    part = recipe.methods.get(method)
    if part and part.standing:
        return part.standing
    return Trust(Status.EXPERIMENTAL, f"nobody reported {method} with this recipe on {hardware.value}")


def find_trust(recipe: Recipe, hardware: Hardware, profile: str, variant: str) -> Trust:
    """Return how far the recipe can be trusted: what its variant, hardware or profile says, else the recipe itself."""
    if variant:
        return _trust_variant(recipe.variants[variant], variant, hardware, profile)
    there = recipe.hardware.get(hardware)
    if there and profile in there.standing:
        return there.standing[profile]
    if recipe.reported_on and there is None:
        hardware_kinds = ", ".join(kind.value for kind in recipe.reported_on)
        return Trust(Status.EXPERIMENTAL, f"nobody reported it on {hardware.value}; it is known on {hardware_kinds}")
    if (part := recipe.profiles.get(profile)) and part.standing:
        return part.standing
    return Trust(recipe.status, recipe.why or "as the recipe says", recipe.link)


def trust_mended(trust: Trust, settings: Mapping[str, Any]) -> Trust:
    """Return how far a launch can be trusted whose reason for being broken names what was set by hand as a way out."""
    done = [key for key in settings if f"--set {key}=" in trust.why]
    if trust.status is Status.BROKEN and done:
        return Trust(Status.EXPERIMENTAL, f"broken without --set {', '.join(done)}; nobody reported it so", trust.link)
    return trust


def _trust_variant(part: RecipePart, name: str, hardware: Hardware, profile: str) -> Trust:
    here = hardware in (part.reported_on or (hardware,)) and profile in (part.reported_in or (profile,))
    if part.standing and here:
        return part.standing
    return Trust(Status.EXPERIMENTAL, f"nobody reported the {name} variant on {hardware.value} with profile {profile}")


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
    method = choose_method(recipe, method, settings)
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
        drafter=require_drafter(method, flat.drafter),
        weights_gb=flat.weights_gb,
        oldest_vllm=flat.oldest_vllm,
        oldest_patched=flat.oldest_patched,
        last_patched=flat.last_patched,
        defects=flat.defects,
        num_speculative_tokens=choose_tokens(method, flat.num_speculative_tokens),
        speculation=flat.speculation,
        mode=flat.mode or Mode.EAGER,
        modes=flat.modes,
        flags={name: value for name, value in flat.flags.items() if value is not None},
        env={name: value for name, value in flat.env.items() if value is not None},
        patches=tuple(name for name in flat.patches if name not in disabled),
        disabled_patches=disabled,
        warnings=flat.warnings,
        deviations=_list_deviations(flat, settings),
        standing=trust_by_hand(recipe, engine, tuple(settings))
        or trust_method(recipe, hardware, method)
        or trust_mended(find_trust(recipe, hardware, profile, variant), settings),
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
    method = choose_method(recipe, None, {})
    flat = _merge_layers(_list_layers(recipe, hardware, profile, "", method))
    vllm = _require_engine(flat.engine).vllm
    require_drafter(method, flat.drafter)
    trust = trust_method(recipe, hardware, method) or find_trust(recipe, hardware, profile, "")
    tokens = choose_tokens(method, flat.num_speculative_tokens)
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
    return select_method_layers(recipe, method, below, recipe.variants.get(variant))


def _list_expected(resolved: ResolvedRecipe) -> tuple[ExpectedFigures, ...]:
    """Return what others measured, nearest first; nothing for models that were named by hand."""
    if has_other_models(resolved.changed):
        return ()
    return list_expected(
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


# One plan has some ten of a kind, with how many more there are.
_MOST = 30
# Words of command lines that are looked at, some second's worth, and how many a combination counts for at least.
# The shipped recipe with the most combinations, 120, has some 3,600 words.
_MOST_WORDS = 200_000
_LEAST_WORDS = 50


def find_recipe_mistakes(recipe: Recipe) -> list[str]:
    """Return a sentence for each wrong flag of any class of GPU, profile, variant and method, each once.

    Of many those of the first, and how many more there are. That there are too many combinations is one, too.
    """
    mistakes: dict[str, None] = {}
    parts = (
        tuple(recipe.hardware) or (None,),
        list_profiles(recipe),
        ["", *recipe.variants],
        [None, *recipe.methods],
    )
    excess: list[str] = []
    left = _MOST_WORDS
    for checked, (hardware, profile, variant, method) in enumerate(product(*parts)):
        if left <= 0:
            what = "combinations of hardware, profile, variant and method are too many to check"
            excess.append(f"{prod(map(len, parts)):,} {what}: the first {checked:,} were checked")
            break
        left -= _LEAST_WORDS
        try:
            resolved = resolve_recipe(recipe, hardware, profile=profile, variant=variant, method=method)
        except UsageError:  # not every variant goes with every method
            continue
        words = [word for name, value in resolved.flags.items() for word in build_flag(name, value)]
        left -= len(words) + len(resolved.env)
        mistakes |= dict.fromkeys(serve_flags.find_mistakes(resolved.engine.vllm, words))
    some = serve_flags.explain_some([*mistakes], str, "mistakes in its profiles and variants", _MOST)
    return [*some, *excess]
