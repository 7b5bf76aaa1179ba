"""Two answers that are written side by side as Textual content: their texts, their figures, the ratio so far. Pure."""

from __future__ import annotations

from textual.content import Content

from dflash_tui.common.formatting import UNKNOWN, draw_bar, format_number, pluralize, truncate
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.experiments.analysis.playback import PlayedAnswer, PlayedPair
from dflash_tui.experiments.analysis.report import Comparison, ExperimentReport
from dflash_tui.experiments.design import Design
from dflash_tui.monitoring.recording import PlaybackClock
from dflash_tui.presentation.experiment_report import name_arm
from dflash_tui.presentation.report import format_factor
from dflash_tui.tui.render.experiment import render_arm_name, render_headline
from dflash_tui.tui.render.report import arm_color
from dflash_tui.tui.widgets.basic import MUTED, join_fitting

_CURSOR = "▌"
NOT_KEPT = "The text of this answer was not kept; its tokens and seconds were measured."
_CUT = "[not kept from here on]"


def render_clock(pair: PlayedPair, place: int, count: int, clock: PlaybackClock, width: int) -> Content:
    """Return the line over two answers: how they are played, which prompt it is, and of how many where there is room.

    Args:
        pair: the answers.
        place: which of all pairs this is, from 0.
        count: of how many.
        clock: what plays them.
        width: of the line.
    """
    mark, word = ("■", "end") if clock.finished else ("‖", "paused") if clock.paused else ("▶", "playing")
    streams = f", one of {pair.key.streams} at a time" if pair.key.streams != 1 else ""
    head = Content.assemble(
        (f" {mark} A/B ", "bold reverse $accent"),
        (f" {word:<8} ×{clock.speed:g}  {clock.position:4.1f} of {clock.duration:.1f} s  ", "bold"),
    )
    prompt = Content.assemble((f"{clean_line(pair.key.kind)}, round {pair.key.round + 1}{streams}", "bold $primary"))
    return join_fitting(
        [head, prompt, Content.assemble((f"  {place + 1} of {pluralize(count, 'prompt')}", MUTED))], width
    )


def render_side_title(design: Design, answer: PlayedAnswer, width: int) -> Content:
    """Return the name of an arm and of its boot."""
    boot = f", boot {answer.boot + 1}"
    return render_arm_name(design, answer.arm, max(8, width - len(boot) - 8)) + Content(boot)


def describe_blank(text: str) -> str:
    """Return that an answer has nothing to be seen, as those of random weights may; empty for any other."""
    return "" if text.strip() else f"[{pluralize(len(text), 'character')}, all white space]"


def render_text(answer: PlayedAnswer, at: float, width: int, rows: int) -> Content:
    """Return the last rows of what is written of an answer after so many seconds."""
    if answer.text is None:
        written = Content.assemble((NOT_KEPT, MUTED))
    elif at < answer.seconds:
        written = Content.assemble(answer.read_text(at), (_CURSOR, arm_color(answer.arm)))
    else:
        written = Content.assemble(
            answer.text.rstrip(), (describe_blank(answer.text), MUTED), (f"\n{_CUT}" if answer.cut else "", MUTED)
        )
    return Content("\n").join(written.wrap(max(1, width))[-max(1, rows) :])


def render_figures(answer: PlayedAnswer, at: float, most: int, width: int) -> Content:
    """Return the tokens and seconds of an answer so far, its speed, and a bar of its tokens.

    Args:
        answer: the answer.
        at: how many seconds have passed since it was asked for.
        most: how many tokens the longer one of the two has.
        width: of the lines.
    """
    tokens, speed, over = answer.count_tokens(at), answer.measure_speed(at), at >= answer.seconds
    first = f"{answer.ttft:.2f} s" if at >= answer.ttft else UNKNOWN
    passed = f"done in {answer.seconds:.2f} s" if over else f"{at:.1f} s"
    color = arm_color(answer.arm)
    lines = [
        Content.assemble((f"{tokens:>5}", f"bold {color}"), " tokens  ", (format_number(speed), "bold"), " tok/s"),
        join_fitting([Content(f"{'✓ ' if over else '  '}{passed}"), Content(f", TTFT {first}")], width).stylize(MUTED),
        Content.styled(draw_bar(tokens / most, width) or " ", color),
    ]
    return Content("\n").join(lines)


def render_ratio(design: Design, pair: PlayedPair, at: float, width: int) -> Content:
    """Return the output of the second arm so far as a multiple of that of the first, in `width` cells."""
    ratio = pair.measure_ratio(at)
    factor = Content.styled(
        f" {UNKNOWN if ratio is None else f'{format_factor(ratio)}x'} ", f"bold reverse {arm_color(pair.b.arm)}"
    )
    words = f"'s output {'' if at >= pair.seconds else 'so far '}against "
    room = (width - factor.cell_length - len(words) - len("  A  B 's")) // 2
    a, b = (name_arm(design, answer.arm, max(3, min(20, room))) for answer in (pair.a, pair.b))
    compared = Content.assemble((f"  {b}{words}{a}'s", "bold"))
    return join_fitting([factor, compared, Content.assemble(("  tokens/s since the request", MUTED))], width)


def render_foot(report: ExperimentReport, comparison: Comparison | None, pair: PlayedPair, width: int) -> Content:
    """Return the verdict on all that was measured, what it is of, and how these two answers are played."""
    design, boots = report.design, len(report.boots)
    if comparison is None:
        over = f"{boots} of {pluralize(len(design.order), 'boot')} {'is' if boots == 1 else 'are'} over"
        headline = Content.assemble(("◐ ", "$warning"), (f"the verdict comes at the end: {over}", "bold"))
    else:
        headline = render_headline(report, comparison, width)
    heat = "the model's own temperature" if design.temperature is None else f"temperature {design.temperature:g}"
    gpus = dict.fromkeys(clean_line(name) for boot in report.boots for name in boot.gpus)
    machine = ", ".join(gpus) or ("CPU" if design.arms[0].plan.on_cpu else "")
    engine = next((clean_line(boot.engine) for boot in report.boots if boot.engine), "")
    facts = [engine, machine, f"suite {clean_line(design.suite)}", heat]
    return Content("\n").join([headline, *(Content.assemble((truncate(line, width), MUTED)) for line in
                               (" · ".join(filter(None, facts)), describe_timing(pair)))])  # fmt: skip


def describe_timing(pair: PlayedPair) -> str:
    """Return of which requests these are, and whether their tokens come when they came."""
    recorded = [bool(answer.marks) for answer in (pair.a, pair.b)]
    times = {
        (True, True): "tokens come when they came",
        (False, False): "mean speed: when tokens came was not kept",
        (True, False): "A's tokens come when they came, B's at their mean speed",
        (False, True): "B's tokens come when they came, A's at their mean speed",
    }[recorded[0], recorded[1]]
    return f"{times}; boots of median speed"
