"""Read the text of a recipe and check what the schema cannot. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from dflash_tui.common import yaml_loader
from dflash_tui.common.secrets import advise_on_secret, explain_secrets, looks_secret
from dflash_tui.planning import releases
from dflash_tui.planning.methods import FACTS, DrafterUse, Method
from dflash_tui.planning.recipes.artifacts import EngineSpec
from dflash_tui.planning.recipes.recipe import HardwareLayer, Layer, Recipe, iterate_layers
from dflash_tui.planning.recipes.recipe_rules import (
    FIRST_WITH_DFLASH,
    RESERVED_SPECULATION,
    explain_reserved_flag,
    explain_unusable_value,
)


def read_recipe(path: Path, text: str) -> Recipe:
    """Return the recipe that the text of a file says, whatever else is on this machine.

    Raises:
        RecipeError: with `file:line: key: what was expected`.
    """
    recipe = yaml_loader.convert_yaml(path, text, Recipe)
    for steps, layer in iterate_layers(recipe):
        for place, reason in _find_mistakes(layer):
            raise yaml_loader.build_file_error(path, [*steps, *place], reason)
    for place, reason in (*_find_quoted_secrets(recipe), *_find_gaps(recipe)):
        raise yaml_loader.build_file_error(path, place, reason)
    return recipe


def _find_mistakes(layer: Layer) -> Iterator[tuple[list[str | int], str]]:
    """Yield the keys of a layer that are not allowed, and why."""
    for name, value in layer.flags.items():
        if reason := explain_reserved_flag(name) or explain_unusable_value(name, value):
            yield ["flags", name], reason
    for name in sorted(RESERVED_SPECULATION & layer.speculation.keys()):
        yield ["speculation", name], "is set by dflash-tui itself and cannot be set here"
    yield from _find_secrets(layer)
    for name, value in layer.speculation.items():
        if reason := explain_unusable_value(name, value):
            yield ["speculation", name], reason
    if layer.engine:
        yield from _find_engine_mistakes(layer.engine)


def _find_secrets(layer: Layer) -> Iterator[tuple[list[str | int], str]]:
    """Yield the keys of a layer whose values look like secrets: recipes are shared, and commands are shown."""
    for part, values in (("env", layer.env), ("flags", layer.flags), ("speculation", layer.speculation)):
        for name, why in explain_secrets(part, values):
            yield [part, name], why


def _find_quoted_secrets(recipe: Recipe) -> Iterator[tuple[list[str | int], str]]:
    """Yield the keys of texts that have the form of a secret, whatever they are for: all of them are shown."""
    texts = [*_list_texts([], msgspec.to_builtins(recipe))]
    if not looks_secret("\n".join(text for _, text in texts)):  # where one is, it is in all of them together as well
        return
    for steps, text in texts:
        if looks_secret(text):
            of_index = "uv takes those of an index from your shell"
            yield steps, f"it looks like a secret; {of_index if 'engine' in steps else advise_on_secret('')}"


def _list_texts(steps: list[str | int], value: Any) -> Iterator[tuple[list[str | int], str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield steps, str(key)
            yield from _list_texts([*steps, key], item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _list_texts([*steps, index], item)
    elif isinstance(value, str):
        yield steps, value


def _find_gaps(recipe: Recipe) -> Iterator[tuple[list[str | int], str]]:
    """Yield the keys under which the parts of a recipe do not fit together, and why."""
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
    """Yield the keys under which a method lacks what vLLM asks for, or has what it does not take."""
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
    """Yield where a class of GPU names an unknown profile or variant, or the larger of two figures first."""
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
    """Yield the keys for which an engine cannot be installed, and why."""
    if Version(spec.vllm) < Version(FIRST_WITH_DFLASH):
        reason = f"vLLM {spec.vllm} has no DFlash; {FIRST_WITH_DFLASH} is the first release that has it"
        yield ["engine", "vllm"], reason
    elif not spec.packages and spec.vllm not in releases.load_releases():
        reason = f"vLLM {spec.vllm} is not in the table of releases, so `packages` must list what to install"
        yield ["engine", "vllm"], reason
    elif spec.packages and not (spec.download_mb and spec.disk_mb):
        reason = "`download_mb` and `disk_mb` are missing"
        yield ["engine", "packages"], reason
    for part, lines in (("packages", spec.packages), ("overrides", spec.overrides)):
        for index, line in enumerate(lines):
            if "${" in line:  # uv would put it in, and whoever serves the address would read it
                yield ["engine", part, index], "takes no variables of the environment"
            try:
                Requirement(line)
            except InvalidRequirement:
                yield ["engine", part, index], f"'{line}' is not a requirement such as vllm==0.33.0"
