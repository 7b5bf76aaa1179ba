"""YAML -> frozen msgspec values, with errors that name file, line, key and what was expected."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dflash_tui.common import private_files
from dflash_tui.common.errors import RecipeError, YamlError, format_yaml_key
from dflash_tui.common.formatting import suggest_nearest

SIZE_LIMIT = 256 * 1024
_PATH = re.compile(r" - at (?P<of_key>`key` in )?`\$(?P<path>[^`]*)`$")
_UNKNOWN = re.compile(r"unknown field `(?P<name>[^`]*)`")
T = TypeVar("T")


def load_yaml(path: Path, kind: type[T]) -> T:
    """Return the value of type `kind` (a msgspec.Struct) that the YAML file holds.

    Raises:
        RecipeError: the file cannot be read, is not YAML, or does not fit `kind`; the message starts with
            `file:line: key`.
    """
    return convert_yaml(path, read_yaml_text(path), kind)


def convert_yaml(path: Path, text: str, kind: type[T]) -> T:
    """Return the value of type `kind` that the text of a YAML file says.

    Raises:
        RecipeError: it is not YAML, or does not fit `kind`.
    """
    try:
        data = parse_yaml_value(text)
        if not isinstance(data, dict):
            raise YamlError(_find_line(text, ()), "expected keys and values")
    except YamlError as error:
        raise RecipeError(f"{path}:{error.line}: {error}") from None
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise RecipeError(_explain(path, text, data, str(error), kind)) from None


def parse_yaml_value(text: str) -> Any:
    """Return what YAML text says.

    Raises:
        YamlError: it is not YAML, or more of YAML than is read here.
    """
    from dflash_tui.common import yaml_values

    return yaml_values.read_text(text)


def _find_line(text: str, steps: Sequence[str | int]) -> int:
    from dflash_tui.common import yaml_values

    return yaml_values.find_line(text, steps)


def build_file_error(path: Path, steps: Sequence[str | int], what: str) -> RecipeError:
    """Return the error `file:line: key: what` for the value at `steps` of a file that was loaded before."""
    return RecipeError(f"{path}:{_find_line(read_yaml_text(path), steps)}: {format_yaml_key(steps)}: {what}")


def read_yaml_text(path: Path) -> str:
    """Return the text of a YAML file; the file may be a link, as of whoever keeps their settings elsewhere.

    Raises:
        RecipeError: it cannot be read, is too large, or is no text.
    """
    try:
        return private_files.read_file(path, SIZE_LIMIT).decode()
    except OSError as error:
        raise RecipeError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: not UTF-8 text (byte {error.start})") from None


def _explain(path: Path, text: str, data: Any, message: str, kind: type[object]) -> str:
    """Return `file:line: key: what was expected` for a message of msgspec."""
    match = _PATH.search(message)
    steps = _steps(match["path"] + ("[...]" if match["of_key"] else "")) if match else []
    steps = _name_keys(data, steps, message, kind)
    what = message[: match.start()] if match else message
    unknown = _UNKNOWN.search(what)
    if unknown:
        steps.append(unknown["name"])
        what = "unknown key" + suggest_nearest(unknown["name"], sorted(_field_names(kind)), ", did you mean '{}'?")
    line, key = _find_line(text, steps), format_yaml_key(steps)
    return f"{path}:{line}: {key + ': ' if key else ''}{what[0].lower() + what[1:]}"


def _steps(path: str) -> list[str | int]:
    """Return the keys and indices of a path of msgspec; `[...]` stands for a key that it does not name."""
    parts = re.findall(r"\[\.\.\.\]|\[\d+\]|[^.\[\]]+", path)
    return [int(part[1:-1]) if re.fullmatch(r"\[\d+\]", part) else part for part in parts]


def _name_keys(data: Any, steps: list[str | int], message: str, kind: type[object]) -> list[str | int]:
    """Return `steps` with a key for each `[...]`: the one that gives the same message alone, as far as there is one."""
    named: list[str | int] = []
    for step in steps:
        key = step
        if step == "[...]":
            place = functools.reduce(lambda value, at: value[at], named, data)
            found = (key for key in place if _is_refused(_keep_alone(data, named, key), kind, message))
            if (key := next(found, step)) == step:
                break
        named.append(key)
    return named


def _keep_alone(data: Any, steps: Sequence[str | int], key: str) -> Any:
    """Return data whose mapping at `steps` has one key alone."""
    if not steps:
        return {key: data[key]}
    step, *deeper = steps
    copy = data.copy()
    copy[step] = _keep_alone(data[step], deeper, key)
    return copy


def _is_refused(data: Any, kind: type[object], message: str) -> bool:
    """Whether msgspec refuses the data with this very message."""
    try:
        msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        return str(error) == message
    return False


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
