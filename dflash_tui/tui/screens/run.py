"""The run screen: a server's start-up, health, speed and log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.reactive import reactive
from textual.screen import Screen
from textual.worker import Worker

from dflash_tui.benchmark import suites
from dflash_tui.benchmark.sampling import Sampling
from dflash_tui.common import private_files
from dflash_tui.common.errors import DflashError
from dflash_tui.common.ssh_host import read_called_name
from dflash_tui.diagnosis.postmortem import Postmortem
from dflash_tui.events import FILLER, PROBE, AnyEvent, Step
from dflash_tui.monitoring import startup_history
from dflash_tui.planning.plan import Plan
from dflash_tui.presentation.clients.client_wiring import ClientProgram, Endpoint, format_endpoint, format_wiring
from dflash_tui.presentation.startup_text import GLOSSES, find_saved
from dflash_tui.run_state.alarms import find_alarms
from dflash_tui.run_state.eta import MedianSeconds, RecordedStart, expect_startup
from dflash_tui.run_state.speculation import advise_draft_length
from dflash_tui.run_state.state import RunState
from dflash_tui.runs import run_files
from dflash_tui.runs.run import Run
from dflash_tui.tui.composition import once_composed, while_open
from dflash_tui.tui.dialogs.alarms import AlarmDialog, render_alarms
from dflash_tui.tui.dialogs.basic import ErrorDialog
from dflash_tui.tui.render import charts, ranks, status
from dflash_tui.tui.render.startup import render_startup
from dflash_tui.tui.theme import SCREENS_SHEET
from dflash_tui.tui.widgets.basic import REQUESTS_SHOWN, Display, Positions, Requests, Timeline, TooSmall
from dflash_tui.tui.widgets.failure import FailurePane
from dflash_tui.tui.widgets.key_line import KeyLine
from dflash_tui.tui.widgets.log_pane import LogPane
from dflash_tui.tui.widgets.request_strip import RequestStrip
from dflash_tui.tui.widgets.run_panes import RunPanes
from dflash_tui.tui.widgets.tiles import Tiles, build_tiles

WINDOWS = (120.0, 600.0, 3600.0)
LOG_INTERVAL = 0.25
ALARMS_SHOWN = 3
_ANSWERING = ("healthy", "warm", "unhealthy")
_EDGES = 4
_DRAW_EVERY = 4
# Without any event the figures still grow old: after this many ticks they are drawn again.
_DRAW_AT_LEAST_EVERY = 40


class RunScreen(Screen[None]):
    """Shows one run, fed by `take`; it draws at most once a second, the log four times.

    Class `-starting`, `-live` or `-idle` is the stage, `-failed` adds the failure, `-log` leaves only the log.
    """

    CSS_PATH = SCREENS_SHEET
    BINDINGS: ClassVar = [
        Binding("f", "app.fix", "Fix", tooltip="Launch again with a suggested fix; shows the command first"),
        Binding("u", "report", "Report", tooltip="Write a bug report for vLLM's issue tracker"),
        Binding("b", "send_prompts", "Send prompts", tooltip="Send the five test prompts"),
        Binding("l", "log", "Log", tooltip="Full-screen log, and back"),
        Binding("S", "app.stop", "Stop", key_display="S", tooltip="Stop the server; asks first"),
        Binding("c", "chart", "Chart", tooltip="Next chart, where there is no room for all"),
        Binding("space", "freeze", "Pause", tooltip="Freeze the display; nothing is lost"),
        Binding("left_square_bracket", "window(-1)", "Time", key_display="[ ]",
                tooltip="Shorter or longer window: 2, 10, 60 min"),
        Binding("right_square_bracket", "window(1)", "Longer window", show=False),
        Binding("exclamation_mark", "alarms", "Alarms", key_display="!", show=False, tooltip="All alarms in full"),
        Binding("y", "copy_curl", "Curl", show=False, tooltip="Copy a curl that asks this server"),
        Binding("1", "app.show('launch')", "Launch", tooltip="The launch screen"),
        Binding("2", "app.show('live')", "Live screen", show=False),
        Binding("question_mark", "app.keys", "Help", key_display="?"),
        Binding("q", "app.leave", "Quit", tooltip="Quit the panel; the server keeps running"),
    ]  # fmt: skip

    # The footer offers keys by these: the stage, whether there is a server, and whether there is a failure.
    key_state: reactive[tuple[str, bool, bool]] = reactive(("", False, False), repaint=False, bindings=True)

    NO_GPU: ClassVar = "no GPU"
    CHARTS: ClassVar[Sequence[str]] = charts.NAMES
    GLOSSES: ClassVar = {"the phases of a start": GLOSSES}

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(classes="-idle")
        self.now = now
        self.clear()
        self.window = 0
        self.frozen = False
        self._ticks = 0
        self._sending: Worker[None] | None = None

    def clear(self, plan: Plan | None = None) -> None:
        """Clear the screen; `plan` is what is being prepared, if anything."""
        self.plan, self.run = plan, None
        self.earlier: list[RecordedStart] = []
        self.usual: dict[Step, MedianSeconds] = {}
        self.state, self.error = RunState(), None
        self.sending = ""
        self.changed = True
        if self.is_mounted:
            self.query_one(LogPane).reset()

    def prepare(self, plan: Plan) -> None:
        """Start to show what comes before the launch of `plan`."""
        self.clear(plan)
        if self.is_mounted:
            self.read_history()

    def begin(self, run: Run) -> None:
        """Start to show `run` from its launch on."""
        self.clear(run.plan)
        self.run = run
        if self.is_mounted:
            self.read_history()
            self.query_one(LogPane).offer_ranks(run)

    @work(group="history", exclusive=True)
    async def read_history(self) -> None:
        """Read how long earlier starts like this one took; that may have to read their logs."""
        if plan := self.plan:
            own = self.run.id if self.run else ""
            self.usual = await asyncio.to_thread(startup_history.read_step_history, plan, own)
            self.earlier = await asyncio.to_thread(startup_history.list_starts, kind=plan.kind, exclude=own)
            self.changed = True

    def take(self, event: AnyEvent) -> None:
        """Take one event of the run."""
        self.state.apply(event)
        self.changed = True

    def fail(self, error: DflashError) -> None:
        """Show why the run could not be prepared, launched or watched."""
        self.error, self.changed = error, True

    def show_sending(self, run: Run, kind: str) -> None:
        """Show that a prompt of this kind is being sent to `run`, or none when it is empty."""
        if self.run is run:
            self.sending, self.changed = kind, True

    plan: Plan | None
    run: Run | None
    error: DflashError | None

    def compose(self) -> ComposeResult:
        yield Display(id="status")
        yield Display(id="alarms")
        yield Timeline()
        yield Display(id="ranks")
        yield Tiles()
        with VerticalScroll(id="startup", can_focus=False):
            yield Display(id="steps")
        yield FailurePane()
        yield RequestStrip()
        yield RunPanes(self.NO_GPU, self.CHARTS)
        yield TooSmall()
        yield KeyLine()

    @once_composed
    def on_mount(self) -> None:
        self.query_one("#startup").border_title = "start-up"
        self.query_one(LogPane).focus()
        if self.run:
            self.query_one(LogPane).offer_ranks(self.run)
        self.set_interval(LOG_INTERVAL, self.tick)
        self.read_history()
        self.call_after_refresh(self.draw)

    def on_screen_resume(self) -> None:
        self.changed = True
        self.call_after_refresh(self.draw)

    def on_resize(self) -> None:
        self.changed = True
        self.call_after_refresh(self._show_end)
        self.call_after_refresh(self.draw)

    def tick(self) -> None:
        """Write new log lines; every fourth time draw what changed."""
        if self.frozen or not self.is_active:
            return
        self._ticks += 1
        if self.stage == "starting" or self.has_class("-log"):
            self.write_log()  # elsewhere it is drawn with everything else, which costs half as much
        counting = self.stage == "starting" and self.state.exit is None and self.error is None
        due = self._ticks % _DRAW_EVERY == 0 and (self.changed or counting)
        if due or self._ticks % _DRAW_AT_LEAST_EVERY == 0:
            self.draw()

    @property
    def stage(self) -> str:
        """What is shown: idle without a run, starting until the server has answered a real request, then live."""
        if self.plan is None:
            return "idle"
        answered = self.state.warm_at is not None or self.state.ready_at is not None
        return "live" if answered else "starting"

    @property
    def has_server(self) -> bool:
        """Whether a server is there or on its way."""
        return self.plan is not None and self.error is None and self.state.exit is None

    @property
    def endpoint(self) -> Endpoint | None:
        """Where a server answers; None where none does."""
        if self.run is None or not self.has_server or self.state.status not in {*_ANSWERING, "up"}:
            return None
        return Endpoint.from_run(self.run)

    @property
    def failure(self) -> Postmortem | None:
        """Why the run failed, or None while it did not."""
        return self.query_one(FailurePane).postmortem if self.is_mounted else None

    @property
    def own_run(self) -> Run | None:
        """The run that is shown, where this machine launched it: it can be launched again, and has a folder."""
        return self.run

    @property
    def drafted(self) -> int:
        """How many tokens are drafted per step."""
        return self.plan.num_speculative_tokens if self.plan else 0

    @property
    def synthetic_acceptance(self) -> bool:
        """Whether vLLM accepts tokens at a configured rate, which says nothing about how many to draft."""
        settings = [word for word in self.plan.argv if word.startswith("{")] if self.plan else []
        return any('"synthetic' in word for word in settings)

    def write_log(self) -> None:
        """Write the lines that came since the last time."""
        self.query_one(LogPane).show(self.state, self.run.utc_offset if self.run else 0.0)

    @while_open
    def draw(self) -> None:
        """Bring every visible part up to date."""
        self.changed = False
        now = self.state.exit.at if self.state.exit else self.now()
        failed = self.query_one(FailurePane).show(self.own_run or self.run, self.state, self.error)
        before = self.classes
        for stage in ("idle", "starting", "live"):
            self.set_class(stage == self.stage, f"-{stage}")
        self.set_class(failed, "-failed")
        if self.classes != before:
            self.call_after_refresh(self._show_end)
        self.key_state = (self.stage, self.has_server, self.failure is not None)
        self.write_log()
        cluster = self.plan.cluster if self.plan else None
        self.set_class(cluster is not None, "-ranks")
        if cluster:
            self.query_one("#ranks", Display).show(ranks.render_ranks(cluster, self.state, now))
        self.query_one("#status", Display).show(
            status.render_status(
                self.plan, self.run, self.state, self.error,
                now=now, frozen=self.frozen, width=self.size.width - 2, endpoint=self.endpoint,
                host=read_called_name(),
            )
        )  # fmt: skip
        if self.stage == "starting":
            # A pane that was hidden has no width before.
            width = self.query_one("#startup").scrollable_content_region.width or self.size.width - _EDGES
            height = max(6, (self.size.height - 1) * 6 // 10 - 2)  # what the style sheet gives, less the border
            expected = expect_startup(self.earlier, self.state.startup.cache)
            saved = find_saved(self.state, now, self.plan.start if self.plan else (), self.earlier)
            startup = render_startup(
                self.state, now, width, height, expected, usual=self.usual, saved=saved, ahead=self.has_server
            )
            self.query_one("#steps", Display).show(startup)
        elif self.stage == "live":
            self._draw_live(now)

    def _show_end(self) -> None:
        """Show the end of the log, if it is followed; a pane that became smaller would show its middle."""
        self.query_one(LogPane).show_end()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        if action == "chart":
            return self.stage == "live" and (self.has_class("-narrow") or self.has_class("-short"))
        if action in {"freeze", "window", "alarms"}:
            return self.stage == "live"
        if action in {"send_prompts", "copy_curl"}:
            return self.has_server and self.stage == "live"
        if action == "report":
            return self.failure is not None and self.own_run is not None
        return self.stage != "idle" or action != "log"

    def _draw_live(self, now: float) -> None:
        span = WINDOWS[self.window]
        self._draw_alarms(now)
        self.query_one(Timeline).show(self.state.spans(now), self.state.time_to_ready)
        self.query_one(Tiles).show(build_tiles(self.state, self.plan, self.drafted, now, span))
        rates = self.state.window(span, now)
        if rates is None or not rates.per_position:  # nothing was drafted since somebody began to record
            rates = self.state.mean(span, now)
        shares = rates.per_position if rates else ()
        advice = advise_draft_length(shares, rates.steps) if rates and not self.synthetic_acceptance else None
        self.query_one(Positions).show(shares, advice)
        requests = [done for done in self.state.requests if done.kind not in {PROBE, FILLER} or done.error]
        self.query_one(Requests).show(requests[-REQUESTS_SHOWN:], self.sending)
        finished = self.state.finished
        self.query_one(RequestStrip).show(tuple(finished.requests), finished.cycle, can_send=self.has_server)
        self.query_one(RunPanes).draw_charts(self.state, self.plan, now, span)

    def _draw_alarms(self, now: float) -> None:
        rows = 1 if self.has_class("-short") else ALARMS_SHOWN
        alarms, width = find_alarms(self.state, now), max(0, self.size.width - 2)
        display = self.query_one("#alarms", Display)
        display.show(render_alarms(alarms, now, width, rows, self.describe_calm(now)))
        display.set_class(bool(alarms), "-raised")

    def describe_calm(self, now: float) -> str:
        """What is written beside "no alarms"."""
        return status.render_probe(self.state, now) if self.has_server else ""

    def action_alarms(self) -> None:
        now = self.now()
        self.app.push_screen(AlarmDialog(find_alarms(self.state, now), now))

    def action_send_prompts(self) -> None:
        if self._sending and self._sending.is_running:
            self.notify("the five prompts are being sent already", severity="warning")
        elif not self.has_server or self.run is None or self.state.status not in _ANSWERING:
            self.notify("no server answers yet", severity="warning")
        else:
            self._sending = self.send_prompts(self.run)

    @work(group="prompts")
    async def send_prompts(self, run: Run) -> None:
        """Send the five prompts and record each result, so that every observer of the run sees it."""
        from dflash_tui.benchmark import client

        suite = suites.load_suite("quick")
        kinds = [*(prompt.kind for prompt, _ in client.order_requests(suite)), ""]
        try:
            self.show_sending(run, kinds.pop(0))
            sampling = Sampling.from_plan(run.plan).suit_to(self.state.startup.samplers)
            requests = client.send_suite(run.url, run.plan.served_name, suite, sampling, key=run.api_key)
            async with aclosing(requests):
                async for done in requests:
                    run_files.record_event(run, done)
                    if done.error:  # of which the row has the beginning only
                        self.notify(f"{done.kind}: {done.error}", severity="error", markup=False)
                    self.show_sending(run, kinds.pop(0))
        finally:
            self.show_sending(run, "")

    def action_copy_curl(self) -> None:
        """Copy a curl that asks the server something."""
        if endpoint := self.endpoint:
            self.app.copy_to_clipboard(format_wiring(endpoint, ClientProgram.CURL))
            self.notify(f"a curl to {format_endpoint(endpoint)} is copied, if the terminal allows OSC 52", markup=False)
        else:
            self.notify("no server answers yet", severity="warning")

    def action_report(self) -> None:
        """Write a report of the failure beside the log, and copy it."""
        from dflash_tui.diagnosis import bug_report

        if (run := self.own_run) is None or self.failure is None:
            return
        text = bug_report.build_bug_report(run, self.state, self.failure.diagnosis)
        path = run.folder / "report.md"
        self.app.copy_to_clipboard(text)
        try:
            private_files.write_private_file(path, text.encode())
        except OSError as error:
            do = "the clipboard has the report, if the terminal allows OSC 52"
            failure = DflashError(f"{path} cannot be written", evidence=error.strerror or str(error), hint=do)
            self.app.push_screen(ErrorDialog(failure))
            return
        self.notify(f"{path}; copied, too, if the terminal allows OSC 52", markup=False, timeout=10)

    def action_freeze(self) -> None:
        self.frozen = not self.frozen
        self.draw()

    def action_window(self, step: int) -> None:
        self.window = max(0, min(len(WINDOWS) - 1, self.window + step))
        self.notify(f"charts and means over the last {WINDOWS[self.window] / 60:.0f} min", timeout=2)
        self.draw()

    def action_chart(self) -> None:
        self.query_one(RunPanes).show_next_chart()
        self.call_after_refresh(self.draw)

    def action_log(self) -> None:
        self.toggle_class("-log")
        self.query_one(LogPane).enlarge(self.has_class("-log"))
        self.changed = True
        self.call_after_refresh(self._show_end)
        self.call_after_refresh(self.draw)
