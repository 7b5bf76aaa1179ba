"""The values that flags of `vllm serve` take, read from the sources of a published release without running them.

Only its parsers are run, among stand-ins, for the tokens that they insist on (`parser_tokens`).
`python -m tests.support.vllm_flag_values` writes those of all releases of the table into `vllm_flag_values.json`.
"""

import ast
import re
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dflash_tui.planning import releases
from dflash_tui.planning.advice import release_values
from dflash_tui.planning.advice.release_values import FlagValues, Kind
from tests.support import parser_tokens, wheels
from tests.support.source_trees import parse_source

_ARGUMENTS = "vllm/engine/arg_utils.py"
_SOURCES = re.compile(r"vllm/(engine/arg_utils|config/.*|entrypoints/.*cli_args)\.py")
_REGISTRIES = {"tool-call-parser": "tool_parsers", "reasoning-parser": "reasoning"}
_BOUNDS = {"ge": "least", "gt": "above", "le": "most", "lt": "below"}
# vLLM checks these against the list although their type takes any text: what a plug-in of a platform adds is not here.
_CHECKED_LATER = frozenset({"cache_dtype"})


class _Field(NamedTuple):
    annotation: ast.expr
    value: ast.expr | None


class _Sources:
    """The classes of settings of a release, and the names that stand for a type."""

    def __init__(self, trees: dict[str, ast.Module]) -> None:
        self.arguments = trees[_ARGUMENTS]
        self.classes: dict[str, dict[str, _Field]] = {}
        self.names: dict[str, ast.expr] = {}
        self.front_ends: list[str] = []
        for path, tree in trees.items():
            for node in tree.body:
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    self.names.setdefault(node.targets[0].id, node.value)
                elif isinstance(node, ast.ClassDef):
                    lines = [line for line in node.body if isinstance(line, ast.AnnAssign)]
                    fields = {line.target.id: _Field(line.annotation, line.value)
                              for line in lines if isinstance(line.target, ast.Name)}  # fmt: skip
                    self.classes.setdefault(node.name, {}).update(fields)
                    if "cli_args" in path and node.name.endswith("Args"):
                        self.front_ends.append(node.name)


def read_values(version: str) -> dict[str, FlagValues]:
    """Return by flag what it takes; a flag of which the sources do not tell is left out."""
    with wheels.opened("vllm", version) as wheel:
        names = wheel.namelist()
        trees = {name: parse_source(wheel.read(name)) for name in names if _SOURCES.fullmatch(name)}
        parsers = dict.fromkeys(_REGISTRIES, "")
        for flag, folder in _REGISTRIES.items():
            files = [name for name in names if re.fullmatch(rf"vllm/(.+/)?{folder}/__init__\.py", name)]
            parsers[flag] = "".join(wheel.read(name).decode() for name in files)
        with tempfile.TemporaryDirectory() as folder:
            for name in filter(parser_tokens.SOURCES.fullmatch, names):
                wheel.extract(name, folder)
            needs = parser_tokens.read_tokens(Path(folder))
    sources = _Sources(trees)
    sizes = set(_list_sizes(sources.arguments))
    values = {}
    for flag, field, name in (*_list_engine_flags(sources), *_list_front_end_flags(sources)):
        if found := _describe_field(field, name, sources, sizes):
            values[flag] = found
    for flag, text in parsers.items():
        registered = set(re.findall(r'"([\w.-]+)":\s*\(', text))
        assert len(registered) > 10
        values[flag] = FlagValues(Kind.CHOICE, choices=tuple(sorted(registered)), needs=needs[flag])
    return dict(sorted(values.items()))


def _list_engine_flags(sources: _Sources) -> Iterator[tuple[str, _Field, str]]:
    """Yield flag, field and the field's name of what `arg_utils` adds by a class of settings."""
    tables, changed = dict[str, str](), set[str]()
    for node in ast.walk(sources.arguments):
        if not isinstance(node, ast.Assign):
            continue
        target, value = node.targets[0], node.value
        if (
            isinstance(target, ast.Name)
            and isinstance(value, ast.Call)
            and getattr(value.func, "id", "") == "get_kwargs"
        ):
            tables[target.id] = getattr(value.args[0], "id", "")
        inner = target.value if isinstance(target, ast.Subscript) else None
        if isinstance(inner, ast.Subscript) and ast.unparse(target).endswith(("['type']", "['choices']")):
            changed.add(ast.unparse(inner))
    for call in ast.walk(sources.arguments):
        if not (isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "add_argument"):
            continue
        flags = [
            word.value for word in call.args if isinstance(word, ast.Constant) and str(word.value).startswith("--")
        ]
        given = [word.value for word in call.keywords if word.arg is None]
        own = {key.value for part in given for key in getattr(part, "keys", []) if isinstance(key, ast.Constant)}
        own |= {word.arg for word in call.keywords if word.arg}
        used = [node for part in given for node in ast.walk(part) if isinstance(node, ast.Subscript)]
        used = [node for node in used if isinstance(node.slice, ast.Constant)]
        if not used or own & {"type", "choices", "nargs", "action"} or ast.unparse(used[0]) in changed:
            continue
        name = ast.literal_eval(used[0].slice)
        field = sources.classes.get(tables.get(ast.unparse(used[0].value), ""), {}).get(name)
        yield from ((str(flag)[2:], field, name) for flag in flags if field)


