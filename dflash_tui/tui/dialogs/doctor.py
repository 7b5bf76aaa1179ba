"""The doctor dialog: preflight checks, a fix for each failed one, and launching anyway."""

from __future__ import annotations

import asyncio
import os
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.widgets import OptionList

from dflash_tui.common.errors import DflashError
from dflash_tui.diagnosis.postmortem import Postmortem
from dflash_tui.diagnosis.remedies import Remedy
from dflash_tui.launch import planner
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.planning.request import Hint, LaunchChanges, format_advice, name_options
from dflash_tui.presentation.plan_text import format_verdict
from dflash_tui.runs import lifecycle
from dflash_tui.runs.run import Run
from dflash_tui.tui.dialogs.basic import DialogField, ListDialog, TextDialog, measure_text
from dflash_tui.tui.render.plan import render_command_diff, render_hung
from dflash_tui.tui.widgets.basic import MUTED, MUTED_ROW, once_composed

if TYPE_CHECKING:
    from dflash_tui.launch.preflight.check import Check
    from dflash_tui.launch.preflight.runner import PreflightReport


_STYLES = {"ok": ("✓ ", "$success"), "warn": ("! ", "bold $warning"), "fail": ("✗ ", "bold $error")}


class ReasonField(DialogField):
    """The field for the reason to launch although a check fails."""

    BINDINGS: ClassVar = [Binding("enter", "submit", "launch", key_display="⏎", tooltip="Launch for this reason")]


class Doctor(TextDialog[str | None]):
    """Runs the checks of a plan and shows them.

    When `launching`, it returns "" as soon as no check fails, the user's reason for launching anyway, or None if the
    launch is cancelled.
    """

    HEADING: ClassVar = "doctor"
    BINDINGS: ClassVar = [
        Binding("r", "run_checks", "check again"),
        Binding("o", "fix('o')", "set it", tooltip="Apply the setting of a fix, and check again"),
        Binding("v", "fix('v')", "that variant", tooltip="Switch to the variant of a fix, and check again"),
        Binding("s", "fix('s')", "that profile", tooltip="Switch to the profile of a fix, and check again"),
        Binding("F", "insist", "launch anyway", priority=True),
    ]

    def __init__(
        self,
        planned: PlannedLaunch,
        *,
        launching: bool,
        change: Callable[[LaunchChanges], PlannedLaunch] | None = None,
    ) -> None:
        """Create the dialog; with `launching` it closes when no check fails.

        `change` plans the launch again with the changes of a fix; without it no fix can be applied.
        """
        super().__init__()
        self.planned, self.launching, self.change = planned, launching, change
        self.report: PreflightReport | None = None
        self.checks: list[Check] = []
        self.failure = ""  # why the checks could not run

    def compose(self) -> ComposeResult:
        yield from super().compose()
        self.because = ReasonField(id="because", placeholder="launch anyway, because …")

    @once_composed
    def on_mount(self) -> None:
        self.because.display = False
        self.query_one(".dialog").mount(self.because)
        self.call_after_refresh(self.action_run_checks)  # importing them takes longer than a frame

    def render_text(self, width: int) -> Content:
        return Content("\n").join([render_check(check, width) for check in self.checks]) or Content(self.failure)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        typing = self.has_class("-typing")
        if action == "fix":
            return not typing and bool(self.change and self._find_way(str(parameters[0])))
        return action != "insist" or (self._may_insist and not typing)

    @property
    def _may_insist(self) -> bool:
        return self.launching and self.report is not None and self.report.forcible

    def action_run_checks(self) -> None:
        """Run the checks (again)."""
        self.show_heading(f"checking {self.planned.plan.recipe} …")
        self.check()

    @work(exclusive=True)
    async def check(self) -> None:
        """Run the checks and show the results."""
        from dflash_tui.peers import cluster_launch

        try:
            hosts = await cluster_launch.reach_hosts(self.planned.plan.relaunch_request)
            report, _ = await hosts.check(await hosts.place(self.planned), thorough=not self.launching)
        except (DflashError, OSError) as error:
            self.show_heading("the checks could not be run")
            self.checks, self.failure = [], str(error)
            self.draw()
            return
        self.report = report
        if self.launching and not report.failed:
            self.dismiss("")
            return
        checks = sorted(report.checks, key=lambda check: ("fail", "warn", "ok").index(check.level.value))
        self.show_heading(Content.assemble((format_verdict(report), "bold")))
        self.checks = checks
        self.draw()
        self.refresh_bindings()
        self.query_one("#checks").focus()

    def _find_way(self, key: str) -> LaunchChanges:
        """Return the changes of the first fix with this key; empty changes if there is none."""
        parts = [part for check in self.checks if check.level.value != "ok" for part in check.advice]
        hints = [part for part in parts if isinstance(part, Hint) and not part.is_example]
        return next((hint.changes for hint in hints if find_key(hint) == key), LaunchChanges())

    def action_fix(self, key: str) -> None:
        """Apply a fix to the plan and run the checks again."""
        if self.change and (changes := self._find_way(key)):
            try:
                self.planned = self.change(changes)
            except DflashError as error:
                self.notify(error.what, severity="error", markup=False)
                return
            self.action_run_checks()

    def action_insist(self) -> None:
        """Ask why to launch although a check failed."""
        if self._may_insist:
            self.add_class("-typing")
            self.because.open()
            self.refresh_bindings()

    def action_take(self) -> None:
        """Launch if a reason was typed."""
        if reason := self.because.value.strip():
            self.dismiss(reason)
        else:
            self.notify("write why you launch despite failed checks: the run records it", markup=False)


