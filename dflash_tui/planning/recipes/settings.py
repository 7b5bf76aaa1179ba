"""What the user set by hand (`--set KEY=VALUE`) -> the layer of a recipe that wins over all others. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any, TypeVar

import msgspec

from dflash_tui.common.errors import UsageError
from dflash_tui.common.secrets import advise_on_secret, find_secret
from dflash_tui.planning.field_types import MaybeTitle
from dflash_tui.planning.recipes.recipe import Drafter, Layer, Recipe, RestartPolicy, Target, iterate_layers
from dflash_tui.planning.serve_flags import RESERVED_SPECULATION, explain_reserved_flag, explain_unusable_value

HOST = "127.0.0.1"
_NAMES = {"target": ("model", "revision", "served_name"), "drafter": ("model", "revision")}
_SPECULATION = {"method": "--method METHOD chooses it", "": "use --set drafter.model=NAME and --set n=N"}
_MOST = 64
_PARTS = ("env", "speculation", "patches", "restart", "start")
AnyModel = TypeVar("AnyModel", Target, Drafter)


def build_settings_layer(settings: Mapping[str, Any], recipe: Recipe, below: Layer) -> tuple[Layer, str]:
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
    for name, least in (("n", 0), ("hosts", 1)):
        value = parts[""].get(name)
        if value is not None and not (type(value) is int and least <= value <= _MOST):
            raise UsageError(f"--set {name}: expected a whole number from {least} to {_MOST}, not {value}")
    fields["num_speculative_tokens"], fields["hosts"] = parts[""].get("n"), parts[""].get("hosts")
    if "model" in parts["target"]:  # a checkpoint has its own quantization, which another's flag would contradict
        fields["flags"] = {"quantization": None} | fields["flags"]
    try:
        layer = msgspec.structs.replace(
            msgspec.convert(fields, Layer),
            target=_replace_model(below.target or recipe.target, parts["target"], recipe) if parts["target"] else None,
            drafter=_replace_drafter(below.drafter, parts["drafter"], recipe) if parts["drafter"] else None,
        )
        return layer, msgspec.convert(parts[""].get("synthetic", ""), MaybeTitle)
    except msgspec.ValidationError as error:
        raise UsageError(f"--set: {error}", hint="--set KEY=VALUE, with the flag's name as vLLM spells it") from None


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
    if part in {*_PARTS, *_NAMES} and name:
        return part, name
    if reason := explain_reserved_flag(key):
        raise UsageError(f"{key} {reason}", hint="use --mode, --port, --num-speculative-tokens or --set n=N")
    return "flags", part.replace("_", "-") + key[len(part) :]


def _replace_model(model: AnyModel, names: dict[str, Any], recipe: Recipe) -> AnyModel:
    """Return the model with other names, and what the recipe knows of that one's size, access and quantization.

    The architecture is taken to be the same: that is what makes it the same recipe.
    """
    changes: dict[str, Any] = dict(names)
    if "model" in names:
        changes = {"revision": "main", "size_gb": None, "gated": None, "licence": "", "warnings": ()}
        own: dict[str, Any] = {"quantization": "", "parameters_b": None, "max_tokens": None}
        changes |= {name: value for name, value in own.items() if name in model.__struct_fields__}
        changes |= _find_facts(recipe, type(model), names) | names
    return msgspec.convert(msgspec.to_builtins(model) | changes, type(model))


def _find_facts(recipe: Recipe, kind: type[Target | Drafter], names: dict[str, Any]) -> dict[str, Any]:
    """Return what some layer of the recipe says of a model that it names, too; nothing of another or its revision."""
    models = (model for _, layer in iterate_layers(recipe) for model in (layer.target, layer.drafter))
    wanted = names["model"], names.get("revision", "main")
    match = next(
        (model for model in models if isinstance(model, kind) and (model.model, model.revision) == wanted), None
    )
    facts = msgspec.to_builtins(match) if match else {}
    return {name: value for name, value in facts.items() if name != "served_name"}


def _replace_drafter(drafter: Drafter | None, names: dict[str, Any], recipe: Recipe) -> Drafter:
    return _replace_model(drafter, names, recipe) if drafter else msgspec.convert(names, Drafter)


def list_flag_settings(settings: Mapping[str, Any]) -> list[str]:
    """Return the settings that are flags of `vllm serve`; one that takes a flag away is not among them."""
    return [key for key, value in settings.items() if value is not None and _place_setting(key, value)[0] == "flags"]


def list_disabled_patches(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the patches that were switched off by hand."""
    return tuple(
        key.partition(".")[2] for key, value in settings.items() if key.startswith("patches.") and value is False
    )


def read_host(address: object) -> str:
    """Return the address to listen on, this machine's own unless another was set by hand."""
    try:
        return HOST if address is None or address == "localhost" else str(ip_address(str(address)))
    except ValueError:
        raise UsageError(
            f"--set host: {address} is not an address", hint="--set host=0.0.0.0 listens on all of them"
        ) from None


def merge_restart(policy: RestartPolicy, settings: Mapping[str, Any]) -> RestartPolicy:
    """Return the recipe's restarts with what was set by hand; null is the value that holds unasked."""
    changes = {key.partition(".")[2]: value for key, value in settings.items() if key.startswith("restart.")}
    fields = {name: value for name, value in (msgspec.structs.asdict(policy) | changes).items() if value is not None}
    try:
        return msgspec.convert(fields, RestartPolicy)
    except msgspec.ValidationError as error:
        raise UsageError(f"--set restart: {error}", hint=f"there is {', '.join(fields)}") from None


def read_start_settings(settings: Mapping[str, Any]) -> dict[str, bool]:
    """Return the startup optimizations that were set by hand; null is as if it had not been."""
    wanted = {key.partition(".")[2]: value for key, value in settings.items() if key.startswith("start.")}
    for name, value in wanted.items():
        if not isinstance(value, bool | None):
            raise UsageError(f"--set start.{name}: expected true or false, not {value!r}")
    return {name: value for name, value in wanted.items() if value is not None}
