"""Find recipe files and load them."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

import msgspec

from dflash_tui.common import paths, yaml_loader
from dflash_tui.common.errors import RecipeError, UsageError
from dflash_tui.common.formatting import suggest_nearest
from dflash_tui.common.private_files import load_each
from dflash_tui.planning import releases
from dflash_tui.planning.recipes.artifacts import EngineSpec
from dflash_tui.planning.recipes.recipe import Recipe, iterate_layers
from dflash_tui.planning.recipes.recipe_rules import FIRST_WITH_DFLASH
from dflash_tui.planning.text_cache import TextCache


def is_recipe_name(name: str) -> bool:
    """Whether a recipe can be called so; no such name has a character that means something to a shell."""
    return re.fullmatch(r"\w[\w.-]{0,63}", name, re.ASCII) is not None


def load_recipe(
    path: Path, cache: TextCache[Recipe] | None = None, patches: Callable[[], Collection[str]] = paths.list_patch_files
) -> Recipe:
    """Return the recipe in the file; its name is the file's. A `cache` may know the text, `patches` what there are.

    Raises:
        RecipeError: with `file:line: key: what was expected`.
    """
    text = yaml_loader.read_yaml_text(path)
    recipe = cache.find(text) if cache else None
    if recipe is None:
        from dflash_tui.planning.recipes import recipe_checks

        recipe = recipe_checks.read_recipe(path, text)
        if cache:
            cache.keep(text, recipe)
    if not is_recipe_name(path.stem):
        raise RecipeError(f"{path}: not a valid recipe name: letters, digits, . _ and -, at most 64")
    if recipe.name not in {"", path.stem}:
        raise yaml_loader.build_file_error(path, ["name"], f"expected '{path.stem}', the name of the file")
    if recipe.build and not (paths.bundled_folder("recipes") / recipe.build.script).is_file():
        raise yaml_loader.build_file_error(
            path, ["build", "script"], f"dflash-tui ships no script called '{recipe.build.script}'"
        )
    named = [
        ([*steps, "patches", index], name)
        for steps, layer in iterate_layers(recipe)
        for index, name in enumerate(layer.patches)
    ]
    for place, name in named:
        if name not in patches():
            raise yaml_loader.build_file_error(path, place, f"no patch called '{name}'")
    return msgspec.structs.replace(recipe, name=path.stem)


def engine_for_release(vllm: str) -> EngineSpec:
    """Return the engine of a release from the table of releases.

    Raises:
        UsageError: the table does not have that version.
    """
    from packaging.version import Version

    table = releases.load_releases()
    if re.fullmatch(r"\d{1,9}(\.\d{1,9}){1,3}", vllm) and Version(vllm) < Version(FIRST_WITH_DFLASH):
        raise UsageError(f"vLLM {vllm} has no DFlash", hint=f"available: {', '.join(table)}")
    if vllm not in table:
        raise UsageError(f"vLLM {vllm} is not in the table of releases", hint=f"available: {', '.join(table)}")
    release = table[vllm]
    return EngineSpec(
        vllm=vllm,
        packages=release.packages,
        download_mb=release.download_mb,
        disk_mb=release.disk_mb,
        overrides=release.overrides,
        exclude_newer=release.exclude_newer,
        driver=release.driver,
    )


def list_shipped_files() -> dict[str, Path]:
    """Return the files of the shipped recipes by name."""
    return {path.stem: path for path in _list_folder(paths.bundled_folder("recipes"))}


def _list_folder(folder: Path) -> list[Path]:
    return sorted(folder.glob("[!_.]*.yaml"))


def list_recipe_files() -> dict[str, Path]:
    """Return the recipe files by name, sorted; the user's own win over the shipped ones."""
    own = {path.stem: path for path in _list_folder(paths.user_recipes_folder())}
    return dict(sorted((list_shipped_files() | own).items()))


def load_all_recipes() -> tuple[dict[str, Recipe], dict[str, str]]:
    """Return all valid recipes by name, and for each other one why its file is not valid: name -> reason."""
    cache, patches = TextCache.load("recipes", Recipe), functools.cache(paths.list_patch_files)
    recipes_and_errors = load_each(list_recipe_files(), partial(load_recipe, cache=cache, patches=patches))
    cache.save()
    return recipes_and_errors


def find_recipe(name: str) -> Recipe:
    """Return the recipe called `name`, or the one in the file `name` when that is a path.

    Raises:
        UsageError: there is no such recipe; the message names the nearest one.
        RecipeError: the file is not valid.
    """
    return load_recipe(recipe_path(name))


def recipe_path(name: str) -> Path:
    """Return the file of the recipe called `name`, or `name` itself when that is a path.

    Raises:
        UsageError: there is no such recipe; the message names the nearest one.
    """
    if name.endswith((".yaml", ".yml")) or "/" in name:
        if re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not name.endswith((".yaml", ".yml")) and not Path(name).exists():
            raise UsageError(f"no recipe file {name}", hint=f"a model of the hub, without a recipe: --target {name}")
        return Path(name)
    files = list_recipe_files()
    if name not in files:
        hint = suggest_nearest(name, files) or f"there are: {', '.join(files)}"
        raise UsageError(f"no recipe called '{name}'", hint=hint)
    return files[name]