def find_key(hint: Hint) -> str:
    """Return the key that applies a hint's changes, or ""."""
    changes = hint.changes
    return "o" if changes.settings or changes.port else "v" if changes.variant else "s" if changes.profile else ""


def name_key(hint: Hint) -> str:
    """Return a hint's change as its key and value, or as its option if no key applies it."""
    if key := find_key(hint):
        words = [word for word in hint.changes.to_options() if word not in {"--set", "--variant", "--profile"}]
        return f"`{key}` {' '.join(words).replace('--port', 'port')}"
    return name_options(hint)


def render_check(check: Check, width: int) -> Content:
    """Return a check in rows of `width` cells, with its fix below if it did not pass."""
    head = _STYLES[check.level.value]
    text = render_hung(head, f"{check.name}: {check.finding}", width)
    content = text.stylize("bold", len(head[0]), len(head[0]) + len(check.name) + 1)
    if check.advice and check.level.value != "ok":
        advice = render_hung(("  → ", "bold $primary"), format_advice(check.advice, name_key), width)
        content = Content("\n").join([content, advice])
    return content


_INDENT = 4  # cells of a remedy's number


class RemedyDialog(ListDialog[PlannedLaunch]):
    """Offers to relaunch a finished run, unchanged or with a remedy for its failure.

    Returns the planned launch, or None. A variable that a remedy needs is asked for and kept only in this process's
    environment.
    """

    HEADING: ClassVar = "launch again"
    SECRET: ClassVar = True
    BINDINGS: ClassVar = [
        Binding("enter", "choose", "check and launch", key_display="⏎", priority=True),
        Binding("y", "choose", "check and launch", show=False),
        Binding("down,j", "highlight(1)", "next", show=False),
        Binding("up,k", "highlight(-1)", "previous", show=False),
        *(Binding(str(number), f"go_to({number})", f"choose {number}", show=False) for number in range(1, 10)),
    ]

    def __init__(self, run: Run, failure: Postmortem | None = None) -> None:
        super().__init__()
        self.run = run
        self.remedies = failure.remedies if failure else (Remedy("as it was"),)
        self.commands = failure.commands if failure else (run.plan.relaunch_request.to_command(),)
        self.leftovers = failure.leftovers if failure else ""
        self.planned: PlannedLaunch | None = None

    def on_mount(self) -> None:
        self.show_heading(Content.assemble((f"Launch {self.run.plan.recipe} again?", "bold")))
        self.draw()

    def draw(self) -> None:
        """List the remedies with hanging indents."""
        width = max(20, self.row_width - _INDENT)
        indent = f"\n{'':{_INDENT}}"
        rows = [
            Content.assemble((f"{number:>2}  ", MUTED_ROW), indent.join(textwrap.wrap(remedy.words, width)))
            for number, remedy in enumerate(self.remedies, 1)
        ]
        self.show_rows(rows, self.place)

    @on(OptionList.OptionHighlighted)
    def _on_highlighted(self) -> None:
        self.show_detail(Content.assemble(("looking …", MUTED)))
        self.planned = None
        self.refresh_plan()

    @work(exclusive=True, group="fix")
    async def refresh_plan(self) -> None:
        """Plan the highlighted remedy in a thread and show its changes."""
        remedy, command = self.remedies[self.place], self.commands[self.place]
        try:
            self.planned = await asyncio.to_thread(plan_relaunch, self.run, remedy.changes)
        except (DflashError, OSError) as error:
            self.show_detail(Content.assemble(("✗ ", "bold $error"), str(error)))
            return
        rows = [Content.assemble(("command", "bold")), Content(command), Content("")]
        rows += [
            Content.assemble(("changes of vLLM's command", "bold")),
            *render_command_diff(self.run.plan, self.planned.plan, measure_text(self.detail)),
        ]
        if self.leftovers:
            note = "remaining processes of the failed server are stopped first"
            rows += [Content(""), Content.assemble(("! ", "bold $warning"), note)]
        self.show_detail(Content("\n").join(rows))

    def action_highlight(self, step: int) -> None:
        self.action_go_to((self.place + step) % len(self.remedies) + 1)

    def action_go_to(self, number: int) -> None:
        """Highlight another remedy, closing the field of the previous one."""
        if self.is_typing:
            self.close_field()
        if number <= len(self.remedies):
            self.rows.highlighted = number - 1

    def action_choose(self) -> None:
        """Launch with the highlighted remedy, after asking for the variable it needs."""
        needs = self.remedies[self.place].needs
        if needs and not os.environ.get(needs):
            self.open_field("", f"{needs}: kept in memory until the panel is closed, never written to disk")
        elif self.planned:
            self.check(self.planned)

    def action_take(self) -> None:
        """Launch with the typed variable."""
        if value := self.field.value.strip():
            os.environ[self.remedies[self.place].needs] = value
            self.close_field()
            self.action_choose()

    @work(exclusive=True, group="fix")
    async def check(self, planned: PlannedLaunch) -> None:
        """Stop leftovers of the failed server, run the checks, and return the plan."""
        if self.leftovers:
            try:
                await lifecycle.stop_server(self.run)
            except DflashError as error:
                self.show_detail(str(error))
                return
        reason = await self.app.push_screen_wait(Doctor(planned, launching=True))
        if reason is not None:
            self.dismiss(planned._replace(forced=reason))


def plan_relaunch(run: Run, changes: LaunchChanges) -> PlannedLaunch:
    """Return the plan of launching `run` again with `changes`, on a free port unless one was requested.

    Raises:
        UsageError: the recipe was removed, or no longer takes a change.
    """
    # The old link; the launch looks it up again.
    cluster = run.plan.cluster and replace(run.plan.cluster, is_named=False)
    request = replace(run.plan.relaunch_request.with_changes(changes), cluster=cluster)
    planned = planner.plan_launch_here(request)
    if not request.port and (port := lifecycle.find_free_port(planned.plan.port)) != planned.plan.port:
        planned = planner.plan_launch_here(request, port=port)
    return planned
