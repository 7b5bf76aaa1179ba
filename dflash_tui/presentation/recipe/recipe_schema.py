"""The JSON Schema of recipe files, with the texts under the fields of a recipe's structs as descriptions."""

from __future__ import annotations

import ast
import inspect
import json
from itertools import pairwise

import msgspec

from dflash_tui.planning.recipes import recipe
from dflash_tui.planning.recipes import recipe as recipe_module
from dflash_tui.planning.recipes.recipe import Recipe


def schema_text() -> str:
    """Return the JSON Schema of recipe files, as it is shipped."""
    schema = msgspec.json.schema(Recipe)
    fields = _field_texts()
    for name, part in schema["$defs"].items():
        part["description"] = " ".join(part["description"].split())
        for key, value in part.get("properties", {}).items():
            if text := fields.get((name, key)):
                value["description"] = text
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "dflash-tui recipe"}
    return json.dumps(head | schema, indent=1, sort_keys=False) + "\n"


def _field_texts() -> dict[tuple[str, str], str]:
    """Return the texts under the fields of a recipe's structs, by class and field, inherited ones included."""
    texts: dict[tuple[str, str], str] = {}
    for node in ast.parse(inspect.getsource(recipe) + inspect.getsource(recipe_module)).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for base in (base.id for base in node.bases if isinstance(base, ast.Name)):
            texts |= {(node.name, field): text for (owner, field), text in texts.items() if owner == base}
        for field, text in pairwise(node.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                texts[node.name, ast.unparse(field.target)] = " ".join(str(text.value.value).split())
    return texts
