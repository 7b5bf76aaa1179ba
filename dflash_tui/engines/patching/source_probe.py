"""Match fingerprints against the syntax tree of Python source; comments, strings and imports do not count. Pure."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from dflash_tui.planning.patch_file import Fingerprint

Texts = Mapping[str, str | None]  # by path; None for a file that is not there or is not text
# Source that is nested too deeply ends Python's parser and compiler with the latter two.
NOT_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)
T = TypeVar("T", ast.ClassDef, ast.FunctionDef)


def matches_fingerprint(fingerprint: Fingerprint | None, texts: Texts) -> bool:
    """Whether the source shows `fingerprint`; one that cannot be parsed shows nothing."""
    if fingerprint is None:
        return False
    try:
        tree = parse_source(texts.get(fingerprint.path) or "")
        return _in_class(fingerprint, tree) if fingerprint.in_class else _in_module(fingerprint, tree)
    except NOT_PYTHON:
        return False


def _in_module(fingerprint: Fingerprint, tree: ast.Module) -> bool:
    if fingerprint.returns is None:
        return any(name == fingerprint.has or name.endswith(f".{fingerprint.has}") for name in _used(tree))
    function = _last(ast.FunctionDef, fingerprint.has, tree.body)
    return function is not None and _returned(function) is fingerprint.returns


def _in_class(fingerprint: Fingerprint, tree: ast.Module) -> bool:
    definition = _last(ast.ClassDef, fingerprint.in_class, tree.body)
    if definition is None:
        return False
    method = _last(ast.FunctionDef, fingerprint.has, definition.body)
    if fingerprint.returns is not None:
        return method is not None and _returned(method) is fingerprint.returns
    bases = (base.rpartition(".")[2] for base in _bases(definition, tree))
    return fingerprint.has in {*bases, *_fields(definition.body)} or (method is not None and _answers(method))


def _last(kind: type[T], name: str, body: Sequence[ast.stmt]) -> T | None:
    """Return the class or function of that name; of several the last, as Python does."""
    return next((node for node in reversed(body) if isinstance(node, kind) and node.name == name), None)


def parse_source(text: str) -> ast.Module:
    """Return the syntax tree of vLLM's own text, whose warnings are not ours; a byte order mark is Python, too.

    Raises:
        SyntaxError: it is not Python.
        ValueError: it holds null characters.
        RecursionError, MemoryError: it is nested too deeply.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        return ast.parse(text.encode())


def _bases(node: ast.ClassDef, tree: ast.Module) -> list[str]:
    """Return the bases of a class which the module imports or defines: another one ends its import."""
    bound = {part.name for part in ast.walk(tree) if isinstance(part, ast.ClassDef)}
    for part in ast.walk(tree):
        if isinstance(part, ast.Import | ast.ImportFrom):
            bound |= {alias.asname or alias.name.partition(".")[0] for alias in part.names}
    return [base for base in map(ast.unparse, node.bases) if base.partition(".")[0] in bound]


def _fields(body: Sequence[ast.stmt]) -> set[str]:
    return {part.target.id for part in body if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)}


def _first(function: ast.FunctionDef) -> ast.stmt:
    """Return the first statement of a function that does anything, so not its docstring."""
    body = function.body
    return body[1] if ast.get_docstring(function) is not None and len(body) > 1 else body[0]


def _returned(function: ast.FunctionDef) -> object:
    """Return the constant that a function returns at once; Ellipsis when it does something else."""
    first = _first(function)
    if isinstance(first, ast.Return) and (first.value is None or isinstance(first.value, ast.Constant)):
        return first.value and first.value.value
    return ...


def _answers(function: ast.FunctionDef) -> bool:
    """Whether a method is more than a placeholder and a plain no."""
    first = _first(function)
    empty = isinstance(first, ast.Pass | ast.Raise) or (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    )
    return not empty and _returned(function) not in {False, None}


def _used(tree: ast.Module) -> Iterator[str]:
    """Yield what the code reads, and the arguments that it passes by name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield ast.unparse(node)
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg
