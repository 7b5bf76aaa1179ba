"""How far a recipe is known to work on a class of hardware. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.methods import Method
from dflash_tui.planning.recipes.artifacts import EngineSpec
from dflash_tui.planning.recipes.recipe import Recipe, RecipePart, Status, Trust


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
