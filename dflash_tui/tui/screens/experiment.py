"""The screen of a running experiment: its boots, the current boot, the measurements, the time left."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from msgspec.structs import replace
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container, Vertical
from textual.content import Content
from textual.message import Message

from dflash_tui.common.errors import DflashError
from dflash_tui.common.formatting import format_synthetic
from dflash_tui.events import RequestDone
from dflash_tui.experiments import builder, controller, store, tune_schedule
from dflash_tui.experiments.analysis.report import TuneOutcome
from dflash_tui.experiments.design import Design, RequestMeasured
from dflash_tui.experiments.progress import Progress
from dflash_tui.monitoring import observer, startup_history
from dflash_tui.monitoring.startup_history import expect_startup
from dflash_tui.presentation.experiment_report import build_arms_table
from dflash_tui.presentation.experiment_text import (
    build_rounds_table,
    describe_stage,
    list_outcome,
    list_prompt_parts,
    list_setting_parts,
)
from dflash_tui.presentation.report import Note
from dflash_tui.presentation.startup_text import GLOSSES
from dflash_tui.presentation.verdict_text import name_arm
from dflash_tui.run_state.state import RunState
from dflash_tui.runs import registry
from dflash_tui.tui.dialogs.basic import Confirm, ask, confirm_design, showing_errors
from dflash_tui.tui.render.experiment import (
    Outlook,
    list_boot_stages,
    render_left,
    render_progress,
    render_timeline,
    render_tune_remaining,
    to_content,
)
from dflash_tui.tui.render.run import render_startup
from dflash_tui.tui.sharing import keep_as_recipe
from dflash_tui.tui.widgets.basic import (
    COMMON_KEYS,
    MUTED,
    Display,
    Keys,
    SizedScreen,
    TooSmall,
    each_in_turn,
    once_composed,
    while_open,
)
from dflash_tui.tui.widgets.figures import Requests

_EVERY = 1.0
_TALL = 30
# Rows of boots, rounds and settings: on a low screen, on a tall one, and the height that adds another.
_ROWS, _ROUNDS, _SETTINGS = (3, 6, 5), (3, 6, 8), (6, 9, 2)
_UNCOUNTED = frozenset({"cold", "warm-up"})  # names of requests
_TITLES = ("boots", "measured until now; the verdict comes at the end")
_TITLES_AT_END = ("boots", "measured; v shows the verdict")
_TUNE_TITLES = ("rounds: how the field narrows", "settings")


class ExperimentScreen(SizedScreen[None]):
    """Shows an experiment, running or not. It only reads: the driver process does the work."""

    CSS_PATH = "screens.tcss"
    BINDINGS: ClassVar = [
        Binding("S", "stop", "Stop", key_display="S", tooltip="Stop the experiment, after asking; it can be resumed"),
        Binding("enter", "resume", "Resume", key_display="⏎", tooltip="Resume a stopped experiment"),
        Binding("k", "keep", "Keep", tooltip="Save the best setting of a tune as your recipe"),
        Binding("v", "verdict", "Verdict", tooltip="The result, once it is over"),
        Binding("escape", "app.show('launch')", "Launch", show=False, tooltip="The launch screen"),
        *COMMON_KEYS,
        Binding("o", "app.experiments", "Others", tooltip="All experiments of this machine"),
    ]

    GLOSSES: ClassVar = {"the phases of a start": GLOSSES}

    @dataclass
    class Over(Message):
        """Reports that the experiment on screen has finished."""

        identity: str

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__()
        self.now = now
        self.begin("")

    def begin(self, identity: str, *, stay: bool = False) -> None:
        """Show the experiment called `identity`; with `stay` do not switch to its verdict when it has finished."""
        self.identity = identity
        self.view: ExperimentView | None = None
        self.outlook: Outlook | None = None
        self._outlook_of = ("", 0)  # the experiment and its finished boots at the last reading
        self.error: DflashError | None = None
        self._opened_verdict = identity if stay else ""
        if self.is_mounted:
            self.reload()

    def compose(self) -> ComposeResult:
        yield Display(id="status")
        yield Display(id="label")
        with Vertical(id="boots", classes="pane"):
            yield Display(id="order")
        with Container(id="now"):
            with Vertical(id="boot", classes="pane"):
                yield Display(id="start")
                yield Requests(Content.assemble(("none yet", MUTED)))
            with Vertical(id="prompts", classes="pane"):
                yield Display(id="by-prompt")
        with Vertical(id="measured", classes="pane"):
            yield Display(id="arms")
        yield Display(id="left-over")
        yield TooSmall()
        yield Keys()

    @once_composed
    def on_mount(self) -> None:
        self.query_one("#boots").border_title, self.query_one("#measured").border_title = _TITLES
        self.set_interval(_EVERY, each_in_turn(self.reload))
        self.reload()

    def on_screen_resume(self) -> None:
        self.reload()

    @work(exclusive=True, group="look")
    async def reload(self) -> None:
        """Read the experiment in a thread."""
        if not self.identity or not self.is_active:
            return
        try:
            self.view = await asyncio.to_thread(read_experiment, store.experiment_folder(self.identity))
            self.error = None
            self.draw()
            await self._look_ahead(self.view.progress)
        except DflashError as error:
            self.error = error
        self.draw()
        if self.view and self._leads_to_verdict(self.view.progress) and self._opened_verdict != self.identity:
            self._opened_verdict = self.identity
            self.post_message(self.Over(self.identity))

    async def _look_ahead(self, progress: Progress) -> None:
        """Read estimates from earlier boots and starts, once and after each boot."""
        of = (progress.design.id, len(progress.boots))
        if of != self._outlook_of and progress.driven:
            before = self.outlook if self._outlook_of[0] == of[0] else None
            self.outlook = await asyncio.to_thread(read_outlook, progress.design, before)
            self._outlook_of = of

    @staticmethod
    def _leads_to_verdict(progress: Progress) -> bool:
        """Return whether a finished experiment has a verdict screen; a tune's outcome is shown here."""
        return progress.finished and progress.design.tuning is None

    @while_open
    def draw(self) -> None:
        """Update every part."""
        status = self.query_one("#status", Display)
        self.set_class(self.error is not None, "-broken")
        if self.error:
            status.show(Content.assemble(("✗ ", "$error"), ("A/B CANNOT BE READ", "bold"), f"  {self.identity}"))
            parts = [self.error.what, self.error.evidence, f"→ {self.error.hint}" if self.error.hint else ""]
            lines = [line for part in parts for line in textwrap.wrap(part, max(20, self.size.width - 4))]
            self.query_one("#order", Display).show(Content("\n".join(lines)))
        elif self.view is None:
            status.show(Content.assemble(("○ ", "$foreground"), ("A/B", "bold"), "  looking …"))
        else:
            self._draw(self.view, self.view.progress)
        self.refresh_bindings()

    def _draw(self, view: ExperimentView, progress: Progress) -> None:
        now, width, design = self.now(), self.size.width - 4, progress.design
        label = format_synthetic(design.synthetic)
        self.query_one("#label", Display).show(Content.assemble((f"! {label}" if label else "", "$accent")))
        self.query_one("#label").display = bool(label)
        self.set_class(view.tune is not None, "-tune")
        self.set_class(design.measures_start, "-starts")
        if view.tune:
            self._draw_tune(view, view.tune, now, width)
            return
        titles = _TITLES_AT_END if progress.finished else _TITLES
        self.query_one("#boots").border_title, self.query_one("#measured").border_title = titles
        self.query_one("#status", Display).show(render_progress(progress, now, self.size.width))
        self.query_one("#order", Display).show(render_timeline(progress, now, width, self._room(_ROWS)))
        arms = to_content([build_arms_table(design, progress.boots)], width).split("\n")[: 1 + len(design.arms)]
        self.query_one("#arms", Display).show(Content("\n").join(arms))
        left = render_left(progress, self.outlook, now, self.size.width - 2)
        self.query_one("#left-over", Display).show(left)
        self._draw_boot(view, now)
        self._draw_prompts(view)

    def _draw_tune(self, view: ExperimentView, outcome: TuneOutcome, now: float, width: int) -> None:
        progress = view.progress
        self.query_one("#boots").border_title, self.query_one("#measured").border_title = _TUNE_TITLES
        self.query_one("#status", Display).show(render_progress(progress, now, self.size.width))
        over = progress.finished or not progress.driven
        findings = to_content(list_outcome(progress.design, progress.boots, outcome), width) if over else None
        rounds = self._fit_rounds(findings.plain.count("\n") + 1) if findings else self._room(_ROUNDS)
        first = Note("the published setting first; what is tried follows from it", style="dim")
        shown = to_content([build_rounds_table(progress, rounds) if progress.rounds else first], width)
        self.query_one("#order", Display).show(shown)
        settings = to_content(list_setting_parts(progress, self._room(_SETTINGS)), width)
        self.query_one("#arms", Display).show(settings)
        left = render_tune_remaining(progress, outcome, now, self.size.width - 2)
        self.query_one("#left-over", Display).show(left)
        if findings:
            self.query_one("#boot").border_title = "found"
            self.query_one(Requests).display = False
            start = self.query_one("#start", Display)
            start.display = True
            start.show(findings)
        else:
            self._draw_boot(view, now)

    def _room(self, rows: tuple[int, int, int]) -> int:
        """Return the rows of a list: `low` on a low screen, else `tall` plus one per `row_height` rows beyond."""
        low, tall, row_height = rows
        return low if self.has_class("-short") else tall + max(0, self.size.height - _TALL) // row_height

    def _fit_rounds(self, lines_below: int) -> int:
        """Return the rows for a finished tune's rounds; a low screen reserves `lines_below` for the outcome."""
        most = self._room(_ROUNDS)
        if not self.has_class("-short"):
            return most
        boots, now = (self.query_one(name).size.height for name in ("#boots", "#now"))
        return max(1, min(most, boots + now - 1 - lines_below)) if now else most

    def _draw_prompts(self, view: ExperimentView) -> None:
        progress, kinds = view.progress, self.outlook.kinds if self.outlook else ()
        counted = [done for done in view.requests if done.kind not in _UNCOUNTED]
        pane = self.query_one("#prompts")
        pane.border_title = f"by prompt: median tok/s{'' if progress.finished else ' until now'}"
        width, height = pane.scrollable_content_region.size
        parts = list_prompt_parts(progress, counted, kinds, max(2, height))
        self.query_one("#by-prompt", Display).show(to_content(parts, width))

    def _draw_boot(self, view: ExperimentView, now: float) -> None:
        pane, start, requests = self.query_one("#boot"), self.query_one("#start", Display), self.query_one(Requests)
        progress, current = view.progress, view.progress.current
        starting = current is None or current.stage == "starting"
        start.display, requests.display = starting, not starting
        if current is None:
            pane.border_title = Content("after the last boot" if progress.finished else "between two boots")
            word = "all boots are over" if progress.finished else "preparing the next server" if progress.driven else ""
            start.show(self._render_wait(progress, word or "nothing runs"))
            return
        arm, count = name_arm(progress.design, current.arm), len(progress.design.order)
        number = f"boot {current.number + 1}" + ("" if progress.design.tuning else f" of {count}")
        pane.border_title = Content(f"{number}: {arm} · {describe_stage(progress)}")
        if starting:
            start.show(self._render_start(view, current.arm, now))
        else:
            requests.show(view.requests, "")

    def _render_wait(self, progress: Progress, word: str) -> Content:
        """Return a heading above the stages of a boot, or above the reason for the halt."""
        width = self.query_one("#boot").scrollable_content_region.width or self.size.width - 4
        text = list_boot_stages(progress) if progress.driven else progress.halted
        lines = textwrap.wrap(text, max(20, width))
        return Content.assemble((word, "bold"), *((f"\n{line}", MUTED) for line in lines))

    def _render_start(self, view: ExperimentView, arm: int, now: float) -> Content:
        if (state := view.start) is None:
            return self._render_wait(view.progress, "preparing …" if view.progress.driven else "nothing runs")
        width, height = self.query_one("#boot").scrollable_content_region.size
        starts = self.outlook.starts[arm : arm + 1] if self.outlook else ()
        expected = expect_startup(starts[0], state.startup.cache) if starts else None
        return render_startup(state, now, width or self.size.width - 4, max(3, height), expected)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        progress = self.view.progress if self.view else None
        if action == "stop":
            return progress is not None and progress.driven
        if action == "resume":
            return progress is not None and progress.status in {"halted", "interrupted"}
        if action == "keep":
            outcome = self.view.tune if self.view else None
            return outcome is not None and bool(outcome.best) and not outcome.recipe
        return progress is not None and self._leads_to_verdict(progress) if action == "verdict" else True

    def action_verdict(self) -> None:
        self.post_message(self.Over(self.identity))

    @work(exclusive=True, group="keep")
    async def action_keep(self) -> None:
        """Write the best setting as a recipe, without overwriting others."""
        if self.view and self.view.tune and (tuning := self.view.progress.design.tuning):
            await keep_as_recipe(self, self.view.progress, self.view.tune, tuning.save_as)

    def action_stop(self) -> None:
        detail = "The current boot is aborted and its server stopped. Finished boots are kept; enter resumes it there."
        question = Confirm("Stop the experiment?", detail, "stop it", "let it run")
        ask(self.app, question, self.stop)

    @work(exclusive=True, group="drive")
    async def stop(self) -> None:
        """Stop the driver, which stops its server."""
        await self._do(controller.stop_driver)

    @work(exclusive=True, group="drive")
    async def action_resume(self) -> None:
        """Resume a halted experiment in a new driver process, once its recipe is trusted."""
        if self.view and await confirm_design(self.app, self.view.progress.design):
            await self._do(controller.resume_experiment)

    async def _do(self, act: Callable[[Design], object]) -> None:
        if self.view is None:
            return
        with showing_errors(self.app):
            await asyncio.to_thread(act, self.view.progress.design)
        self.reload()


