"""The screen of a running experiment: its boots, what the current one does, what was measured, when it will end."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, NamedTuple

from msgspec.structs import replace
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Footer

from dflash_tui.common.errors import DflashError
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.events import RequestDone
from dflash_tui.experiments import store
from dflash_tui.experiments.design import Design, RequestMeasured
from dflash_tui.experiments.progress import Progress
from dflash_tui.monitoring import observer
from dflash_tui.planning import recipe_loader
from dflash_tui.presentation.experiment_tables import name_arm, synthetic_label
from dflash_tui.run_state.state import RunState
from dflash_tui.runs import registry
from dflash_tui.tui.dialogs.basic import Confirm, ErrorDialog
from dflash_tui.tui.dialogs.trust import ask_trust
from dflash_tui.tui.render import experiment
from dflash_tui.tui.render.startup import render_startup
from dflash_tui.tui.widgets.basic import MUTED, Display, Requests, TooSmall

_EVERY = 1.0
_ROWS = {True: 3, False: 6}  # boots that are listed, on a low screen and on a tall one


class ExperimentView(NamedTuple):
    """What was read: how far it is, the start of the boot that runs, and the requests that it has answered."""

    progress: Progress
    start: RunState | None
    requests: tuple[RequestDone, ...]


def read_experiment(folder: Path) -> ExperimentView:
    """Return how the experiment in `folder` stands; the server that is measured is not asked anything.

    Raises:
        UsageError: its design cannot be read.
    """
    progress, start = store.read_progress(folder), None
    current = progress.current
    if current is None:
        return ExperimentView(progress, None, ())
    if current.stage == "starting" and (run := next((r for r in registry.list_runs() if r.id == current.run), None)):
        start = observer.replay_run(run)
    events = [
        event for event in store.read_events(folder) if isinstance(event, RequestMeasured) and event.at >= current.began
    ]
    return ExperimentView(progress, start, tuple(_shown(event) for event in events if event.number == current.number))


def _shown(event: RequestMeasured) -> RequestDone:
    """Return a request under the name of its stage, unless it counts."""
    return event.request if event.stage == "round" else replace(event.request, kind=event.stage)


class ExperimentScreen(Screen[None]):
    """Shows one experiment while it runs, or where it stopped. It only reads: a driver of its own does the work."""

    BINDINGS: ClassVar = [
        Binding("S", "stop", "Stop", key_display="S", tooltip="Stop the experiment, after asking; it can be resumed"),
        Binding("r", "resume", "Resume", tooltip="Resume a stopped experiment"),
        Binding("v", "verdict", "Verdict", tooltip="What was found, once it is over"),
        Binding("o", "app.experiments", "Others", tooltip="All experiments of this machine"),
        Binding(
            "escape,1",
            "app.show('launch')",
            "Launch",
            key_display="1",
            tooltip="The launch screen; the experiment continues",
        ),
        Binding("2", "app.show('live')", "Live", show=False, tooltip="The run that is watched"),
        Binding("question_mark", "app.keys", "Help", key_display="?"),
        Binding("q", "app.leave", "Quit", tooltip="Quit the panel; the experiment continues"),
    ]

    class Over(Message):
        """The experiment that is shown is over."""

        def __init__(self, identity: str) -> None:
            super().__init__()
            self.identity = identity

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__()
        self.now = now
        self.identity = ""
        self.seen: ExperimentView | None = None
        self.error: DflashError | None = None
        self._told = ""

    def begin(self, identity: str, *, stay: bool = False) -> None:
        """Show the experiment of that name; with `stay` also when it is over."""
        self.identity, self.seen, self.error = identity, None, None
        self._told = identity if stay else ""
        if self.is_mounted:
            self.reload()

    def compose(self) -> ComposeResult:
        yield Display(id="status")
        yield Display(id="label")
        with Vertical(id="boots", classes="pane"):
            yield Display(id="order")
        with Vertical(id="boot", classes="pane"):
            yield Display(id="start")
            yield Requests()
        with Vertical(id="measured", classes="pane"):
            yield Display(id="arms")
        yield Display(id="left-over")
        yield TooSmall()
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one("#boots").border_title = "boots"
        self.query_one("#measured").border_title = "measured until now; the verdict comes at the end"
        self.query_one(Requests).hint = Content.assemble(("none yet", MUTED))
        self.set_interval(_EVERY, self.reload)
        self.reload()

    def on_screen_resume(self) -> None:
        self.reload()

    def on_resize(self) -> None:
        self.call_after_refresh(self.draw)

    @work(exclusive=True, group="look")
    async def reload(self) -> None:
        """Read how it stands, away from the screen's own thread."""
        if not self.identity or not self.is_active:
            return
        try:
            self.seen = await asyncio.to_thread(read_experiment, store.experiment_folder(self.identity))
            self.error = None
        except DflashError as error:
            self.error = error
        self.draw()
        if self.seen and self.seen.progress.finished and self._told != self.identity:
            self._told = self.identity
            self.post_message(self.Over(self.identity))

    def draw(self) -> None:
        """Bring every part up to date; a worker may come back when the panel is closing."""
        if not self.query("#status"):
            return
        status = self.query_one("#status", Display)
        if self.error:
            status.show(Content.assemble(("✗ ", "$error"), ("A/B CANNOT BE READ", "bold"), f"  {self.identity}"))
            parts = [self.error.what, self.error.evidence, f"→ {self.error.hint}" if self.error.hint else ""]
            lines = [line for part in parts for line in textwrap.wrap(clean_line(part), max(20, self.size.width - 4))]
            self.query_one("#order", Display).show(Content("\n".join(lines)))
        elif self.seen is None:
            status.show(Content.assemble(("○ ", "$foreground"), ("A/B", "bold"), "  looking …"))
        else:
            self._draw(self.seen, self.seen.progress)
        self.refresh_bindings()

    def _draw(self, seen: ExperimentView, progress: Progress) -> None:
        now, width, design = self.now(), self.size.width - 4, progress.design
        self.query_one("#status", Display).show(experiment.render_progress(progress, now, self.size.width))
        label = synthetic_label(design)
        self.query_one("#label", Display).show(Content.assemble((f"! {label}" if label else "", "$accent")))
        self.query_one("#label").display = bool(label)
        rows = _ROWS[self.has_class("-short")]
        self.query_one("#order", Display).show(experiment.render_timeline(progress, now, width, rows))
        self.query_one("#arms", Display).show(experiment.render_arms(design, progress.boots, width))
        self.query_one("#left-over", Display).show(experiment.render_remaining(progress, self.size.width - 2))
        self._draw_boot(seen, now, width)

    def _draw_boot(self, seen: ExperimentView, now: float, width: int) -> None:
        pane, start, requests = self.query_one("#boot"), self.query_one("#start", Display), self.query_one(Requests)
        progress, current = seen.progress, seen.progress.current
        starting = current is None or current.stage == "starting"
        start.display, requests.display = starting, not starting
        if current is None:
            pane.border_title = Content("between two boots")
            word = "all boots are over" if progress.finished else "preparing the next server" if progress.driven else ""
            start.show(Content.assemble((word or "nothing runs", MUTED)))
            return
        arm, count = name_arm(progress.design, current.arm), len(progress.design.order)
        pane.border_title = Content(f"boot {current.number + 1} of {count}: {arm}")
        if starting:
            height = max(3, pane.size.height)
            shown = (
                render_startup(seen.start, now, width, height)
                if seen.start
                else Content.assemble(("preparing …", MUTED))
            )
            start.show(shown)
        else:
            requests.show(seen.requests, "")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        progress = self.seen.progress if self.seen else None
        if action == "stop":
            return progress is not None and progress.driven
        if action == "resume":
            return progress is not None and progress.status in {"halted", "interrupted"}
        return progress is not None and progress.finished if action == "verdict" else True

    def action_verdict(self) -> None:
        self.post_message(self.Over(self.identity))

    def action_stop(self) -> None:
        detail = "The current boot is aborted and its server stopped. Finished boots are kept; r resumes from there."
        question = Confirm("Stop the experiment?", detail, "stop it", "let it run")
        self.app.push_screen(question, self._stop)

    def _stop(self, yes: bool | None) -> None:
        if yes:
            self.stop()

    @work(exclusive=True, group="drive")
    async def stop(self) -> None:
        """End the driver, which stops its server."""
        from dflash_tui.experiments import controller

        await self._do(controller.stop_driver)

    def action_resume(self) -> None:
        if self.seen is None:
            return
        design = self.seen.progress.design
        try:
            recipe = recipe_loader.find_recipe(design.arms[0].request.recipe)
        except DflashError as error:
            self.app.push_screen(ErrorDialog(error))
            return
        ask_trust(self.app, recipe, [arm.plan.vllm for arm in design.arms], self.resume)

    @work(exclusive=True, group="drive")
    async def resume(self) -> None:
        """Go on with what was halted, in a driver of its own."""
        from dflash_tui.experiments import controller

        await self._do(controller.resume_experiment)

    async def _do(self, act: Callable[[Design], object]) -> None:
        if self.seen is None:
            return
        try:
            await asyncio.to_thread(act, self.seen.progress.design)
        except DflashError as error:
            self.app.push_screen(ErrorDialog(error))
        self.reload()
