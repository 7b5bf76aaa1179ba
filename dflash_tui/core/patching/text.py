"""Patches on texts: does one fit, what does it make of them, what stands there instead. Pure."""

from __future__ import annotations

import ast
import difflib
import re
import warnings
from collections.abc import Iterable, Mapping
from enum import StrEnum

from dflash_tui.core.patching.files import Edit, Patch, Upstream
from dflash_tui.errors import PatchError

Texts = Mapping[str, str | None]  # by path; None for a file that is not there or is not text
_LOOKED_THROUGH = 200
_MARKER = re.compile(r"^[ \t]*# dflash-tui: .*\n|[ \t]+# dflash-tui: .*$", re.MULTILINE)


class Fit(StrEnum):
    """How the edits of a patch stand in the texts."""

    ABSENT = "absent"
    PRESENT = "present"
    DRIFTED = "drifted"


def fit(patch: Patch, texts: Texts) -> Fit:
    """Return how the edits stand: each `old` exactly once, each `new` exactly once, or neither."""
    counts = []
    for file in patch.files:
        if (text := texts.get(file.path)) is None:
            return Fit.DRIFTED
        counts += [_counts(text, edit) for edit in file.edits]
    if all(count == (1, 0) for count in counts):
        return Fit.ABSENT
    return Fit.PRESENT if all(count == (0, 1) for count in counts) else Fit.DRIFTED


def _counts(text: str, edit: Edit) -> tuple[int, int]:
    """Return how often the old and the new text are there, the new one also without the comments that name us."""
    new = edit.new if edit.new in text else _MARKER.sub("", edit.new)
    if not new.strip():  # what only takes away leaves nothing to be seen
        return text.count(edit.old), 0
    # An edit that only inserts has its old text within the new one.
    return text.replace(new, "").count(edit.old), text.count(new)


def has(upstream: Upstream | None, texts: Texts) -> bool:
    """Whether the source does by itself what the patch is for."""
    if upstream is None or (text := texts.get(upstream.path)) is None:
        return False
    if not upstream.in_class:
        return upstream.has in text
    try:
        tree = _parsed(text)
    except SyntaxError:
        return False
    found = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == upstream.in_class)
    return any(upstream.has in _names(node) for node in found)


def _names(node: ast.ClassDef) -> set[str]:
    """Return the names of a class's bases, methods and fields."""
    named = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
    for part in node.body:
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            named.add(part.name)
        elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            named.add(part.target.id)
    return named


def patched(patches: Iterable[Patch], texts: Texts) -> dict[str, str]:
    """Return the new text of each file that `patches` touch; every one is Python that compiles.

    Raises:
        PatchError: an old text is not there exactly once, or a new text would not compile.
    """
    after: dict[str, str] = {}
    for patch in patches:
        for file in patch.files:
            text = after.get(file.path, texts.get(file.path))
            for edit in file.edits:
                if text is None or text.count(edit.old) != 1:
                    times = f"{text.count(edit.old)} times" if text else "not at all"
                    raise PatchError(
                        f"patch {patch.name} does not fit {file.path}",
                        evidence=f"its text is there {times}: {first_line(edit.old)}",
                        do=f"report it: {patch.link}",
                    )
                text = text.replace(edit.old, edit.new)
            after[file.path] = text or ""
    for path, text in after.items():
        if mistake := broken(path, text):
            raise PatchError(f"{path} would no longer be valid Python", evidence=mistake)
    return after


def broken(path: str, text: str) -> str:
    """Return why the text of `path` does not compile; empty when it does."""
    try:
        compile(_parsed(text), path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return str(error)
    return ""


def _parsed(text: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # of vLLM's own text
        return ast.parse(text)


def first_line(text: str) -> str:
    """Return the first line of `text` that holds anything, without the space around it."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def diff(path: str, before: str, after: str) -> str:
    """Return the unified diff of a file of the `vllm` package, as `patch -p1` in site-packages takes it."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/vllm/{path}", f"b/vllm/{path}"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def drift(patch: Patch, texts: Texts) -> str:
    """Return for each edit that does not fit how the text that comes closest differs from what it replaces."""
    said = []
    for file in patch.files:
        text = texts.get(file.path)
        if text is None:
            said.append(f"{file.path} is not there\n")
            continue
        for edit in file.edits:
            if (times := text.count(edit.old)) > 1:
                said.append(f"{file.path}: the text is there {times} times: {first_line(edit.old)}\n")
            elif not times and not (edit.new and edit.new in text):
                said.append(_closest(file.path, edit.old, text))
    if not said and fit(patch, texts) is Fit.DRIFTED:
        counts = [_counts(texts[file.path] or "", edit) for file in patch.files for edit in file.edits]
        said.append(f"{counts.count((0, 1))} of its {len(counts)} edits are in already, and the others are not\n")
    return "".join(said)


def _closest(path: str, wanted: str, text: str) -> str:
    """Return the diff from the text that a patch expects to the part of the file that is most like it."""
    old, lines = wanted.splitlines(), text.splitlines()
    size = len(old)
    known = set(map(str.strip, old))
    # The windows with the most lines in common first: comparing each of a long file would take seconds.
    common = [
        sum(line.strip() in known for line in lines[at : at + size]) for at in range(max(1, len(lines) - size + 1))
    ]
    starts = sorted(range(len(common)), key=lambda at: -common[at])[:_LOOKED_THROUGH]
    matcher = difflib.SequenceMatcher(b=wanted, autojunk=False)

    def likeness(at: int) -> float:
        matcher.set_seq1("\n".join(lines[at : at + size]))
        return matcher.ratio() if matcher.real_quick_ratio() > 0.3 else 0.0

    at = max(starts, key=likeness)
    shown = difflib.unified_diff(
        old, lines[at : at + size], f"{path} (as the patch expects it)", f"{path} (line {at + 1})", lineterm=""
    )
    return "".join(f"{line}\n" for line in shown)
