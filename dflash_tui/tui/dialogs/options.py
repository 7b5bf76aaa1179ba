"""The options of a launch: change a flag and see at once what that does to the command and to the memory."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from msgspec.structs import replace
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.suggester import SuggestFromList
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.planning.advice import release_flags
from dflash_tui.planning.field_types import HIGHEST_PORT
from dflash_tui.planning.recipes.flag_files import make_absolute
from dflash_tui.planning.recipes.recipe import Recipe
from dflash_tui.planning.request import LaunchChanges, LaunchRequest
from dflash_tui.tui.composition import once_composed
from dflash_tui.tui.dialogs.basic import Dialog, measure_text
from dflash_tui.tui.launch_selection import LaunchSelection
from dflash_tui.tui.render.command_diff import render_command_diff
from dflash_tui.tui.render.plan import render_memory
from dflash_tui.tui.widgets.basic import MUTED_ROW, MarkedList, render_error
from dflash_tui.tui.widgets.text_field import TextField

PORT = "port"
# What is changed most often stands first, also where the recipe leaves it to vLLM.
_FIRST = ("max-model-len", "gpu-memory-utilization", "max-num-seqs", "max-num-batched-tokens")
_ANY = "any other flag …"
_ANY_PLACEHOLDER, _PLACEHOLDER = "FLAG=VALUE, or what else --set takes", "empty is what the recipe says"
_NAME = 26


class OptionRow(NamedTuple):
    """An option of a launch."""

    name: str
    """The flag without dashes, or `port`."""
    value: str
    """What a launch would pass; empty where the choice is vLLM's."""
    by_hand: bool
    """Whether it was set here or by `--set`."""


