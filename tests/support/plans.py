"""Plans of shipped recipes."""

from typing import Any

from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.plan_builder import build_plan
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.resolution import ResolvedRecipe, resolve_recipe


def resolve(name: str, hardware: Hardware | None = None, vllm: str = "", **how: Any) -> ResolvedRecipe:
    """Return a shipped recipe's values for a class of hardware, for release `vllm` if it is named."""
    if vllm:
        how["engine"] = recipe_loader.engine_for_release(vllm)
    return resolve_recipe(recipe_loader.find_recipe(name), hardware, **how)


def plan_of(name: str, hardware: Hardware | None = None, vllm: str = "", **how: Any) -> Plan:
    """Return the plan of a shipped recipe; `how` is as for `resolve_recipe`."""
    return build_plan(resolve(name, hardware, vllm, **how))
