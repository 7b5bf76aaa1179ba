"""What of a recipe holds for one of its methods, and which methods it can be asked for. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_tui.common.errors import UsageError
from dflash_tui.planning.methods import FACTS, WITHOUT_DRAFTER, DrafterUse, Method
from dflash_tui.planning.recipes.artifacts import Drafter
from dflash_tui.planning.recipes.recipe import Layer, Recipe

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
