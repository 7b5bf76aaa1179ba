"""The sentences of a verdict: answer, figures, next step, qualifications and statistics."""

from __future__ import annotations

import math
from statistics import fmean, geometric_mean

from dflash_tui.common.formatting import format_duration, format_percent, pluralize, shorten_names, truncate_middle
from dflash_tui.experiments.analysis.measures import START, classify_start, select_measured_boots
from dflash_tui.experiments.analysis.report import (
    BreakEven,
    Comparison,
    ExperimentReport,
    OutputComparison,
    OutputVerdict,
    PromptRatio,
    Verdict,
)
from dflash_tui.experiments.analysis.stats import CLOSEST, CLOSEST_OF_TWO, LEVEL, LINE_FROM, UNSEEN, Ratio
from dflash_tui.experiments.design import Design
from dflash_tui.presentation.report import Note, Span, format_factor, format_ratio, format_spread, is_noisy

# Varied keys whose values need no key in front of them.
_SELF_EXPLANATORY = {"mode", "profile", "variant", "run", "setup", "url"}
_FACTOR_FROM = 1.5
_FAR_SPREAD = 0.1
_MOST_T = 1000
# A prompt is named if leaving it out moves the mean log ratio by more than this; less is chance.
_LEAST_TURN = math.log(1.1)
_NAME = 24
MARKS = "●◆▲■▼★"  # one per arm, so that arms do not differ by colour alone
_ADDED_BOOTS = 2
_MOST_PROMPTS = 6
_OUTPUT_HEADLINES = {
    OutputVerdict.ALIKE: "answers alike: no more different than between two boots of one arm",
    OutputVerdict.DIFFERENT: "answers differ more than between boots of one arm",
    OutputVerdict.UNKNOWN: "answers not compared",
}
_SIGNS = {Verdict.FASTER: "▲", Verdict.SLOWER: "▼", Verdict.NO_DIFFERENCE: "=", Verdict.REFUSED: "✗"}
_EXCERPT = 16
_LINE_END = "\n"


def label_arm(design: Design, arm: int) -> str:
    """Return the label of an arm: `compile`, `n=8`, `spec=off`."""
    name = design.arms[arm].name
    return name if design.tuning or design.vary in _SELF_EXPLANATORY else f"{design.vary}={name}"


def letter_arm(arm: int) -> str:
    """Return the letter of an arm, `A` for the first."""
    return chr(ord("A") + arm % 26)


def name_arm(design: Design, arm: int, width: int = _NAME) -> str:
    """Return the letter and name of an arm; a shortened name still differs from the other arms' names."""
    labels = [label_arm(design, place) for place in range(len(design.arms))]
    return f"{letter_arm(arm)} {shorten_names(labels, width)[labels[arm]]}"


def mark_arm(arm: int, name: str = "") -> Span:
    """Return an arm's mark with its letter, or with its `name`."""
    return Span(f"{MARKS[arm % len(MARKS)]} {name or letter_arm(arm)}", f"arm {arm}")


def name_prompt(prompt: PromptRatio) -> str:
    """Return the name of a prompt, with the number of streams unless it is 1."""
    streams = f" ×{prompt.streams}" if prompt.streams != 1 else ""
    return truncate_middle(prompt.kind, _NAME) + streams


def _label_both(report: ExperimentReport, comparison: Comparison) -> tuple[str, str]:
    return label_arm(report.design, comparison.a), label_arm(report.design, comparison.b)


