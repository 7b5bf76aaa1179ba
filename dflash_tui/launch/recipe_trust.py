"""Which recipes may do more than serve a model, and which patches may change vLLM: ours, and those of a yes.

The answer is kept for the content of a recipe or patch, so one that was changed is asked about again. What the user
sets by hand is the user's own word, and nobody asks about it, except about a patch: its name says nothing of its text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import msgspec

from dflash_tui.common import paths, private_files
from dflash_tui.common.errors import RecipeError, UsageError
from dflash_tui.engines.environments import Engine
from dflash_tui.planning import patch_file
from dflash_tui.planning.patch_file import Patch
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.powers.plan_powers import list_patch_powers, list_recipe_powers
from dflash_tui.planning.powers.power import Power
from dflash_tui.planning.powers.power_summary import list_power_lines
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import Recipe

# Some 10,000 answers.
_LARGEST = 1 << 20


class Untrusted(NamedTuple):
    """What nobody has said yes to. It is read once: a file may change while the question is open."""

    powers: tuple[Power, ...]
    """What the user has to be asked about; empty when nothing is."""
    names: dict[str, str]
    """The names of the recipe and the patches that have these powers, by the hash of each."""


def require_trust(recipe: Recipe, plans: Sequence[Plan]) -> None:
    """Return when these plans of a recipe may be launched; every way to a process comes by here.

    Raises:
        UsageError: it is not shipped, may do more than serve a model, and nobody has said yes to that.
    """
    if powers := find_untrusted(recipe, plans).powers:
        raise build_untrusted_error(recipe, powers)


def find_untrusted(recipe: Recipe, plans: Sequence[Plan]) -> Untrusted:
    """Return what the user has to be asked about before these plans are launched: of the recipe, and of patches.

    Raises:
        DflashError: a patch of the plans is gone by now, or not valid.
    """
    patches = _load_untrusted_patches(plans)
    names = {_hash_patch(patch): patch.name for patch in patches}
    if own := _list_own_powers(recipe, plans):
        names[_hash_recipe(recipe)] = recipe.name
    return Untrusted((*list_patch_powers(patches), *own), names)


def list_recipe_lines(recipe: Recipe, powers: Collection[Power]) -> list[str]:
    """Return the lines about the powers of a recipe and of the patches that it needs."""
    return list_power_lines(powers, f"dflash-tui recipes check {recipe.name} --json")


def build_untrusted_error(recipe: Recipe, powers: Collection[Power]) -> UsageError:
    """Return the error that a recipe, or a patch that it needs, is not trusted, with what it may do."""
    return UsageError(
        f"the recipe {recipe.name} may do more than serve a model, and you have not said yes to that",
        evidence="\n  ".join(list_recipe_lines(recipe, powers)),
        hint=f"read it (dflash-tui recipes show {recipe.name}), then say yes on a terminal or by --trust: that holds "
        "until it changes",
    )


def trust_shown(untrusted: Untrusted) -> None:
    """Keep that the user said yes to what was shown, and to no other edition that took its place since.

    Raises:
        OSError: it cannot be written.
    """
    _add_hashes(untrusted.names)


def list_untrusted_patches(
    patches: Iterable[Patch], engine: Engine, reverted: Collection[str] = ()
) -> tuple[Patch, ...]:
    """Return those of `patches` that the user has to be asked about before they are brought into `engine`.

    So are those that are in it in another edition and stay: a neighbour in the same file brings in the newer one, also
    where it is itself one of the `reverted`.
    """
    from dflash_tui.engines.patching import status

    patches_by_name = {patch.name: patch for patch in patch_file.load_all_patches()[0]}
    staying = [name for name in status.list_applied_patches(engine) if name not in reverted]
    applied = (patches_by_name[name] for name in staying if name in patches_by_name)
    candidates = {patch.name: patch for patch in (*patches, *applied)}
    return tuple(_keep_untrusted(candidates.values()))


def require_patch_trust(patches: Iterable[Patch], engine: Engine) -> None:
    """Return when `patches` may be brought into `engine`.

    Raises:
        UsageError: one is not shipped, and nobody has said yes to it.
    """
    if untrusted := list_untrusted_patches(patches, engine):
        raise build_untrusted_patch_error(untrusted)


def build_untrusted_patch_error(patches: Sequence[Patch]) -> UsageError:
    """Return the error that patches are not trusted."""
    files = ", ".join(str(paths.user_patches_folder() / f"{patch.name}.yaml") for patch in patches)
    return UsageError(
        "a patch that is not shipped with dflash-tui changes code of vLLM, and you have not said yes to that",
        evidence="\n  ".join(list_power_lines(list_patch_powers(patches))),
        hint=f"read it ({files}), then say yes on a terminal or by --trust: that holds until it changes",
    )


def trust_patches(patches: Iterable[Patch]) -> None:
    """Keep that the user said yes to patches as they are here, whatever their files say by now.

    Raises:
        OSError: it cannot be written.
    """
    _add_hashes({_hash_patch(patch): patch.name for patch in patches})


def _list_own_powers(recipe: Recipe, plans: Sequence[Plan]) -> tuple[Power, ...]:
    """Return the powers of a recipe itself; none when it is trusted."""
    powers = list_recipe_powers(recipe, {plan.vllm for plan in plans})
    return () if not powers or _is_shipped(recipe) or _hash_recipe(recipe) in _read_hashes() else powers


def _load_untrusted_patches(plans: Sequence[Plan]) -> list[Patch]:
    """Return the patches that need trust: those that are applied, and others that set variables or keys instead."""
    names = dict.fromkeys(name for plan in plans for name in (*plan.patches, *plan.skipped_patches))
    applied = {name for plan in plans for name in plan.patches}
    patches = [patch_file.load_patch(name) for name in names]
    return _keep_untrusted(patch for patch in patches if patch.name in applied or patch.without_patch or patch.by_key)


def _keep_untrusted(patches: Iterable[Patch]) -> list[Patch]:
    own = [patch for patch in patches if not patch_file.is_shipped(patch)]
    trusted = _read_hashes() if own else ()
    return [patch for patch in own if _hash_patch(patch) not in trusted]


def _add_hashes(names: dict[str, str]) -> None:
    file = paths.trusted_recipes_file()
    lines = [*_read_lines(), *(f"{digest} {name}" for digest, name in names.items())]
    private_files.ensure_private_folder(file.parent)
    private_files.replace_private_file(file, "".join(f"{line}\n" for line in dict.fromkeys(lines)).encode())


def _is_shipped(recipe: Recipe) -> bool:
    """Whether a recipe is one of ours, word for word."""
    path = paths.bundled_folder("recipes") / f"{recipe.name}.yaml"
    try:
        return path.is_file() and _hash_recipe(recipe_loader.load_recipe(path)) == _hash_recipe(recipe)
    except RecipeError:
        return False


def _hash_recipe(recipe: Recipe) -> str:
    """Return the hash of what a recipe says; comments and the order of keys say nothing."""
    return hashlib.sha256(msgspec.json.encode(recipe, order="deterministic")).hexdigest()


def _hash_patch(patch: Patch) -> str:
    return hashlib.sha256(msgspec.json.encode(patch, order="deterministic")).hexdigest()


def _read_hashes() -> set[str]:
    return {line.partition(" ")[0] for line in _read_lines()}


def _read_lines() -> list[str]:
    """Return the lines of our file; none of one that others could have written."""
    file = paths.trusted_recipes_file()
    if private_files.ownership_problem(file, file.parent):
        return []
    try:
        return private_files.read_file(file, _LARGEST).decode(errors="replace").splitlines()
    except OSError:  # there is none yet, or it is no file
        return []