def _list_front_end_flags(sources: _Sources) -> Iterator[tuple[str, _Field, str]]:
    for each in sources.front_ends:
        yield from ((name.replace("_", "-"), field, name) for name, field in sources.classes[each].items())


def _list_sizes(tree: ast.Module) -> Iterator[str]:
    """Yield the fields that take numbers as people write them, such as 16k."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "contains_type(type_hints, int)":
            words = [part for line in node.body for part in ast.walk(line) if isinstance(part, ast.Constant)]
            yield from (word.value for word in words if isinstance(word.value, str) and word.value.isidentifier())


def _describe_field(field: _Field, name: str, sources: _Sources, sizes: set[str]) -> FlagValues | None:
    """Return what vLLM's parser makes of a field, in the order in which it asks for types; None for any text."""
    types, choices = set[str](), list[str]()
    for kind in _flatten(field.annotation, sources):
        types |= {kind} if isinstance(kind, str) else {"Literal"}
        choices += [] if isinstance(kind, str) else kind
    bounds = _read_bounds(field)
    is_text = "str" in types
    if "other" in types or (is_text and name not in _CHECKED_LATER):
        return FlagValues(Kind.SWITCH) if "bool" in types and not is_text else None
    if "bool" in types:
        return FlagValues(Kind.SWITCH)
    if "Literal" in types:
        return FlagValues(
            Kind.CHOICE, choices=tuple(sorted(choices, key=lambda word: word.zfill(4) if word.isdigit() else word))
        )
    if "int" in types:
        kind = Kind.SIZE_OR_AUTO if name == "max_model_len" else Kind.SIZE if name in sizes else Kind.WHOLE
        return FlagValues(kind, **bounds)
    return FlagValues(Kind.NUMBER, **bounds) if "float" in types else None


def _flatten(node: ast.expr, sources: _Sources) -> Iterator[str | list[str]]:
    """Yield the types of a union by name, and the words of each `Literal`."""
    if isinstance(node, ast.BinOp):
        yield from _flatten(node.left, sources)
        yield from _flatten(node.right, sources)
    elif isinstance(node, ast.Subscript) and getattr(node.value, "id", "") in {"Optional", "SkipValidation", "Union"}:
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for part in parts:
            yield from _flatten(part, sources)
    elif isinstance(node, ast.Subscript) and getattr(node.value, "id", "") == "Literal":
        words = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        constants = [word.value for word in words if isinstance(word, ast.Constant)]
        yield [str(word) for word in constants] if len(constants) == len(words) else "other"
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from _flatten(ast.parse(node.value, mode="eval").body, sources)
    elif isinstance(node, ast.Name) and node.id in {"int", "float", "bool", "str"}:
        yield node.id
    elif isinstance(node, ast.Name) and node.id in sources.names:
        yield from _flatten(sources.names[node.id], sources)
    elif ast.unparse(node) != "None":
        yield "torch" if ast.unparse(node) == "torch.dtype" else "other"


def _read_bounds(field: _Field) -> dict[str, Any]:
    if not (isinstance(field.value, ast.Call) and getattr(field.value.func, "id", "") == "Field"):
        return {}
    words = [word for word in field.value.keywords if word.arg in _BOUNDS and isinstance(word.value, ast.Constant)]
    return {_BOUNDS[str(word.arg)]: float(ast.literal_eval(word.value)) for word in words}


def read_all_values() -> dict[str, dict[str, FlagValues]]:
    """Return the values of the flags of each release of the table, from its wheel."""
    table = list(releases.load_releases())
    with ThreadPoolExecutor(8) as pool:
        return dict(zip(table, pool.map(read_values, table), strict=True))


if __name__ == "__main__":
    changes = release_values.list_changes(read_all_values())
    release_values.FILE.write_bytes(msgspec.json.format(msgspec.json.encode(changes), indent=1) + b"\n")
