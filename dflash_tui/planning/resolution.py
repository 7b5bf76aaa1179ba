"""A recipe on one kind of machine, in one profile, with what the user changed -> a resolved recipe. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from ipaddress import ip_address
from typing import Any, TypeVar

import msgspec

from dflash_tui.common.errors import UsageError
from dflash_tui.common.settings_secrets import advise_on_secret, find_secret
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.recipe import (
    Drafter,
    EngineSpec,
    FlagValue,
    HardwareLayer,
    Layer,
    MaybeText,
    Mode,
    PublishedFigures,
    Recipe,
    RecipePart,
    RestartPolicy,
    Status,
    Target,
    Trust,
)
from dflash_tui.planning.recipe_loader import (
    RESERVED_SPECULATION,
    engine_for_release,
    explain_reserved_flag,
    explain_unusable_value,
)

STOCK = "stock"
HOST = "127.0.0.1"
_NAMES = {"target": ("model", "revision", "served_name"), "drafter": ("model", "revision")}
_PARTS = ("env", "speculation", "patches", "restart")
AnyModel = TypeVar("AnyModel", Target, Drafter)


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
    drafter: Drafter
    """The model that drafts."""
    weights_gb: float | None
    """What the target's weights take on the GPU, where that is not the size of its files."""
    oldest_vllm: str | None
    """The oldest release that runs the pair right; None where every one does."""
    oldest_patched: str | None
    """The oldest release that runs it right with the recipe's patches."""
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
    expected: tuple[PublishedFigures, ...]
    """What others measured."""
    synthetic: str
    """Why figures say nothing about a real model; empty where they do."""
    changed: tuple[str, ...] = ()
    """Names of what the user set by hand."""
    host: str = HOST
    """The address to listen on."""
    restart: RestartPolicy = RestartPolicy()
    """Whether and how often a server that crashed is launched again."""


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
    engine: EngineSpec | None = None,
    settings: Mapping[str, Any] | None = None,
) -> ResolvedRecipe:
    """Return a recipe with its layers merged.

    Args:
        recipe: The recipe.
        hardware: The class of hardware; without it the first one that the recipe knows, if any.
        profile: The profile; without it `stock`, or the recipe's first.
        variant: The variant, if any.
        engine: What the vLLM environment is made of, in place of the recipe's.
        settings: Changes by hand: `target.model`, `drafter.model` (and `.revision`), `n`, `host`, `synthetic`,
            `restart.KEY`, `env.NAME`, `speculation.KEY`, `patches.NAME` (true or false), anything else is a flag. None
            takes a flag or a variable away.

    Raises:
        UsageError: no such profile or variant, or a setting that may not be given.
    """
    hardware = hardware or next(iter(recipe.hardware), Hardware.CPU if recipe.for_cpu else Hardware.UNKNOWN)
    profile = profile or list_profiles(recipe)[0]
    _check_name("profile", profile, list_profiles(recipe), recipe)
    if variant:
        _check_name("variant", variant, recipe.variants, recipe)
    parts: list[Layer | None] = [recipe, recipe.hardware.get(hardware), recipe.profiles.get(profile)]
    parts += [recipe.variants.get(variant)]
    by_hand, synthetic = _build_layer(settings or {}, recipe, [part for part in parts if part])
    flat = _merge_layers([part for part in [*parts, by_hand] if part])
    changed = tuple(settings or ())
    disabled = tuple(key.partition(".")[2] for key, value in (settings or {}).items() if _is_off(key, value))
    return ResolvedRecipe(
        recipe=recipe,
        hardware=hardware,
        profile=profile,
        variant=variant,
        engine=_complete_engine(engine or flat.engine),
        target=flat.target or recipe.target,
        drafter=flat.drafter or recipe.drafter,
        weights_gb=flat.weights_gb,
        oldest_vllm=flat.oldest_vllm,
        oldest_patched=flat.oldest_patched,
        num_speculative_tokens=flat.num_speculative_tokens or 0,
        speculation=flat.speculation,
        mode=flat.mode or Mode.EAGER,
        modes=flat.modes,
        flags={name: value for name, value in flat.flags.items() if value is not None},
        env={name: value for name, value in flat.env.items() if value is not None},
        patches=tuple(name for name in flat.patches if name not in disabled),
        disabled_patches=disabled,
        warnings=flat.warnings,
        deviations=flat.differs,
        standing=_trust_by_hand(recipe, engine, changed) or _find_trust(recipe, hardware, profile, variant),
        expected=_find_expected(recipe, hardware, profile, variant, changed),
        synthetic="; ".join(filter(None, (synthetic or recipe.synthetic, _explain_synthetic(flat)))),
        changed=changed,
        host=_read_host((settings or {}).get("host")),
        restart=_merge_restart(recipe.restart, settings or {}),
    )