def format_headline(report: ExperimentReport, comparison: Comparison) -> str:
    """Return the verdict on arm b against arm a in one sentence; a noisy ratio is left out."""
    a, b = _label_both(report, comparison)
    starts, ratio = comparison.measure == START, comparison.ratio
    kind = "cold starts" if report.design.cold else "starts with filled caches"
    where = f"the {START} of {kind}" if starts else comparison.measure
    if comparison.word is Verdict.REFUSED:
        reasons = dict.fromkeys(confound.what for confound in comparison.confounds if confound.refuses)
        return f"refused: {'; '.join(reasons) or 'no prompt was measured in both'}"
    if comparison.word is Verdict.NO_DIFFERENCE or ratio is None:
        if is_noisy(ratio):
            if _depends_on_prompt(comparison):
                return f"whether {b} is faster than {a} depends on the prompt"
            return f"too noisy to tell {a} and {b} apart in {where}"
        least = comparison.detectable
        if comparison.suggestive:
            least = math.expm1(UNSEEN)
        small = f"; less than about {_format_share(least)} cannot be seen here" if least else ""
        return f"no difference shown between {a} and {b} in {where}{small}"
    faster = comparison.word is Verdict.FASTER
    word = f"ready {'sooner' if faster else 'later'}" if starts else comparison.word.value
    suggestive = ", suggestive only" if comparison.suggestive else ""
    if is_noisy(ratio):
        much = "depends on the prompt" if _list_far_prompts(comparison) else "is too noisy to tell"
        return f"{b} is {word} than {a}; by how much {much}{suggestive}"
    much = f"{format_ratio(ratio.inverse)} times the seconds of {kind}" if starts else _format_difference(ratio, where)
    return f"{b} is {word} than {a}: {much}{suggestive}"


def format_figures(report: ExperimentReport, comparison: Comparison) -> str:
    """Return the judged figure of both arms ± half the range of their boots, or why it is noisy."""
    if comparison.word is Verdict.REFUSED:
        return ""
    if is_noisy(comparison.ratio):
        if _depends_on_prompt(comparison):
            return _format_prompts(comparison)
        causes = [f"{each.what} ({each.evidence})" for each in comparison.confounds if _disturbs(each.what)]
        causes += _list_spreads(report, comparison) + _list_far_prompts(comparison)
        return "; ".join(causes) or "nothing recorded explains it"
    starts, figures = comparison.measure == START, []
    for arm in (comparison.a, comparison.b):
        values = [figure.value for figure in comparison.figures if figure.arm == arm and figure.value > 0]
        if not values:
            return ""
        middle = (fmean if starts else geometric_mean)(values)
        text = format_duration(middle) if starts else f"{middle:.{1 if middle >= 10 else 2}f}"
        spread = f" {format_spread(min(values), max(values), middle)}" if len(values) > 1 else ""
        figures.append(f"{label_arm(report.design, arm)} {text}{spread}")
    a, b = comparison.boots
    boots = f"{pluralize(a, 'boot')} each" if a == b else f"{a} and {pluralize(b, 'boot')}"
    how = "± half the range of " if max(a, b) > 1 else ""
    return f"{comparison.measure}: {', '.join(figures)} ({how}{boots})"


def _disturbs(what: str) -> bool:
    """Whether a confound comes from the machine: other load, clocks, temperature, power."""
    return any(
        word in what for word in ("other processes", "load differed", "clock", "temperature", "power", "preempt")
    )


def _list_spreads(report: ExperimentReport, comparison: Comparison) -> list[str]:
    cvs = zip((comparison.a, comparison.b), comparison.cvs, strict=True)
    far = [(arm, cv) for arm, cv in cvs if cv and cv > _FAR_SPREAD and max(comparison.boots) > 1]
    return [f"boots of {label_arm(report.design, arm)} spread by {format_percent(cv)}" for arm, cv in far]


def _depends_on_prompt(comparison: Comparison) -> bool:
    """Whether the intervals of the slowest and the fastest prompt do not overlap."""
    far = _find_far_prompts(comparison)
    return bool(far) and far[0].ratio.high < far[1].ratio.low


def _find_far_prompts(comparison: Comparison) -> tuple[PromptRatio, ...]:
    """Return the prompts with the lowest and highest ratio if these are far apart, else ()."""
    prompts = sorted(comparison.prompts, key=lambda prompt: prompt.ratio.ratio)
    far = prompts and prompts[-1].ratio.ratio >= _FACTOR_FROM * prompts[0].ratio.ratio
    return (prompts[0], prompts[-1]) if far else ()


def _list_far_prompts(comparison: Comparison) -> list[str]:
    far = _find_far_prompts(comparison)
    if not far:
        return []
    least, most = map(_format_prompt, far)
    return [f"the ratio in {comparison.measure} is {least}, and {most}"]


