"""The question before what is not ours does more than serve a model, for every command that leads there."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterable, Sequence

from dflash_tui.cli.console import ask_yes, print_status
from dflash_tui.common.errors import UsageError
from dflash_tui.engines.environments import Engine
from dflash_tui.launch import recipe_trust
from dflash_tui.planning.patch_file import Patch
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.powers.plan_powers import list_patch_powers
from dflash_tui.planning.powers.power_summary import list_power_lines
from dflash_tui.planning.recipes.recipe import Recipe


def confirm_trust(recipe: Recipe, plans: Sequence[Plan], args: argparse.Namespace) -> None:
    """Return when these plans may be launched: all is ours, or does nothing else, or the user says yes to it.

    Raises:
        UsageError: the user said no, or cannot be asked.
    """
    untrusted = recipe_trust.find_untrusted(recipe, plans)
    if powers := untrusted.powers:
        if not args.trust:
            lines = recipe_trust.list_recipe_lines(recipe, powers)
            _ask(recipe.name, lines, recipe_trust.build_untrusted_error(recipe, powers), args)
        recipe_trust.trust_shown(untrusted)


def confirm_patch_trust(
    patches: Iterable[Patch], engine: Engine, args: argparse.Namespace, reverted: Collection[str] = ()
) -> None:
    """Return when patches may be in an engine: those to bring in, and those that stay where others are `reverted`.

    Raises:
        UsageError: the user said no, or cannot be asked.
    """
    if untrusted := recipe_trust.list_untrusted_patches(patches, engine, reverted):
        if not args.trust:
            lines = list_power_lines(list_patch_powers(untrusted))
            error = recipe_trust.build_untrusted_patch_error(untrusted)
            _ask(f"vLLM in {engine.folder}", lines, error, args)
        recipe_trust.trust_patches(untrusted)


def _ask(name: str, lines: Sequence[str], error: UsageError, args: argparse.Namespace) -> None:
    """Ask about what `name` may do, which `lines` tell.

    Raises:
        UsageError: `error` when nobody can be asked, or the answer is no.
    """
    if args.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise error
    print_status(f"{name} is not shipped with dflash-tui and may do more than serve a model:")
    print_status("\n".join(f"  {line}" for line in lines))
    if not ask_yes("Run it? You are asked again only when it changes."):
        raise UsageError(f"you did not say yes to {name}; nothing was started")