def _merge_restart(policy: RestartPolicy, settings: Mapping[str, Any]) -> RestartPolicy:
    """Return the recipe's restarts with what was set by hand; null is the value that holds without a word."""
    changes = {key.partition(".")[2]: value for key, value in settings.items() if key.startswith("restart.")}
    fields = {name: value for name, value in (msgspec.structs.asdict(policy) | changes).items() if value is not None}
    try:
        return msgspec.convert(fields, RestartPolicy)
    except msgspec.ValidationError as error:
        raise UsageError(f"--set restart: {error}", hint=f"there is {', '.join(fields)}") from None


def _read_host(address: object) -> str:
    """Return the address to listen on, this machine's own unless another was set by hand."""
    try:
        return HOST if address is None or address == "localhost" else str(ip_address(str(address)))
    except ValueError:
        raise UsageError(
            f"--set host: {address} is no address", hint="--set host=0.0.0.0 listens on all of them"
        ) from None


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
            target=_merge_models(part.target, flat.target),
            drafter=_merge_models(part.drafter, flat.drafter),
            weights_gb=part.weights_gb or flat.weights_gb,
            oldest_vllm=part.oldest_vllm or flat.oldest_vllm,
            oldest_patched=part.oldest_patched or flat.oldest_patched,
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
        )
    return flat


def _merge_models(upper: AnyModel | None, lower: AnyModel | None) -> AnyModel | None:
    """Return the model of the upper layer, with the lower one's config when it says none of its own."""
    if upper is None or lower is None:
        return upper or lower
    return upper if upper.config else msgspec.structs.replace(upper, config=lower.config)


def _build_layer(settings: Mapping[str, Any], recipe: Recipe, below: list[Layer]) -> tuple[Layer, str]:
    """Return what was set by hand as a layer, and what makes its figures synthetic."""
    parts: dict[str, dict[str, Any]] = {part: {} for part in ("", "flags", *_PARTS, *_NAMES)}
    for key, value in settings.items():
        part, name = _place_setting(key, value)
        parts[part][name] = value
    for name, value in (parts["flags"] | parts["speculation"]).items():
        if reason := explain_unusable_value(name, value):
            raise UsageError(f"--set {name}: {reason}")
    fields: dict[str, Any] = {part: parts[part] for part in ("flags", "speculation")}
    for name, value in parts["patches"].items():
        if not isinstance(value, bool):
            raise UsageError(f"--set patches.{name}: expected true or false, not {value!r}")
    fields["patches"] = tuple(name for name, value in parts["patches"].items() if value)
    fields["env"] = {name: value if value is None else str(value) for name, value in parts["env"].items()}
    fields["num_speculative_tokens"] = parts[""].get("n")
    base = _merge_layers(below)
    try:
        layer = msgspec.structs.replace(
            msgspec.convert(fields, Layer),
            target=_replace_model(base.target or recipe.target, parts["target"]) if parts["target"] else None,
            drafter=_replace_model(base.drafter or recipe.drafter, parts["drafter"]) if parts["drafter"] else None,
        )
        return layer, msgspec.convert(parts[""].get("synthetic", ""), MaybeText)
    except msgspec.ValidationError as error:
        raise UsageError(f"--set: {error}", hint="--set KEY=VALUE, with the flag's name as vLLM spells it") from None


def _is_off(key: str, value: Any) -> bool:
    return key.startswith("patches.") and value is False