def _format_prompt(prompt: PromptRatio) -> str:
    """Return the ratio of a prompt with its interval, however wide."""
    figures = [format_factor(value) for value in (prompt.ratio.ratio, prompt.ratio.low, prompt.ratio.high)]
    return "{} ({}–{})".format(*figures) + f" with {name_prompt(prompt)}"


def _format_prompts(comparison: Comparison) -> str:
    """Return the ratios of all prompts in ascending order, or the lowest and highest of many."""
    prompts = sorted(comparison.prompts, key=lambda prompt: prompt.ratio.ratio)
    shown = prompts if len(prompts) <= _MOST_PROMPTS else _find_far_prompts(comparison)
    return f"the ratio in {comparison.measure} is {', '.join(map(_format_prompt, shown))}"


def format_next_step(report: ExperimentReport, comparison: Comparison, *, add: str = "", share: str = "") -> str:
    """Return the next step with its command, or with the keys `add` and `share`; empty if there is none."""
    design = report.design
    if comparison.word is Verdict.REFUSED:
        return f"remove the cause and repeat it: {design.command}" if design.command else ""
    if not design.suite or not design.id:
        return ""
    add = add or f"dflash-tui {design.command_word} extend {design.id} --boots {_ADDED_BOOTS}"
    if comparison.suggestive:
        more = "start the server at its URL again, then" if design.servers else "add boots:"
        return f"one boot does not show how far boots differ (up to 10 %); {more} {add}"
    if is_noisy(comparison.ratio) and comparison.word is Verdict.NO_DIFFERENCE:
        own = "measure your own prompts: --dataset FILE"
        return own if _depends_on_prompt(comparison) else f"close what else uses the machine, or add boots: {add}"
    if comparison.word is Verdict.NO_DIFFERENCE:
        return f"more boots show smaller differences: {add}"
    return f"share it: {share or f'dflash-tui report {design.id}'}"


def list_answer(report: ExperimentReport, comparison: Comparison, step: str | None = None) -> list[Note]:
    """Return the headline, the two figures and the next step (default: with its command): at most three lines."""
    figures = format_figures(report, comparison)
    step = format_next_step(report, comparison) if step is None else step
    lines = [Note(format_headline(report, comparison), _SIGNS[comparison.word], "bold")]
    return [*lines, *([Note(figures)] if figures else []), *([Note(step, "→")] if step else [])]


def list_notes(report: ExperimentReport, comparison: Comparison) -> list[Note]:
    """Return the confounds, whether the answers are alike, and the break-even of a later start."""
    a, b = _label_both(report, comparison)
    notes = [
        *list_confounds(report.design, comparison),
        *(Note(line, "!") for line in _describe_deciding_prompt(comparison, b, a)),
    ]
    if (outputs := comparison.outputs) and outputs.verdict is not OutputVerdict.UNKNOWN:
        notes.append(Note(format_output_headline(outputs), "!" if outputs.verdict is OutputVerdict.DIFFERENT else ""))
    return notes + [Note(_describe_break_even(report, comparison, even)) for even in _choose_break_even(comparison)]


def list_confounds(design: Design, comparison: Comparison) -> list[Note]:
    """Return what else differs between two arms; what the label of a synthetic model says is left out."""
    return [
        Note(": ".join(filter(None, (confound.what, confound.evidence))), "✗" if confound.refuses else "!")
        for confound in comparison.confounds
        if confound.evidence != design.synthetic or confound.refuses
    ]


