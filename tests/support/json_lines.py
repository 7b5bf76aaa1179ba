"""Lines of `--json` held against the schemas of their formats."""

import json
from collections.abc import Iterable
from typing import Any

import jsonschema

from tests.support.json_formats import build_schema


def tighten(schema: Any) -> Any:
    """Return a schema that refuses fields that it does not name."""
    if isinstance(schema, list):
        return [tighten(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    tight = {key: tighten(part) for key, part in schema.items()}
    return tight | ({"additionalProperties": False} if "properties" in tight and tight.get("type") == "object" else {})


def check_lines(name: str, lines: Iterable[str]) -> None:
    """Check lines of `--json` against the schema of this format, in which every field has to be."""
    validator = jsonschema.Draft202012Validator(tighten(build_schema(name)))
    for line in lines:
        validator.validate(json.loads(line))
