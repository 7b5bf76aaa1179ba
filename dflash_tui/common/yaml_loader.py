"""YAML -> frozen msgspec values, with errors that name file, line, key and what was expected.

Of YAML only what a recipe needs is read: mappings, lists, text, decimal numbers, booleans and null. Dates and numbers
in other spellings are text; tags (!!name) and aliases (*name) are refused.
"""

from __future__ import annotations

import copy
import difflib
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from dflash_tui.common import paths, private_files
from dflash_tui.common.errors import RecipeError
from dflash_tui.common.sanitizer import clean_line

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
_REAL = re.compile(r"(?:[-+]?[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+][0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_LONGEST_INTEGER = 20
T = TypeVar("T")


class YamlError(Exception):
    """Text is not the YAML that is read here: under which key and why, with the `line`."""

    def __init__(self, line: int, what: str, steps: Sequence[str | int] = ()) -> None:
        key = _format_key(steps)
        self.line = line
        super().__init__(f"{key}: {what}" if key else what)


def load_yaml(path: Path, kind: type[T]) -> T:
    """Return the value of type `kind` (a msgspec.Struct) that the YAML file holds.

    Raises:
        RecipeError: the file cannot be read, is not YAML, or does not fit `kind`; the message starts with
            `file:line: key`. Or it is one of the user's own, and others may have written it.
    """
    _refuse_untrusted(path)
    text = read_yaml_text(path)
    try:
        root = compose_yaml(text)
        if not isinstance(root, yaml.MappingNode):
            raise YamlError(_line(root) if root else 1, "expected keys and values")
        data = _build_value(root, ())
    except YamlError as error:
        raise RecipeError(f"{path}:{error.line}: {error}") from None
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise RecipeError(_explain(path, root, data, str(error), kind)) from None


def _refuse_untrusted(path: Path) -> None:
    """Raise when a file of the user's recipes, patches or suites is not trusted; a path elsewhere is a choice."""
    top = paths.config_folder()
    if path.absolute().is_relative_to(top) and (why := private_files.ownership_problem(path, top, shareable=True)):
        fix = private_files.suggest_ownership_fix(path, top)
        raise RecipeError(f"{path} is not used: it {why}", hint=fix)


def parse_yaml_value(text: str) -> Any:
    """Return what YAML text says.

    Raises:
        YamlError: it is not YAML, or more of YAML than is read here.
    """
    root = compose_yaml(text)
    return None if root is None else _build_value(root, ())


def build_file_error(path: Path, steps: Sequence[str | int], what: str) -> RecipeError:
    """Return the error `file:line: key: what` for the value at `steps` of a file that was loaded before."""
    try:
        root = compose_yaml(read_yaml_text(path))
    except YamlError:  # somebody writes it at this moment
        root = None
    return RecipeError(f"{path}:{_line_of(root, steps) if root else 1}: {_format_key(steps)}: {what}")


def compose_yaml(text: str) -> yaml.Node | None:
    """Return the tree of nodes that YAML text says, without tags and aliases; None when it says nothing.

    Raises:
        YamlError: it is not YAML, has tags or aliases, or is nested too deeply.
    """
    try:
        return _compose(text, _FAST)
    except (yaml.YAMLError, ValueError) as error:
        problem = _explain_syntax(text, error)
    try:
        return _compose(text, yaml.SafeLoader)  # which knows better where a mistake begins
    except yaml.YAMLError as error:
        problem = _explain_syntax(text, error)
    except (ValueError, OverflowError):  # an impossible character, of which only the other one says the place
        pass
    raise problem


# libyaml where PyYAML was built with it; its own recursion is bounded, since the depth is looked at first.
_FAST: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _compose(text: str, loader: type[Any]) -> yaml.Node | None:
    """Return the node tree; aliases are refused, since a few lines of them can stand for gigabytes."""
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.AliasEvent):
            raise YamlError(_line(event), "aliases (*name) are not supported")
        if getattr(event, "tag", None):
            raise YamlError(_line(event), "tags (!!name) are not supported")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEPTH_LIMIT:
            raise YamlError(_line(event), "nested too deeply")
    return yaml.compose(text, Loader=loader)


def _explain_syntax(text: str, error: Exception) -> YamlError:
    line, problem = 1, str(error)
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        line, problem = mark.line + 1 if mark else 1, str(error.problem or error.context)
    elif isinstance(error, yaml.reader.ReaderError) and isinstance(error.position, int):
        line, problem = text.count("\n", 0, error.position) + 1, "holds a character that is not printable"
    return YamlError(line, f"not YAML: {' '.join(problem.split())}")


