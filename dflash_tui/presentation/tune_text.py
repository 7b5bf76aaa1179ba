"""The text of a tune: what it is going to do, its rounds, the field of candidates, what it has found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dflash_tui.common.formatting import UNKNOWN, format_duration, format_number, pluralize
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.experiments.analysis.measures import ArmSummary, summarize_arm
from dflash_tui.experiments.analysis.report import TuneOutcome
from dflash_tui.experiments.builder import DurationEstimate
from dflash_tui.experiments.design import Boot, Design
from dflash_tui.experiments.progress import Progress
from dflash_tui.experiments.tuning import ranking
from dflash_tui.experiments.tuning.outcome import NO_ROOM, is_faster, reckon_verdict_budget
from dflash_tui.presentation import experiment_text
from dflash_tui.presentation.report import Table, format_ratio, is_noisy


class CandidateRow(NamedTuple):
    """A setting of a tune for a reader: its arm, how it stands, its boots and speed."""

    arm: int
    name: str
    standing: str
    """`ahead`, `in the field`, `out`, `failed`, `to come`, or `no figures` where answers were too short."""
    boots: int
    tok_s: float | None
    ready: float | None
    why: str = ""
    """Why it failed."""


def list_tune_rows(design: Design, boot: DurationEstimate, stopped: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return what a tune is going to do, for somebody who decides whether it may: labels and texts.

    The servers that are called `stopped` are stopped before it begins.
    """
    tuning = design.tuning
    if tuning is None:
        return []
    rows = [row for row in experiment_text.list_design_rows(design, boot, stopped) if row[0] not in _REPLACED]
    outlook = "how long a boot takes is unknown until the first one is over"
    if boot.seconds:
        room = pluralize(int(tuning.budget / boot.seconds), "boot")
        outlook = f"room for about {room} of {format_duration(boot.seconds)}, {boot.source}"
        if not boot.whole:
            seconds = format_duration(boot.seconds)
            outlook = f"room for fewer than {room}: each starts in {seconds}, {boot.source}, and is measured after that"
    head = [
        ("recipe", design.recipe),
        ("budget", f"{format_duration(tuning.budget)}; {outlook}"),
        *((label, clean_line(axis)) for label, axis in _label_rest("tries", tuning.axes)),
    ]
    left_out = [f"{name}: {why}" for name, why in tuning.left_out.items()]
    tail = [(label, clean_line(text)) for label, text in _label_rest("not", left_out)]
    saved = f"a setting that is shown to be faster becomes the recipe {tuning.save_as}; none is overwritten"
    return [*head, *tail, *rows, ("saves", saved)]


_REPLACED = frozenset({"recipe", "varies", "boots", "takes", "caches"})


