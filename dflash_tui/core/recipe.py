"""Recipe files -> frozen, validated recipes."""

from __future__ import annotations

import difflib
import json
import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dflash_tui.core import paths, yamlfile
from dflash_tui.errors import UsageError

Name = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
FileName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$")]
FlagName = Annotated[str, Meta(pattern=r"^[A-Za-z][A-Za-z0-9._-]*$")]
EnvName = Annotated[str, Meta(pattern=r"^[A-Z_][A-Z0-9_]*$")]
Text = Annotated[str, Meta(min_length=1, pattern=r"^[^\x00-\x1f\x7f]*$")]
MaybeText = Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f]*$")]
FlagValue = bool | int | float | Text | list[Text] | dict[str, Any]


class Mode(StrEnum):
    """How the server runs the model: eager, or compiled with CUDA graphs."""

    EAGER = "eager"
    COMPILE = "compile"


class Status(StrEnum):
    """How far a recipe can be trusted."""

    VERIFIED = "verified"
    REPORTED = "reported"
    EXPERIMENTAL = "experimental"
    BROKEN = "broken"


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a recipe; a key that is not a field is an error."""


class EngineSpec(_Strict, frozen=True):
    """The vLLM environment a recipe needs: what uv installs, and how large that is (megabytes, measured).

    `stands_in` names a distribution that carries vLLM under another name, so that vLLM finds its own version.
    """

    vllm: Annotated[str, Meta(pattern=r"^\d+\.\d+\.\d+(?:\.?(?:post|rc|dev)\d+)*$")]
    packages: Annotated[tuple[Text, ...], Meta(min_length=1)]
    download_mb: Annotated[int, Meta(gt=0)]
    disk_mb: Annotated[int, Meta(gt=0)]
    overrides: tuple[Text, ...] = ()
    torch_backend: MaybeText = ""
    exclude_newer: Annotated[str, Meta(pattern=r"^(?:\d{4}-\d\d-\d\d)?$")] = ""
    stands_in: MaybeText = ""

    @property
    def distribution(self) -> str:
        """The distribution that carries vLLM."""
        return self.stands_in or "vllm"


class Target(_Strict, frozen=True):
    """The model that is served: a hub repository, a folder, or what the recipe's builder makes."""

    model: Text
    served_name: Text


class Drafter(_Strict, frozen=True):
    """The DFlash drafter and how many tokens it proposes per step; `config` adds to `--speculative-config`."""

    model: Text
    num_speculative_tokens: Annotated[int, Meta(ge=1, le=64)]
    config: dict[str, Any] = {}


class Build(_Strict, frozen=True):
    """A shipped script that makes the models locally, run by the engine's own Python."""

    script: FileName
    size_mb: Annotated[int, Meta(gt=0)]


class Recipe(_Strict, frozen=True):
    """One target/drafter pair with everything that is needed to serve it.

    `synthetic` says why figures of this recipe say nothing about a real model; empty for a real one.
    """

    title: Text
    status: Status
    engine: EngineSpec
    target: Target
    drafter: Drafter
    name: str = ""
    why: str = ""
    synthetic: MaybeText = ""
    build: Build | None = None
    mode: Mode = Mode.EAGER
    port: Annotated[int, Meta(ge=1, le=65535)] = 8000
    flags: dict[FlagName, FlagValue] = {}
    env: dict[EnvName, Text] = {}
    patches: tuple[Name, ...] = ()
    bench_scale: Annotated[float, Meta(gt=0, le=4)] = 1.0
    warnings: tuple[Text, ...] = ()


RESERVED_FLAGS = frozenset(
    {
        "host",
        "port",
        "served-model-name",
        "speculative-config",
        "enforce-eager",
        "model",
        "api-key",
        "disable-access-log-for-endpoints",
    }
)
RESERVED_SPECULATION = frozenset({"method", "model", "num_speculative_tokens"})


def load(path: Path) -> Recipe:
    """Return the recipe in the file; its name is the file's.

    Raises:
        RecipeError: with `file:line: key: what was expected`.
    """
    recipe = yamlfile.load(path, Recipe)
    if recipe.name not in {"", path.stem}:
        raise yamlfile.wrong(path, ["name"], f"expected '{path.stem}', as the file is called")
    for name in recipe.flags:
        # As vLLM reads it: `_` for `-`, and what follows a dot is a key inside the flag.
        if name.replace("_", "-").lower().partition(".")[0] in RESERVED_FLAGS:
            raise yamlfile.wrong(path, ["flags", name], "is set by dflash-tui itself and cannot be given here")
    for name in RESERVED_SPECULATION & recipe.drafter.config.keys():
        raise yamlfile.wrong(path, ["drafter", "config", name], "is set by dflash-tui itself and cannot be given here")
    for name in recipe.env:
        if re.search("TOKEN|KEY|SECRET|PASSWORD", name):
            raise yamlfile.wrong(path, ["env", name], "secrets do not belong into a recipe; export it in your shell")
    if recipe.build and not (paths.bundled("recipes") / recipe.build.script).is_file():
        raise yamlfile.wrong(path, ["build", "script"], f"no script called '{recipe.build.script}' is shipped")
    for part, values in (("flags", recipe.flags), ("drafter", recipe.drafter.config)):
        try:
            json.dumps(values, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise yamlfile.wrong(path, [part], f"holds a value that JSON cannot: {error}") from None
    return msgspec.structs.replace(recipe, name=path.stem)


def files() -> dict[str, Path]:
    """Return the recipe files by name, sorted; the user's own win over the shipped ones."""
    found: dict[str, Path] = {}
    for folder in (paths.bundled("recipes"), paths.user_recipes()):
        found |= {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    return dict(sorted(found.items()))


def find(name: str) -> Recipe:
    """Return the recipe called `name`, or the one in the file `name` when that is a path.

    Raises:
        UsageError: there is no such recipe; the message names the nearest one.
        RecipeError: the file is not valid.
    """
    if name.endswith((".yaml", ".yml")) or "/" in name:
        return load(Path(name))
    known = files()
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(known)}"
        raise UsageError(f"no recipe called '{name}'", do=hint)
    return load(known[name])
