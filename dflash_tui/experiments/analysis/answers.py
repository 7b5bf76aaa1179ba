"""Whether two arms answer alike at temperature 0, relative to how much boots of one arm differ. Pure.

Answers may change although the model did not: kernels round differently, a rounding difference may flip a token, and
the rest of a greedy answer follows it. Two boots of one arm may differ for the same reason, so they are the yardstick.
The unit is the prompt as sent. Its excess is the share of pairs of boots, one of each arm, that answered it
differently, minus the mean of the same shares within each arm. The interval is that of the mean excess, by a percentile
bootstrap over prompts (Efron & Tibshirani 1993, chapter 13); it does not cover the choice of boots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, product
from statistics import fmean
from typing import NamedTuple

from msgspec.structs import replace

from dflash_tui.benchmark.sse import Answer
from dflash_tui.experiments.analysis import stats
from dflash_tui.experiments.analysis.measures import select_measured_boots
from dflash_tui.experiments.analysis.report import (
    Comparison,
    ExperimentReport,
    FirstDifference,
    OutputComparison,
    OutputVerdict,
    TokenComparison,
)
from dflash_tui.experiments.design import AnswerCheck, Boot, Design, KeptAnswer
from dflash_tui.planning.recipes.resolution import NOT_ANSWERED_BY_THE_MODEL

# The fewest prompts for a verdict: of two, both differ by chance in one of nine experiments.
FEWEST = 5
_YARDSTICK = "two boots of one arm do"
_UNTESTED = "no draft was ever rejected, so verification was not exercised"
# Characters shown before and after a first difference.
_BEFORE, _AFTER = 60, 120
# With fewer positions the largest measured shift may be far below the real rounding.
_FEWEST_POSITIONS = 100


class PromptKey(NamedTuple):
    """A prompt as sent: its kind, the number of streams, and its repetition."""

    kind: str
    streams: int
    round: int


class BootAnswer(NamedTuple):
    """The answer of a boot to one prompt: its digest, and its text if kept."""

    digest: str
    answer: Answer | None

    @property
    def tokens(self) -> tuple[int, ...]:
        """The token ids of the answer; empty if unknown."""
        return self.answer.tokens if self.answer else ()


_Answers = dict[PromptKey, BootAnswer]


def add_output_checks(report: ExperimentReport, answers: Sequence[KeptAnswer]) -> ExperimentReport:
    """Return the report with the answers compared, for every pair of arms whose launches differ."""
    design = report.design
    if not design.suite or design.measures_start:  # nothing was sent, or it is unknown what
        return report
    fields = ("argv", "env", "patches", "engine_folder")

    def check(comparison: Comparison) -> Comparison:
        a, b = design.arms[comparison.a], design.arms[comparison.b]
        if a.request == b.request and all(getattr(a.plan, name) == getattr(b.plan, name) for name in fields):
            return comparison
        return replace(comparison, outputs=compare_outputs(design, report.boots, comparison.a, comparison.b, answers))

    return replace(report, comparisons=tuple(map(check, report.comparisons)))


def compare_outputs(
    design: Design, boots: Sequence[Boot], a: int, b: int, kept_answers: Sequence[KeptAnswer] = ()
) -> OutputComparison:
    """Return how much the greedy answers of two arms differ beyond those of boots of one arm."""
    if why := _explain_meaningless(design, a, b):
        return OutputComparison(OutputVerdict.UNKNOWN, why)
    ours, theirs = ([(boot.number, _collect_answers(boot, kept_answers)) for boot in _select_boots(design, boots, arm)]
                    for arm in (a, b))  # fmt: skip
    of_all = [answers for _, answers in (*ours, *theirs)]
    shared = [key for key in of_all[0] if all(key in answers for answers in of_all)] if of_all else []
    if not ours or not theirs or not shared:
        return OutputComparison(OutputVerdict.UNKNOWN, "no prompt was answered in every boot of both arms")
    by_boot = [[answers for _, answers in arm] for arm in (ours, theirs)]
    between = [_share_different(key, product(by_boot[0], by_boot[1])) for key in shared]
    within = [[_share_different(key, combinations(arm, 2)) for key in shared] for arm in by_boot if len(arm) > 1]
    in_tokens = all(answers[key].tokens for answers in of_all for key in shared)
    comparison = OutputComparison(
        OutputVerdict.UNKNOWN,
        prompts=len(shared),
        boots=(len(ours), len(theirs)),
        different=fmean(between),
        within=tuple(map(fmean, within)) if len(within) == 2 else (),
        unit="token" if in_tokens else "character",
        first=_find_first_difference(shared, ours, theirs, in_tokens=in_tokens),
    )
    accepted_all = _accepted_all(design, boots, a, b)
    if checks := [check for boot in select_measured_boots(boots, a) for check in boot.checks]:
        comparison = _judge_tokens(comparison, checks, untested=_UNTESTED if accepted_all else "")
        worst = comparison.tokens.worst if comparison.tokens else None
        keys = [key for key in shared if worst and key == (worst.kind, worst.streams, worst.round)]
        return replace(comparison, first=_find_first_difference(keys, ours, theirs, in_tokens=in_tokens))
    excess = [x - fmean(y) for x, *y in zip(between, *within, strict=True)] if len(within) == 2 else []
    comparison = _judge(comparison, excess)
    untested = comparison.verdict is OutputVerdict.ALIKE and accepted_all
    return replace(comparison, verdict=OutputVerdict.UNKNOWN, why=_UNTESTED) if untested else comparison


def _select_boots(design: Design, boots: Sequence[Boot], arm: int) -> list[Boot]:
    """Return the measured boots of an arm; of the turns at a running server the first after each of its starts."""
    measured = select_measured_boots(boots, arm)
    return measured if design.arms[arm].server is None else [*{b.process: b for b in reversed(measured)}.values()][::-1]


def _accepted_all(design: Design, boots: Sequence[Boot], a: int, b: int) -> bool:
    """Whether just one of two arms drafts, and none of its drafts was rejected."""
    drafts = [design.arms[arm].plan.num_speculative_tokens for arm in (a, b)]
    if all(drafts) or not any(drafts):
        return False
    arm, most = (a, drafts[0]) if drafts[0] else (b, drafts[1])
    requests = [done for boot in select_measured_boots(boots, arm) for done in boot.requests if not done.error]
    counts = [(done.steps, done.accepted) for done in requests if done.steps and done.accepted is not None]
    # The last step of an answer may have been cut at the length limit.
    return bool(counts) and all(accepted > (steps - 1) * most for steps, accepted in counts)


def _judge(comparison: OutputComparison, excess: Sequence[float]) -> OutputComparison:
    if len(excess) < FEWEST:
        need = f"at least {FEWEST} prompts are needed" if excess else "it takes two boots of each arm"
        return replace(comparison, why=f"whether they differ more than {_YARDSTICK} is unknown, {need}")
    mean = stats.bootstrap_mean(excess)
    verdict = OutputVerdict.DIFFERENT if mean.low > 0 else OutputVerdict.ALIKE
    return replace(comparison, verdict=verdict, excess=mean.ratio, low=mean.low, high=mean.high)


def _explain_meaningless(design: Design, a: int, b: int) -> str:
    if design.temperature != 0:
        heat = "the model's own" if design.temperature is None else f"{design.temperature:g}"
        return f"answers were sampled, at a temperature of {heat}: --temperature 0 compares them"
    plans = [design.arms[arm].plan for arm in (a, b)]
    # Toy weights built by a recipe are real enough for a verification.
    reasons = dict.fromkeys(
        reason
        for plan in plans
        for reason in filter(None, plan.synthetic.split("; "))
        if not plan.build_script or any(what in reason for what in NOT_ANSWERED_BY_THE_MODEL)
    )
    return f"{'; '.join(reasons)}: such answers say nothing" if reasons else ""


def _collect_answers(boot: Boot, kept_answers: Sequence[KeptAnswer]) -> _Answers:
    texts = {
        PromptKey(line.kind, line.streams, line.round): line.answer for line in kept_answers if line.run == boot.run
    }
    keys = {PromptKey(done.kind, done.streams, done.round): done for done in boot.requests if not done.error}
    return {
        key: BootAnswer(done.digests[-1] if done.digests else "", texts.get(key))
        for key, done in keys.items()
        if done.digests or key in texts
    }


def _share_different(key: PromptKey, pairs: Iterable[tuple[_Answers, _Answers]]) -> float:
    """Compare the streamed words, and tokens if known, since the text lacks special tokens."""
    answered = [(ours[key], theirs[key]) for ours, theirs in pairs]
    return fmean((bool(a.tokens and b.tokens) and a.tokens != b.tokens) or a.digest != b.digest for a, b in answered)


def locate_difference(a: Sequence[object], b: Sequence[object]) -> int | None:
    """Return the index at which two texts or token lists first differ, or None if they are equal."""
    place = next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    return min(len(a), len(b)) if place is None and len(a) != len(b) else place


def _locate(a: BootAnswer, b: BootAnswer, *, in_tokens: bool) -> int | None:
    if in_tokens and (place := locate_difference(a.tokens, b.tokens)) is not None:
        return place
    return locate_difference(a.answer.text, b.answer.text) if a.answer and b.answer else None


def _find_first_difference(
    shared: Sequence[PromptKey],
    ours: Sequence[tuple[int, _Answers]],
    theirs: Sequence[tuple[int, _Answers]],
    *,
    in_tokens: bool,
) -> FirstDifference | None:
    located = [
        (place, key, pair)
        for pair in product(ours, theirs)
        for key in shared
        if (place := _locate(pair[0][1][key], pair[1][1][key], in_tokens=in_tokens)) is not None
    ]
    if not located:
        return None
    place, key, ((number, ours_of_boot), (against, theirs_of_boot)) = min(located, key=lambda candidate: candidate[0])
    texts = [answer.text for answer in (ours_of_boot[key].answer, theirs_of_boot[key].answer) if answer]
    common, a, b = split_at_difference(texts[0], texts[1])
    return FirstDifference(
        key.kind, key.streams, key.round, (number, against), place + 1, common[-_BEFORE:], a[:_AFTER], b[:_AFTER]
    )


def split_at_difference(a: str, b: str) -> tuple[str, str, str]:
    """Return the common beginning of two texts, and the rest of each."""
    place = locate_difference(a, b)
    return (a, "", "") if place is None else (a[:place], a[place:], b[place:])


def list_prompts(
    report: ExperimentReport, comparison: Comparison, kept_answers: Sequence[KeptAnswer]
) -> Iterator[AnswerPair]:
    """Yield one pair of kept answers per prompt, preferably one that differs."""
    runs = [
        {boot.run: boot.number for boot in select_measured_boots(report.boots, arm)}
        for arm in (comparison.a, comparison.b)
    ]
    by_key: dict[PromptKey, tuple[list[KeptAnswer], list[KeptAnswer]]] = {}
    for line in kept_answers:
        for side, numbers in enumerate(runs):
            if line.run in numbers:
                by_key.setdefault(PromptKey(line.kind, line.streams, line.round), ([], []))[side].append(line)
    for key, (ours, theirs) in by_key.items():
        pairs = [(x, y) for x in ours for y in theirs]
        if pairs:
            x, y = next((pair for pair in pairs if pair[0].answer != pair[1].answer), pairs[0])
            yield AnswerPair(key, (runs[0][x.run], runs[1][y.run]), x.answer, y.answer)


class AnswerPair(NamedTuple):
    """The answers of two arms to the same prompt, one boot of each."""

    key: PromptKey
    boots: tuple[int, int]
    a: Answer
    b: Answer


def _judge_tokens(comparison: OutputComparison, checks: Sequence[AnswerCheck], *, untested: str) -> OutputComparison:
    """Return the comparison judged by scored tokens; `untested` is why equal answers prove nothing."""
    tokens = _sum_up(checks)
    comparison = replace(comparison, verdict=OutputVerdict.UNKNOWN, why="", tokens=tokens)
    if tokens.faults and tokens.positions < _FEWEST_POSITIONS and not any(check.loses_words for check in checks):
        return replace(comparison, why=f"rounding was measured at {tokens.positions} tokens only: more --prompts")
    if tokens.faults:
        return replace(comparison, verdict=OutputVerdict.DIFFERENT)
    if not tokens.alike + tokens.rounded:
        return replace(comparison, why=checks[0].error)
    return replace(comparison, why=untested) if untested else replace(comparison, verdict=OutputVerdict.ALIKE)


def _sum_up(checks: Sequence[AnswerCheck]) -> TokenComparison:
    scored = [check for check in checks if not check.error]
    rounding = max((check.rounding for check in scored), default=0.0)
    parted = [check for check in scored if check.parted is not None or check.loses_words]
    faults = [check for check in parted if check.ends_early or check.loses_words or check.gap > rounding]
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
