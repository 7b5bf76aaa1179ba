"""Merge a recipe, a class of hardware, a profile and the user's settings into a resolved recipe. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from ipaddress import ip_address
from itertools import islice, product
from typing import Any, TypeVar

import msgspec

from dflash_tui.common.errors import UsageError
from dflash_tui.common.secrets import advise_on_secret, find_secret
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning import serve_flags
from dflash_tui.planning.field_types import FlagValue, Hosts, MaybeTitle, Text, Tokens, Word
from dflash_tui.planning.methods import FACTS, WITHOUT_DRAFTER, DrafterUse, Method
from dflash_tui.planning.recipes.recipe import (
    Drafter,
    EngineSpec,
    Layer,
    Mode,
    PublishedFigures,
    Recipe,
    RestartPolicy,
    SetUp,
    Status,
    Target,
    Trust,
    iterate_layers,
)
from dflash_tui.planning.recipes.recipe_loader import engine_for_release
from dflash_tui.planning.serve_flags import RESERVED_SPECULATION, explain_reserved_flag, explain_unusable_value

HOST = "127.0.0.1"
_NAMES = {"target": ("model", "revision", "served_name"), "drafter": ("model", "revision")}
_SPECULATION = {"method": "--method METHOD chooses it", "": "use --set drafter.model=NAME and --set n=N"}
# The parts of the settings, and the type of a value in each; those of "" are settings without a dot.
_KINDS: dict[str, Any] = {
    "n": Tokens | None, "host": str | None, "hosts": Hosts | None, "synthetic": MaybeTitle, "flags": Any,
    "env": Text | None, "speculation": Any, "patches": bool, "restart": Any, "start": bool | None,
    "target": Word, "drafter": Word,
}  # fmt: skip
AnyModel = TypeVar("AnyModel", Target, Drafter)
STOCK = "stock"
_RANDOM_WEIGHTS, _SYNTHETIC_ACCEPTANCE = "random weights (load-format dummy)", "synthetic acceptance"
# Reasons why a server's answers are not those of its weights.
NOT_ANSWERED_BY_THE_MODEL = frozenset({_RANDOM_WEIGHTS, _SYNTHETIC_ACCEPTANCE})
# Aspects of `differs` about the recipe's own method, and the fields that hold it.
_DRAFTING_ASPECTS = ("num_speculative_tokens", "drafter", "speculation", "method")
_DRAFTING_FIELDS = ("drafter", "num_speculative_tokens", "oldest_vllm", "oldest_patched", "last_patched")
# Setting -> its aspect in `differs`, where the names differ.
_ASPECTS = {"target.served_name": "served-model-name", "n": "num_speculative_tokens"}
_MOST_OF_OTHER_CLASSES = 3


class ResolvedRecipe(Layer, frozen=True, kw_only=True):
    """A recipe with its layers merged; later ones win: recipe, hardware, profile, variant, the user's settings."""

    recipe: Recipe
    hardware: Hardware
    """The class of hardware that it was resolved for."""
    profile: str
    """The profile; `stock` for a recipe without profiles."""
    variant: str
    engine: EngineSpec
    target: Target
    method: Method
    num_speculative_tokens: int
    mode: Mode
    flags: dict[str, FlagValue]  # type: ignore[assignment]
    env: dict[str, str]  # type: ignore[assignment]
    disabled_patches: tuple[str, ...]
    """The patches that the user disabled."""
    standing: Trust
    """How well the recipe is known to work on this hardware."""
    synthetic: str
    """Why its figures say nothing about a real model; empty if they do."""
    changed: tuple[str, ...]
    """Names of the user's settings."""
    host: str
    restart: RestartPolicy
    start: dict[str, bool]
    """Startup optimizations that the user enabled or disabled, by name."""
    set_up: SetUp = SetUp.PUBLISHED
    hosts: int
    """Machines that serve it with vLLM's own executor; 1 with Ray, which finds its hosts itself."""


class ExpectedFigures(PublishedFigures, frozen=True, kw_only=True):
    """Published figures, compared with a launch."""

    set_up: str = ""
    """The set-up of the figures, if it differs from the launch; empty if it is the same."""


def list_profiles(recipe: Recipe) -> tuple[str, ...]:
    """Return the recipe's profiles, the default first."""
    return tuple(sorted(recipe.profiles or [STOCK], key=lambda name: name != STOCK))


