"""Apply edits to source texts, and check whether they fit. Pure."""

from __future__ import annotations

import difflib
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from enum import StrEnum

from dflash_tui.common.errors import PatchError
from dflash_tui.planning.patch_file import Edit, Fingerprint, Patch

Texts = Mapping[str, str | None]  # by path; None for a file that is missing or not text


def matches_fingerprint(fingerprint: Fingerprint | None, texts: Texts) -> bool:
    """Whether the file of `fingerprint` contains its text."""
    return fingerprint is not None and fingerprint.has in (texts.get(fingerprint.path) or "")


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


def diff_patches(patches: Iterable[Patch], texts: Texts) -> dict[str, str]:
    """Return what patches change, as a unified diff per file for `patch -p1` in site-packages."""
    return {path: _diff_file(path, texts[path] or "", new) for path, new in sorted(patch_texts(patches, texts).items())}


def _diff_file(path: str, before: str, after: str) -> str:
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
