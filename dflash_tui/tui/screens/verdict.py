"""The screen of an experiment's report: the verdict first, then arms, prompts, starts, and what speaks against it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container, Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from dflash_tui.benchmark.sse import Answer
from dflash_tui.common import private_files
from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.formatting import pluralize, truncate_middle
from dflash_tui.experiments import store
from dflash_tui.experiments.analysis import answers
from dflash_tui.experiments.analysis.answers import AnswerPair, split_at_difference
from dflash_tui.experiments.analysis.report import Comparison, ExperimentReport, Sweep, SweepStanding, Verdict
from dflash_tui.presentation import verdict_text
from dflash_tui.presentation.experiment_report import (
    build_answer,
    build_arms_table,
    build_details,
    build_intervals,
    list_start_parts,
    list_sweep_notes,
    list_titled_parts,
    name_arm,
    render_markdown,
    synthetic_label,
)
from dflash_tui.presentation.report import Note, Part
from dflash_tui.tui.dialogs.basic import Dialog, ErrorDialog
from dflash_tui.tui.render.experiment import list_outcome_notes, render_report_head, to_content
from dflash_tui.tui.screens.playback import PlaybackScreen
from dflash_tui.tui.widgets.basic import (
    COMMON_KEYS,
    MUTED,
    Display,
    Keys,
    SizedScreen,
    TooSmall,
    once_composed,
    while_open,
)
from dflash_tui.tui.widgets.chart import Chart, ChartLine

_NARROWEST = 40
# Characters that stay of what both answers begin with, above their first difference.
_LEFT = 200
_COLOURS = ("$series-a", "$series-b")
_MARKS = {SweepStanding.RECOMMENDED: "★", SweepStanding.PLATEAU: "=", SweepStanding.OPEN: "?", SweepStanding.WORSE: ""}


class ReportPane(Static):
    """Parts of a report, redrawn whenever the width of the pane changes."""

    parts: tuple[Part, ...] = ()

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's
        super().__init__(id=id, markup=False, classes="pane")

    def show(self, parts: Sequence[Part]) -> None:
        """Replace what is shown."""
        self.parts = tuple(parts)
        self.on_resize()

    def on_resize(self) -> None:
        content = to_content(self.parts, max(_NARROWEST, self.content_region.width))
        if content != self.content:  # a pane that measures itself may keep its earlier height
            self.update(content)
            self.styles.height = content.plain.count("\n") + 1 + self.gutter.height


class VerdictScreen(SizedScreen[None]):
    """Shows the report of one experiment; of several comparisons one at a time."""

    BINDINGS: ClassVar = [
        Binding("right,n", "other(1)", "Next", key_display="→", tooltip="The next comparison, of an A/B with several"),
        Binding("left", "other(-1)", "Previous", show=False, tooltip="The previous comparison"),
        Binding("d", "details", "Details", tooltip="The statistics, boots and latencies behind the verdict"),
        Binding("a", "answers", "Answers", tooltip="What both arms answered, side by side"),
        Binding("escape", "app.show('launch')", "Launch", show=False, tooltip="The launch screen"),
        *COMMON_KEYS,
        Binding("p", "play", "Play", tooltip="Both arms write the same answer as fast as they did: to show somebody"),
        Binding("w", "write", "Report", tooltip="Write the report as Markdown beside the experiment, and copy it"),
        Binding("v", "progress", "Boots", tooltip="The boots one by one"),
        Binding("o", "app.experiments", "Others", tooltip="All experiments of this machine"),
    ]

    class Boots(Message):
        """Somebody wants to see the boots of this experiment."""

        def __init__(self, identity: str) -> None:
            super().__init__()
            self.identity = identity

    def __init__(self, report: ExperimentReport | None = None) -> None:
        super().__init__()
        self.report, self.place, self.has_details = report, 0, False

    def begin(self, report: ExperimentReport) -> None:
        """Show this report, from its first comparison on."""
        self.report, self.place = report, 0
        if self.is_mounted:
            self.draw()
            self.query_one("#compared", VerticalScroll).scroll_home(animate=False)

    def compose(self) -> ComposeResult:
        yield Display(id="status")
        yield Display(id="label")
        with VerticalScroll(id="compared"):
            yield ReportPane(id="verdict")
            yield ReportPane(id="arms")
            yield Chart("tok/s", top=1, id="sweep")
            with Container(id="pictures"):
                yield ReportPane(id="ranges")
                yield ReportPane(id="starts")
            yield ReportPane(id="details")
        yield TooSmall()
        yield Keys()

    @once_composed
    def on_mount(self) -> None:
        for name, title in (("verdict", "verdict"), ("arms", "arms: medians of boots, ± half their range"),
                            ("starts", "start-up"), ("details", "details")):  # fmt: skip
            self.query_one(f"#{name}").border_title = title
        self.query_one("#compared").focus()
        self.call_after_refresh(self.draw)

    def on_resize(self) -> None:
        self.call_after_refresh(self.draw)

    def on_screen_resume(self) -> None:
        self.call_after_refresh(self.draw)

    @property
    def comparison(self) -> Comparison | None:
        """The comparison that is shown, None when there is none."""
        comparisons = self.report.comparisons if self.report else ()
        return comparisons[self.place % len(comparisons)] if comparisons else None

    @while_open
    def draw(self) -> None:
        """Show the report, or that there is none."""
        if self.report is None:
            self.query_one("#status", Display).show(
                Content.assemble(("○ ", "$foreground"), ("no A/B has finished yet", "bold"))
            )
            return
        report, comparison, design = self.report, self.comparison, self.report.design
        self.query_one("#status", Display).show(render_report_head(report, self.size.width, self.place))
        label = synthetic_label(design)
        self.query_one("#label", Display).show(Content.assemble((f"! {label}", "$accent")))
        self.query_one("#label").display = bool(label)
        arms = (comparison.a, comparison.b) if comparison else range(len(design.arms))
        self._show("arms", [build_arms_table(design, report.boots)])
        self._show("starts", list_start_parts(report, arms))
        sections = build_details(report, (comparison,) if comparison else ()) if self.has_details else []
        self._show("details", list_titled_parts(sections))
        self._draw_verdict(report, comparison)
        self._draw_sweep(report.sweep)

    def _draw_verdict(self, report: ExperimentReport, comparison: Comparison | None) -> None:
        if comparison is None:
            nothing = [Note("no two arms can be compared: a boot of each is needed")]
            outcome = list_outcome_notes(report.design, report.boots, report.tune) if report.tune else nothing
            self._show("verdict", outcome)
            self._show("ranges", [])
            return
        answer = build_answer(report, comparison).parts
        self._show("verdict", [*list_sweep_notes(report), answer[0]] if report.sweep else answer)
        self.query_one("#verdict").set_class(comparison.word is Verdict.REFUSED, "-refused")
        intervals = build_intervals(comparison)
        self._show("ranges", [intervals] if intervals.intervals else [])
        a, b = (name_arm(report.design, arm, 16) for arm in (comparison.a, comparison.b))
        self.query_one("#ranges").border_title = Content(f"{comparison.measure} of {b} as a multiple of {a}")

    def _draw_sweep(self, sweep: Sweep | None) -> None:
        chart = self.query_one("#sweep", Chart)
        chart.display = sweep is not None
        if sweep is None or self.report is None:
            return
        design = self.report.design
        values = [("tok/s", "series-a", [point.tok_s for point in sweep.points])]
        ends = (
            [point.low or point.tok_s for point in sweep.points],
            [point.high or point.tok_s for point in sweep.points],
        )
        values += [("", "series-dim", end) for end in ends]
        names = [
            f"{truncate_middle(design.arms[point.arm].name, 8)}{_MARKS[sweep.standing(point.arm)]}"
            for point in sweep.points
        ]
        chart.title = f"by {design.vary}: = as fast as the best, ? not decided, ★ recommended"
        chart.show([ChartLine(line, color, name) for name, color, line in values], 0, labels=names)

    def _show(self, name: str, parts: Sequence[Part]) -> None:
        pane = self.query_one(f"#{name}", ReportPane)
        pane.display = bool(parts)
        pane.show(parts)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        if action in {"answers", "play"}:
            return self.comparison is not None
        if action == "other":
            return self.report is not None and len(self.report.comparisons) > 1
        return self.report is not None if action in {"write", "progress", "details"} else True

    def action_details(self) -> None:
        self.has_details = not self.has_details
        self.draw()
        if self.has_details:
            self.call_after_refresh(self.query_one("#details").scroll_visible)

    def action_other(self, step: int) -> None:
        if self.report and (count := len(self.report.comparisons)):
            self.place = (self.place + step) % count
            self.draw()

    def action_progress(self) -> None:
        if self.report:
            self.post_message(self.Boots(self.report.design.id))

    def action_answers(self) -> None:
        if self.report and self.comparison:
            self.show_answers(self.report, self.comparison)

    @work(exclusive=True, group="answers")
    async def show_answers(self, report: ExperimentReport, comparison: Comparison) -> None:
        """Show the answers that were kept of two arms, or say that none were."""
        pairs = await asyncio.to_thread(_read_pairs, report, comparison)
        if not pairs:
            self.notify("no answers were kept of this A/B", timeout=5)
            return
        names = (
            verdict_text.label_arm(report.design, comparison.a),
            verdict_text.label_arm(report.design, comparison.b),
        )
        self.app.push_screen(AnswersDialog(pairs, names))

    def action_play(self) -> None:
        if self.report and self.comparison:
            arm = self.report.design.arms[self.comparison.b].name
            try:
                self.app.push_screen(PlaybackScreen(self.report, arm))
            except UsageError as error:
                self.notify(error.what, markup=False, timeout=5)

    def action_write(self) -> None:
        if self.report:
            self.write(self.report)

    @work(exclusive=True, group="write")
    async def write(self, report: ExperimentReport) -> None:
        """Write the report into the folder of the experiment, and copy it."""
        markdown, path = (
            render_markdown(report),
            store.experiment_folder(report.design.id) / "report.md",
        )
        self.app.copy_to_clipboard(markdown)
        try:
            await asyncio.to_thread(_write, path, markdown)
        except OSError as error:
            do = "the clipboard has the report, if the terminal allows OSC 52"
            self.app.push_screen(
                ErrorDialog(DflashError(f"{path} cannot be written", evidence=error.strerror or str(error), hint=do))
            )
            return
        self.notify(f"{path}; in the clipboard, too, if the terminal allows OSC 52", markup=False, timeout=10)


def _read_pairs(report: ExperimentReport, comparison: Comparison) -> list[answers.AnswerPair]:
    kept_answers = store.read_answers(store.experiment_folder(report.design.id))
    return list(answers.list_prompts(report, comparison, kept_answers))


def _write(path: Path, markdown: str) -> None:
    private_files.write_private_file(path, markdown.encode())


class AnswersDialog(Dialog[None]):
    """Shows the answers of two arms prompt by prompt; what both begin with is folded where it is long."""

    HEADING: ClassVar = "answers of both arms"
    BINDINGS: ClassVar = [
        Binding("right,n", "other(1)", "prompt", key_display="→ ←"),
        Binding("left", "other(-1)", "previous prompt", show=False),
        Binding("d", "different", "differing"),
        Binding("space", "whole", "all of it"),
        Binding("escape,enter,q", "dismiss", "close", key_display="esc"),
    ]

    def __init__(self, pairs: Sequence[AnswerPair], names: tuple[str, str]) -> None:
        super().__init__()
        self.pairs, self.names, self.place, self.whole = pairs, names, 0, False

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -answers"):
            yield Static(id="prompt", markup=False)
            with Horizontal():
                for side in ("a", "b"):
                    with VerticalScroll(id=f"answer-{side}"):
                        yield Static(markup=False)

    @once_composed
    def on_mount(self) -> None:
        self.query_one("#answer-a").focus()
        self.draw()

    def draw(self) -> None:
        """Show the answers to the prompt that is chosen."""
        pair = self.pairs[self.place]
        self.query_one("#prompt", Static).update(render_prompt(pair, self.place + 1, len(self.pairs)))
        for place, (side, answer) in enumerate(zip("ab", render_answers(pair, whole=self.whole), strict=True)):
            scroll = self.query_one(f"#answer-{side}", VerticalScroll)
            name = f"{self.names[place]}, boot {pair.boots[place] + 1}"
            scroll.border_title = Content.assemble((name, _COLOURS[place]))
            scroll.query_one(Static).update(answer)
            scroll.scroll_home(animate=False)

    def action_other(self, step: int) -> None:
        self.place = (self.place + step) % len(self.pairs)
        self.draw()

    def action_different(self) -> None:
        order = [(self.place + step) % len(self.pairs) for step in range(1, len(self.pairs) + 1)]
        self.place = next((place for place in order if self.pairs[place].a != self.pairs[place].b), self.place)
        self.draw()

    def action_whole(self) -> None:
        self.whole = not self.whole
        self.draw()


def render_prompt(pair: AnswerPair, place: int, count: int) -> Content:
    """Return the line over two answers: which prompt, and whether they differ and where."""
    key = pair.key
    streams = f" ×{key.streams}" if key.streams != 1 else ""
    head = (f"{key.kind}{streams}, round {key.round + 1}", "bold")
    common, _, _ = split_at_difference(pair.a.text, pair.b.text)
    differ = f"differ from character {len(common) + 1} on" if pair.a.text != pair.b.text else "the same text"
    if pair.a.text == pair.b.text and pair.a.tokens != pair.b.tokens:
        differ = "the same text of other tokens"
    return Content.assemble(head, f"  {place} of {count}  ", differ)


def render_answers(pair: AnswerPair, *, whole: bool) -> tuple[Content, Content]:
    """Return two answers: what both begin with, folded unless the `whole` is asked for, and in colour what differs."""
    common, a, b = split_at_difference(pair.a.text, pair.b.text)
    folded = "" if whole or not (a or b) or len(common) <= 2 * _LEFT else common[:-_LEFT]
    fold = f"[{len(folded)} characters alike]\n…" if folded else ""
    unfolded = common[len(folded) :]
    return _render_answer(fold, unfolded, a, pair.a, 0), _render_answer(fold, unfolded, b, pair.b, 1)


def describe_blank(text: str) -> str:
    """Return that an answer is all white space, as those of random weights may be; empty for any other."""
    return "" if text.strip() else f"[{pluralize(len(text), 'character')}, all white space]"


def _render_answer(fold: str, common: str, own: str, answer: Answer, side: int) -> Content:
    end = describe_blank(answer.text) + ("\n[not kept from here on]" if answer.cut else "")
    return Content.assemble((fold, MUTED), common, (own, f"bold {_COLOURS[side]}"), (end, MUTED))
