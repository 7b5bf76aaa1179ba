"""What changes between the commands of two plans, line by line. Pure."""

from __future__ import annotations

import difflib

from textual.content import Content

from dflash_tui.planning.plan import Plan, format_command
from dflash_tui.tui.render.plan import render_hung
from dflash_tui.tui.widgets.basic import MUTED


def render_command_diff(before: Plan, after: Plan, width: int) -> list[Content]:
    """Return the lines of the two commands that differ, in rows of `width` cells, the old ones with a minus."""
    rows = []
    for line in difflib.ndiff(_list_lines(before), _list_lines(after)):
        mark, text = line[:2], line[2:]
        if mark in {"- ", "+ "}:
            rows.append(render_hung((mark, "bold $error" if mark == "- " else "bold $success"), text, width))
    return rows or [Content.assemble(("no change: the same command again", MUTED))]


def _list_lines(plan: Plan) -> list[str]:
    """Return the lines of a command without what continues them, which the last one does not have."""
    return [line.strip().removesuffix("\\").strip() for line in format_command(plan).splitlines()]