def list_details(report: ExperimentReport, comparison: Comparison) -> list[Note]:
    """Return the statistics behind a verdict, one sentence each."""
    a, b = _label_both(report, comparison)
    lines: list[str] = []
    if outputs := comparison.outputs:
        lines += [] if outputs.verdict is not OutputVerdict.UNKNOWN else [format_output_headline(outputs)]
        lines += list_output_details(outputs, a, b)
    if comparison.cv is None and comparison.ratio:
        lines.append("no request was repeated: the interval is the spread of such requests on a GB10 (17 %)")
    figures = {"steps/s": comparison.steps_s, "tok/s": comparison.tok_s, "AL": comparison.al}
    if ratios := [f"{name} {format_ratio(ratio)}" for name, ratio in figures.items() if ratio]:
        what = f"{_format_level(comparison)} intervals{' within these boots only' if comparison.suggestive else ''}"
        by = {"both": "both steps/s and acceptance length (AL)", "AL": "the acceptance length (AL)"}
        cause = f"; the difference is in {by.get(comparison.cause, comparison.cause)}" if comparison.cause else ""
        lines.append(f"ratio of {b} to {a}, {what}: {', '.join(ratios)}{cause}")
    lines += _describe_further(comparison, b, a)
    lines += _describe_test(report.design, comparison)
    lines += _describe_variation(report, comparison, a, b)
    others = [even for even in comparison.break_even if even not in _choose_break_even(comparison)]
    lines += [_describe_break_even(report, comparison, even) for even in others]
    return list(map(Note, lines))


def _describe_deciding_prompt(comparison: Comparison, b: str, a: str) -> list[str]:
    logs = [math.log(prompt.ratio.ratio) for prompt in comparison.prompts]
    if len(logs) < 2:
        return []
    whole = fmean(logs)
    others = [(sum(logs) - log) / (len(logs) - 1) for log in logs]
    turned = [place for place, mean in enumerate(others) if mean * whole < 0 and abs(mean - whole) > _LEAST_TURN]
    if not turned:
        return []
    place = max(turned, key=lambda place: abs(others[place] - whole))
    name, ratio = name_prompt(comparison.prompts[place]), format_factor(comparison.prompts[place].ratio.ratio)
    return [
        f"one prompt makes the difference: {b} to {a} in {comparison.measure} is {ratio} with {name}, and "
        f"{format_factor(math.exp(others[place]))} with the others together"
    ]


def _describe_further(comparison: Comparison, b: str, a: str) -> list[str]:
    words = {Verdict.FASTER: " (better)", Verdict.SLOWER: " (worse)"}
    lines, levels = [], dict.fromkeys(verdict.streams for verdict in comparison.further)
    for streams in levels:
        verdicts = [verdict for verdict in comparison.further if verdict.streams == streams]
        figures = [f"{each.measure} {format_ratio(each.ratio)}{words.get(each.word, '')}" for each in verdicts]
        lines.append(
            f"ratio of {b} to {a}{f', {streams} at a time' if len(levels) > 1 else ''}, {100 * verdicts[0].level:.3g} "
            f"% intervals, so that all of these hold together at 95 %: {', '.join(figures)}"
        )
    return lines


def _format_level(comparison: Comparison) -> str:
    level = comparison.test.level if comparison.test else LEVEL
    return f"{100 * level:.3g} %"


def _describe_test(design: Design, comparison: Comparison) -> list[str]:
    if (test := comparison.test) is None:
        return []
    over = "t test over prompts, within one boot each" if comparison.boots == (1, 1) else "Welch's t test of boot means"
    if len(design.arms) > 2 and comparison.boots != (1, 1):
        over += ", each arm's spread at least that of all arms together"
    t = f"|t| = {abs(test.t):.3g}" if abs(test.t) < _MOST_T else f"|t| over {_MOST_T}"
    df = "the normal distribution" if test.df is None else f"df {test.df:.3g}"
    least = f" if {_format_share(test.least)} or more" if comparison.suggestive else ""
    lines = [f"{over}: {t}, significant above {test.critical:.3g}{least} ({df})"]
    level, pairs = _format_level(comparison), test.comparisons // design.looks
    if pairs > 1:
        lines.append(f"{pairs} comparisons of two arms, each at {level}, so that all of them hold together at 95 %")
    if design.looks > 1:
        more = pluralize(design.looks - 1, "time")
        lines.append(f"boots were added {more} after a report: each interval is at {level} for that")
    if test.drift is not None:
        lines.append(f"drift over the boots, removed from both arms: {100 * test.drift:+.1f} % from first to last")
    return lines