def list_methods(recipe: Recipe) -> tuple[Method, ...]:
    """Return the methods that work without a drafter named by the user, the recipe's own first."""
    return tuple(dict.fromkeys((recipe.method, *recipe.methods, *WITHOUT_DRAFTER)))


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
    """Return a recipe with its layers merged; raise UsageError if a name or setting is wrong.

    The default hardware is the first class that the recipe lists; the default profile is `stock` or the first one.
    `settings` are the user's changes: `target.model`, `drafter.model` (and `.revision`), `n`, `host`, `hosts`,
    `synthetic`, `restart.KEY`, `env.NAME`, `speculation.KEY`, `patches.NAME`, `start.NAME` (true or false), or a flag
    of `vllm serve`. None removes a flag or a variable.
    """
    settings = settings or {}
    parts = _read_settings(settings)
    hardware = hardware or next(iter(recipe.hardware), Hardware.CPU if recipe.for_cpu else Hardware.UNKNOWN)
    profile = _choose_profile(recipe, profile, variant)
    method = _choose_method(recipe, method, settings)
    layers = _list_layers(recipe, hardware, profile, variant, method)
    flat = _merge_layers([*layers, _build_settings_layer(parts, recipe, _merge_layers(layers))])
    disabled = tuple(name for name, wanted in parts["patches"].items() if not wanted)
    aspects = {_ASPECTS.get(key, key.removeprefix("env.")) for key in settings}
    merged: dict[str, Any] = msgspec.structs.asdict(flat) | {
        "engine": _complete_engine(engine or flat.engine),
        "target": flat.target or recipe.target,
        "drafter": _require_drafter(method, flat.drafter),
        "num_speculative_tokens": _choose_tokens(method, flat.num_speculative_tokens),
        "mode": flat.mode or Mode.EAGER,
        "patches": tuple(name for name in dict.fromkeys(flat.patches) if name not in disabled),
        "differs": {name: why for name, why in flat.differs.items() if name not in aspects},
        "hosts": 1 if flat.flags.get("distributed-executor-backend") == "ray" else flat.hosts or 1,
    }
    for part in ("flags", "env", "speculation"):
        merged[part] = _drop_none(merged[part])
    return ResolvedRecipe(
        recipe=recipe,
        hardware=hardware,
        profile=profile,
        variant=variant,
        method=method,
        disabled_patches=disabled,
        standing=_find_status(recipe, hardware, profile, variant, method=method, engine=engine, settings=settings),
        synthetic=_label_synthetic(parts[""].get("synthetic") or recipe.synthetic, flat),
        changed=tuple(settings),
        host=_read_host(parts[""].get("host")),
        restart=_merge_restart(recipe.restart, parts["restart"]),
        start=_drop_none(parts["start"]),
        **merged,
    )


def _drop_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _choose_profile(recipe: Recipe, profile: str, variant: str) -> str:
    profiles = list_profiles(recipe)
    _check_name("profile", profile or profiles[0], profiles, recipe)
    if variant:
        _check_name("variant", variant, recipe.variants, recipe)
    return profile or profiles[0]


def _check_name(kind: str, name: str, names: Collection[str], recipe: Recipe) -> None:
    if name not in names:
        hint = f"it has {', '.join(names)}" if names else "it has none"
        raise UsageError(f"{recipe.name} has no {kind} called '{name}'", hint=hint)


def _choose_method(recipe: Recipe, wanted: Method | None, settings: Mapping[str, Any]) -> Method:
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


def _choose_tokens(method: Method, tokens: int | None) -> int:
    tokens = FACTS[method].default_tokens if tokens is None else tokens
    if tokens is None:
        raise UsageError(f"{method}: how many tokens are drafted per step is not known", hint="--set n=N")
    return tokens


def _require_drafter(method: Method, drafter: Drafter | None) -> Drafter | None:
    use = FACTS[method].drafter
    if use is DrafterUse.REQUIRED and drafter is None:
        raise UsageError(f"{method} needs a drafter", hint="--set drafter.model=NAME")
    return None if use is DrafterUse.NEVER else drafter


def _complete_engine(spec: EngineSpec | None) -> EngineSpec:
    if spec is None:
        raise UsageError("this recipe names no engine", hint="--vllm VERSION chooses one")
    return spec if spec.packages else engine_for_release(spec.vllm)


def _list_layers(recipe: Recipe, hardware: Hardware, profile: str, variant: str, method: Method) -> list[Layer]:
    """Return the recipe's layers, each winning over the ones before it.

    For another method than the recipe's own, the fields about drafting are dropped; the variant wins over the method.
    """
    below = [layer for layer in (recipe, recipe.hardware.get(hardware), recipe.profiles.get(profile)) if layer]
    last: list[Layer] = [recipe.variants[variant]] if variant else []
    if method in {recipe.method, Method.NONE}:
        return [*below, *last]
    own = recipe.methods.get(method)
    return [*map(_remove_drafting, below), *([own] if own else []), *map(_remove_drafting, last)]


