"""Plays the saved answers of two arms of an A/B at their recorded speed.

The request of median speed is played for each arm. Its text is spread evenly over its tokens, which arrive as recorded.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from statistics import median_low
from typing import ClassVar, NamedTuple, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.content import Content

from dflash_tui.common.errors import UsageError
from dflash_tui.common.formatting import UNKNOWN, draw_bar, format_number, format_synthetic, pluralize
from dflash_tui.events import RequestDone
from dflash_tui.experiments import store
from dflash_tui.experiments.analysis.answers import PromptKey
from dflash_tui.experiments.analysis.measures import select_measured_boots
from dflash_tui.experiments.analysis.report import ExperimentReport
from dflash_tui.experiments.design import Boot, KeptAnswer
from dflash_tui.monitoring.recording import PlaybackClock
from dflash_tui.presentation import verdict_text
from dflash_tui.presentation.report import format_factor
from dflash_tui.presentation.verdict_text import name_arm
from dflash_tui.tui.render.experiment import arm_color, render_arm_name, render_report_head, to_content
from dflash_tui.tui.widgets.basic import (
    HELP_KEY,
    MUTED,
    QUIT_KEY,
    Display,
    Keys,
    SizedScreen,
    TooSmall,
    join_fitting,
    once_composed,
    while_open,
)

Found = TypeVar("Found")


class PlayedAnswer(NamedTuple):
    """An answer with the arrival times of its tokens."""

    boot: Boot
    done: RequestDone
    kept: KeptAnswer

    @property
    def seconds(self) -> float:
        """The arrival of the last token, in seconds."""
        return self.kept.arrivals[-1][0] / 1000

    def measure_speed(self) -> float:
        """Return its decode tok/s."""
        return self.done.decode_tok_s or 0.0

    def count_tokens(self, at: float) -> int:
        """Return the number of tokens that have arrived by `at` seconds."""
        place = bisect_right(self.kept.arrivals, 1000 * at, key=lambda mark: mark[0])
        return self.kept.arrivals[place - 1][1] if place else 0

    def measure_output(self, at: float) -> float:
        """Return tokens per second since the request was sent, TTFT included."""
        return self.count_tokens(at) / min(at, self.seconds) if at else 0.0


class PlayedPair(NamedTuple):
    """The answers of two arms to the same prompt."""

    key: PromptKey
    a: PlayedAnswer
    b: PlayedAnswer

    @property
    def seconds(self) -> float:
        """The end of the slower answer, in seconds."""
        return max(self.a.seconds, self.b.seconds)

    def measure_ratio(self, at: float) -> float | None:
        """Return the output of `b` as a multiple of that of `a` so far; None before both have a token."""
        ours, theirs = self.a.measure_output(at), self.b.measure_output(at)
        return theirs / ours if ours and theirs else None


def list_played_pairs(boots: Sequence[Boot], a: int, b: int, answers: Sequence[KeptAnswer]) -> list[PlayedPair]:
    """Return a pair for each prompt that both arms answered."""
    texts = {(line.run, PromptKey(line.kind, line.streams, line.round)): line for line in answers}
    arms = []
    for arm in (a, b):
        by_key: dict[PromptKey, list[PlayedAnswer]] = {}
        for boot in select_measured_boots(boots, arm):
            for done in boot.requests:
                key = PromptKey(done.kind, done.streams, done.round)
                kept = texts.get((boot.run, key))
                if kept and len(kept.arrivals) > 1 and done.decode_tok_s and not done.error:
                    by_key.setdefault(key, []).append(PlayedAnswer(boot, done, kept))
        by_speed = {key: sorted(each, key=PlayedAnswer.measure_speed) for key, each in by_key.items()}
        arms.append({key: each[(len(each) - 1) // 2] for key, each in by_speed.items()})
    return [PlayedPair(key, arms[0][key], arms[1][key]) for key in arms[0] if key in arms[1]]


class PlaybackScreen(SizedScreen[None]):
    """Plays the answers of two arms by prompt, starting at the median ratio; raises UsageError if there are none."""

    CSS_PATH = "screens.tcss"
    BINDINGS: ClassVar = [
        Binding("space", "pause", "Pause", tooltip="Pause or resume; at the end start over"),
        Binding("right,n", "other(1)", "Prompt", key_display="→ ←", tooltip="The next prompt"),
        Binding("left", "other(-1)", "Previous prompt", show=False, tooltip="The previous prompt"),
        Binding("minus,less_than_sign", "speed(-1)", "Speed", key_display="- +", tooltip="Half or twice the speed"),
        Binding("plus,greater_than_sign,equals_sign", "speed(1)", "Faster", show=False),
        Binding("escape", "dismiss", "Back", key_display="esc", tooltip="Back to the A/B"),
        HELP_KEY,
        QUIT_KEY,
    ]

    def __init__(
        self, report: ExperimentReport, arm: str = "", prompt: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self.report, self._now = report, clock
        verdicts = {report.design.arms[each.b].name: each for each in report.comparisons}
        self.comparison = _find(verdicts, arm, "arm with a verdict")
        answers = store.read_answers(store.experiment_folder(report.design.id))
        self.pairs = list_played_pairs(report.boots, self.comparison.a, self.comparison.b, answers)
        ratios = [pair.measure_ratio(pair.seconds) or 0.0 for pair in self.pairs]
        places = [*([ratios.index(median_low(ratios))] if ratios else []), *range(len(ratios))]
        kinds: dict[str, int] = {}
        for place in places:
            kinds.setdefault(self.pairs[place].key.kind, place)
        self.place = _find(kinds, prompt, "prompt with answers of both arms")
        self.clock = PlaybackClock(self.pair.seconds, 1.0, clock)

    @property
    def pair(self) -> PlayedPair:
        """The pair being played."""
        return self.pairs[self.place]

    def compose(self) -> ComposeResult:
        for name in ("status", "label", "player"):
            yield Display(id=name)
        with Horizontal(id="sides"):
            for side in "ab":
                with Vertical(id=f"side-{side}", classes="pane"):
                    yield Display(id=f"text-{side}")
                    yield Display(id=f"figures-{side}")
        yield Display(id="ratio")
        with Vertical(id="found", classes="pane"):
            yield Display(id="foot")
        yield TooSmall()
        yield Keys()

    @once_composed
    def on_mount(self) -> None:
        self.query_one("#found").border_title = "verdict on all prompts"
        label = format_synthetic(self.report.design.synthetic)
        self.query_one("#label", Display).show(Content.assemble((f"! {label}", "$accent")))
        self.query_one("#label").display = bool(label)
        self.set_interval(0.1, self.draw)

    @while_open
    def draw(self) -> None:
        """Draw both answers at the current position."""
        pair, at, width = self.pair, self.clock.position, self.size.width - 2
        self.query_one("#status", Display).show(render_report_head(self.report, self.size.width))
        self.query_one("#player", Display).show(self._render_clock(width))
        for side, answer in zip("ab", (pair.a, pair.b), strict=True):
            pane, text = self.query_one(f"#side-{side}"), self.query_one(f"#text-{side}", Display)
            cells = pane.content_region.width
            boot = f", boot {answer.boot.number + 1}"
            name = render_arm_name(self.report.design, answer.boot.arm, max(8, cells - len(boot) - 8))
            pane.border_title = name + Content(boot)
            text.show(Content("\n").join(_render_text(answer, at).wrap(max(1, cells))[-max(1, text.size.height) :]))
            self.query_one(f"#figures-{side}", Display).show(self._render_figures(answer, at, cells))
        self.query_one("#ratio", Display).show(self._render_ratio(at, width))
        cells = self.query_one("#found").content_region.width
        self.query_one("#foot", Display).show(
            to_content(verdict_text.list_answer(self.report, self.comparison)[:1], cells)
        )

    def _render_clock(self, width: int) -> Content:
        key, clock = self.pair.key, self.clock
        mark, word = ("■", "end") if clock.finished else ("‖", "paused") if clock.paused else ("▶", "playing")
        streams = f", one of {key.streams} at a time" if key.streams != 1 else ""
        head = Content.assemble(
            (f" {mark} A/B ", "bold reverse $accent"),
            (f" {word:<8} ×{clock.speed:g}  {clock.position:4.1f} of {clock.duration:.1f} s  ", "bold"),
        )
        prompt = Content.styled(f"{key.kind}, round {key.round + 1}{streams}", "bold $primary")
        count = Content.styled(f"  {self.place + 1} of {pluralize(len(self.pairs), 'prompt')}", MUTED)
        return join_fitting([head, prompt, count], width)

    def _render_figures(self, answer: PlayedAnswer, at: float, width: int) -> Content:
        tokens, over, color = answer.count_tokens(at), at >= answer.seconds, arm_color(answer.boot.arm)
        passed = f"✓ done in {answer.seconds:.2f} s" if over else f"  {at:.1f} s"
        speed = answer.done.decode_tok_s if over else answer.measure_output(at) or None
        ttft = f", TTFT {answer.done.ttft:.2f} s" if tokens else ""
        most = max(self.pair.a.done.tokens, self.pair.b.done.tokens)
        figures = (f"{tokens:>5}", f"bold {color}"), " tokens  ", (format_number(speed), "bold"), " tok/s"
        times = join_fitting([Content(passed), Content(ttft)], width).stylize(MUTED)
        return Content("\n").join([
            Content.assemble(*figures), times, Content.styled(draw_bar(tokens / most, width) or " ", color)
        ])  # fmt: skip

    def _render_ratio(self, at: float, width: int) -> Content:
        ratio, arms = self.pair.measure_ratio(at), (self.pair.a.boot.arm, self.pair.b.boot.arm)
        factor = f" {UNKNOWN if ratio is None else f'{format_factor(ratio)}x'} "
        words = f"'s output {'' if at >= self.pair.seconds else 'so far '}against "
        room = (width - len(factor) - len(words) - len("  A  B 's")) // 2
        a, b = (name_arm(self.report.design, arm, max(3, min(20, room))) for arm in arms)
        head = Content.styled(factor, f"bold reverse {arm_color(arms[1])}")
        compared = Content.styled(f"  {b}{words}{a}'s", "bold")
        return join_fitting([head, compared, Content.styled("  tokens/s since the request", MUTED)], width)

    def action_pause(self) -> None:
        self.clock.pause(not (self.clock.paused or self.clock.finished))
        self.draw()

    def action_other(self, step: int) -> None:
        self.place = (self.place + step) % len(self.pairs)
        self.clock = PlaybackClock(self.pair.seconds, self.clock.speed, self._now)
        self.draw()

    def action_speed(self, steps: int) -> None:
        self.clock.change_speed(steps)
        self.draw()


def _find(choices: dict[str, Found], name: str, what: str) -> Found:
    if choices and name in {"", *choices}:
        return choices[name or next(iter(choices))]
    hint = f"there are: {', '.join(choices)}" if choices else "the verdict comes at the end"
    raise UsageError(f"no {what}{f' called {name}' * bool(name)}", hint=hint)


def _render_text(answer: PlayedAnswer, at: float) -> Content:
    text, color = answer.kept.answer.text, arm_color(answer.boot.arm)
    if at < answer.seconds:
        return Content.assemble(text[: round(len(text) * answer.count_tokens(at) / answer.done.tokens)], ("▌", color))
    return Content.assemble(text.rstrip(), ("\n[the rest was not kept]" * answer.kept.answer.cut, MUTED))
