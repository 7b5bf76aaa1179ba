"""The sentences of an output check: whether two arms answer alike, and the two answers that differ soonest."""

from __future__ import annotations

from dflash_tui.common.formatting import format_percent, pluralize
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.experiments.analysis.report import (
    FirstDifference,
    OutputComparison,
    OutputVerdict,
    TokenComparison,
)

_HEADLINES = {
    OutputVerdict.ALIKE: "answers alike: no more different than those of two boots of one arm",
    OutputVerdict.DIFFERENT: "answers differ, beyond what boots of one arm differ by",
    OutputVerdict.UNKNOWN: "answers not compared",
}
_NAME = 16


def format_output_headline(outputs: OutputComparison) -> str:
    """Return the verdict on the answers in one sentence; answers that were compared may still not decide anything."""
    undecided = outputs.verdict is OutputVerdict.UNKNOWN and outputs.prompts
    headline = "answers compared, without a verdict" if undecided else _HEADLINES[outputs.verdict]
    if outputs.tokens and not undecided:
        headline = (
            "fault: speculation changes answers" if outputs.tokens.faults else "no fault: speculation changes no answer"
        )
        headline += " by more than rounding"
    return f"{headline}{f': {outputs.why}' if outputs.why else ''}"


def list_output_details(outputs: OutputComparison, a: str, b: str) -> list[str]:
    """Return the figures behind the verdict on the answers, a sentence each; `a` and `b` are the names of the arms."""
    if not outputs.prompts:
        return []
    if outputs.tokens:
        return _list_token_lines(outputs.tokens)
    lines = [
        f"{b} against {a}: {format_percent(outputs.different)} of pairs of greedy answers to "
        f"{pluralize(outputs.prompts, 'prompt')} differ{_format_within(outputs, a, b)}"
    ]
    if outputs.excess is not None and outputs.low is not None and outputs.high is not None:
        lines.append(
            f"more than between boots of one arm: {100 * outputs.excess:+.0f} percentage points "
            f"({100 * outputs.low:+.0f} to {100 * outputs.high:+.0f}; 95 %, bootstrap over prompts, for these "
            f"{sum(outputs.boots)} boots)"
        )
    if outputs.position is not None:
        other = outputs.position_within
        within = "" if other is None else f", between boots of one arm {other:.0f}"
        lines.append(f"first {outputs.unit} that differs, median: {outputs.position:.0f}{within}")
    return lines


def _list_token_lines(tokens: TokenComparison) -> list[str]:
    """Return how many answers are alike, part within rounding and beyond it, with the figures that decided."""
    unscored = f", {tokens.unscored} not scored" if tokens.unscored else ""
    lines = [
        f"answers: {tokens.alike} alike in every token, {tokens.rounded} part within rounding, "
        f"{tokens.faults} beyond it{unscored}"
    ]
    if worst := tokens.worst:
        place = f"{clean_line(worst.kind)}, round {worst.round + 1}{f', token {worst.place}' if worst.gap else ''}"
        early = "; one of the two answers ends early" if worst.ends_early else ""
        lines.append(f"largest gap of a token in an answer that parts: {worst.gap:.4g} nats ({place}{early})")
    return [
        *lines,
        f"measured rounding: {tokens.rounding:.4g} nats at most, {tokens.positions} tokens without speculation, "
        "decoded one at a time against read at once",
    ]


def _format_within(outputs: OutputComparison, a: str, b: str) -> str:
    if len(outputs.within) != 2:
        return ""
    ours, theirs = map(format_percent, outputs.within)
    return f"; two boots of {a}: {ours}, of {b}: {theirs}"


def list_first_difference(outputs: OutputComparison, a: str, b: str) -> list[str]:
    """Return the two answers that differ soonest, or that have the largest gap; none where arms are alike."""
    if outputs.verdict is OutputVerdict.ALIKE or (first := outputs.first) is None:
        return []
    width = max(len("both"), *(min(_NAME, len(name)) for name in (a, b)))
    rows = (("both", first.common), (a, first.a), (b, first.b))
    excerpts = [
        f"{clean_line(name)[:_NAME]:<{width}}  {_in_one_line(text)}" for name, text in rows if text or name != "both"
    ]
    return [_name_place(outputs, first), *excerpts]


def _in_one_line(text: str) -> str:
    return clean_line(text.replace("\n", "⏎")) or "(ends)"


def _name_place(outputs: OutputComparison, first: FirstDifference) -> str:
    """Return where the two answers that are shown are: the prompt, the boots and the place."""
    streams = f" ×{first.streams}" if first.streams != 1 else ""
    boots = " and ".join(str(number + 1) for number in first.boots)
    where = f"{clean_line(first.kind)}{streams}, round {first.round + 1}, boots {boots}"
    which = "where it parts" if outputs.tokens else "soonest"
    return clean_line(f"{which}: {where}, from {outputs.unit} {first.position} on")
