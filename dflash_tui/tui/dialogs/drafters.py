"""A drafter for a model: those that the catalogue and the hub's model tree know, of which one makes a recipe."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from dflash_tui.common.sanitizer import clean_line
from dflash_tui.planning.derivation import catalogue as catalogues
from dflash_tui.planning.derivation.precision_names import OWN_PRECISION, arrange_by_precision
from dflash_tui.planning.methods import Method
from dflash_tui.presentation.recipe import catalogue_text
from dflash_tui.tui.composition import once_composed
from dflash_tui.tui.dialogs.basic import Dialog
from dflash_tui.tui.widgets.basic import MUTED_ROW, MarkedList
from dflash_tui.tui.widgets.text_field import TextField


class DrafterChoice(NamedTuple):
    """A model and what drafts for it: a repository, or where it needs none a method."""

    target: str
    drafter: str = ""
    method: Method | None = None


class _Row(NamedTuple):
    """A way to draft for a model, its name and what is known of it."""

    choice: DrafterChoice
    name: str
    facts: str


class DrafterDialog(Dialog[DrafterChoice]):
    """Asks for a model and lists its drafters; ends with the one that was chosen, or None."""

    HEADING: ClassVar = "find a drafter"
    BINDINGS: ClassVar = [
        Binding("enter", "look", "look", key_display="⏎", priority=True, tooltip="Look for drafters of this model"),
        Binding("enter", "choose", "make a recipe", key_display="⏎", priority=True, tooltip="Make a recipe with it"),
        Binding("slash", "type", "another model", key_display="/", priority=True, tooltip="Another model"),
        Binding("escape", "dismiss", "close", key_display="esc"),
    ]

    def __init__(self, model: str) -> None:
        super().__init__()
        self.model = model
        self.choices: list[DrafterChoice] = []

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -wide"):
            yield Static(Content("Which model? What the catalogue and the hub know to draft for it becomes a recipe."))
            yield TextField(self.model, id="option", placeholder="its repository: OWNER/NAME")
            yield MarkedList(id="runs", markup=False)
            yield Static(id="change", markup=False)

    @once_composed
    def on_mount(self) -> None:
        self.query_one(OptionList).display = False
        self.query_one(TextField).open()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        typing = not self.query(Input) or self.focused is self.query_one(Input)
        return {"look": typing, "choose": not typing, "type": not typing}.get(action, True)

    def action_type(self) -> None:
        """Type another model."""
        self.query_one(TextField).open()
        self.refresh_bindings()

    def action_look(self) -> None:
        """Look for drafters of what was typed."""
        if model := self.query_one(Input).value.strip():
            self.look_up(model)

    def action_choose(self) -> None:
        """Take the highlighted drafter."""
        if (place := self.query_one(OptionList).highlighted) is not None:
            self.dismiss(self.choices[place])

    @on(Input.Changed)
    def _on_typed(self, message: Input.Changed) -> None:
        message.stop()

    @work(exclusive=True, group="drafters")
    async def look_up(self, model: str) -> None:
        """List the drafters of the catalogue at once, then those of the hub."""
        from dflash_tui.engines.hub import model_tree
        from dflash_tui.engines.hub.client import HubAccessError

        self.query_one(OptionList).display = False
        rows = [
            _Row(
                DrafterChoice(model, pair.drafter, None if pair.drafter else pair.method),
                pair.drafter or pair.method.value,
                catalogue_text.describe_drafter(pair),
            )
            for pair in catalogues.find_pairs(catalogues.load_catalogue(), model)
            if pair.method is not Method.NONE
        ]
        self._show(rows, model)
        self._say(f"asking the hub about {clean_line(model)} …")
        try:
            drafters = await model_tree.find_tree_drafters(model)
        except HubAccessError as error:
            self._say(f"the hub's model tree was not read: {error}")
        else:
            names = {row.name for row in rows}
            others = [drafter for drafter in drafters if drafter.repo not in names]
            rows += [
                _Row(DrafterChoice(model, drafter.repo), drafter.repo, catalogue_text.describe_tree_drafter(drafter))
                for drafter in others
            ]
            self._show(rows, model)
            self._say("" if rows else "nothing is known to draft for it; n-grams need no drafter (m)")

    def _show(self, rows: list[_Row], model: str) -> None:
        """List ways to draft; the first is highlighted, or what the user has moved to since."""
        table, arranged = self.query_one(OptionList), arrange_by_precision(rows, model, lambda row: row.name)
        moved_to = self.choices[table.highlighted] if table.display and table.highlighted else None
        self.choices = [row.choice for row, _ in arranged]
        table.clear_options()
        for row, is_own in arranged:
            facts = clean_line(f"{f'{OWN_PRECISION}; ' if is_own else ''}{row.facts}")
            table.add_option(Option(Content.assemble((clean_line(row.name), "bold"), (f"\n  {facts}", MUTED_ROW))))
        if rows:
            was_empty = not table.display
            table.display, table.highlighted = True, self.choices.index(moved_to) if moved_to in self.choices else 0
            if was_empty:
                table.focus()
            self.refresh_bindings()

    def _say(self, text: str) -> None:
        self.query_one("#change", Static).update(Content(text))