def read_yaml_text(path: Path) -> str:
    """Return the text of a YAML file; the file may be a link, as of whoever keeps their settings elsewhere.

    Raises:
        RecipeError: it cannot be read, is too large, or is no text.
    """
    try:
        return private_files.read_file(path, SIZE_LIMIT, follow=True).decode()
    except OSError as error:
        raise RecipeError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: not UTF-8 text (byte {error.start})") from None


def _line(part: yaml.Node | yaml.Event) -> int:
    return part.start_mark.line + 1 if part.start_mark else 1


def _build_value(node: yaml.Node, steps: tuple[str | int, ...]) -> Any:
    """Return the value of a node at `steps`: keys are text however they are written."""
    if isinstance(node, yaml.ScalarNode):
        return _build_scalar(node, steps)
    if isinstance(node, yaml.SequenceNode):
        return [_build_value(item, (*steps, index)) for index, item in enumerate(node.value)]
    values: dict[str, Any] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise YamlError(_line(key), "expected a word as a key, not a list or a mapping", steps)
        name = _checked_text(key, (*steps, key.value))
        if name in values:  # YAML lets the last of two equal keys win silently; a recipe with both is a mistake
            raise YamlError(_line(key), "given twice", (*steps, name))
        values[name] = _build_value(value, (*steps, name))
    return values


def _build_scalar(node: yaml.ScalarNode, steps: tuple[str | int, ...]) -> str | float | bool | None:
    text = _checked_text(node, steps)
    if node.style:  # in quotes, or a block
        return text
    if text in _WORDS:
        return _WORDS[text]
    plain = text.replace("_", "")
    if _INTEGER.fullmatch(text):
        if len(plain) > _LONGEST_INTEGER or not -(1 << 63) <= int(plain) < 1 << 63:
            raise YamlError(_line(node), "expected a number of at most 64 bits", steps)
        return int(plain)
    if not _REAL.fullmatch(text) and not _NOT_FINITE.fullmatch(text):
        return text
    if _NOT_FINITE.fullmatch(text) or not math.isfinite(float(plain)):
        raise YamlError(_line(node), "expected a finite number", steps)
    return float(plain)


def _checked_text(node: yaml.Node, steps: tuple[str | int, ...]) -> str:
    """Return the text of a node, which can be written down: escapes of YAML can spell what is no character."""
    text = str(node.value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise YamlError(_line(node), "holds half a surrogate pair, which is no character", steps) from None
    return text


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
    key = _format_key(steps)
    return f"{path}:{line}: {key + ': ' if key else ''}{what[0].lower() + what[1:]}"


def _format_key(steps: Sequence[str | int]) -> str:
    key = "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps).lstrip(".")
    return clean_line(key.encode(errors="backslashreplace").decode())


def _steps(path: str) -> list[str | int]:
    """Return the keys and indices of a path of msgspec; `[...]` stands for a key that it does not name."""
    parts = re.findall(r"\[\.\.\.\]|\[\d+\]|[^.\[\]]+", path)
    return [int(part[1:-1]) if re.fullmatch(r"\[\d+\]", part) else part for part in parts]


def _culprits(data: Any, steps: list[str | int], message: str, kind: type[object]) -> list[str | int]:
    """Return `steps` with the keys that msgspec complains about for each `[...]`, as far as they can be told.

    A mapping cut down to the culprit alone gives the same message, as does one cut after it. So that keys by thousands
    take a few conversions only, each halves what is looked through.
    """
    trial = copy.deepcopy(data)
    found: list[str | int] = []
    place = trial
    for step in steps:
        if step != "[...]":
            found.append(step)
            place = place[step]
            continue
        items = list(place.items())
        while len(items) > 1:
            first, second = items[: len(items) // 2], items[len(items) // 2 :]
            place.clear()
            place.update(first)
            items = first if _is_refused(trial, kind, message) else second
        place.clear()
        place.update(items)
        if not _is_refused(trial, kind, message):
            return found
        [(key, place)] = items
        found.append(str(key))
    return found


def _is_refused(data: Any, kind: type[object], message: str) -> bool:
    """Whether msgspec refuses the data with this very message."""
    try:
        msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        return str(error) == message
    return False


def _line_of(node: yaml.Node, steps: Sequence[str | int]) -> int:
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
