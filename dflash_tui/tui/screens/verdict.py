"""The screen of an experiment's report: verdict, arms, prompts, starts, caveats."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message

from dflash_tui.common.errors import UsageError
from dflash_tui.common.formatting import format_synthetic
from dflash_tui.experiments import controller, store, tuner
from dflash_tui.experiments.analysis import answers
from dflash_tui.experiments.analysis.report import (
    Comparison,
    ExperimentReport,
    TuneOutcome,
    Verdict,
)
from dflash_tui.presentation import submission, verdict_text
from dflash_tui.presentation.experiment_report import build_sections, render_markdown
from dflash_tui.tui.dialogs.answers import AnswersDialog
from dflash_tui.tui.dialogs.basic import Confirm, confirm_design, showing_errors
from dflash_tui.tui.render.experiment import render_report_head, render_sections
from dflash_tui.tui.screens.playback import PlaybackScreen
from dflash_tui.tui.sharing import keep_as_recipe, share_report
from dflash_tui.tui.widgets.basic import (
    COMMON_KEYS,
    HELP_KEY,
    QUIT_KEY,
    Display,
    Keys,
    SizedScreen,
    TooSmall,
    once_composed,
    while_open,
)

_NARROWEST = 40
_ADDED_BOOTS = 2


class VerdictScreen(SizedScreen[None]):
    """Shows the report of an experiment, one comparison at a time."""

    CSS_PATH = "screens.tcss"
    BINDINGS: ClassVar = [
        Binding("right,n", "other(1)", "Next", key_display="→", tooltip="The next comparison, of an A/B with several"),
        Binding("left", "other(-1)", "Previous", show=False, tooltip="The previous comparison"),
        Binding("plus,equals_sign", "extend", "Boots", key_display="+", tooltip="Extend it by two boots of each arm"),
        Binding("k", "keep", "Keep", tooltip="Save the faster arm as your recipe"),
        Binding("s", "share", "Share", tooltip="Copy the report, and write it with a picture (SVG)"),
        Binding("d", "details", "Details", tooltip="The statistics, boots and latencies behind the verdict"),
        HELP_KEY,
        QUIT_KEY,
        Binding("a", "answers", "Answers", tooltip="What both arms answered, side by side"),
        Binding("escape", "app.show('launch')", "Launch", show=False, tooltip="The launch screen"),
        *COMMON_KEYS,
        Binding("p", "play", "Play", tooltip="Replay the answers of both arms side by side at their speed"),
        Binding("v", "progress", "Progress", tooltip="The boots one by one"),
        Binding("o", "app.experiments", "Others", tooltip="All experiments of this machine"),
    ]

    @dataclass
    class Boots(Message):
        """Asks the app to show the boots of an experiment."""

        identity: str

    def __init__(self, report: ExperimentReport | None = None) -> None:
        super().__init__()
        self.report, self.place, self.has_details = report, 0, False

    def begin(self, report: ExperimentReport) -> None:
        """Show a report, starting with its first comparison."""
        self.report, self.place = report, 0
        if self.is_mounted:
            self.draw()
            self.query_one("#compared", VerticalScroll).scroll_home(animate=False)

    def compose(self) -> ComposeResult:
        yield Display(id="status")
        yield Display(id="label")
        with VerticalScroll(id="compared"):
            yield Display(id="report")
        yield TooSmall()
        yield Keys()

    @once_composed
    def on_mount(self) -> None:
        self.query_one("#compared").focus()
        self.call_after_refresh(self.draw)

    def on_screen_resume(self) -> None:
        self.call_after_refresh(self.draw)

    @property
    def comparison(self) -> Comparison | None:
        """The comparison on screen; None if the report has none."""
        comparisons = self.report.comparisons if self.report else ()
        return comparisons[self.place % len(comparisons)] if comparisons else None

    @while_open
    def draw(self) -> None:
        """Show the report, or that none exists."""
        if self.report is None:
            self.query_one("#status", Display).show(
                Content.assemble(("○ ", "$foreground"), ("no A/B has finished yet", "bold"))
            )
            return
        report, comparison, design = self.report, self.comparison, self.report.design
        self.query_one("#status", Display).show(render_report_head(report, self.size.width, self.place))
        label = format_synthetic(design.synthetic)
        self.query_one("#label", Display).show(Content.assemble((f"! {label}", "$accent")))
        self.query_one("#label").display = bool(label)
        step = verdict_text.format_next_step(report, comparison, add="+", share="s") if comparison else ""
        if step and self._find_winner() is not None:
            step += "; keep the faster one as a recipe: k"
        compared = (comparison,) if comparison else ()
        answer, *sections = build_sections(report, compared, details=self.has_details, step=step)
        width = max(_NARROWEST, self.query_one("#compared").scrollable_content_region.width - 2)
        self.query_one("#report", Display).show(render_sections([answer._replace(title="verdict"), *sections], width))

    def _find_winner(self) -> int | None:
        winners = {Verdict.FASTER: "b", Verdict.SLOWER: "a"}
        side = winners.get(self.comparison.word) if self.comparison and self.report and self.report.design.id else None
        return getattr(self.comparison, side) if side else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        if action in {"answers", "play"}:
            return self.comparison is not None
        if action == "extend":
            return bool(self.report and self.report.design.id and self.report.design.suite)
        if action == "keep":
            return self._find_winner() is not None
        if action == "other":
            return self.report is not None and len(self.report.comparisons) > 1
        return self.report is not None if action in {"share", "progress", "details"} else True

    def action_details(self) -> None:
        self.has_details = not self.has_details
        self.draw()
        if self.has_details:
            self.call_after_refresh(self.query_one("#compared").scroll_page_down)

    def action_other(self, step: int) -> None:
        if self.report and (count := len(self.report.comparisons)):
            self.place = (self.place + step) % count
            self.draw()

    def action_progress(self) -> None:
        if self.report:
            self.post_message(self.Boots(self.report.design.id))

    @work(exclusive=True, group="answers")
    async def action_answers(self) -> None:
        """Show the saved answers of two arms, or notify that there are none."""
        if (report := self.report) and (comparison := self.comparison):
            if pairs := await asyncio.to_thread(_read_pairs, report, comparison):
                a, b = (verdict_text.label_arm(report.design, arm) for arm in (comparison.a, comparison.b))
                self.app.push_screen(AnswersDialog(pairs, (a, b)))
            else:
                self.notify("no answers were kept of this A/B", timeout=5)

    def action_play(self) -> None:
        if self.report and self.comparison:
            arm = self.report.design.arms[self.comparison.b].name
            try:
                self.app.push_screen(PlaybackScreen(self.report, arm))
            except UsageError as error:
                self.notify(error.what, markup=False, timeout=5)

    def action_share(self) -> None:
        if self.report:
            folder, more = store.experiment_folder(self.report.design.id), submission.list_possible_files(self.report)
            share_report(self, render_markdown(self.report), folder, more=more)

    @work(exclusive=True, group="keep")
    async def action_keep(self) -> None:
        """Write the faster arm as a new recipe."""
        if self.report and self.comparison and (winner := self._find_winner()) is not None:
            design, outcome = self.report.design, TuneOutcome(winner, self.comparison)
            progress = store.read_progress(store.experiment_folder(design.id))
            await keep_as_recipe(self, progress, outcome, tuner.choose_name(design.recipe))

    @work(exclusive=True, group="drive")
    async def action_extend(self) -> None:
        """Add boots in a new driver process after asking, and show them."""
        if self.report is None:
            return
        design = self.report.design
        what = f"{_ADDED_BOOTS} boots of each arm are launched, one after the other, and all boots are judged again."
        question = Confirm("Add boots?", what, "add them", "leave it as it is")
        if not await self.app.push_screen_wait(question) or not await confirm_design(self.app, design):
            return
        with showing_errors(self.app):
            await asyncio.to_thread(controller.extend_experiment, design, _ADDED_BOOTS)
            self.post_message(self.Boots(design.id))


def _read_pairs(report: ExperimentReport, comparison: Comparison) -> list[answers.AnswerPair]:
    kept_answers = store.read_answers(store.experiment_folder(report.design.id))
    return list(answers.list_prompts(report, comparison, kept_answers))