def list_options(planned: PlannedLaunch, request: LaunchRequest) -> list[OptionRow]:
    """Return the options of a launch, those that are changed most often first."""
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
    """Return `request` with an option as it was typed, as `--set` and `--port` take it; empty is the recipe's own.

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


class OptionsDialog(Dialog[None]):
    """Changes the options of a recipe's launch; what is kept holds for the launch screen at once."""

    HEADING: ClassVar = "options"
    BINDINGS: ClassVar = [
        Binding("enter", "edit", "change", key_display="⏎", priority=True, tooltip="Change the highlighted option"),
        Binding("enter", "keep", "keep", key_display="⏎", priority=True, tooltip="Keep what was typed"),
        Binding("x", "reset", "as the recipe has it", tooltip="Take the change of this option back"),
        Binding("escape", "dismiss", "close", key_display="esc"),
        Binding("escape", "leave", "leave the field", key_display="esc"),
        Binding("q,o", "dismiss", "close", show=False),
    ]

    def __init__(self, choice: LaunchSelection, recipe: Recipe) -> None:
        super().__init__()
        self.choice, self.recipe = choice, recipe
        self.rows: list[OptionRow] = []
        self.editing = ""

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -wide"):
            yield MarkedList(id="options", markup=False)
            yield TextField(id="option")
            with VerticalScroll(id="effect", can_focus=False):
                yield Static(id="change", markup=False)

    @once_composed
    def on_mount(self) -> None:
        self.query_one(Dialog.BOX).border_title = Content(f"options of {self.recipe.name}")
        self.query_one(Input).display = False
        self.query_one(OptionList).focus()
        self.call_after_refresh(self.draw)

    def on_resize(self) -> None:
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        """Show the options as they are kept, and what the launch becomes."""
        request, table = self.choice.request(self.recipe), self.query_one(OptionList)
        try:
            self.rows = list_options(self.choice.plan(self.recipe), request)
        except DflashError:  # what keeps it from being planned is below
            self.rows = [OptionRow(name, text, by_hand=True) for name, text in request.settings.items()]
        place = table.highlighted or 0
        table.clear_options()
        table.add_options([Option(_render_row(row)) for row in self.rows])
        table.add_option(Option(Content.assemble((f"  {_ANY}", MUTED_ROW))))
        table.highlighted = min(place, len(self.rows))
        self.show_effect(request)

    def show_effect(self, request: LaunchRequest) -> bool:
        """Show what `request` changes of the recipe's command and of the memory; return whether it can be planned."""
        effect, pane = self.query_one("#change", Static), self.query_one("#effect")
        width = measure_text(pane)
        try:
            planned = self.choice.plan_request(self.recipe, request)
            own = self.choice.plan_request(self.recipe, _without_options(request))
        except DflashError as error:
            effect.update(render_error(error.what, error.evidence, error.hint))
            return False
        rows = render_memory(planned.memory, width) if planned.memory else []
        rows.append(Content.assemble(("what these options change of the command", "bold")))
        effect.update(Content("\n").join([*rows, *render_command_diff(own.plan, planned.plan, width)]))
        return True

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        if action in {"edit", "reset", "dismiss"}:
            return not self.editing
        return bool(self.editing) if action in {"keep", "leave"} else True

    def action_edit(self) -> None:
        """Let the highlighted option be typed."""
        entry, place = self.query_one(TextField), self.query_one(OptionList).highlighted or 0
        row = self.rows[place] if place < len(self.rows) else OptionRow(_ANY, "", by_hand=False)
        self.editing, entry.value = row.name, row.value
        entry.placeholder = _ANY_PLACEHOLDER if row.name == _ANY else f"{row.name}: {_PLACEHOLDER}"
        flags = sorted(release_flags.list_flags(self.choice.plan(self.recipe).plan.vllm)) if row.name == _ANY else []
        entry.suggester = SuggestFromList([f"{flag}=" for flag in flags])
        entry.border_title = Content(row.name)
        self.add_class("-typing")
        entry.open()
        self.refresh_bindings()

    def action_leave(self) -> None:
        """Leave the field as it was."""
        self._end_editing()

    def action_reset(self) -> None:
        """Take back what was changed of the highlighted option."""
        place = self.query_one(OptionList).highlighted or 0
        if place < len(self.rows):
            request = change_option(self.choice.request(self.recipe), self.rows[place].name, "")
            self.choice.change_request(self.recipe, request)
            self.draw()

    @on(Input.Changed, "#option")
    def _on_typed(self, message: Input.Changed) -> None:
        message.stop()
        if self.editing:
            self._try(message.value)

    def _try(self, text: str) -> LaunchRequest | None:
        """Show what the typed text would do; return the request with it, None where it cannot be planned."""
        name = self.editing
        if name == _ANY:
            name, _, text = text.strip().removeprefix("--").partition("=")
            if not (name := name.strip()):
                return None
        try:
            request = change_option(self.choice.request(self.recipe), name, text)
        except UsageError as error:
            self.query_one("#change", Static).update(render_error(error.what, error.evidence, error.hint))
            return None
        return request if self.show_effect(request) else None

    def action_keep(self) -> None:
        """Keep what was typed, if it can be planned."""
        if request := self._try(self.query_one(Input).value):
            self.choice.change_request(self.recipe, request)
            self._end_editing()

    def _end_editing(self) -> None:
        self.editing = ""
        self.remove_class("-typing")
        self.query_one(Input).display = False
        self.set_focus(self.query_one(OptionList))
        self.draw()
        self.refresh_bindings()


def _without_options(request: LaunchRequest) -> LaunchRequest:
    # Over several hosts it may be split by a setting alone, without which it could not be planned for them.
    alone = replace(request, peers=(), link=None)
    return alone.with_changes(LaunchChanges(removed=(PORT,), removed_settings=tuple(request.settings)))


def _render_row(row: OptionRow) -> Content:
    mark = ("● ", "bold $accent") if row.by_hand else ("  ", "")
    return Content.assemble(mark, f"{row.name:{_NAME}} ", row.value or ("vLLM's own", MUTED_ROW))