def _place_setting(key: str, value: Any) -> tuple[str, str]:
    """Return the part of a layer that a setting belongs to, and its name there.

    Raises:
        UsageError: it may not be set.
    """
    part, _, name = key.partition(".")
    if key in {"n", "num_speculative_tokens"}:
        return "", "n"
    if key == "host":
        return "", key
    if part in _NAMES and name not in _NAMES[part]:
        raise UsageError(f"{key} cannot be set", hint=f"of {part} there is {', '.join(_NAMES[part])}")
    if place := find_secret(key, value):
        raise UsageError(f"{place} looks like a secret", hint=advise_on_secret(place))
    if key == "synthetic":
        return "", key
    if part == "env" and name in {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"}:
        raise UsageError(f"{key} is set by dflash-tui itself", hint="--gpu chooses the GPUs")
    if part == "speculation" and name in RESERVED_SPECULATION:
        raise UsageError(f"{key} is set by dflash-tui itself", hint="--set drafter.model=NAME and --set n=N are there")
    if part in {*_PARTS, *_NAMES} and name:
        return part, name
    if reason := explain_reserved_flag(key):
        raise UsageError(f"{key} {reason}", hint="--mode, --port, --num-speculative-tokens and --set n=N are there")
    return "flags", part.replace("_", "-") + key[len(part) :]


def _replace_model(model: AnyModel, names: dict[str, Any]) -> AnyModel:
    """Return the model with other names; what the recipe knows of sizes and access holds for its own only.

    The architecture is taken to be the same: that is what makes it the same recipe.
    """
    changes: dict[str, Any] = dict(names)
    if "model" in names:
        changes = {"revision": "main", "size_gb": None, "gated": None, **names}
        changes |= {"quantization": ""} if "quantization" in model.__struct_fields__ else {}
    return msgspec.convert(msgspec.to_builtins(model) | changes, type(model))


def _complete_engine(spec: EngineSpec | None) -> EngineSpec:
    """Return the spec with what the table of releases says; recipes are checked to have one when they are read."""
    if spec is None:
        raise UsageError("this recipe names no engine", hint="--vllm VERSION chooses one")
    return spec if spec.packages else engine_for_release(spec.vllm)


def _has_other_models(changed: tuple[str, ...]) -> bool:
    return any(re.match(r"(?:target|drafter)\.(?:model|revision)$", key) for key in changed)


def _trust_by_hand(recipe: Recipe, engine: EngineSpec | None, changed: tuple[str, ...]) -> Trust | None:
    """Return how far what was chosen by hand can be trusted; what was reported is about the recipe's own."""
    if _has_other_models(changed) and not recipe.build:
        return Trust(Status.EXPERIMENTAL, "the models were chosen by hand")
    return Trust(Status.EXPERIMENTAL, f"vLLM {engine.vllm} was chosen by hand") if engine else None


def _find_trust(recipe: Recipe, hardware: Hardware, profile: str, variant: str) -> Trust:
    if variant:
        return _trust_variant(recipe.variants[variant], variant, hardware, profile)
    there = recipe.hardware.get(hardware)
    if there and profile in there.standing:
        return there.standing[profile]
    if recipe.hardware and there is None:
        known = ", ".join(kind.value for kind in recipe.hardware)
        return Trust(Status.EXPERIMENTAL, f"nobody reported it on {hardware.value}; it is known on {known}")
    if (part := recipe.profiles.get(profile)) and part.standing:
        return part.standing
    return Trust(recipe.status, recipe.why or "as the recipe says", recipe.link)


def _trust_variant(part: RecipePart, name: str, hardware: Hardware, profile: str) -> Trust:
    here = hardware in (part.reported_on or (hardware,)) and profile in (part.reported_in or (profile,))
    if part.standing and here:
        return part.standing
    return Trust(Status.EXPERIMENTAL, f"nobody reported the {name} variant on {hardware.value} with profile {profile}")


def _find_expected(
    recipe: Recipe, hardware: Hardware, profile: str, variant: str, changed: tuple[str, ...]
) -> tuple[PublishedFigures, ...]:
    """Return the published figures; none for a variant or for other models, which nobody measured."""
    if variant or _has_other_models(changed):
        return ()
    return tuple(band for band in recipe.hardware.get(hardware, HardwareLayer()).expected if band.profile == profile)


def _explain_synthetic(flat: Layer) -> str:
    """Return why figures of these settings say nothing about a real model; empty when they may."""
    if flat.flags.get("load-format") == "dummy":
        return "random weights (load-format dummy)"
    made_up = any(name.startswith("synthetic_") and value is not None for name, value in flat.speculation.items())
    if made_up or flat.speculation.get("rejection_sample_method") == "synthetic":
        return "synthetic acceptance"
    return ""
