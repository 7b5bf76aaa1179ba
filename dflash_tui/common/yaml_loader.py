"""Load YAML as frozen msgspec values, with errors that name file, line, key and what was expected.

Only the YAML that a recipe needs is supported: mappings, lists, text, decimal numbers, booleans and null. Dates and
numbers in other notations are text; tags (!!name) and aliases (*name) are refused.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from dflash_tui.common import private_files
from dflash_tui.common.errors import RecipeError
from dflash_tui.common.formatting import suggest_nearest

if TYPE_CHECKING:  # importing PyYAML takes 10 ms, which commands without a recipe save
    import yaml

SIZE_LIMIT = 256 * 1024
DEPTH_LIMIT = 16
_PATH = re.compile(r" - at (?P<of_key>`key` in )?`\$(?P<path>[^`]*)`$")
_UNKNOWN = re.compile(r"unknown field `(?P<name>[^`]*)`")
_WORDS: dict[str, bool | None] = {
    spelling: value
    for word, value in {
        "true": True, "yes": True, "on": True, "false": False, "no": False, "off": False, "null": None,
    }.items()
    for spelling in (word, word.capitalize(), word.upper())
} | {"": None, "~": None}  # fmt: skip
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)")
_REAL = re.compile(
    r"(?:[-+]?[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+][0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_LONGEST_INTEGER = 20
T = TypeVar("T")


class YamlError(Exception):
    """Text is not supported YAML; the message has the key and the reason, `line` the line."""

    def __init__(self, line: int, what: str, steps: Sequence[str | int] = ()) -> None:
        key = _format_key(steps)
        self.line = line
        super().__init__(f"{key}: {what}" if key else what)


def load_yaml(path: Path, kind: type[T]) -> T:
    """Return the value of type `kind` (a msgspec.Struct) in a YAML file.

    Raises:
        RecipeError: the file cannot be read, is not YAML, or does not fit `kind`; the message starts with
            `file:line: key`.
    """
    return convert_yaml(path, read_yaml_text(path), kind)


def convert_yaml(path: Path, text: str, kind: type[T]) -> T:
    """Return the value of type `kind` in the text of a YAML file; raise RecipeError if it does not fit."""
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
    """Return the value of YAML text; raise YamlError if it is not supported YAML.

    A few lines of aliases can expand to gigabytes, and libyaml's own recursion has no limit.
    """
    import yaml

    try:
        read = _choose_loader()(text).get_event
        while isinstance(event := read(), yaml.StreamStartEvent | yaml.DocumentStartEvent):
            pass
        if isinstance(event, yaml.StreamEndEvent):
            return None
        value = _build_value(event, read, ())
        read()  # the end of the document
        if isinstance(event := read(), yaml.DocumentStartEvent):
            raise YamlError(_line(event), "not YAML: expected a single document")
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise _explain_yaml(error) from None
    return value


def build_file_error(path: Path, steps: Sequence[str | int], what: str) -> RecipeError:
    """Return the error `file:line: key: what` for the value at `steps` of a file that was loaded earlier."""
    return RecipeError(f"{path}:{_find_line(read_yaml_text(path), steps)}: {_format_key(steps)}: {what}")


def read_yaml_text(path: Path) -> str:
    """Return the text of a YAML file; raise RecipeError if it cannot be read, is too large, or is not UTF-8."""
    try:
        return private_files.read_file(path, SIZE_LIMIT).decode()
    except OSError as error:
        raise RecipeError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: not UTF-8 text (byte {error.start})") from None


def compose_yaml(text: str) -> yaml.Node | None:
    """Return the node tree of YAML text, None if it is empty; raise YamlError like `parse_yaml_value`."""
    import yaml

    parse_yaml_value(text)  # refuses unsupported YAML before nodes are built
    try:
        return yaml.compose(text, Loader=_choose_loader())
    except yaml.YAMLError as error:
        raise _explain_yaml(error) from None


def _choose_loader() -> Any:
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _explain_yaml(error: Exception) -> YamlError:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    return YamlError(mark.line + 1 if mark else 1, f"not YAML: {' '.join(problem.split())}")


def _line(part: yaml.Node | yaml.Event) -> int:
    return part.start_mark.line + 1 if part.start_mark else 1


def _build_value(event: Any, read: Callable[[], Any], steps: tuple[str | int, ...]) -> Any:
    """Return the value that begins with `event`, at `steps`; keys are text in any notation."""
    import yaml

    _refuse_unsupported(event)
    if isinstance(event, yaml.ScalarEvent):
        try:
            return event.value if event.style else _read_plain(event.value)
        except ValueError as error:
            raise YamlError(_line(event), str(error), steps) from None
    if len(steps) >= DEPTH_LIMIT:
        raise YamlError(_line(event), "nested too deeply")
    if isinstance(event, yaml.SequenceStartEvent):
        items: list[Any] = []
        while not isinstance(item := read(), yaml.SequenceEndEvent):
            items.append(_build_value(item, read, (*steps, len(items))))
        return items
    values: dict[str, Any] = {}
    while not isinstance(key := read(), yaml.MappingEndEvent):
        _refuse_unsupported(key)
        if not isinstance(key, yaml.ScalarEvent):
            raise YamlError(_line(key), "expected a word as a key, not a list or a mapping", steps)
        name = str(key.value)
        if name in values:  # YAML lets the last of two equal keys win silently; a recipe with both is a mistake
            raise YamlError(_line(key), "given twice", (*steps, name))
        values[name] = _build_value(read(), read, (*steps, name))
    return values


def _refuse_unsupported(event: Any) -> None:
    if not hasattr(event, "tag"):
        raise YamlError(_line(event), "aliases (*name) are not supported")
    if event.tag:
        raise YamlError(_line(event), "tags (!!name) are not supported")


def _read_plain(text: str) -> str | float | bool | None:
    if text in _WORDS:
        return _WORDS[text]
    digits = text.replace("_", "")
    if _INTEGER.fullmatch(text):
        if len(digits) > _LONGEST_INTEGER or not -(1 << 63) <= int(digits) < 1 << 63:
            raise ValueError("expected a number of at most 64 bits")
        return int(digits)
    if not _REAL.fullmatch(text):
        return text
    if not math.isfinite(number := float(re.sub(r"\.(?=[iInN])", "", digits))):
        raise ValueError("expected a finite number")
    return number


def _find_line(text: str, steps: Sequence[str | int]) -> int:
    """Return the line (from 1) of the value at `steps`, or of the deepest existing value on that path."""
    node: Any = None
    with contextlib.suppress(YamlError):  # the file is being written
        node = compose_yaml(text)
    line = _line(node) if node else 1
    for step in steps if node else ():
        if node.id == "mapping" and (entry := next(((k, v) for k, v in node.value if k.value == step), None)):
            line, node = _line(entry[0]), entry[1]
        elif node.id == "sequence" and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            line = _line(node)
        else:
            break
    return line


def _format_key(steps: Sequence[str | int]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).lstrip(".")


def _explain(path: Path, text: str, data: Any, message: str, kind: type[object]) -> str:
    match = _PATH.search(message)
    steps = _name_keys(data, _split_path(match), message, kind) if match else []
    what = message[: match.start()] if match else message
    if unknown := _UNKNOWN.search(what):
        steps.append(unknown["name"])
        what = "unknown key" + suggest_nearest(unknown["name"], sorted(_field_names(kind)), ", did you mean '{}'?")
    line, key = _find_line(text, steps), _format_key(steps)
    return f"{path}:{line}: {key + ': ' if key else ''}{what[0].lower() + what[1:]}"


def _split_path(match: re.Match[str]) -> list[str | int]:
    """Return the keys and indices of a path from msgspec; `[...]` stands for a key that it does not name."""
    parts = re.findall(r"\[\.\.\.\]|\[\d+\]|[^.\[\]]+", match["path"] + ("[...]" if match["of_key"] else ""))
    return [int(part[1:-1]) if re.fullmatch(r"\[\d+\]", part) else part for part in parts]


def _name_keys(data: Any, steps: list[str | int], message: str, kind: type[object]) -> list[str | int]:
    """Return `steps` with each `[...]` replaced by the key that alone gives the same message, if there is one."""
    named: list[str | int] = []
    for step in steps:
        key = step
        if step == "[...]":
            place = functools.reduce(lambda value, at: value[at], named, data)
            keys = (key for key in place if _gives_message(_keep_alone(data, named, key), kind, message))
            if (key := next(keys, step)) == step:
                break
        named.append(key)
    return named


def _keep_alone(data: Any, steps: Sequence[str | int], key: str) -> Any:
    if not steps:
        return {key: data[key]}
    step, *deeper = steps
    copy = data.copy()
    copy[step] = _keep_alone(data[step], deeper, key)
    return copy


def _gives_message(data: Any, kind: type[object], message: str) -> bool:
    try:
        msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        return str(error) == message
    return False


def _field_names(kind: type[object]) -> set[str]:
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
