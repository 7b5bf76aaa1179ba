"""Apply edits to source texts, check whether they fit, and match fingerprints against the syntax tree. Pure."""

from __future__ import annotations

import ast
import difflib
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TypeVar

from dflash_tui.common.errors import PatchError
from dflash_tui.planning.patch_file import Edit, Fingerprint, Patch

Texts = Mapping[str, str | None]  # by path; None for a file that is missing or not text
T = TypeVar("T", ast.ClassDef, ast.FunctionDef)


def matches_fingerprint(fingerprint: Fingerprint | None, texts: Texts) -> bool:
    """Whether the source matches `fingerprint`; False if it cannot be parsed."""
    if fingerprint is None:
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse((texts.get(fingerprint.path) or "").encode())
    except (SyntaxError, ValueError):
        return False
    return _in_class(fingerprint, tree) if fingerprint.in_class else _in_module(fingerprint, tree)


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
    bases = (ast.unparse(base).rpartition(".")[2] for base in definition.bases)
    return fingerprint.has in {*bases, *_fields(definition.body)} or (method is not None and _answers(method))


def _last(kind: type[T], name: str, body: Sequence[ast.stmt]) -> T | None:
    return next((node for node in reversed(body) if isinstance(node, kind) and node.name == name), None)


def _fields(body: Sequence[ast.stmt]) -> set[str]:
    return {part.target.id for part in body if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)}


def _first(function: ast.FunctionDef) -> ast.stmt:
    body = function.body
    return body[1] if ast.get_docstring(function) is not None and len(body) > 1 else body[0]


def _returned(function: ast.FunctionDef) -> object:
    """Return the constant that a function's first statement returns; Ellipsis if it does anything else."""
    first = _first(function)
    if isinstance(first, ast.Return) and (first.value is None or isinstance(first.value, ast.Constant)):
        return first.value and first.value.value
    return ...


def _answers(function: ast.FunctionDef) -> bool:
    """Whether a method is more than a placeholder, `return False` or `return None`."""
    first = _first(function)
    empty = isinstance(first, ast.Pass | ast.Raise) or (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    )
    return not empty and _returned(function) not in {False, None}


def _used(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield ast.unparse(node)
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg


_MARKER = re.compile(r"^[ \t]*# dflash-tui: .*\n|(?<![ \t])[ \t]+# dflash-tui: .*$", re.MULTILINE)


class EditFit(StrEnum):
    """Whether the edits of a patch can be applied, are applied already, or neither."""

    ABSENT = "absent"
    PRESENT = "present"
    DRIFTED = "drifted"


def fit_edits(patch: Patch, texts: Texts) -> EditFit:
    """Return ABSENT if each `old` occurs in the texts exactly once, PRESENT if each `new` does, else DRIFTED."""
    counts = []
    for file in patch.files:
        if (text := texts.get(file.path)) is None:
            return EditFit.DRIFTED
        counts += [_count_matches(text, edit) for edit in file.edits]
    if all(count == (1, 0) for count in counts):
        return EditFit.ABSENT
    return EditFit.PRESENT if all(count == (0, 1) for count in counts) else EditFit.DRIFTED


def _count_matches(text: str, edit: Edit) -> tuple[int, int]:
    """Return how often the old and the new text occur, the new one also without the comments that name us."""
    new = edit.new if edit.new in text else _MARKER.sub("", edit.new)
    if not new.strip():  # a pure deletion leaves nothing to count
        return text.count(edit.old), 0
    # The new text of an insertion contains its old text.
    return text.replace(new, "").count(edit.old), text.count(new)


def patch_texts(patches: Iterable[Patch], texts: Texts) -> dict[str, str]:
    """Return the new text of each file that `patches` edit; each is Python that compiles.

    Raises:
        PatchError: an old text does not occur exactly once, or a new text does not compile.
    """
    after: dict[str, str] = {}
    for patch in patches:
        for file in patch.files:
            text = after.get(file.path, texts.get(file.path))
            for edit in file.edits:
                if text is None or text.count(edit.old) != 1:
                    times = f"{text.count(edit.old)} times" if text else "nowhere"
                    raise PatchError(
                        f"patch {patch.name} does not fit {file.path}",
                        evidence=f"the text it replaces is found {times}: {first_filled_line(edit.old)}",
                        hint=f"report it: {patch.link}",
                    )
                text = text.replace(edit.old, edit.new)
            after[file.path] = text or ""
    for path, text in after.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                # Errors quote the file of this name; a path that cannot exist keeps them from quoting another file.
                compile(text.encode(), f"{os.devnull}/{path}", "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise PatchError(f"{path} would no longer be valid Python", evidence=str(error)) from None
    return after


def first_filled_line(text: str) -> str:
    """Return the first non-blank line of `text`, stripped."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def diff_file(path: str, before: str, after: str) -> str:
    """Return the unified diff of a file of the `vllm` package, for `patch -p1` in site-packages."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/vllm/{path}", f"b/vllm/{path}"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def describe_drift(patch: Patch, texts: Texts, unreadable: Mapping[str, str] = {}) -> str:
    """Return how often the texts of each edit that does not fit occur; `unreadable` has reasons by file."""
    lines, applied, edits = [], 0, 0
    for file in patch.files:
        if (text := texts.get(file.path)) is None:
            lines.append(f"{unreadable.get(file.path, f'{file.path} is not there')}\n")
            continue
        for edit in file.edits:
            old, new = _count_matches(text, edit)
            applied, edits = applied + ((old, new) == (0, 1)), edits + 1
            if (old, new) not in {(1, 0), (0, 1)}:
                also = f", and its replacement {new} times" if new else ""
                lines.append(f"{file.path}: this is found {old} times{also}: {first_filled_line(edit.old)}\n")
    if applied:
        lines.append(f"{applied} of its {edits} edits are applied already, the others are not\n")
    return "".join(lines)
