"""What a foreign recipe or patch makes run, and the user's consent to it, stored by its content.

Foreign means not shipped. Settings by hand need no consent, except patches: their names say nothing of their text.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from dflash_tui.common import paths, private_files
from dflash_tui.common.errors import RecipeError, UsageError
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.planning import patch_file
from dflash_tui.planning.patch_file import Patch
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import Layer, Recipe, iterate_layers
from dflash_tui.planning.serve_flags import build_flag

_TRUST_IT = "then trust it on a terminal or with --trust; that holds until it changes"
# About 10,000 answers.
_LARGEST = 1 << 20


class Ingredient(msgspec.Struct, frozen=True):
    """A thing that a recipe or patch runs or passes to the server."""

    kind: str
    """`command`, `variable`, `speculation`, `engine`, `build`, `hosts` or `patch`."""
    text: str
    """Its text in one line, after the part of the recipe that it belongs to."""

    def __str__(self) -> str:
        return f"{self.kind:11} {self.text}"


class Untrusted(msgspec.Struct, frozen=True):
    """What the user must consent to. Read once: a file may change while the question is open."""

    ingredients: tuple[Ingredient, ...] = ()
    """The content of the question; empty if there is nothing to ask."""
    names: dict[str, str] = {}
    """Digests of the recipe and the patches, and their names."""


def list_ingredients(recipe: Recipe, patches: Iterable[Patch] = ()) -> tuple[Ingredient, ...]:
    """Return all that the parts of a recipe make run, and the changes of those `patches` that it names."""
    named = {name for _, layer in iterate_layers(recipe) for name in layer.patches}
    own = [_describe_patch(patch) for patch in patches if patch.name in named and not patch_file.is_shipped(patch)]
    return (*own, *_list_recipe_ingredients(recipe))


def _list_recipe_ingredients(recipe: Recipe) -> Iterator[Ingredient]:
    for steps, layer in iterate_layers(recipe):
        part = " ".join(str(step) for step in steps) + ": " if steps else ""
        for kind, text in _list_layer_texts(recipe, layer):
            yield Ingredient(kind, clean_line(f"{part}{text}"))
    if recipe.build:
        yield Ingredient("build", f"runs the shipped script {recipe.build.script}")


def _list_layer_texts(recipe: Recipe, layer: Layer) -> Iterator[tuple[str, str]]:
    is_whole = layer is recipe
    words = [word for name, value in layer.flags.items() if value is not None for word in build_flag(name, value)]
    if is_whole or layer.target or words:
        model = [layer.target.model] if layer.target else []
        port = ["--host", "127.0.0.1", "--port", str(recipe.port)] if is_whole else []
        yield "command", shlex.join([*(["vllm", "serve"] if is_whole else []), *model, *port, *words])
    yield from (("variable", f"{name}={value}") for name, value in layer.env.items() if value is not None)
    speculation = ({"model": layer.drafter.model} if layer.drafter else {}) | layer.speculation
    if speculation:
        yield "speculation", msgspec.json.encode(speculation).decode()
    if engine := layer.engine:
        packages = dict.fromkeys([f"{engine.distribution}=={engine.vllm}", *engine.packages, *engine.overrides])
        yield "engine", shlex.join(packages) + ("; builds packages from source" if engine.source_builds else "")
    if layer.hosts and layer.hosts > 1:
        yield "hosts", f"{layer.hosts}; the ports between them ask for no key"


def _describe_patch(patch: Patch) -> Ingredient:
    sets = [
        f"--speculative-config {key}={value}"
        for key, value in (patch.by_key.speculation if patch.by_key else {}).items()
    ]
    sets += [f"{name}={value}" for name, value in (patch.without_patch.env if patch.without_patch else {}).items()]
    instead = f"; if it is not applied, sets {', '.join(sets)}" if sets else ""
    changes = ", ".join(f"vllm/{path}" for path in patch.paths)
    return Ingredient("patch", clean_line(f"{patch.name} changes {changes}{instead}"))


def require_trust(recipe: Recipe, plans: Sequence[Plan]) -> None:
    """Return if the plans of a recipe may be launched; every launch calls this.

    Raises:
        UsageError: the recipe or a patch of it is not shipped, and the user has not consented to it.
    """
    if ingredients := find_untrusted(recipe, plans).ingredients:
        raise build_untrusted_error(recipe, ingredients)


def find_untrusted(recipe: Recipe, plans: Sequence[Plan]) -> Untrusted:
    """Return what the user must consent to before these plans are launched: the recipe and patches."""
    untrusted = find_untrusted_patches(_load_patches(plans))
    ingredients, names = untrusted.ingredients, dict(untrusted.names)
    if not is_trusted(recipe):
        names[_hash(recipe)] = recipe.name
        ingredients += tuple(_list_recipe_ingredients(recipe))
    return Untrusted(ingredients, names)


def build_untrusted_error(recipe: Recipe, ingredients: Collection[Ingredient]) -> UsageError:
    """Return the error that a recipe, or a patch that it needs, is not trusted."""
    return UsageError(
        f"the recipe {recipe.name}, or a patch of it, is not shipped and not trusted yet",
        evidence="\n  ".join(map(str, ingredients)),
        hint=f"read it (dflash-tui recipes show {recipe.name}), {_TRUST_IT}",
    )


def trust_recipe(recipe: Recipe) -> None:
    """Store that a recipe is trusted, such as one that this program wrote itself."""
    _add_digests({_hash(recipe): recipe.name})


def trust_shown(untrusted: Untrusted) -> None:
    """Store the user's consent to what was shown; a file changed since then is not covered."""
    _add_digests(untrusted.names)


