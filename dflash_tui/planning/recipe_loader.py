"""Find recipe files, load them and check what the schema cannot."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from dflash_tui.common import paths, yaml_loader
from dflash_tui.common.broken_files import load_each
from dflash_tui.common.errors import RecipeError, UsageError
from dflash_tui.common.redaction import looks_secret
from dflash_tui.common.settings_secrets import advise_on_secret, find_secret
from dflash_tui.planning import patch_file as patch_files
from dflash_tui.planning import releases
from dflash_tui.planning.recipe import PLAIN_TEXT, EngineSpec, HardwareLayer, Layer, Recipe, iterate_layers

FIRST_WITH_DFLASH = Version("0.20.0")
RESERVED_FLAGS = frozenset(
    {
        "host",
        "port",
        "served-model-name",
        "speculative-config",
        "enforce-eager",
        "model",
        "revision",
        "api-key",
        "disable-access-log-for-endpoints",
        "spec-method",
        "spec-model",
        "spec-tokens",
        "config",  # a file of flags, which would hide these
        "uds",  # in place of host and port
    }
)
# Flags that are secrets, with the shortest beginning that vLLM's parser takes for each.
_SECRET_FLAGS = {"hf-token": "hf-t", "api-key": "api-k", "ssl-keyfile-password": "ssl-keyfile-"}
RESERVED_SPECULATION = frozenset({"method", "model", "revision", "num_speculative_tokens"})


def load_recipe(path: Path) -> Recipe:
    """Return the recipe in the file; its name is the file's.

    Raises:
        RecipeError: with `file:line: key: what was expected`.
    """
    recipe = yaml_loader.load_yaml(path, Recipe)
    if not re.fullmatch(r"\w[\w.-]{0,63}", path.stem, re.ASCII):
        raise RecipeError(f"{path}: not a valid recipe name: letters, digits, . _ and -, at most 64")
    if recipe.name not in {"", path.stem}:
        raise yaml_loader.build_file_error(path, ["name"], f"expected '{path.stem}', the name of the file")
    if recipe.build and not (paths.bundled_folder("recipes") / recipe.build.script).is_file():
        raise yaml_loader.build_file_error(
            path, ["build", "script"], f"dflash-tui ships no script called '{recipe.build.script}'"
        )
    for steps, layer in iterate_layers(recipe):
        for place, reason in _find_mistakes(layer):
            raise yaml_loader.build_file_error(path, [*steps, *place], reason)
    for place, reason in (*_find_quoted_secrets(recipe), *_find_gaps(recipe)):
        raise yaml_loader.build_file_error(path, place, reason)
    return msgspec.structs.replace(recipe, name=path.stem)


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
        for name, value in values.items():
            if place := find_secret(f"{part}.{name}", value):
                yield [part, name], f"{place} looks like a secret; {advise_on_secret(place)}"


def _find_quoted_secrets(recipe: Recipe) -> Iterator[tuple[list[str | int], str]]:
    """Yield the keys of texts that have the form of a secret, whatever they are for: all of them are shown."""
    left: list[tuple[list[str | int], Any]] = [([], msgspec.to_builtins(recipe))]
    while left:
        steps, value = left.pop()
        if isinstance(value, dict):
            left += [([*steps, key], item) for key, item in value.items()]
        elif isinstance(value, list | tuple):
            left += [([*steps, index], item) for index, item in enumerate(value)]
        elif isinstance(value, str) and looks_secret(value):
            of_index = "uv takes those of an index from your shell"
            yield steps, f"it looks like a secret; {of_index if 'engine' in steps else advise_on_secret('')}"


def _find_gaps(recipe: Recipe) -> Iterator[tuple[list[str | int], str]]:
    """Yield the keys under which the parts of a recipe do not fit together, and why."""
    if recipe.engine is None and not recipe.profiles:
        yield ["title"], "expected an `engine`, here or in every profile"
    for name, profile in recipe.profiles.items():
        if not (profile.engine or recipe.engine):
            yield ["profiles", name], "expected an `engine`, here or in the recipe"
    for kind, changes in recipe.hardware.items():
        for place, reason in _find_wrong_figures(changes, recipe.profiles or {"stock"}):
            yield ["hardware", kind.value, *place], reason
    for steps, layer in iterate_layers(recipe):
        for index, name in enumerate(layer.patches):
            if name not in patch_files.list_patch_names():
                yield [*steps, "patches", index], f"no patch called '{name}'"


def _find_wrong_figures(layer: HardwareLayer, profiles: Container[str]) -> Iterator[tuple[list[str | int], str]]:
    """Yield where a class of GPU names an unknown profile, or the larger of two figures first."""
    for name in layer.standing:
        if name not in profiles:
            yield ["standing", name], f"no profile called '{name}'"
    for index, band in enumerate(layer.expected):
        if band.profile not in profiles:
            yield ["expected", index, "profile"], f"no profile called '{band.profile}'"
        for name in ("tok_s", "baseline_tok_s", "acceptance", "acceptance_length", "ready_s"):
            figures: tuple[float, ...] = getattr(band, name) or ()
            if list(figures) != sorted(figures):
                yield ["expected", index, name], "expected the smaller figure first"


def explain_reserved_flag(flag: str) -> str:
    """Return why a recipe may not set `flag`; empty when it may.

    As vLLM reads it: `_` for `-`, any beginning of a name for the name, and what follows a dot is a key inside it.
    """
    plain = flag.replace("_", "-").lower().partition(".")[0].removeprefix("no-")
    for secret, shortest in _SECRET_FLAGS.items():
        if secret.startswith(plain) and plain.startswith(shortest):
            return f"holds a secret: {advise_on_secret(secret)}"
    taken = any(name.startswith(plain) for name in RESERVED_FLAGS)
    return "is set by dflash-tui itself and cannot be set here" if taken else ""


def explain_unusable_value(flag: str, value: Any) -> str:
    """Return why `value` cannot be passed to vLLM or used for planning; empty when it can."""
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()  # lone surrogates are no text either
    except (TypeError, ValueError, RecursionError) as error:
        return f"cannot be written as JSON: {error}"
    if value is None:
        return ""
    if isinstance(value, str) and not re.search(PLAIN_TEXT, value):
        return "expected text in one line, without control characters"
    if flag == "tensor-parallel-size" and not (type(value) is int and value > 0):
        return f"expected a number of GPUs, not {value!r}"
    if flag == "gpu-memory-utilization" and not (type(value) in {int, float} and 0 < value <= 1):
        return f"expected a share above 0 and up to 1, not {value!r}"
    return ""


def _find_engine_mistakes(spec: EngineSpec) -> Iterator[tuple[list[str | int], str]]:
    """Yield the keys for which an engine cannot be installed, and why."""
    if Version(spec.vllm) < FIRST_WITH_DFLASH:
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


def engine_for_release(vllm: str) -> EngineSpec:
    """Return the engine of a release from the table of releases.

    Raises:
        UsageError: the table does not have that version.
    """
    table = releases.load_releases()
    if re.fullmatch(r"\d+(\.\d+){1,3}", vllm) and Version(vllm) < FIRST_WITH_DFLASH:
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


def list_recipe_files() -> dict[str, Path]:
    """Return the recipe files by name, sorted; the user's own win over the shipped ones."""
    files: dict[str, Path] = {}
    for folder in (paths.bundled_folder("recipes"), paths.user_recipes_folder()):
        files |= {path.stem: path for path in sorted(folder.glob("[!_.]*.yaml"))}
    return dict(sorted(files.items()))


def load_all_recipes() -> tuple[dict[str, Recipe], dict[str, str]]:
    """Return all valid recipes by name, and for each other one why its file is not valid: name -> reason."""
    return load_each(list_recipe_files(), load_recipe)


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
        return Path(name)
    known = list_recipe_files()
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(known)}"
        raise UsageError(f"no recipe called '{name}'", hint=hint)
    return known[name]
