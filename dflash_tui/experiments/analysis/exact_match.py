"""How many answers of each arm have the right number, where the prompts say which that is. Pure.

The unit is the prompt: the share of its answers that are right, in all boots of an arm. The interval of the difference
is a percentile bootstrap over prompts, so that it pairs the arms by prompt.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import fmean

from dflash_tui.benchmark.question_files import read_final_number
from dflash_tui.experiments.analysis.measures import TAIL, bootstrap_means, select_measured_boots
from dflash_tui.experiments.analysis.report import ExactMatch
from dflash_tui.experiments.design import Boot, Design, KeptAnswer

_MARKED = re.compile(r"####[^\d\n-]{0,10}(-?\d[\d,.]*)")


def is_right(text: str, number: str) -> bool:
    """Whether an answer has the number: after its first `####`, as it was asked for, else the last one in it."""
    marked = _MARKED.search(text)
    return read_final_number(marked[1] if marked else text) == number


def measure_exact_match(
    design: Design, boots: Sequence[Boot], a: int, b: int, answers: Sequence[KeptAnswer]
) -> ExactMatch | None:
    """Return how many answers of two arms are right; None where no prompt with a known answer was answered by both.

    Args:
        design: the experiment.
        boots: its boots.
        a: the arm that is compared with.
        b: the arm that is judged.
        answers: the answers that were kept.
    """
    ours, theirs = (_share_right(design, boots, arm, answers) for arm in (a, b))
    shared = [kind for kind in ours if kind in theirs]
    if not shared:
        return None
    low, high = bootstrap_means([theirs[kind] - ours[kind] for kind in shared])
    if low == high:  # all prompts are alike, so that a bootstrap knows no spread (Clopper & Pearson 1934)
        unseen = 1 - TAIL ** (1 / len(shared))
        low, high = max(-1.0, low - unseen), min(1.0, high + unseen)
    shares = fmean(ours[kind] for kind in shared), fmean(theirs[kind] for kind in shared)
    return ExactMatch(len(shared), shares, shares[1] - shares[0], low, high)


def _share_right(design: Design, boots: Sequence[Boot], arm: int, answers: Sequence[KeptAnswer]) -> dict[str, float]:
    """Return the share of right answers of an arm by prompt; one whose end was not kept is left out."""
    runs = {boot.run for boot in select_measured_boots(boots, arm)}
    verdicts: dict[str, list[bool]] = {}
    for line in answers:
        number = design.right_answers.get(line.kind)
        if line.run in runs and number and not line.answer.cut:
            verdicts.setdefault(line.kind, []).append(is_right(line.answer.text, number))
    return {kind: fmean(right) for kind, right in verdicts.items()}