def find_untrusted_patches(patches: Iterable[Patch]) -> Untrusted:
    """Return what the user must consent to before an engine is made with these patches."""
    own = [patch for patch in patches if not patch_file.is_shipped(patch)]
    trusted = _read_digests() if own else ()
    untrusted = [patch for patch in own if _hash(patch) not in trusted]
    return Untrusted(tuple(map(_describe_patch, untrusted)), {_hash(patch): patch.name for patch in untrusted})


def require_patch_trust(patches: Iterable[Patch]) -> None:
    """Raise UsageError if one of `patches` is neither shipped nor trusted."""
    untrusted = find_untrusted_patches(patches)
    if untrusted.ingredients:
        raise build_untrusted_patch_error(untrusted)


def build_untrusted_patch_error(untrusted: Untrusted) -> UsageError:
    """Return the error that patches are not trusted."""
    files = ", ".join(str(paths.user_patches_folder() / f"{name}.yaml") for name in untrusted.names.values())
    return UsageError(
        "a patch that is not shipped with dflash-tui changes code of vLLM and is not trusted yet",
        evidence="\n  ".join(map(str, untrusted.ingredients)),
        hint=f"read it ({files}), {_TRUST_IT}",
    )


def _load_patches(plans: Sequence[Plan]) -> Iterator[Patch]:
    """Yield the patches that need trust: applied ones, and others that set variables or keys instead."""
    applied = {name for plan in plans for name in plan.patches}
    for name in dict.fromkeys(name for plan in plans for name in (*plan.patches, *plan.skipped_patches)):
        patch = patch_file.load_patch(name)
        if name in applied or patch.without_patch or patch.by_key:
            yield patch


def _add_digests(names: dict[str, str]) -> None:
    file = paths.trusted_recipes_file()
    lines = [*_read_lines(), *(f"{digest} {name}" for digest, name in names.items())]
    private_files.ensure_private_folder(file.parent)
    private_files.replace_private_file(file, "".join(f"{line}\n" for line in dict.fromkeys(lines)).encode())


def is_trusted(recipe: Recipe) -> bool:
    """Whether a recipe equals the shipped one of its name, or the user has consented to its content."""
    digest, shipped = _hash(recipe), paths.bundled_folder("recipes") / f"{recipe.name}.yaml"
    try:
        if shipped.is_file() and _hash(recipe_loader.load_recipe(shipped)) == digest:
            return True
    except RecipeError:
        pass
    return digest in _read_digests()


def _hash(content: Recipe | Patch) -> str:
    """Return a digest of the content; comments and the order of keys do not matter."""
    return hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()


def _read_digests() -> set[str]:
    return {line.partition(" ")[0] for line in _read_lines()}


def _read_lines() -> list[str]:
    try:
        return private_files.read_file(paths.trusted_recipes_file(), _LARGEST).decode(errors="replace").splitlines()
    except OSError:  # the file does not exist yet
        return []
