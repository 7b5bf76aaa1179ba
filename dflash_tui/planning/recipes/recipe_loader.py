"""Find and read recipe files, and check what the schema cannot."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from dflash_tui.common import paths, yaml_loader
from dflash_tui.common.errors import RecipeError, UsageError
from dflash_tui.common.formatting import suggest_nearest
from dflash_tui.common.private_files import load_each
from dflash_tui.common.secrets import advise_on_secret, explain_secrets, list_own_secrets, looks_secret
from dflash_tui.planning.methods import FACTS, DrafterUse, Method
from dflash_tui.planning.recipes.recipe import EngineSpec, HardwareLayer, Layer, Recipe, iterate_layers
from dflash_tui.planning.serve_flags import (
    FIRST_WITH_DFLASH,
    RESERVED_SPECULATION,
    explain_reserved_flag,
    explain_unusable_value,
)

_RELEASES = paths.PACKAGE_ROOT / "releases.yaml"


def is_recipe_name(name: str) -> bool:
    """Whether a recipe may have this name; such names have no character special to a shell."""
    return re.fullmatch(r"\w[\w.-]{0,63}", name, re.ASCII) is not None


def load_recipe(path: Path) -> Recipe:
    """Return the recipe in a file, named after it; raise RecipeError with `file:line: key: what was expected`."""
    recipe = read_recipe(path, yaml_loader.read_yaml_text(path))
    if not is_recipe_name(path.stem):
        raise RecipeError(f"{path}: not a valid recipe name: letters, digits, . _ and -, at most 64")
    if recipe.name not in {"", path.stem}:
        raise yaml_loader.build_file_error(path, ["name"], f"expected '{path.stem}', the name of the file")
    if recipe.build and not (paths.bundled_folder("recipes") / recipe.build.script).is_file():
        what = f"dflash-tui ships no script called '{recipe.build.script}'"
        raise yaml_loader.build_file_error(path, ["build", "script"], what)
    known = paths.list_patch_files()
    for steps, layer in iterate_layers(recipe):
        for index, name in enumerate(layer.patches):
            if name not in known:
                raise yaml_loader.build_file_error(path, [*steps, "patches", index], f"no patch called '{name}'")
    return msgspec.structs.replace(recipe, name=path.stem)


@cache
def load_releases() -> dict[str, EngineSpec]:
    """Return the shipped table of engines by vLLM release, oldest first."""
    table = yaml_loader.load_yaml(_RELEASES, dict[str, dict[str, dict[str, Any]]])["releases"]
    return {vllm: msgspec.convert(fields | {"vllm": vllm}, EngineSpec) for vllm, fields in table.items()}


def engine_for_release(vllm: str) -> EngineSpec:
    """Return the engine of a release; raise UsageError if the table lacks it."""
    table = load_releases()
    if re.fullmatch(r"\d{1,9}(\.\d{1,9}){1,3}", vllm) and Version(vllm) < Version(FIRST_WITH_DFLASH):
        raise UsageError(f"vLLM {vllm} has no DFlash", hint=f"available: {', '.join(table)}")
    if vllm not in table:
        raise UsageError(f"vLLM {vllm} is not in the table of releases", hint=f"available: {', '.join(table)}")
    return table[vllm]


def list_shipped_files() -> dict[str, Path]:
    """Return the files of the shipped recipes by name."""
    return {path.stem: path for path in _list_folder(paths.bundled_folder("recipes"))}


def _list_folder(folder: Path) -> list[Path]:
    return sorted(folder.glob("[!_.]*.yaml"))


def list_recipe_files() -> dict[str, Path]:
    """Return the recipe files by name, sorted; the user's win over shipped ones."""
    own = {path.stem: path for path in _list_folder(paths.user_recipes_folder())}
    return dict(sorted((list_shipped_files() | own).items()))


def load_all_recipes() -> tuple[dict[str, Recipe], dict[str, str]]:
    """Return the valid recipes by name, and why each other file is invalid: name -> reason."""
    return load_each(list_recipe_files(), load_recipe)


def find_recipe(name: str) -> Recipe:
    """Return the recipe called `name`, or the recipe in the file `name` if that is a path."""
    return load_recipe(recipe_path(name))


def recipe_path(name: str) -> Path:
    """Return the file of the recipe called `name`, derived ones included, or `name` itself if it is a path."""
    if name.endswith((".yaml", ".yml")) or "/" in name:
        if re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not name.endswith((".yaml", ".yml")) and not Path(name).exists():
            raise UsageError(f"no recipe file {name}", hint=f"a model of the hub, without a recipe: --target {name}")
        return Path(name)
    files = list_recipe_files()
    derived = paths.derived_recipes_folder() / f"{name}.yaml"
    if name not in files and is_recipe_name(name) and derived.is_file():
        return derived
    if name not in files:
        hint = suggest_nearest(name, files) or f"there are: {', '.join(files)}"
        raise UsageError(f"no recipe called '{name}'", hint=hint)
    return files[name]


@lru_cache(maxsize=128)  # the panel reads all recipes for each list
def read_recipe(path: Path, text: str) -> Recipe:
    """Return the recipe in a file's text, checked without looking at other files; errors as of `load_recipe`."""
    recipe = yaml_loader.convert_yaml(path, text, Recipe)
    own = list_own_secrets()
    for steps, layer in iterate_layers(recipe):
        for place, reason in _find_mistakes(layer, own):
            raise yaml_loader.build_file_error(path, [*steps, *place], reason)
    for place, reason in _find_gaps(recipe):
        raise yaml_loader.build_file_error(path, place, reason)
    return recipe


