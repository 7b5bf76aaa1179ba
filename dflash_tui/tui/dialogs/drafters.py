"""A dialog to choose a new pair: from the catalogue, or from the hub's drafters of a model."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from textual import on, work
from textual.binding import Binding
from textual.content import Content
from textual.widgets import Input, OptionList

from dflash_tui.engines import model_config
from dflash_tui.engines.model_hub import HubAccessError
from dflash_tui.planning.derivation import catalogue as catalogues
from dflash_tui.planning.derivation.catalogue import CataloguePair
from dflash_tui.planning.methods import Method
from dflash_tui.presentation import recipe_text
from dflash_tui.presentation.recipe_text import Place
from dflash_tui.tui.dialogs.basic import ListDialog, measure_text
from dflash_tui.tui.render.plan import render_hung
from dflash_tui.tui.widgets.basic import MUTED, MUTED_ROW

_MARKS = {True: "✓ ", False: "✗ ", None: "  "}


class DrafterChoice(NamedTuple):
    """A target and its drafter: a repository, or a method that needs none."""

    target: str
    drafter: str = ""
    method: Method | None = None


class _Row(NamedTuple):
    """A row of the list: the choice, its name and its facts."""

    choice: DrafterChoice
    name: str
    facts: str
    pair: CataloguePair | None = None


class DrafterDialog(ListDialog[DrafterChoice]):
    """Lists the catalogue's pairs, and the drafters of a typed model; returns the chosen one, or None."""

    HEADING: ClassVar = "new pair"
    BINDINGS: ClassVar = [
        Binding("enter", "choose", "make a recipe", key_display="⏎", priority=True, tooltip="Make a recipe of it"),
        Binding("slash", "type", "find", key_display="/", tooltip="Search pairs by words, or models by OWNER/NAME"),
    ]

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place_here = place
        self.catalogue = catalogues.load_catalogue()
        self.choices: list[_Row] = []

    def on_mount(self) -> None:
        self.show_heading("Published pairs; / searches them, or finds the drafters of any model: OWNER/NAME.")
        self.call_after_refresh(self.list_pairs)

    def list_pairs(self, words: str = "") -> None:
        """List the pairs that contain all `words`, those that fit this machine first."""
        rows: list[tuple[bool, _Row, str]] = []
        for pair in catalogues.sort_by_rank(self.catalogue.pairs):
            text = f"{pair.id} {pair.drafter} {pair.method}".lower()
            if not all(word in text for word in words.lower().split()):
                continue
            fits = self._fits(pair)
            model = catalogues.choose_model(self.catalogue, pair, self.place_here.budget)
            choice = _choose(model.repo if model else "", pair)
            rows.append((fits is False, _Row(choice, pair.id, recipe_text.describe_drafter(pair), pair), _MARKS[fits]))
        rows.sort(key=lambda row: row[0])
        self.choices = [row for _, row, _ in rows]
        self.show_rows(
            Content.assemble(mark, (row.name, "bold"), (f"  {row.facts}", MUTED_ROW)) for _, row, mark in rows
        )
        self.show_detail("" if rows else "no pair of the catalogue matches all these words")

    def _fits(self, pair: CataloguePair) -> bool | None:
        """Return whether any precision of the target fits; None if the memory or all sizes are unknown."""
        variants = self.catalogue.targets[pair.target].variants
        if self.place_here.budget is None or not any(
            catalogues.estimate_need(self.catalogue, pair, variant) for variant in variants
        ):
            return None
        return any(catalogues.list_fitting_models(self.catalogue, pair, self.place_here.budget))

    @on(OptionList.OptionHighlighted)
    def _on_highlighted(self) -> None:
        if self.place < len(self.choices) and (pair := self.choices[self.place].pair):
            width = measure_text(self.detail)
            facts = list(recipe_text.list_pair_facts(self.catalogue, pair, self.place_here))
            column = max(len(name) for name, _ in facts) + 1
            self.show_detail(
                Content("\n").join(render_hung((f"{name:{column}}", MUTED), text, width) for name, text in facts)
            )

    def action_type(self) -> None:
        """Type search words or a model."""
        self.open_field("", "words of a pair, or a model: OWNER/NAME")

    def action_take(self) -> None:
        """Look up a typed model on the hub; for other words return to the list."""
        typed = self.field.value.strip()
        if typed.count("/") == 1 and not any(typed.lower() in pair.id.lower() for pair in self.catalogue.pairs):
            self.look_up(typed)
        elif self.choices:
            self.close_field()

    def action_choose(self) -> None:
        """Return the highlighted pair or drafter."""
        if (chosen := self.choices[self.place]).choice.target:
            self.dismiss(chosen.choice)
        else:
            self.notify("no repository of its target is known", severity="warning")

    @on(Input.Changed)
    def _on_typed(self, message: Input.Changed) -> None:
        message.stop()
        if self.is_typing:
            self.list_pairs(message.value)

    @work(exclusive=True, group="drafters")
    async def look_up(self, model: str) -> None:
        """List a model's drafters in the catalogue at once, then those on the hub."""
        rows = [
            _Row(_choose(model, pair), pair.drafter or pair.method.value, recipe_text.describe_drafter(pair), pair)
            for pair in catalogues.find_pairs(self.catalogue, model)
            if pair.method is not Method.NONE
        ]
        self._show(rows)
        self.show_heading(f"asking the hub about {model} …")
        try:
            drafters = await model_config.find_tree_drafters(model)
        except HubAccessError as error:
            self.show_heading(f"the hub's model tree was not read: {error}")
        else:
            names = {row.name for row in rows}
            others = [drafter for drafter in drafters if drafter.repo not in names]
            rows += [
                _Row(DrafterChoice(model, drafter.repo), drafter.repo, recipe_text.describe_tree_drafter(drafter))
                for drafter in others
            ]
            self._show(rows)
            none = "no drafter is known for it; n-grams need none (m)"
            self.show_heading(f"Drafters of {model}" if rows else none)

    def _show(self, rows: list[_Row]) -> None:
        """List drafters; a row that the user has moved to stays highlighted, else the first."""
        moved_to = self.choices[self.place] if self.place and self.choices else None
        self.choices = list(rows)
        lines = [Content.assemble((row.name, "bold"), (f"\n  {row.facts}", MUTED_ROW)) for row in rows]
        self.show_rows(lines, self.choices.index(moved_to) if moved_to in self.choices else 0)
        if lines:
            self.close_field()


def _choose(target: str, pair: CataloguePair) -> DrafterChoice:
    return DrafterChoice(target, pair.drafter, None if pair.drafter else pair.method)