def _remove_drafting(layer: Layer) -> Layer:
    fields = {name: getattr(layer, name) for name in Layer.__struct_fields__}
    differs = {name: why for name, why in layer.differs.items() if not name.startswith(_DRAFTING_ASPECTS)}
    return Layer(**fields | dict.fromkeys(_DRAFTING_FIELDS) | {"speculation": {}, "defects": (), "differs": differs})


def _merge_layers(parts: list[Layer]) -> Layer:
    """Return one layer in which later parts win; mappings are merged and tuples concatenated."""
    flat = Layer()
    for part in parts:
        fields: dict[str, Any] = {}
        for name in Layer.__struct_fields__:
            lower, upper = getattr(flat, name), getattr(part, name)
            if isinstance(lower, dict):
                fields[name] = lower | upper
            elif isinstance(lower, tuple):
                fields[name] = (*lower, *upper)
            else:
                fields[name] = lower if upper is None else upper
        fields["target"] = _merge_models(part.target, flat.target)
        fields["drafter"] = _merge_models(part.drafter, flat.drafter)
        if part.target and flat.target and part.target.model != flat.target.model:
            fields["weights_gb"] = part.weights_gb  # measured for the other model
        flat = Layer(**fields)
    return flat


def _merge_models(upper: AnyModel | None, lower: AnyModel | None) -> AnyModel | None:
    if upper is None or lower is None:
        return upper or lower
    names = [name for name in ("config", "served_name") if not getattr(upper, name, True)]
    return msgspec.structs.replace(upper, **{name: getattr(lower, name) for name in names})


