"""The options of a launch: edit a flag and see its effect on the command and the memory."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from msgspec.structs import replace
from textual import on
from textual.binding import Binding
from textual.content import Content
from textual.suggester import SuggestFromList
from textual.widgets import Input

from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.planning import serve_flags
from dflash_tui.planning.field_types import HIGHEST_PORT
from dflash_tui.planning.recipes.recipe import Recipe
from dflash_tui.planning.request import LaunchChanges, LaunchRequest
from dflash_tui.planning.serve_flags import make_absolute
from dflash_tui.tui.dialogs.basic import ListDialog, measure_text
from dflash_tui.tui.launch_selection import LaunchSelection
from dflash_tui.tui.render.plan import render_command_diff, render_memory
from dflash_tui.tui.widgets.basic import MUTED_ROW, render_error

PORT = "port"
# The most frequently edited options come first, even if the recipe does not set them.
_FIRST = ("max-model-len", "gpu-memory-utilization", "max-num-seqs", "max-num-batched-tokens")
_ANY = "any other flag …"
_ANY_PLACEHOLDER, _PLACEHOLDER = "FLAG=VALUE, or another key of --set", "empty: the recipe's value"
_NAME = 26


class OptionRow(NamedTuple):
    """A row of the options."""

    name: str
    """The flag without dashes, or `port`."""
    value: str
    """The value that a launch would pass; empty for vLLM's default."""
    by_hand: bool
    """Whether the user set it, here or with `--set`."""


def list_options(planned: PlannedLaunch, request: LaunchRequest) -> list[OptionRow]:
    """Return the options of a launch, the most frequently edited first."""
    flags = planned.resolved.flags
    names = [*_FIRST, *sorted({*flags, *request.settings} - {*_FIRST})]
    rows = [OptionRow(name, _format_value(flags.get(name), request, name), name in request.settings) for name in names]
    rows.insert(len(_FIRST), OptionRow(PORT, str(planned.plan.port), request.port is not None))
    return rows


def _format_value(value: object, request: LaunchRequest, name: str) -> str:
    if name in request.settings:
        return request.settings[name]
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def change_option(request: LaunchRequest, name: str, text: str) -> LaunchRequest:
    """Return `request` with an option as typed, parsed like `--set` and `--port`; empty restores the recipe's.

    Raises:
        UsageError: it is not a port.
    """
    text = text.strip()
    if name != PORT:
        text, removed = make_absolute(name, text), () if text else (name,)
        return request.with_changes(LaunchChanges(settings={name: text} if text else {}, removed_settings=removed))
    if not text:
        return request.with_changes(LaunchChanges(removed=(PORT,)))
    if not text.isdecimal() or len(text) > len(str(HIGHEST_PORT)) or not 0 < int(text) <= HIGHEST_PORT:
        raise UsageError(f"{text} is not a port", hint=f"a port is a number from 1 to {HIGHEST_PORT}")
    return request.with_changes(LaunchChanges(port=int(text)))


class OptionsDialog(ListDialog[None]):
    """Edits the options of a recipe's launch; saved options apply to the launch screen at once."""

    BINDINGS: ClassVar = [
        Binding("enter", "choose", "change", key_display="⏎", priority=True, tooltip="Change the highlighted option"),
        Binding("x", "reset", "the recipe's value", tooltip="Undo the change of this option"),
    ]

    def __init__(self, choice: LaunchSelection, recipe: Recipe) -> None:
        super().__init__()
        self.choice, self.recipe = choice, recipe
        self.box.border_title = Content(f"options of {recipe.name}")
        self.options: list[OptionRow] = []
        self.editing = ""

    def on_mount(self) -> None:
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        """Show the saved options and their effect."""
        request = self.choice.request(self.recipe)
        try:
            self.options = list_options(self.choice.plan(self.recipe), request)
        except DflashError:  # the error is shown below
            self.options = [OptionRow(name, text, by_hand=True) for name, text in request.settings.items()]
        rows = [_render_row(row) for row in self.options]
        self.show_rows([*rows, Content.assemble((f"  {_ANY}", MUTED_ROW))], self.place)
        if not self.is_typing:
            self.show_effect(request)

    def show_effect(self, request: LaunchRequest) -> bool:
        """Show the effect of `request` on the command and the memory; return whether it can be planned."""
        width = measure_text(self.detail)
        try:
            planned = self.choice.plan_request(self.recipe, request)
            own = self.choice.plan_request(self.recipe, _without_options(request))
        except DflashError as error:
            self.show_detail(render_error(error))
            return False
        rows = render_memory(planned.memory, width) if planned.memory else []
        rows.append(Content.assemble(("how these options change the command", "bold")))
        self.show_detail(Content("\n").join([*rows, *render_command_diff(own.plan, planned.plan, width)]))
        return True

    def action_choose(self) -> None:
        """Edit the highlighted option."""
        row = self.options[self.place] if self.place < len(self.options) else OptionRow(_ANY, "", by_hand=False)
        flags = sorted(serve_flags.list_flags(self.choice.plan(self.recipe).plan.vllm)) if row.name == _ANY else []
        self.field.suggester = SuggestFromList([f"{flag}=" for flag in flags])
        self.editing = row.name
        hint = _ANY_PLACEHOLDER if row.name == _ANY else f"{row.name}: {_PLACEHOLDER}"
        self.open_field(row.value, hint, row.name)

    def action_reset(self) -> None:
        """Reset the highlighted option."""
        if self.place < len(self.options):
            request = change_option(self.choice.request(self.recipe), self.options[self.place].name, "")
            self.choice.change_request(self.recipe, request)
            self.draw()

    @on(Input.Changed)
    def _on_typed(self, message: Input.Changed) -> None:
        message.stop()
        if self.is_typing:
            self._try(message.value)

    def _try(self, text: str) -> LaunchRequest | None:
        """Show the effect of the typed text; return the request, or None if it cannot be planned."""
        name = self.editing
        if name == _ANY:
            name, _, text = text.strip().removeprefix("--").partition("=")
            if not (name := name.strip()):
                return None
        try:
            request = change_option(self.choice.request(self.recipe), name, text)
        except UsageError as error:
            self.show_detail(render_error(error))
            return None
        return request if self.show_effect(request) else None

    def action_take(self) -> None:
        """Save the typed text if it can be planned."""
        if request := self._try(self.field.value):
            self.choice.change_request(self.recipe, request)
            self.close_field()

    def close_field(self) -> None:
        """Close the text field and show the saved options."""
        super().close_field()
        self.draw()


def _without_options(request: LaunchRequest) -> LaunchRequest:
    # Over several hosts a split may exist only as a setting; without it no plan could be made.
    alone = replace(request, peers=(), link=None)
    return alone.with_changes(LaunchChanges(removed=(PORT,), removed_settings=tuple(request.settings)))


def _render_row(row: OptionRow) -> Content:
    mark = ("● ", "bold $accent") if row.by_hand else ("  ", "")
    return Content.assemble(mark, f"{row.name:{_NAME}} ", row.value or ("vLLM's own", MUTED_ROW))