def _describe_variation(report: ExperimentReport, comparison: Comparison, a: str, b: str) -> list[str]:
    if comparison.cv is None:
        return []
    arms = range(len(report.design.arms))
    between = any(len(select_measured_boots(report.boots, arm)) > 1 for arm in arms)
    shares = [f"{name} {_format_share(cv)}" for name, cv in zip((a, b), comparison.cvs, strict=True) if cv is not None]
    least = CLOSEST_OF_TWO if min(comparison.boots) < LINE_FROM else CLOSEST
    low = between and any(cv is not None and cv < least for cv in comparison.cvs)
    believed = f" (counted as at least {_format_share(least)})" if low else ""
    where = "between boots" if between else "of single requests"
    return [f"CV {where}: {', '.join(shares) or _format_share(comparison.cv)}{believed}"]


def _choose_break_even(comparison: Comparison) -> list[BreakEven]:
    """Return the break-even to show: a known one, preferably of cached starts; or none."""
    return [even for even in comparison.break_even if even.tokens is not None and even.requests is not None][-1:]


def _describe_break_even(report: ExperimentReport, comparison: Comparison, even: BreakEven) -> str:
    boots = [boot for boot in report.boots if boot.arm in {comparison.a, comparison.b} and not boot.error]
    cached = any(map(classify_start, boots))  # else no arm has a compile cache
    start = " from a cold start" if even.cold else " from a cached start" if cached else ""
    event = "answers its first request" if any(boot.cold_request for boot in boots) else "is ready"
    head = f"{label_arm(report.design, even.by)} {event} {format_duration(even.seconds)} later{start}"
    if even.tokens is not None and even.requests is not None:
        bounds = f"{_format_tokens(even.low)} to {_format_tokens(even.high)}"
        requests = pluralize(round(even.requests), "request")
        return f"{head} and has caught up after {_format_tokens(even.tokens)} output tokens ({bounds}), {requests}"
    if even.low is None:
        return f"{head} and does not catch up: it is not the faster one"
    if even.low < 1:  # the interval includes both paying back at once and never
        return f"{head}; when it has caught up is too noisy to tell"
    return f"{head} and catches up never, or not before {_format_tokens(even.low)} output tokens"


def _format_tokens(count: float | None) -> str:
    return "no limit" if count is None else f"{float(f'{count:.2g}'):,.0f}"


def list_sweep_notes(report: ExperimentReport) -> list[Note]:
    """Return the result of a sweep, the recommended value first; empty if there is no sweep."""
    sweep = report.sweep
    if sweep is None or sweep.best is None:
        return []
    names = {point.arm: label_arm(report.design, point.arm) for point in sweep.points}
    speeds = {point.arm: point.tok_s for point in sweep.points}
    fastest = f"fastest measured: {names[sweep.best]} with {speeds[sweep.best]:.1f} tok/s"
    if plateau_names := [names[arm] for arm in sweep.plateau if arm != sweep.best]:
        fastest += f"; not shown to be slower: {', '.join(plateau_names)}"
    recommended = "no recommendation: a comparison was refused"
    if sweep.recommended is not None:
        recommended = f"recommended: {names[sweep.recommended]}"
    if sweep.to_best and sweep.recommended is not None:
        much = f"; {names[sweep.best]} is {format_ratio(sweep.to_best)} times as fast" * sweep.to_best.excludes_one
        recommended += f", the smallest that is not shown to be slower{much}"
    lines = [recommended, fastest]
    if sweep.open:
        lines.append(f"estimated slower, but not shown to be: {', '.join(names[arm] for arm in sweep.open)}")
    if worse := [names[point.arm] for point in sweep.points if not point.like_best]:
        lines.append(f"slower: {', '.join(worse)}")
    if not report.design.honest:
        lines.append("suggestive only: one boot does not show how far boots differ (up to 10 %)")
    return [Note(lines[0], "★", "bold"), *map(Note, lines[1:])]


