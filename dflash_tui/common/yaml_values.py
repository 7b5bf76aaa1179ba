"""What YAML text says: plain values, and the lines that they are in. PyYAML is imported here.

Of YAML only what a recipe needs is read: mappings, lists, text, decimal numbers, booleans and null. Dates and numbers
in other spellings are text; tags (!!name) and aliases (*name) are refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import yaml

from dflash_tui.common.errors import YamlError

DEPTH_LIMIT = 16
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


def read_text(text: str) -> Any:
    """Return what YAML text says.

    Raises:
        YamlError: it is not YAML, or more of YAML than is read here.
    """
    root = compose_yaml(text)
    return None if root is None else _build_value(root, ())


def find_line(text: str, steps: Sequence[str | int]) -> int:
    """Return the line (from 1) of the value at `steps`, or of the deepest one on the way there."""
    try:
        root = compose_yaml(text)
    except YamlError:  # somebody writes it at this moment
        root = None
    return _line_of(root, steps) if root else 1


def _read_scalar(text: str, *, quoted: bool) -> str | float | bool | None:
    """Return the value of a text in a document.

    Raises:
        ValueError: it is a number that is too large, or no text.
    """
    text.encode()
    if quoted:  # or a block
        return text
    if text in _WORDS:
        return _WORDS[text]
    plain = text.replace("_", "")
    if _INTEGER.fullmatch(text):
        if len(plain) > _LONGEST_INTEGER or not -(1 << 63) <= int(plain) < 1 << 63:
            raise ValueError("expected a number of at most 64 bits")
        return int(plain)
    if not _REAL.fullmatch(text) and not _NOT_FINITE.fullmatch(text):
        return text
    if _NOT_FINITE.fullmatch(text) or not math.isfinite(float(plain)):
        raise ValueError("expected a finite number")
    return float(plain)


def compose_yaml(text: str) -> yaml.Node | None:
    """Return the tree of nodes that YAML text says, without tags and aliases; None when it says nothing.

    Raises:
        YamlError: it is not YAML, has tags or aliases, or is nested too deeply.
    """
    depth = 0
    try:
        # Aliases are refused, since a few lines of them can stand for gigabytes; libyaml's own recursion has no limit.
        for event in yaml.parse(text, Loader=_LOADER):
            if isinstance(event, yaml.AliasEvent):
                raise YamlError(_line(event), "aliases (*name) are not supported")
            if getattr(event, "tag", None):
                raise YamlError(_line(event), "tags (!!name) are not supported")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEPTH_LIMIT:
                raise YamlError(_line(event), "nested too deeply")
        return yaml.compose(text, Loader=_LOADER)
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        problem = getattr(error, "problem", None) or str(error)
        raise YamlError(mark.line + 1 if mark else 1, f"not YAML: {' '.join(problem.split())}") from None


# libyaml where PyYAML was built with it.
_LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


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
    try:
        return _read_scalar(text, quoted=bool(node.style))
    except ValueError as error:
        raise YamlError(_line(node), str(error), steps) from None


def _checked_text(node: yaml.Node, steps: tuple[str | int, ...]) -> str:
    """Return the text of a node, which can be written down: escapes of YAML can spell what is no character."""
    text = str(node.value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise YamlError(_line(node), "holds half a surrogate pair, which is not a character", steps) from None
    return text


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