def _find_mistakes(layer: Layer, own: Sequence[str]) -> Iterator[tuple[list[str | int], str]]:
    for name, value in layer.flags.items():
        if reason := explain_reserved_flag(name) or explain_unusable_value(name, value):
            yield ["flags", name], reason
    for name in sorted(RESERVED_SPECULATION & layer.speculation.keys()):
        yield ["speculation", name], "is set by dflash-tui itself and cannot be set here"
    yield from _find_secrets(layer, own)
    for name, value in layer.speculation.items():
        if reason := explain_unusable_value(name, value):
            yield ["speculation", name], reason
    if layer.engine:
        yield from _find_engine_mistakes(layer.engine)


def _find_secrets(layer: Layer, own: Sequence[str]) -> Iterator[tuple[list[str | int], str]]:
    """Yield the keys whose values look like secrets: recipes are shared and commands are shown."""
    for part, values in (("env", layer.env), ("flags", layer.flags), ("speculation", layer.speculation)):
        for name, why in explain_secrets(part, values, own):
            yield [part, name], why
    for part, model in (("target", layer.target), ("drafter", layer.drafter)):
        for key in ("model", "revision"):
            if model and looks_secret(getattr(model, key)):
                yield [part, key], f"it looks like a secret; {advise_on_secret('')}"


def _find_gaps(recipe: Recipe) -> Iterator[tuple[list[str | int], str]]:
    if recipe.engine is None and not recipe.profiles:
        yield ["title"], "expected an `engine`, here or in every profile"
    for name, profile in recipe.profiles.items():
        if not (profile.engine or recipe.engine):
            yield ["profiles", name], "expected an `engine`, here or in the recipe"
    if not recipe.target.served_name:
        yield ["target"], "expected a `served_name`"
    yield from _find_method_gaps(recipe)
    for kind, changes in recipe.hardware.items():
        for place, reason in _find_wrong_figures(changes, recipe.profiles or {"stock"}, recipe.variants):
            yield ["hardware", kind.value, *place], reason


def _find_method_gaps(recipe: Recipe) -> Iterator[tuple[list[str | int], str]]:
    layers = {recipe.method: recipe, **recipe.methods}
    for method, layer in layers.items():
        own: list[str | int] = [] if layer is recipe else ["methods", method.value]
        facts = FACTS[method]
        if facts.drafter is DrafterUse.REQUIRED and layer.drafter is None:
            yield own or ["title"], f"expected a `drafter`: {method} takes one"
        if facts.drafter is DrafterUse.NEVER and layer.drafter is not None:
            yield [*own, "drafter"], f"{method} takes no drafter"
        if facts.default_tokens is None and layer.num_speculative_tokens is None:
            yield own, "expected `num_speculative_tokens`"
    if recipe.method in recipe.methods:
        yield ["methods", recipe.method.value], "is the recipe's own method, which the recipe itself describes"
    if Method.NONE in recipe.methods:
        yield ["methods", Method.NONE.value], "is without speculation, and needs no entry"


def _find_wrong_figures(
    layer: HardwareLayer, profiles: Container[str], variants: Container[str]
) -> Iterator[tuple[list[str | int], str]]:
    for name in layer.standing:
        if name not in profiles:
            yield ["standing", name], f"no profile called '{name}'"
    for index, band in enumerate(layer.expected):
        if band.profile not in profiles:
            yield ["expected", index, "profile"], f"no profile called '{band.profile}'"
        if band.variant and band.variant not in variants:
            yield ["expected", index, "variant"], f"no variant called '{band.variant}'"
        for name in ("tok_s", "baseline_tok_s", "acceptance", "acceptance_length", "ready_s"):
            figures: tuple[float, ...] = getattr(band, name) or ()
            if list(figures) != sorted(figures):
                yield ["expected", index, name], "expected the smaller figure first"


def _find_engine_mistakes(spec: EngineSpec) -> Iterator[tuple[list[str | int], str]]:
    if Version(spec.vllm) < Version(FIRST_WITH_DFLASH):
        reason = f"vLLM {spec.vllm} has no DFlash; {FIRST_WITH_DFLASH} is the first release that has it"
        yield ["engine", "vllm"], reason
    elif not spec.packages and spec.vllm not in load_releases():
        reason = f"vLLM {spec.vllm} is not in the table of releases, so `packages` must list what to install"
        yield ["engine", "vllm"], reason
    elif spec.packages and not (spec.download_mb and spec.disk_mb):
        reason = "`download_mb` and `disk_mb` are missing"
        yield ["engine", "packages"], reason
    for part, lines in (("packages", spec.packages), ("overrides", spec.overrides)):
        for index, line in enumerate(lines):
            if "${" in line:  # uv would expand it and send it to the server at the address
                yield ["engine", part, index], "cannot set environment variables"
            if looks_secret(line):
                yield ["engine", part, index], "it looks like a secret; uv takes those of an index from your shell"
            try:
                Requirement(line)
            except InvalidRequirement:
                yield ["engine", part, index], f"'{line}' is not a requirement such as vllm==0.33.0"
