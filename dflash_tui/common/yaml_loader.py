"""YAML -> frozen msgspec values, with errors that name file, line, key and what was expected."""

from __future__ import annotations

import copy
import difflib
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from dflash_tui.common.errors import RecipeError

SIZE_LIMIT = 256 * 1024
DEPTH_LIMIT = 16
_PATH = re.compile(r" - at (?P<of_key>`key` in )?`\$(?P<path>[^`]*)`$")
_UNKNOWN = re.compile(r"unknown field `(?P<name>[^`]*)`")
T = TypeVar("T")


def load_yaml(path: Path, kind: type[T]) -> T:
    """Return the value of type `kind` (a msgspec.Struct) that the YAML file holds.

    Raises:
        RecipeError: the file cannot be read, is not YAML, or does not fit `kind`; the message starts with
            `file:line: key`.
    """
    try:
        if path.exists() and not path.is_file():
            raise RecipeError(f"{path}: not a file")
        if path.stat().st_size > SIZE_LIMIT:
            raise RecipeError(f"{path}: larger than {SIZE_LIMIT // 1024} KiB")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise RecipeError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: not UTF-8 text (byte {error.start})") from None
    root = _compose(path, text)
    if not isinstance(root, yaml.MappingNode):
        line = _line(root) if root else 1
        raise RecipeError(f"{path}:{line}: expected keys and values")
    _refuse_duplicates(path, root)
    data: Any = None
    try:
        data = parse_yaml_value(text)
        for steps, what in _bad_numbers(data):
            raise RecipeError(f"{path}:{_line_of(root, steps)}: {_key(steps)}: {what}")
        return msgspec.convert(data, kind)
    except yaml.YAMLError as error:  # e.g. an impossible date
        raise RecipeError(f"{path}: {_one_line(str(error))}") from None
    except (ValueError, TypeError) as error:
        if not isinstance(error, msgspec.ValidationError):
            raise RecipeError(f"{path}: {_one_line(str(error))}") from None
        raise RecipeError(_explain(path, root, data, str(error), kind)) from None


def parse_yaml_value(text: str) -> Any:
    """Return what YAML text says, with dates as the text that they are written as.

    Raises:
        yaml.YAMLError: it is not YAML.
    """
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader


def build_file_error(path: Path, steps: list[str | int], what: str) -> RecipeError:
    """Return the error `file:line: key: what` for the value at `steps` of a file that was loaded before."""
    root = _compose(path, path.read_text(encoding="utf-8"))
    line = _line_of(root, steps) if root else 1
    return RecipeError(f"{path}:{line}: {_key(steps)}: {what}")


# libyaml where PyYAML was built with it; its own recursion is bounded, since the depth is looked at first.
_FAST: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(yaml.SafeLoader):
    """SafeLoader that leaves dates as the text they are written as."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _compose(path: Path, text: str, loader: type[Any] = _FAST) -> yaml.Node | None:
    """Return the node tree; aliases are refused, since a few lines of them can stand for gigabytes."""
    depth = 0
    try:
        for event in yaml.parse(text, Loader=loader):
            if isinstance(event, yaml.AliasEvent):
                raise RecipeError(f"{path}:{_line(event)}: aliases (*name) are not supported")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEPTH_LIMIT:
                raise RecipeError(f"{path}:{_line(event)}: nested too deeply")
        return yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        if loader is not yaml.SafeLoader:  # which knows better where a mistake begins
            return _compose(path, text, yaml.SafeLoader)
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise RecipeError(f"{path}{line}: not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise RecipeError(f"{path}: not YAML: {_one_line(str(error))}") from None


def _line(part: yaml.Node | yaml.Event) -> int:
    return part.start_mark.line + 1 if part.start_mark else 1


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _refuse_duplicates(path: Path, node: yaml.Node) -> None:
    """YAML lets the last of two equal keys win silently; a recipe with both is a mistake."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_duplicates(path, item)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise RecipeError(f"{path}:{_line(key)}: {key.value}: given twice")
                seen.add(key.value)
            _refuse_duplicates(path, value)