def _label_rest(label: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    return [("" if place else label, text) for place, text in enumerate(texts)]


def list_candidates(progress: Progress) -> list[CandidateRow]:
    """Return every setting of a tune, the fastest first, then those to come and those that failed."""
    design = progress.design
    field = progress.rounds[-1].field if progress.rounds else (0,)
    best = ranking.choose_leader(progress) if progress.boots else 0
    candidates = []
    for arm, setting in enumerate(design.arms):
        summary = summarize_arm(progress.boots, arm)
        errors = [boot.error for boot in progress.boots if boot.arm == arm and boot.error]
        starts = summary.cached or summary.cold
        standing = _stand(arm, best, field, summary)
        candidates.append(
            CandidateRow(
                arm,
                clean_line(setting.name),
                standing,
                summary.boots,
                summary.tok_s.median if summary.tok_s else None,
                starts.median if starts else None,
                clean_line(errors[0].split("\n")[0]) if errors else "",
            )
        )
    return sorted(
        candidates,
        key=lambda candidate: (candidate.standing == "failed", candidate.tok_s is None, -(candidate.tok_s or 0.0)),
    )


def _stand(arm: int, best: int, field: Sequence[int], summary: ArmSummary) -> str:
    if not summary.boots:
        return "failed" if summary.failed else "to come"
    if summary.tok_s is None:
        return "no figures"
    if arm == best:
        return "ahead"
    return "in the field" if arm in field else "out"


def format_best(design: Design, outcome: TuneOutcome) -> str:
    """Return in a sentence which setting is the best and by how much, or that none is shown to be faster."""
    name = clean_line(design.arms[outcome.best].name)
    if outcome.tried <= 1:
        return "only the published setting has been measured" if outcome.tried else "nothing has been measured yet"
    if not outcome.best:
        return f"no setting measured faster than the published one, of {pluralize(outcome.tried, 'setting')}"
    ratio = outcome.comparison.tok_s if outcome.comparison else None
    shown = ratio is not None and ratio.excludes_one and not is_noisy(ratio)
    answers = f"answers alike: {outcome.answers}"
    if is_faster(outcome) and ratio:
        return f"{name} is faster than the published setting: {format_ratio(ratio)} times the tok/s; {answers}"
    if not outcome.confirmed:
        much = f"{format_ratio(ratio)} times the tok/s of the published setting" if shown else "not shown to be faster"
        return f"ahead so far: {name}, {much}, by the boots that it was chosen by; {answers}"
    refused = (
        [confound.what for confound in outcome.comparison.confounds if confound.refuses] if outcome.comparison else []
    )
    why = f", since {clean_line(refused[0])}" if refused else ""
    noisy = ": too noisy to tell" if is_noisy(ratio) else ""
    return f"no setting is shown to be faster than the published one{why}{noisy}; the nearest is {name}; {answers}"


def list_outcome_lines(design: Design, boots: Sequence[Boot], outcome: TuneOutcome) -> list[str]:
    """Return what a tune has found as lines: the best first, then what is behind it."""
    lines = [format_best(design, outcome)]
    confounds = outcome.comparison.confounds if outcome.comparison and outcome.confirmed else ()
    if outcome.comparison and outcome.confirmed:
        a, b = outcome.comparison.boots
        lines.append(f"by {a} and {b} boots after the choice, in tok/s with the suite {clean_line(design.suite)}")
    if outcome.recipe:
        lines.append(f"the recipe: {clean_line(outcome.recipe)}")
    elif outcome.best:
        lines += [f"the recipe was not written: {clean_line(outcome.unwritten)}"] if outcome.unwritten else []
        lines.append(f"to keep it as a recipe: dflash-tui tune keep {design.id}")
    if outcome.tried == 1 and NO_ROOM in outcome.left_out.values():
        lines.append(_describe_need(boots, outcome.spent))
    budget = design.tuning.budget if design.tuning else 0.0
    lines.append(
        f"{pluralize(outcome.tried, 'setting')} tried in {pluralize(len(boots), 'boot')}, "
        f"{format_duration(outcome.spent)} of {format_duration(budget)}"
    )
    lines += [
        f"{'refused' if confound.refuses else 'note'}: {clean_line(confound.what)}: {clean_line(confound.evidence)}"
        for confound in confounds
    ]
    lines += [
        f"dropped: {clean_line(name)}: {clean_line(why.splitlines()[0])}" for name, why in outcome.dropped.items()
    ]
    lines += [f"not tried: {clean_line(name)}: {clean_line(why)}" for name, why in outcome.left_out.items()]
    return lines


def _describe_need(boots: Sequence[Boot], spent: float) -> str:
    """Return which budget has room for a verdict, by the boots that there are."""
    seconds = max((boot.prepared or 0.0) + (boot.took or 0.0) for boot in boots)
    minutes = -(-reckon_verdict_budget(boots, spent) // 60)
    return f"a boot takes {format_duration(seconds)}: --budget {minutes:.0f}m has room for a first verdict"


def build_settings_table(progress: Progress) -> Table:
    """Return a row for each setting: its name, how it stands, its boots, tok/s and seconds to ready."""
    rows = [
        (
            candidate.name,
            candidate.standing,
            str(candidate.boots) if candidate.boots else UNKNOWN,
            format_number(candidate.tok_s, 1),
            format_duration(candidate.ready),
        )
        for candidate in list_candidates(progress)
    ]
    return Table(("setting", "", "boots", "tok/s", "ready"), tuple(rows), (2, 3, 4))
