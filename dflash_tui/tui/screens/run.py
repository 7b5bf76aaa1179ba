"""The screens of a run: the keys that all of them have, and the one of a server that is watched."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import ActiveBinding, Binding
from textual.worker import Worker

from dflash_tui.benchmark import client, suites
from dflash_tui.benchmark.prompts import Sampling
from dflash_tui.common import private_files
from dflash_tui.common.errors import DflashError
from dflash_tui.diagnosis import postmortem
from dflash_tui.presentation.client_text import ClientProgram, format_endpoint, format_wiring
from dflash_tui.presentation.startup_text import GLOSSES
from dflash_tui.run_state.alarms import find_alarms
from dflash_tui.runs.run import Run
from dflash_tui.tui.dialogs.alarms import AlarmDialog
from dflash_tui.tui.dialogs.basic import ErrorDialog
from dflash_tui.tui.keys import COMMON_KEYS
from dflash_tui.tui.widgets.basic import Keys, SizedScreen, TooSmall
from dflash_tui.tui.widgets.log_pane import LogPane
from dflash_tui.tui.widgets.run_view import ANSWERING, WINDOWS, RunView, Source

FAILURE_KEYS = (
    Binding("f", "app.fix", "Fix", tooltip="Launch again with a suggested fix; shows the command first"),
    Binding("u", "report", "Report", tooltip="Write a bug report for vLLM's issue tracker"),
)
LOG_KEY = Binding("l", "log", "Log", tooltip="Full-screen log, and back")
FREEZE_KEY = Binding("space", "freeze", "Pause", tooltip="Freeze the display; nothing is lost")
FIGURE_KEYS = (
    Binding("c", "chart", "Chart", tooltip="Next chart, where there is no room for all"),
    Binding("left_square_bracket", "window(-1)", "Time", key_display="[ ]",
            tooltip="Shorter or longer window: 2, 10, 60 min"),
    Binding("right_square_bracket", "window(1)", "Longer window", show=False),
    Binding("exclamation_mark", "alarms", "Alarms", key_display="!", show=False, tooltip="All alarms in full"),
)  # fmt: skip


_UNSHOWN = {"N", "g", "escape"}  # keys of the log that help alone lists


class ViewScreen(SizedScreen[None]):
    """A screen with a view of one run, whose keys act on what is shown."""

    GLOSSES: ClassVar = {"the phases of a start": GLOSSES}

    def __init__(self, view: RunView) -> None:
        super().__init__()
        self.view = view

    def on_screen_resume(self) -> None:
        self.view.redraw()

    @property
    def active_bindings(self) -> dict[str, ActiveBinding]:
        """What each key does; while the log fills the screen, the row of keys has those of the log."""
        active = super().active_bindings
        if not self.view.has_class("-log"):
            return active
        log = [(key, each) for key, each in active.items() if isinstance(each.node, LogPane)]
        others = [(key, each) for key, each in active.items() if not isinstance(each.node, LogPane)]
        return {
            key: each._replace(binding=replace(each.binding, show=bool(each.binding.tooltip) and key not in _UNSHOWN))
            for key, each in log
        } | {
            key: each._replace(binding=replace(each.binding, show=key in {"l", "question_mark", "q"}))
            for key, each in others
        }

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        return self.view.allows(action)

    def action_alarms(self) -> None:
        now = self.view.now()
        self.app.push_screen(AlarmDialog(find_alarms(self.view.state, now), now))

    def action_freeze(self) -> None:
        self.view.frozen = not self.view.frozen
        self.view.draw()

    def action_window(self, step: int) -> None:
        self.view.window = max(0, min(len(WINDOWS) - 1, self.view.window + step))
        self.notify(f"charts and means over the last {WINDOWS[self.view.window] / 60:.0f} min", timeout=2)
        self.view.draw()

    def action_chart(self) -> None:
        self.view.show_next_chart()

    def action_log(self) -> None:
        self.view.toggle_log()

    def action_report(self) -> None:
        """Write a report of the failure beside the log, and copy it."""
        if (run := self.view.own) is None or self.view.failure is None:
            return
        text = postmortem.build_bug_report(run, self.view.state, self.view.failure.diagnosis)
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


class RunScreen(ViewScreen):
    """Shows the run that is launched or watched: it can be sent prompts, and stopped."""

    BINDINGS: ClassVar = [
        *FAILURE_KEYS,
        Binding("b", "send_prompts", "Send prompts", tooltip="Send the five test prompts"),
        LOG_KEY,
        Binding("S", "app.stop", "Stop", key_display="S", tooltip="Stop the server; asks first"),
        *COMMON_KEYS,
        FREEZE_KEY,
        *FIGURE_KEYS,
        Binding("y", "copy_curl", "Curl", show=False, tooltip="Copy a curl that asks this server"),
    ]

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(RunView(now, Source(is_live=True)))
        self._sending: Worker[None] | None = None

    def compose(self) -> ComposeResult:
        yield self.view
        yield TooSmall()
        yield Keys()

    def action_send_prompts(self) -> None:
        view = self.view
        if self._sending and self._sending.is_running:
            self.notify("the five prompts are being sent already", severity="warning")
        elif not view.has_server or view.run is None or view.state.status not in ANSWERING:
            self.notify("no server answers yet", severity="warning")
        else:
            self._sending = self.send_prompts(view.run)

    @work(group="prompts")
    async def send_prompts(self, run: Run) -> None:
        """Send the five prompts and record each result, so that every observer of the run sees it."""
        suite = suites.load_suite("quick")
        kinds = [*(prompt.kind for prompt, _ in client.order_requests(suite)), ""]
        try:
            self.view.show_sending(run, kinds.pop(0))
            sampling = Sampling.from_plan(run.plan).suit_to(self.view.state.startup.samplers)
            requests = client.send_suite(run.url, run.plan.served_name, suite, sampling, key=run.api_key)
            async with aclosing(requests):
                async for done in requests:
                    run.record(done)
                    if done.error:  # of which the row has the beginning only
                        self.notify(f"{done.kind}: {done.error}", severity="error", markup=False)
                    self.view.show_sending(run, kinds.pop(0))
        finally:
            self.view.show_sending(run, "")

    def action_copy_curl(self) -> None:
        """Copy a curl that asks the server something."""
        if endpoint := self.view.endpoint:
            self.app.copy_to_clipboard(format_wiring(endpoint, ClientProgram.CURL))
            self.notify(f"a curl to {format_endpoint(endpoint)} is copied, if the terminal allows OSC 52", markup=False)
        else:
            self.notify("no server answers yet", severity="warning")
