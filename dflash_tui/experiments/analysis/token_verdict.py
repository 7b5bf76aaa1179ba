"""Whether speculation changes greedy answers by more than rounding. Pure.

A step that verifies several tokens rounds unlike a step of one, so a token that is almost as likely as another may win,
and the rest of the answer is another one: that is no fault. So each token of an answer with speculation is scored by
the server without it. Its gap is how far its log-probability is below that of the likeliest token there. The yardstick
is how far the lead of a token over its runner-up moves on that same server when the same tokens are decoded one at a
time and read all at once: the largest of all positions. An answer that parts with a gap above that is a fault.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dflash_tui.experiments.analysis.report import OutputComparison, OutputVerdict, TokenComparison
from dflash_tui.experiments.design import AnswerCheck

# With fewer positions the largest shift may be far below that of rounding.
_FEWEST_POSITIONS = 100


def judge_tokens(comparison: OutputComparison, checks: Sequence[AnswerCheck], *, untested: str) -> OutputComparison:
    """Return the comparison with a verdict by scored tokens.

    Args:
        comparison: how the answers of two arms differ.
        checks: what the arm without speculation says of those of the other.
        untested: why answers that are alike decide nothing, or empty.
    """
    tokens = _sum_up(checks)
    comparison = replace(comparison, verdict=OutputVerdict.UNKNOWN, why="", tokens=tokens)
    if tokens.faults and tokens.positions < _FEWEST_POSITIONS:
        return replace(comparison, why=f"rounding was measured at {tokens.positions} tokens only: more --prompts")
    if tokens.faults:
        return replace(comparison, verdict=OutputVerdict.DIFFERENT)
    if not tokens.alike + tokens.rounded:
        return replace(comparison, why=checks[0].error)
    return replace(comparison, why=untested) if untested else replace(comparison, verdict=OutputVerdict.ALIKE)


def _sum_up(checks: Sequence[AnswerCheck]) -> TokenComparison:
    scored = [check for check in checks if not check.error]
    rounding = max((check.rounding for check in scored), default=0.0)
    parted = [check for check in scored if check.parted is not None]
    faults = [check for check in parted if check.ends_early or check.gap > rounding]
    worst = max(faults or parted, key=lambda check: check.gap, default=None)
    return TokenComparison(
        alike=len(scored) - len(parted),
        rounded=len(parted) - len(faults),
        faults=len(faults),
        unscored=len(checks) - len(scored),
        tokens=sum(check.tokens for check in scored),
        rounding=rounding,
        positions=sum(check.positions for check in scored),
        worst=worst,
    )
