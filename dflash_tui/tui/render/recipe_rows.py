"""The table of recipes: names take the room first, and columns fall away where there is too little. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from textual.content import Content

from dflash_tui.common.errors import DflashError
from dflash_tui.common.formatting import UNKNOWN, shorten_names
from dflash_tui.planning.recipes.recipe import Recipe
from dflash_tui.runs.verification import format_short_badge
from dflash_tui.tui.launch_selection import LaunchSelection, Suitability


class RecipeRow(NamedTuple):
    """The cells of a recipe in the table."""

    name: str
    mark: str
    """How it suits the machine."""
    tokens: str
    """How many tokens are drafted per step."""
    vllm: str
    """The release that serves it."""
    status: str
    """How far it was tried."""


_HEAD = RecipeRow("recipe", " ", "n", "vLLM", "status")
_TOKENS, _VLLM = 4, 9
# Where the status does not fit beside the longest name, longer ones than this cover the columns beside them.
_USUAL = 30


def build_recipe_row(name: str, entry: Recipe | DflashError, choice: LaunchSelection) -> RecipeRow:
    """Return the row of a recipe as it is selected, or of a file that is not one."""
    if isinstance(entry, DflashError):
        return RecipeRow(name, Suitability.NO.value, UNKNOWN, UNKNOWN, "does not load")
    if choice.probe is None:  # which decides nearly everything, and comes at once
        return RecipeRow(name, " ", "", "", "")
    try:
        resolved, tokens, _ = choice.outline(entry)
    except DflashError:
        return RecipeRow(name, Suitability.NO.value, UNKNOWN, UNKNOWN, "not possible")
    status, verified = resolved.standing.status.value, choice.verified.get(name)
    if verified and not verified.failed:
        status = format_short_badge(verified, resolved.engine.vllm)
    status += ", synthetic" if resolved.synthetic else ""
    return RecipeRow(name, choice.suited(entry).suits.value, str(tokens), resolved.engine.vllm, status)


def render_recipe_rows(rows: Sequence[RecipeRow], width: int) -> tuple[Content, list[Content]]:
    """Return the head of the table and its rows, in `width` cells.

    The names come first, then the status, how many tokens are drafted, and the release. Where the status does not fit
    beside the longest name, longer ones than usual cover the columns beside them.
    """
    if not rows:
        return Content(""), []
    room = max(0, width - 2)  # beside the mark
    lengths = [len(_HEAD.name), *(len(row.name) for row in rows)]
    status = max([len(_HEAD.status), *(len(row.status) for row in rows)])
    usual = max(length for length in lengths if length <= _USUAL)
    name = max(lengths) if max(lengths) + status + 1 <= room else usual
    left = room - name - status - 1
    tokens, vllm = left >= _TOKENS, left >= _TOKENS + _VLLM
    before = max(0, room - status - 1) if left < 0 else name
    covered = before + tokens * _TOKENS + vllm * _VLLM
    names = shorten_names([row.name for row in rows], room)

    def render(row: RecipeRow, label: str) -> Content:
        cells = [f"{row.mark} {label:{before}}"]
        if len(label) <= before:
            cells += [f"{row.tokens:>{_TOKENS}}"] if tokens else []
            cells += [f"{row.vllm:>{_VLLM}}"] if vllm else []
        cells += [f"{'':{covered - max(before, len(label))}} {row.status}"] if before < len(label) <= covered else []
        cells += [f" {row.status}"] if len(label) <= before else []
        return Content("".join(cells))

    return render(_HEAD, _HEAD.name), [render(row, names[row.name]) for row in rows]
