"""Tunes as Textual content: how it stands, the rounds that narrow the field, the settings, what was found. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from textual.content import Content

from dflash_tui.common.formatting import (
    draw_bar,
    format_duration,
    format_number,
    pluralize,
    shorten_names,
    truncate,
    truncate_middle,
)
from dflash_tui.experiments.analysis.report import TuneOutcome
from dflash_tui.experiments.design import CONFIRM, PUBLISHED, Boot, Design, RoundBegan
from dflash_tui.experiments.progress import Progress
from dflash_tui.experiments.tune_schedule import is_faster
from dflash_tui.presentation import experiment_text
from dflash_tui.presentation.experiment_text import CandidateRow
from dflash_tui.presentation.report import Note
from dflash_tui.tui.render.experiment_progress import render_budget
from dflash_tui.tui.widgets.basic import MUTED

_MARKS = {
    "ahead": ("▲", "$success"),
    "in the field": ("●", "$primary"),
    "to come": ("·", MUTED),
    "no figures": ("?", "$accent"),
    "out": ("▾", MUTED),
    "failed": ("✗", "$error"),
}
_PLACES = list(_MARKS)
# Cells of the figures behind a bar, and of the word behind those.
_FIGURES, _WORD = 25, 13


def render_rounds(progress: Progress, width: int, rows: int) -> Content:
    """Return a line for each thing that was varied: how many settings competed from round to round, and the best.

    Args:
        progress: how far it is.
        width: of the lines.
        rows: how many lines at most, the latest last.
    """
    stages = [
        list(search_round)
        for _, search_round in groupby(progress.rounds, key=lambda search_round: (search_round.key, search_round.turn))
    ]
    if not stages:
        return Content.assemble(("the published setting first; what is tried follows from it", MUTED))
    lines = [
        _render_stage(progress, stage, width, live=place == len(stages) - 1 and not progress.finished)
        for place, stage in enumerate(stages)
    ]
    return Content("\n").join(lines[-rows:])


def _render_stage(progress: Progress, rounds: Sequence[RoundBegan], width: int, *, live: bool) -> Content:
    last, arms = rounds[-1], progress.design.arms
    name = {CONFIRM: "to be sure", PUBLISHED: "once more"}.get(last.key, last.key)
    sizes = " → ".join(str(len(search_round.field)) for search_round in rounds)
    if last.key == CONFIRM:
        sizes = pluralize(sum(len(search_round.order) for search_round in rounds), "boot")
    names = [arms[arm].name for arm in last.field]
    mark = ("◐ ", "$warning") if live and progress.driven else ("! ", "$error") if live else ("✓ ", "$success")
    head = f"{truncate_middle(name, 26):<26} {sizes:<12} "
    return Content.assemble(mark, (head, "bold" if live else ""), (_join_names(names, width - len(head) - 2), MUTED))


def _join_names(names: Sequence[str], room: int) -> str:
    """Return the names that fit whole, and how many others there are; one alone is cut."""
    for count in range(len(names), 0, -1):
        others = f", +{len(names) - count}" if count < len(names) else ""
        text = ", ".join(names[:count]) + others
        if len(text) <= room:
            return text
    text = names[0] if len(names) == 1 else pluralize(len(names), "setting")
    return truncate_middle(text, max(0, room))


def render_field(progress: Progress, width: int, rows: int) -> Content:
    """Return a line for each setting: bar and tok/s, boots, how it stands; those that count first, the rest counted.

    Args:
        progress: how far it is.
        width: of the lines.
        rows: how many lines at most.
    """
    candidates = experiment_text.list_candidates(progress)
    most = max((candidate.tok_s for candidate in candidates if candidate.tok_s), default=0.0)
    ranked = sorted(candidates, key=lambda candidate: (_PLACES.index(candidate.standing), candidate.arm != 0))
    visible, hidden = (ranked, []) if len(ranked) <= rows else (ranked[: rows - 1], ranked[rows - 1 :])
    name = max(12, min(44, max(len(candidate.name) for candidate in candidates), width // 2 - 4))
    here = progress.current.arm if progress.current and progress.driven else None
    short_names = shorten_names((candidate.name for candidate in ranked), name)
    lines = [
        _render_candidate(candidate, most, f"{short_names[candidate.name]:<{name}}", width, here=candidate.arm == here)
        for candidate in visible
    ]
    if hidden:
        lines.append(Content.assemble((f"  … and {pluralize(len(hidden), 'setting')} that are out or failed", MUTED)))
    return Content("\n").join(lines)


def _render_candidate(candidate: CandidateRow, most: float, label: str, width: int, *, here: bool) -> Content:
    mark, color = _MARKS[candidate.standing]
    style = MUTED if candidate.standing in {"out", "failed", "to come"} and not here else "$foreground"
    head = Content.assemble((f"{mark} ", color), (f"{label} ", style))
    if candidate.standing == "failed":
        return head + Content.assemble((truncate(candidate.why, max(0, width - len(head))), "$error"))
    room = width - len(head) - _FIGURES - _WORD
    # They fall away before how it stands is cut.
    boots = f"  {pluralize(candidate.boots, 'boot'):<9}" if room >= 0 else ""
    figures, room = f"{format_number(candidate.tok_s, 1):>8} tok/s{boots}", max(0, room)
    bar = draw_bar(candidate.tok_s / most, room) if candidate.tok_s and most and room > 3 else ""
    word = "measuring" if here else candidate.standing
    return head + Content.assemble(
        (f"{bar:<{room}}" if room > 3 else "", color), (figures, style), (f" {word}", "bold" if here else color)
    )


def render_tune_remaining(progress: Progress, outcome: TuneOutcome, now: float, width: int) -> Content:
    """Return how much of the budget is spent, what is best so far and how long it goes on, or how it can go on."""
    best = experiment_text.format_best(progress.design, outcome)
    if progress.status == "finished":
        parts = ["all boots are over"]
    elif progress.status == "running":
        parts = [f"at most {format_duration(progress.left)} left", f"; {best}", "; q leaves it running"]
    else:
        parts = [f"{progress.status}; r resumes it, k keeps the best", f"; {best}"]
    return render_budget(progress, parts, now, width)


def list_outcome_notes(design: Design, boots: Sequence[Boot], outcome: TuneOutcome) -> list[Note]:
    """Return what a tune has found: the best first, with a star if it is shown to be faster."""
    first, *details = experiment_text.list_outcome_lines(design, boots, outcome)
    return [Note(first, "★" if is_faster(outcome) else "=", "bold"), *(Note(line, " ", "dim") for line in details)]