def format_output_headline(outputs: OutputComparison) -> str:
    """Return the verdict on the answers in one sentence."""
    undecided = outputs.verdict is OutputVerdict.UNKNOWN and outputs.prompts
    headline = "answers compared, without a verdict" if undecided else _OUTPUT_HEADLINES[outputs.verdict]
    if outputs.tokens and not undecided:
        fault = (
            "fault: speculation changes answers" if outputs.tokens.faults else "no fault: speculation changes no answer"
        )
        headline = f"{fault} by more than rounding"
    return f"{headline}{f': {outputs.why}' if outputs.why else ''}"


def list_output_details(outputs: OutputComparison, a: str, b: str) -> list[str]:
    """Return the figures behind the verdict on the answers; `a` and `b` are arm names."""
    lines: list[str] = []
    if not outputs.prompts:
        return lines
    if tokens := outputs.tokens:
        lines.append(
            f"answers: {tokens.alike} alike in every token, {tokens.rounded} diverge within rounding, {tokens.faults} "
            f"beyond it{f', {tokens.unscored} not scored' if tokens.unscored else ''}"
        )
        if worst := tokens.worst:
            place = f"{worst.kind}, round {worst.round + 1}{f', token {worst.place}' if worst.gap else ''}"
            early = "; one of the two answers ends early" if worst.ends_early else ""
            early += "; its tokens are alike, its streamed words or tool calls are not" if worst.loses_words else ""
            lines.append(f"largest gap of a token in an answer that diverges: {worst.gap:.4g} nats ({place}{early})")
        lines.append(
            f"measured rounding: {tokens.rounding:.4g} nats at most, {tokens.positions} tokens without speculation, "
            "decoded one at a time against read at once"
        )
    if not outputs.tokens or outputs.within:
        within = [f"of {name}: {format_percent(share)}" for name, share in zip((a, b), outputs.within, strict=False)]
        alike = f"; two boots {', '.join(within)}" if within else ""
        lines.append(
            f"{b} against {a}: {format_percent(outputs.different)} of pairs of greedy answers to "
            f"{pluralize(outputs.prompts, 'prompt')} differ{alike}"
        )
        if outputs.excess is not None and outputs.low is not None and outputs.high is not None:
            lines.append(
                f"more than between boots of one arm: {100 * outputs.excess:+.0f} percentage points "
                f"({100 * outputs.low:+.0f} to {100 * outputs.high:+.0f}; 95 %, bootstrap over prompts)"
            )
    return lines


def list_first_difference(outputs: OutputComparison, a: str, b: str) -> list[str]:
    """Return the two answers that differ earliest or by the largest gap; empty if the arms are alike by their boots."""
    if (outputs.verdict is OutputVerdict.ALIKE and not outputs.tokens) or (first := outputs.first) is None:
        return []
    width = max(len("both"), *(min(_EXCERPT, len(name)) for name in (a, b)))
    rows = (("both", first.common), (a, first.a), (b, first.b))
    excerpts = [
        f"{name[:_EXCERPT]:<{width}}  {'⏎'.join(text.split(_LINE_END)) or '(ends)'}"
        for name, text in rows
        if text or name != "both"
    ]
    streams = f" ×{first.streams}" if first.streams != 1 else ""
    boots = " and ".join(str(number + 1) for number in first.boots)
    where = f"{first.kind}{streams}, round {first.round + 1}, boots {boots}"
    which = "where it diverges" if outputs.tokens else "soonest"
    return [f"{which}: {where}, from {outputs.unit} {first.position} on", *excerpts]


def _format_difference(ratio: Ratio, where: str) -> str:
    """Return a difference as a factor if it is large, else as a percentage."""
    if ratio.ratio > _FACTOR_FROM:
        return f"{format_factor(ratio.ratio)}x ({format_factor(ratio.low)}–{format_factor(ratio.high)}) in {where}"
    values = [(value - 1) * 100 for value in (ratio.ratio, ratio.low, ratio.high)]
    return "{:+.1f} % ({:+.1f} to {:+.1f})".format(*values) + f" in {where}"


def _format_share(share: float | None) -> str:
    if share is not None and share > 2:
        return f"a factor of {format_factor(1 + share)}"
    return format_percent(share, 0 if share is not None and share >= 0.1 else 1)
