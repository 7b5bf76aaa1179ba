"""Write the user's own recipes: new ones, derived ones, and those of others that were checked."""

from __future__ import annotations

import re
from pathlib import Path

from dflash_tui.common import paths, private_files
from dflash_tui.common.errors import UsageError
from dflash_tui.planning.recipes import recipe_loader


def check_name(name: str) -> str:
    """Return `name`.

    Raises:
        UsageError: no recipe of the user's can be called so.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,63}", name):
        raise UsageError(f"'{name}' is not a valid recipe name", hint="use lower case letters, digits, . _ and -")
    return name


def own_recipe_file(name: str) -> Path:
    """Return the file of the user's own recipe of this name, whether it is there or not."""
    return paths.user_recipes_folder() / f"{name}.yaml"


def refuse_shipped_name(name: str, hint: str) -> None:
    """Raise UsageError where a recipe would take the place of a shipped one, which commands name; with what to do."""
    if name in recipe_loader.list_shipped_files():
        raise UsageError(f"a recipe called '{name}' is shipped", hint=hint)


def refuse_name(name: str, *, replace: bool = False) -> None:
    """Return when a recipe of the user's may be written under this name.

    Raises:
        UsageError: the name is none, or one is there and not to be replaced.
    """
    path = own_recipe_file(check_name(name))
    if path.exists() and not replace:
        raise UsageError(f"{path} already exists", hint=f"edit it, or print it with dflash-tui recipes show {name}")


def add_own_recipe(name: str, text: str, schema: str = "", *, replace: bool = False) -> Path:
    """Write a recipe into the user's folder, and return its path.

    Args:
        name: Its name.
        text: Its text.
        schema: The JSON Schema of recipes, to be put beside it and named in its first line, for editors.
        replace: Whether one that is there is written over.

    Raises:
        UsageError: the name is none, or one is there.
    """
    refuse_name(name, replace=replace)
    path = own_recipe_file(name)
    private_files.ensure_private_folder(path.parent)
    if schema:
        schema_file = path.parent / "recipe.schema.json"
        private_files.replace_private_file(schema_file, schema.encode())
        text = re.sub(
            r"\A(# yaml-language-server:[^\n]*\n)?", f"# yaml-language-server: $schema={schema_file.name}\n", text
        )
    private_files.replace_private_file(path, text.encode())
    return path
