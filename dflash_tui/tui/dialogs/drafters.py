"""A drafter for a model: those that the catalogue and the hub's model tree know, of which one makes a recipe."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from textual import on, work
from textual.binding import Binding
from textual.content import Content
from textual.widgets import Input

from dflash_tui.engines import model_config
from dflash_tui.engines.model_hub import HubAccessError
from dflash_tui.planning.derivation import catalogue as catalogues
from dflash_tui.planning.derivation.checkpoint import OWN_PRECISION, arrange_by_precision
from dflash_tui.planning.methods import Method
from dflash_tui.presentation import recipe_text
from dflash_tui.tui.dialogs.list import ListDialog
from dflash_tui.tui.widgets.basic import MUTED_ROW


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


class DrafterDialog(ListDialog[DrafterChoice]):
    """Asks for a model and lists its drafters; ends with the one that was chosen, or None."""

    HEADING: ClassVar = "find a drafter"
    BINDINGS: ClassVar = [
        Binding("enter", "take", "look", key_display="⏎", priority=True, tooltip="Look for drafters of this model"),
        Binding("enter", "choose", "make a recipe", key_display="⏎", priority=True, tooltip="Make a recipe with it"),
        Binding("slash", "type", "another model", key_display="/", tooltip="Another model"),
        Binding("escape", "dismiss", "close", key_display="esc"),
    ]

    def __init__(self, model: str) -> None:
        super().__init__()
        self.model = model
        self.choices: list[DrafterChoice] = []

    def on_mount(self) -> None:
        self.show_heading("Which model? What the catalogue and the hub know to draft for it becomes a recipe.")
        self.action_type()

    def action_type(self) -> None:
        """Type a model."""
        self.open_field(self.model, "its repository: OWNER/NAME")

    def action_take(self) -> None:
        """Look for drafters of what was typed."""
        if model := self.field.value.strip():
            self.model = model
            self.look_up(model)

    def action_choose(self) -> None:
        """Take the highlighted drafter."""
        self.dismiss(self.choices[self.place])

    @on(Input.Changed)
    def _on_typed(self, message: Input.Changed) -> None:
        message.stop()

    @work(exclusive=True, group="drafters")
    async def look_up(self, model: str) -> None:
        """List the drafters of the catalogue at once, then those of the hub."""
        self.show_rows([])
        rows = [
            _Row(
                DrafterChoice(model, pair.drafter, None if pair.drafter else pair.method),
                pair.drafter or pair.method.value,
                recipe_text.describe_drafter(pair),
            )
            for pair in catalogues.find_pairs(catalogues.load_catalogue(), model)
            if pair.method is not Method.NONE
        ]
        self._show(rows, model)
        self.show_detail(f"asking the hub about {model} …")
        try:
            drafters = await model_config.find_tree_drafters(model)
        except HubAccessError as error:
            self.show_detail(f"the hub's model tree was not read: {error}")
        else:
            names = {row.name for row in rows}
            others = [drafter for drafter in drafters if drafter.repo not in names]
            rows += [
                _Row(DrafterChoice(model, drafter.repo), drafter.repo, recipe_text.describe_tree_drafter(drafter))
                for drafter in others
            ]
            self._show(rows, model)
            self.show_detail("" if rows else "nothing is known to draft for it; n-grams need no drafter (m)")

    def _show(self, rows: list[_Row], model: str) -> None:
        """List ways to draft; the first is highlighted, or what the user has moved to since."""
        arranged = arrange_by_precision(rows, model, lambda row: row.name)
        moved_to = self.choices[self.place] if self.place and self.rows.option_count else None
        self.choices = [row.choice for row, _ in arranged]
        lines = [
            Content.assemble(
                (row.name, "bold"),
                (f"\n  {OWN_PRECISION}; {row.facts}" if is_own else f"\n  {row.facts}", MUTED_ROW),
            )
            for row, is_own in arranged
        ]
        self.show_rows(lines, self.choices.index(moved_to) if moved_to in self.choices else 0)
        if lines:
            self.close_field()