class ExperimentView(NamedTuple):
    """An experiment as read from disk: its progress, the current boot's start and its answered requests."""

    progress: Progress
    start: RunState | None
    requests: tuple[RequestDone, ...]
    tune: TuneOutcome | None = None
    """The outcome of a tune so far; None for an A/B."""


def read_experiment(folder: Path) -> ExperimentView:
    """Read the experiment in `folder`; sends nothing to the server that is being measured.

    Raises:
        UsageError: its design cannot be read.
    """
    progress, start = store.read_progress(folder), None
    current, tune = progress.current, _read_outcome(folder, progress)
    if current is None:
        return ExperimentView(progress, None, (), tune)
    if current.stage == "starting" and (run := next((r for r in registry.list_runs() if r.id == current.run), None)):
        start = observer.replay_run(run)
    events = [
        event for event in store.read_events(folder) if isinstance(event, RequestMeasured) and event.at >= current.began
    ]
    requests = tuple(name_by_stage(event) for event in events if event.number == current.number)
    return ExperimentView(progress, start, requests, tune)


def read_outlook(design: Design, before: Outlook | None = None) -> Outlook:
    """Return estimates from outside the experiment; with `before` only the earlier starts are re-read."""
    starts = tuple(tuple(startup_history.list_starts(kind=arm.plan.kind)) for arm in design.arms)
    if before:
        return before._replace(starts=starts)
    boots = builder.BootEstimate((), False, "") if design.tuning else builder.estimate_boots(design)
    try:
        prompts = () if design.measures_start else store.load_experiment_suite(design).prompts
    except DflashError:
        prompts = ()
    return Outlook(boots, tuple(dict.fromkeys(prompt.kind for prompt in prompts)), starts)


def _read_outcome(folder: Path, progress: Progress) -> TuneOutcome | None:
    if progress.design.tuning is None:
        return None
    report = store.read_report(folder) if progress.finished else None
    return report.tune if report and report.tune else tune_schedule.judge_tune(progress)


def name_by_stage(event: RequestMeasured) -> RequestDone:
    """Return a request labelled with its stage, unless it is counted."""
    return event.request if event.stage == "round" else replace(event.request, kind=event.stage)
