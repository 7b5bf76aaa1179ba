"""What a foreign recipe or patch makes run, and the user's consent to it, stored by its content.

Foreign means not shipped. Settings by hand need no consent, except patches: their names say nothing of their text.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable, Iterator, Sequence

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

    contents: tuple[Recipe | Patch, ...] = ()
    """Patches and the recipe; empty if there is nothing to ask."""
    ingredients: tuple[Ingredient, ...] = ()
    """What they run."""

    def build_error(self) -> UsageError:
        """Return the error that the user has not consented."""
        named = [f"the {'recipe' if isinstance(each, Recipe) else 'patch'} {each.name}" for each in self.contents]
        texts = [
            f"dflash-tui recipes show {each.name}"
            if isinstance(each, Recipe)
            else str(paths.user_patches_folder() / f"{each.name}.yaml")
            for each in self.contents
        ]
        return UsageError(
            f"not shipped with dflash-tui and not trusted yet: {' and '.join(named)}",
            evidence="\n  ".join(map(str, self.ingredients)),
            hint=f"read it ({', '.join(texts)}), then trust it on a terminal or with --trust, until it changes",
        )


def list_ingredients(recipe: Recipe, patches: Iterable[Patch] = ()) -> tuple[Ingredient, ...]:
    """Return all that the parts of a recipe make run, and the changes of those `patches` that it names."""
    named = {name for _, layer in iterate_layers(recipe) for name in layer.patches}
    own = [_describe_patch(patch) for patch in patches if patch.name in named and not _is_shipped(patch)]
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


def require_trust(contents: Iterable[Recipe | Patch]) -> None:
    """Raise UsageError unless these recipes and patches are trusted; every launch calls this."""
    if (untrusted := find_untrusted(contents)).contents:
        raise untrusted.build_error()


def find_untrusted(contents: Iterable[Recipe | Patch]) -> Untrusted:
    """Return which of these recipes and patches the user must consent to."""
    asked, ingredients = tuple(each for each in contents if not is_trusted(each)), list[Ingredient]()
    for each in asked:
        ingredients += _list_recipe_ingredients(each) if isinstance(each, Recipe) else [_describe_patch(each)]
    return Untrusted(asked, tuple(ingredients))


def trust_contents(*contents: Recipe | Patch) -> None:
    """Store that these are trusted: shown to the user, or written by this program; a file changed since is not."""
    file = paths.trusted_recipes_file()
    lines = [*_read_lines(), *(f"{_hash(each)} {each.name}" for each in contents)]
    private_files.ensure_private_folder(file.parent)
    private_files.replace_private_file(file, "".join(f"{line}\n" for line in dict.fromkeys(lines)).encode())


def list_launched(recipe: Recipe, plans: Sequence[Plan]) -> Iterator[Recipe | Patch]:
    """Yield what plans of a recipe run: patches that are applied or set variables or keys instead, and the recipe."""
    applied = {name for plan in plans for name in plan.patches}
    for name in dict.fromkeys(name for plan in plans for name in (*plan.patches, *plan.skipped_patches)):
        patch = patch_file.load_patch(name)
        if name in applied or patch.without_patch or patch.by_key:
            yield patch
    yield recipe


def is_trusted(content: Recipe | Patch) -> bool:
    """Whether a recipe or patch is shipped, or the user has consented to its content."""
    return _is_shipped(content) or _hash(content) in {line.partition(" ")[0] for line in _read_lines()}


def _is_shipped(content: Recipe | Patch) -> bool:
    is_recipe = isinstance(content, Recipe)
    file = paths.bundled_folder("recipes" if is_recipe else "patches") / f"{content.name}.yaml"
    if not file.is_file():
        return False
    try:
        shipped = recipe_loader.load_recipe(file) if is_recipe else patch_file.load_patch_file(file)
        return _hash(shipped) == _hash(content)
    except RecipeError:
        return False


def _hash(content: Recipe | Patch) -> str:
    """Return a digest of the content; comments and the order of keys do not matter."""
    return hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()


def _read_lines() -> list[str]:
    try:
        return private_files.read_file(paths.trusted_recipes_file(), _LARGEST).decode(errors="replace").splitlines()
    except OSError:  # the file does not exist yet
        return []
