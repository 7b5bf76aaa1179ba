"""The doctor dialog: the checks before a launch, a fix for each that fails, and launching anyway."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Input, Static

from dflash_tui.common.errors import DflashError
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.resolution import ResolvedRecipe
from dflash_tui.planning.request import Hint, LaunchChanges, format_advice, name_options
from dflash_tui.presentation.plan_text import format_verdict
from dflash_tui.tui.composition import once_composed
from dflash_tui.tui.dialogs.basic import Dialog, measure_text
from dflash_tui.tui.render.plan import render_hung
from dflash_tui.tui.widgets.basic import TextField

if TYPE_CHECKING:  # pynvml and httpx cost 280 ms that the first paint is spared
    from dflash_tui.launch.preflight.check import Check
    from dflash_tui.launch.preflight.runner import PreflightReport

_STYLES = {"ok": ("✓ ", "$success"), "warn": ("! ", "bold $warning"), "fail": ("✗ ", "bold $error")}


class Doctor(Dialog[str | None]):
    """Runs the checks of a plan and shows them.

    When `launching` it closes by itself with an empty text if no check fails, with a reason if the user launches
    anyway, and with None if the launch is cancelled.
    """

    HEADING: ClassVar = "doctor"
    BINDINGS: ClassVar = [
        Binding("enter", "launch", "launch", key_display="⏎", priority=True, tooltip="Launch for this reason"),
        Binding("escape,q", "dismiss(None)", "close", key_display="esc"),
        Binding("r", "run_checks", "check again"),
        Binding("o", "take('o')", "set it", tooltip="Make the setting that a fix names, and check again"),
        Binding("v", "take('v')", "that variant", tooltip="Take the variant that a fix names, and check again"),
        Binding("s", "take('s')", "that profile", tooltip="Take the profile that a fix names, and check again"),
        Binding("F", "insist", "launch anyway", priority=True),
    ]

    def __init__(
        self,
        resolved: ResolvedRecipe,
        plan: Plan,
        *,
        launching: bool,
        change: Callable[[LaunchChanges], PlannedLaunch] | None = None,
    ) -> None:
        """Make the dialog.

        Args:
            resolved: The resolved recipe.
            plan: What is checked.
            launching: Whether it is launched when no check fails.
            change: Returns the plan with the changes that a fix names; without it none can be made here.
        """
        super().__init__()
        self.resolved, self.plan, self.launching, self.change = resolved, plan, launching, change
        self.report: PreflightReport | None = None
        self.checks: list[Check] = []

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -wide"):
            yield Static(Content(f"checking {self.plan.recipe} …"), id="verdict", markup=False)
            with VerticalScroll(id="checks"):
                yield Static(id="found", markup=False)
            yield TextField(id="because", placeholder="launch anyway, because …")

    @once_composed
    def on_mount(self) -> None:
        self.query_one("#because").display = False
        self.call_after_refresh(self.action_run_checks)  # what they import takes longer than a frame

    def on_resize(self) -> None:
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        """Show the checks that were made, wrapped to the width that there is."""
        if self.checks:
            width = measure_text(self.query_one("#checks"))
            self.query_one("#found", Static).update(
                Content("\n").join([render_check(check, width) for check in self.checks])
            )

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        typing = self.has_class("-typing")
        if action == "launch":
            return typing
        if action == "take":
            return not typing and bool(self.change and self._find_way(str(parameters[0])))
        return action != "insist" or (self._may_insist and not typing)

    @property
    def _may_insist(self) -> bool:
        return self.launching and self.report is not None and self.report.forcible

    def action_run_checks(self) -> None:
        """Run the checks (again)."""
        self.query_one("#verdict", Static).update(Content(f"checking {self.plan.recipe} …"))
        self.check()

    @work(exclusive=True)
    async def check(self) -> None:
        """Run the checks and show their results."""
        from dflash_tui.peers import cluster_launch

        planned = PlannedLaunch(self.resolved, self.plan)
        try:
            async with cluster_launch.open_peers(self.plan.relaunch_request.peers) as peers:
                planned = await cluster_launch.place_on_hosts(planned, peers)
                report = await cluster_launch.check_all_hosts(planned, peers, thorough=not self.launching)
        except (DflashError, OSError) as error:
            self.query_one("#verdict", Static).update(Content("the checks could not be run"))
            self.query_one("#found", Static).update(Content(str(error)))
            return
        self.report = report
        if self.launching and not report.failed:
            self.dismiss("")
            return
        checks = sorted(report.checks, key=lambda check: ("fail", "warn", "ok").index(check.level.value))
        self.query_one("#verdict", Static).update(Content.assemble((format_verdict(report), "bold")))
        self.checks = checks
        self.draw()
        self.refresh_bindings()
        self.query_one("#checks").focus()

    def _find_way(self, key: str) -> LaunchChanges:
        """Return the changes that the first fix which names such asks for; none where no fix does."""
        parts = [part for check in self.checks if check.level.value != "ok" for part in check.advice]
        hints = [part for part in parts if isinstance(part, Hint) and not part.is_example]
        return next((hint.changes for hint in hints if find_key(hint) == key), LaunchChanges())

    def action_take(self, key: str) -> None:
        """Change the launch as a fix says, and run the checks again."""
        if self.change and (changes := self._find_way(key)):
            try:
                self.resolved, self.plan = self.change(changes)[:2]
            except DflashError as error:
                self.notify(error.what, severity="error", markup=False)
                return
            self.action_run_checks()

    def action_insist(self) -> None:
        """Ask for the reason of launching although a check failed."""
        if self._may_insist:
            self.add_class("-typing")
            self.query_one(TextField).open()
            self.refresh_bindings()

    def action_launch(self) -> None:
        """Launch, if there is a reason."""
        if reason := self.query_one("#because", Input).value.strip():
            self.dismiss(reason)
        else:
            self.notify("write why you launch although a check failed: the run keeps it", markup=False)


def find_key(hint: Hint) -> str:
    """Return the key that makes a change of the launch; empty where there is none for it."""
    changes = hint.changes
    return "o" if changes.settings or changes.port else "v" if changes.variant else "s" if changes.profile else ""


def name_key(hint: Hint) -> str:
    """Return a change of the launch by the key that makes it, else by its option."""
    if key := find_key(hint):
        words = [word for word in hint.changes.to_options() if word not in {"--set", "--variant", "--profile"}]
        return f"`{key}` {' '.join(words).replace('--port', 'port')}"
    return name_options(hint)


def render_check(check: Check, width: int) -> Content:
    """Return a check in rows of `width` cells, with its fix beneath when it is not right."""
    head = _STYLES[check.level.value]
    text = render_hung(head, f"{check.name}: {check.finding}", width)
    content = text.stylize("bold", len(head[0]), len(head[0]) + len(check.name) + 1)
    if check.advice and check.level.value != "ok":
        advice = render_hung(("  → ", "bold $primary"), format_advice(check.advice, name_key), width)
        content = Content("\n").join([content, advice])
    return content
