"""What a tune has found until now: the best setting, by how much it is faster, what was dropped; pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dflash_tui.experiments.analysis import answers, verdict
from dflash_tui.experiments.analysis.measures import TOKENS, select_measured_boots
from dflash_tui.experiments.analysis.report import Comparison, OutputVerdict, TuneOutcome, Verdict
from dflash_tui.experiments.design import CONFIRM, Boot, KeptAnswer
from dflash_tui.experiments.progress import Progress
from dflash_tui.experiments.tuning import ranking

# The published setting, the best one, and two more of each to be sure.
BOOTS_FOR_A_VERDICT = 6
NO_ROOM = "the budget has no room for it"
_ALIKE = {OutputVerdict.ALIKE: "yes", OutputVerdict.DIFFERENT: "no", OutputVerdict.UNKNOWN: "unknown"}


def judge_tune(progress: Progress, kept_answers: Sequence[KeptAnswer] = ()) -> TuneOutcome:
    """Return what is known of a tune; while it runs, or where it was ended, the best so far.

    Args:
        progress: the tune.
        kept_answers: the answers that were kept, which show where they begin to differ.
    """
    design, boots = progress.design, progress.boots
    last = progress.rounds[-1] if progress.rounds else None
    best = last.field[-1] if last and last.key == CONFIRM else ranking.choose_leader(progress)
    fresh = select_fresh_boots(progress)
    confirmed = bool(best) and all(select_measured_boots(fresh, arm) for arm in (0, best))
    used = fresh if confirmed else boots
    comparison = verdict.compare_pair(design, used, 0, best, measure=TOKENS, comparisons=1) if best else None
    if comparison:
        comparison = replace(comparison, outputs=answers.compare_outputs(design, boots, 0, best, kept_answers))
    left_out = dict(design.tuning.left_out) if design.tuning else {}
    for search_round in progress.rounds:
        left_out |= search_round.left_out
    tried = {boot.arm for boot in boots if not boot.error}
    names = {arm.name for place, arm in enumerate(design.arms) if place in tried}
    return TuneOutcome(
        best=best,
        comparison=comparison,
        confirmed=confirmed,
        answers=_judge_answers(comparison),
        tried=len(tried),
        dropped={design.arms[boot.arm].name: boot.error for boot in boots if boot.error and boot.arm not in tried},
        left_out={name: why for name, why in left_out.items() if name not in names},
        spent=progress.spent,
    )


def select_fresh_boots(progress: Progress) -> list[Boot]:
    """Return the boots by which the best is held against the published setting.

    Of these two the boots of the last rounds alone, since the choice was made by those before; of all other arms every
    boot, since they tell how far boots of one arm are apart.
    """
    last = progress.rounds[-1] if progress.rounds else None
    if last is None or last.key != CONFIRM:
        return []
    since = _first_of_last_rounds(progress)
    return [boot for boot in progress.boots if boot.number >= since or boot.arm not in last.field]


def select_boots_of_last_rounds(progress: Progress) -> list[Boot]:
    """Return the boots of the best and the published setting after the choice between them and all others."""
    since = _first_of_last_rounds(progress)
    return [boot for boot in progress.boots if boot.number >= since]


def _first_of_last_rounds(progress: Progress) -> int:
    confirming = [search_round for search_round in progress.rounds if search_round.key == CONFIRM]
    return len(progress.design.order) - sum(len(search_round.order) for search_round in confirming)


def reckon_verdict_budget(boots: Sequence[Boot], spent: float) -> float:
    """Return the seconds of a budget that has room for a first verdict, where the published setting alone was booted.

    Beside what it took that is a boot of another setting, and two more of each.
    """
    published = [boot for boot in boots if not boot.error]
    again = (BOOTS_FOR_A_VERDICT - 2) * max(map(ranking.reckon_again, published))
    return spent + max(map(ranking.reckon_anew, published)) + again


def _judge_answers(comparison: Comparison | None) -> str:
    """Return whether the best answers as the published setting does, which it is itself where nothing is compared."""
    return _ALIKE[comparison.outputs.verdict] if comparison and comparison.outputs else "yes"


def is_worth_keeping(outcome: TuneOutcome) -> bool:
    """Whether the best becomes a recipe by itself: it is faster, and not shown to answer differently."""
    return is_faster(outcome) and outcome.answers != "no"


def is_faster(outcome: TuneOutcome) -> bool:
    """Whether the best is shown to be faster than the published setting, by boots after the choice."""
    return outcome.confirmed and outcome.comparison is not None and _says_faster(outcome.comparison)


def _says_faster(comparison: Comparison) -> bool:
    return comparison.word is Verdict.FASTER and not comparison.suggestive
