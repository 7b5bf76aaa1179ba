"""A launch once more, with changes: as options of `dflash-tui up`. Pure.

Options are a mapping, so that a change replaces what it changes: `""` is the recipe's name or file, `--mode` and the
like have their value, and each `--set KEY` is an option of its own.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from dflash_tui.planning.plan import Plan

# None takes an option away.
Changes = Mapping[str, str | None]


def options(plan: Plan, changes: Changes | None = None) -> dict[str, str]:
    """Return the options that lead to `plan` with `changes`; those of a plan that was not asked for are worked out."""
    return changed(plan.asked or _worked_out(plan), changes)


def changed(options: Mapping[str, str], changes: Changes | None = None) -> dict[str, str]:
    """Return the options with `changes`."""
    return {name: value for name, value in {**options, **(changes or {})}.items() if value is not None}


def words(plan: Plan, changes: Changes | None = None) -> list[str]:
    """Return the words after `dflash-tui` that launch `plan` with `changes`."""
    return line({"": plan.recipe, **options(plan)}, changes)


def line(options: Mapping[str, str], changes: Changes | None = None) -> list[str]:
    """Return the words after `dflash-tui` that launch with these options and `changes`; the recipe is among them."""
    found = changed(options, changes)
    typed = ["up", found.pop("")]
    for name, value in found.items():
        option, _, key = name.partition(" ")
        typed += [option, f"{key}={value}" if key else value]
    return typed


def command(plan: Plan, changes: Changes | None = None) -> str:
    """Return the command line that launches `plan` with `changes`, as one would type it into a shell."""
    return shlex.join(["dflash-tui", *words(plan, changes)])


def _worked_out(plan: Plan) -> dict[str, str]:
    found = {"": plan.recipe, "--profile": plan.profile, "--variant": plan.variant, "--mode": plan.mode.value}
    found |= {"--port": str(plan.port), "--num-speculative-tokens": str(plan.num_speculative_tokens)}
    return {name: value for name, value in found.items() if value}