def _bad_numbers(data: Any, steps: tuple[str | int, ...] = ()) -> Iterator[tuple[list[str | int], str]]:
    """Yield where a number is that JSON does not have, and why."""
    if isinstance(data, float) and not math.isfinite(data):
        yield list(steps), "expected a finite number"
    elif isinstance(data, int) and not -(1 << 63) <= data < 1 << 63:
        yield list(steps), "expected a number of at most 64 bits"
    elif isinstance(data, dict):
        for key, part in data.items():
            yield from _bad_numbers(part, (*steps, str(key)))
    elif isinstance(data, list):
        for index, part in enumerate(data):
            yield from _bad_numbers(part, (*steps, index))


def _explain(path: Path, root: yaml.Node, data: Any, message: str, kind: type[object]) -> str:
    """Return `file:line: key: what was expected` for a message of msgspec."""
    match = _PATH.search(message)
    steps = _steps(match["path"] + ("[...]" if match["of_key"] else "")) if match else []
    steps = _culprits(data, steps, message, kind)
    what = message[: match.start()] if match else message
    unknown = _UNKNOWN.search(what)
    if unknown:
        steps.append(unknown["name"])
        near = difflib.get_close_matches(unknown["name"], sorted(_field_names(kind)), 1)
        what = "unknown key" + (f", did you mean '{near[0]}'?" if near else "")
    line = _line_of(root, steps)
    key = _key(steps)
    return f"{path}:{line}: {key + ': ' if key else ''}{what[0].lower() + what[1:]}"


def _key(steps: list[str | int]) -> str:
    return "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps).lstrip(".")


def _steps(path: str) -> list[str | int]:
    """Return the keys and indices of a path of msgspec; `[...]` stands for a key that it does not name."""
    parts = re.findall(r"\[\.\.\.\]|\[\d+\]|[^.\[\]]+", path)
    return [int(part[1:-1]) if re.fullmatch(r"\[\d+\]", part) else part for part in parts]


def _culprits(data: Any, steps: list[str | int], message: str, kind: type[object]) -> list[str | int]:
    """Return `steps` with the keys that msgspec complains about for each `[...]`, as far as they can be told.

    A mapping cut down to the culprit alone gives the same message.
    """
    trial = copy.deepcopy(data)
    found: list[str | int] = []
    place = trial
    for step in steps:
        if step != "[...]":
            found.append(step)
            place = place[step]
            continue
        items = dict(place)
        for key, value in items.items():
            place.clear()
            place[key] = value
            try:
                msgspec.convert(trial, kind)
            except (ValueError, TypeError) as error:  # a key may be no text, such as a lone surrogate
                if str(error) == message:
                    found.append(str(key))
                    place = value
                    break
        else:
            return found
    return found


def _line_of(node: yaml.Node, steps: list[str | int]) -> int:
    """Return the line (from 1) of the deepest node on the way of `steps`."""
    line = _line(node)
    for step in steps:
        if isinstance(node, yaml.MappingNode):
            entry = next(((k, v) for k, v in node.value if k.value == step), None)
            if entry is None:
                break
            line, node = _line(entry[0]), entry[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            line = _line(node)
        else:
            break
    return line


def _field_names(kind: type[object]) -> set[str]:
    """Return the key names of a struct and of the structs in it."""
    names: set[str] = set()
    pending: list[msgspec.inspect.Type] = [msgspec.inspect.type_info(kind)]
    while pending:
        info = pending.pop()
        if isinstance(info, msgspec.inspect.StructType):
            names |= {field.encode_name for field in info.fields}
            pending += [field.type for field in info.fields]
        elif isinstance(info, msgspec.inspect.UnionType):
            pending += list(info.types)
        elif isinstance(info, msgspec.inspect.VarTupleType | msgspec.inspect.ListType):
            pending.append(info.item_type)
    return names