def _read_settings(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the user's settings by part, each value of the part's type."""
    parts: dict[str, dict[str, Any]] = {part: {} for part in ("", *_KINDS)}
    for key, value in settings.items():
        part, name = _place_setting(key, value)
        if part in {"flags", "speculation"} and (reason := explain_unusable_value(name, value)):
            raise UsageError(f"--set {name}: {reason}")
        written = str(value) if part == "env" and value is not None else value
        try:
            parts[part][name] = msgspec.convert(written, _KINDS[part or name])
        except msgspec.ValidationError as error:
            raise UsageError(f"--set {key}: {error}, not {value!r}", hint="--set KEY=VALUE") from None
    return parts


def _build_settings_layer(parts: dict[str, dict[str, Any]], recipe: Recipe, below: Layer) -> Layer:
    target, drafter = parts["target"], parts["drafter"]
    # A checkpoint has its own quantization, which the recipe's flag could contradict.
    flags = ({"quantization": None} if "model" in target else {}) | parts["flags"]
    try:
        layer = Layer(
            num_speculative_tokens=parts[""].get("n"),
            hosts=parts[""].get("hosts"),
            flags=flags,
            env=parts["env"],
            speculation=parts["speculation"],
            patches=tuple(name for name, wanted in parts["patches"].items() if wanted),
            target=_replace_model(below.target or recipe.target, target, recipe) if target else None,
            drafter=_replace_drafter(below.drafter, drafter, recipe) if drafter else None,
        )
        msgspec.convert({part: getattr(layer, part) for part in ("flags", "env", "patches")}, Layer)  # checks the names
    except msgspec.ValidationError as error:
        raise UsageError(f"--set: {error}", hint="--set KEY=VALUE, with the flag's name as vLLM spells it") from None
    return layer


def _place_setting(key: str, value: Any) -> tuple[str, str]:
    part, _, name = key.partition(".")
    if key in {"n", "num_speculative_tokens"}:
        return "", "n"
    if key in {"host", "hosts"}:
        return "", key
    if part in _NAMES and name not in _NAMES[part]:
        raise UsageError(f"{key} cannot be set", hint=f"of {part} one can set {', '.join(_NAMES[part])}")
    if place := find_secret(key, value):
        raise UsageError(f"{place} looks like a secret", hint=advise_on_secret(place))
    if key == "synthetic":
        return "", key
    if part == "env" and name in {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"}:
        raise UsageError(f"{key} is set by dflash-tui itself", hint="--gpu chooses the GPUs")
    if part == "speculation" and name in RESERVED_SPECULATION:
        raise UsageError(f"{key} is set by dflash-tui itself", hint=_SPECULATION.get(name, _SPECULATION[""]))
    if part in _KINDS and part not in {"n", "host", "hosts", "synthetic", "flags"} and name:
        return part, name
    if reason := explain_reserved_flag(key):
        raise UsageError(f"{key} {reason}", hint="use --mode, --port, --num-speculative-tokens or --set n=N")
    return "flags", part.replace("_", "-") + key[len(part) :]


def _replace_model(model: AnyModel, names: dict[str, Any], recipe: Recipe) -> AnyModel:
    """Return the model with another name or revision, and the size, access and quantization that the recipe has for it.

    The architecture is assumed to stay the same.
    """
    changes: dict[str, Any] = dict(names)
    if "model" in names:
        changes = {"revision": "main", "size_gb": None, "gated": None, "licence": "", "warnings": ()}
        own: dict[str, Any] = {"quantization": "", "parameters_b": None, "max_tokens": None}
        changes |= {name: value for name, value in own.items() if name in model.__struct_fields__}
        changes |= _find_facts(recipe, type(model), names) | names
    return msgspec.convert(msgspec.to_builtins(model) | changes, type(model))


def _find_facts(recipe: Recipe, kind: type[Target | Drafter], names: dict[str, Any]) -> dict[str, Any]:
    """Return the recipe's facts about a model at this revision, from any layer; empty if it has none."""
    models = (model for _, layer in iterate_layers(recipe) for model in (layer.target, layer.drafter))
    wanted = names["model"], names.get("revision", "main")
    fitting = (each for each in models if isinstance(each, kind) and (each.model, each.revision) == wanted)
    facts = msgspec.to_builtins(next(fitting, None)) or {}
    return {name: value for name, value in facts.items() if name != "served_name"}


def _replace_drafter(drafter: Drafter | None, names: dict[str, Any], recipe: Recipe) -> Drafter:
    return _replace_model(drafter, names, recipe) if drafter else msgspec.convert(names, Drafter)


def list_flag_settings(settings: Mapping[str, Any]) -> list[str]:
    """Return the settings that set a flag of `vllm serve`; those that remove one are left out."""
    return [key for key, value in settings.items() if value is not None and _place_setting(key, value)[0] == "flags"]


def _read_host(address: str | None) -> str:
    try:
        return HOST if address in {None, "localhost"} else str(ip_address(address or ""))
    except ValueError:
        raise UsageError(
            f"--set host: {address} is not an address", hint="--set host=0.0.0.0 listens on all of them"
        ) from None


def _merge_restart(policy: RestartPolicy, changes: Mapping[str, Any]) -> RestartPolicy:
    """Return the recipe's restart policy with the user's settings; null keeps the recipe's value."""
    fields = msgspec.structs.asdict(policy) | _drop_none(changes)
    try:
        return msgspec.convert(fields, RestartPolicy)
    except msgspec.ValidationError as error:
        raise UsageError(f"--set restart: {error}", hint=f"there is {', '.join(fields)}") from None


def _label_synthetic(label: str, flat: Layer) -> str:
    """Return the user's label with further reasons from the settings; empty if figures are a real model's."""
    made_up = any(name.startswith("synthetic_") and value is not None for name, value in flat.speculation.items())
    reasons = {
        _RANDOM_WEIGHTS: flat.flags.get("load-format") == "dummy",
        _SYNTHETIC_ACCEPTANCE: made_up or flat.speculation.get("rejection_sample_method") == "synthetic",
    }
    further = (reason for reason, holds in reasons.items() if holds and reason not in label)
    return "; ".join(filter(None, (label, *further)))


def _has_other_models(changed: Iterable[str]) -> bool:
    return any(re.match(r"(?:target|drafter)\.(?:model|revision)$", key) for key in changed)


def _find_status(
    recipe: Recipe,
    hardware: Hardware,
    profile: str,
    variant: str,
    *,
    method: Method,
    engine: EngineSpec | None,
    settings: Mapping[str, Any],
) -> Trust:
    if _has_other_models(settings) and not recipe.build:
        return Trust(Status.EXPERIMENTAL, "the models were chosen by hand")
    if engine:
        return Trust(Status.EXPERIMENTAL, f"vLLM {engine.vllm} was chosen by hand")
    if method not in {recipe.method, Method.NONE}:
        part = recipe.methods.get(method)
        unknown = Trust(Status.EXPERIMENTAL, f"{method} with this recipe is unreported on {hardware.value}")
        return part.standing if part and part.standing else unknown
    status = _find_published_status(recipe, hardware, profile, variant)
    fixes = [key for key in settings if f"--set {key}=" in status.why]
    if status.status is Status.BROKEN and fixes:
        why = f"broken without --set {', '.join(fixes)}; unreported with it"
        return Trust(Status.EXPERIMENTAL, why, status.link)
    return status


def _find_published_status(recipe: Recipe, hardware: Hardware, profile: str, variant: str) -> Trust:
    if variant:
        part = recipe.variants[variant]
        if (
            part.standing
            and hardware in (part.reported_on or (hardware,))
            and profile in (part.reported_in or (profile,))
        ):
            return part.standing
        why = f"the {variant} variant with profile {profile} is unreported on {hardware.value}"
        return Trust(Status.EXPERIMENTAL, why)
    there = recipe.hardware.get(hardware)
    if there and profile in there.standing:
        return there.standing[profile]
    if recipe.reported_on and there is None:
        classes = ", ".join(kind.value for kind in recipe.reported_on)
        return Trust(Status.EXPERIMENTAL, f"unreported on {hardware.value}; reported on {classes}")
    own, why = recipe.profiles.get(profile), recipe.why or "as the recipe says"
    return own.standing if own and own.standing else Trust(recipe.status, why, recipe.link)


def list_expected(resolved: ResolvedRecipe, method: Method, mode: Mode, tokens: int) -> tuple[ExpectedFigures, ...]:
    """Return published figures, the set-up nearest to this launch first.

    They are of the launch's class of hardware; if it has no speeds, the nearest of other classes follow. Empty if the
    user chose the models.
    """
    recipe, hardware = resolved.recipe, resolved.hardware
    if _has_other_models(resolved.changed):
        return ()

    def rate(kind: Hardware, figures: PublishedFigures) -> tuple[int, ExpectedFigures]:
        same_method = _has_method(figures, recipe, method)
        drafted = figures.tokens or recipe.hardware[kind].num_speculative_tokens or recipe.num_speculative_tokens
        differs = (
            kind is not hardware,
            not same_method,
            bool(figures.target) or figures.variant != resolved.variant,
            drafted != tokens and same_method and method is not Method.NONE,
            figures.profile != resolved.profile and bool(recipe.profiles),
            figures.mode not in {None, mode},
        )
        distance = sum(weight for weight, other in zip((32, 16, 8, 4, 2, 1), differs, strict=True) if other)
        set_up = ", ".join(_describe_set_up(recipe, kind, figures, resolved.variant)) if distance else ""
        fields = {name: getattr(figures, name) for name in PublishedFigures.__struct_fields__}
        return distance, ExpectedFigures(**fields, set_up=set_up)

    def sort_figures(classes: Iterable[Hardware]) -> list[ExpectedFigures]:
        rated = [rate(kind, figures) for kind in sorted(classes) for figures in recipe.hardware[kind].expected]
        return [figures for _, figures in sorted(rated, key=lambda pair: pair[0])]

    here = sort_figures({hardware} & recipe.hardware.keys())
    if any(map(_has_speed, here)):
        return tuple(here)
    elsewhere = filter(_has_speed, sort_figures(recipe.hardware.keys() - {hardware}))
    return (*here, *islice(elsewhere, _MOST_OF_OTHER_CLASSES))


def _has_speed(figures: PublishedFigures) -> bool:
    return bool(figures.tok_s or figures.baseline_tok_s or figures.acceptance or figures.acceptance_length)


def _has_method(figures: PublishedFigures, recipe: Recipe, method: Method) -> bool:
    """Whether figures are of the method; for `none`, whether they have a speed without speculation."""
    if method is Method.NONE:
        return bool(figures.baseline_tok_s) or not figures.tok_s
    return (figures.method or recipe.method) is method


def _describe_set_up(recipe: Recipe, kind: Hardware, figures: PublishedFigures, variant: str) -> Iterator[str]:
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


def find_recipe_mistakes(recipe: Recipe) -> list[str]:
    """Return a sentence per flag that a release lacks or refuses, over all combinations of the recipe's parts."""
    mistakes: dict[str, None] = {}
    classes: tuple[Hardware | None, ...] = tuple(recipe.hardware) or (None,)
    parts = (classes, list_profiles(recipe), ["", *recipe.variants], [None, *recipe.methods])
    for hardware, profile, variant, method in product(*parts):
        try:
            resolved = resolve_recipe(recipe, hardware, profile=profile, variant=variant, method=method)
        except UsageError:  # not every variant supports every method
            continue
        words = [word for name, value in resolved.flags.items() for word in serve_flags.build_flag(name, value)]
        mistakes |= dict.fromkeys(serve_flags.find_mistakes(resolved.engine.vllm, words))
    return [*mistakes]
