"""The list of recipes with marks for this machine, and the filter above it."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from dflash_tui.common.errors import DflashError
from dflash_tui.planning.recipe import Recipe
from dflash_tui.tui.launch_selection import LaunchSelection, Suitability
from dflash_tui.tui.render import plan

Entries = dict[str, Recipe | DflashError]


class RecipeList(Vertical):
    """Shows the recipes that fit the filter; `chosen` is the highlighted one."""

    BORDER_TITLE = "recipes"

    class Highlighted(Message):
        """Another recipe is highlighted."""

    def __init__(self, entries: Entries, choice: LaunchSelection) -> None:
        super().__init__(id="list")
        self.entries, self.choice = entries, choice
        self.shown = list(entries)
        self._moved = False

    def compose(self) -> ComposeResult:
        yield Input(id="filter", placeholder="words of a recipe; esc shows all")
        yield Static(id="columns")
        yield OptionList(id="recipes", markup=False)

    def on_mount(self) -> None:
        self.query_one("#filter").display = False
        self._fill("")
        self.query_one(OptionList).focus()

    def on_resize(self) -> None:
        """Fit the columns to the room that a change of the screen's layout leaves."""
        self.draw()

    @property
    def chosen(self) -> Recipe | DflashError | None:
        """The highlighted recipe, why its file does not load, or None when there is none."""
        index = self.query_one(OptionList).highlighted
        return None if index is None else self.entries[self.shown[index]]

    def draw(self) -> None:
        """Bring the rows up to date."""
        table = self.query_one(OptionList)
        width = table.scrollable_content_region.width - 4
        head = Content(f"  {plan.render_columns('recipe', 'n', 'vLLM', 'status', width)}")
        columns = self.query_one("#columns", Static)
        if columns.content != head:
            columns.update(head, layout=False)
        for index, name in enumerate(self.shown):
            shown = plan.render_recipe_row(name, self.entries[name], self.choice, width)
            if table.get_option_at_index(index).prompt != shown:
                table.replace_option_prompt_at_index(index, shown)

    def choose(self, name: str) -> None:
        """Highlight the recipe called `name`, whatever is filtered."""
        self._moved = True
        if name in self.entries:
            self.close_filter(keep=False)
            self.query_one(OptionList).highlighted = list(self.entries).index(name)

    def choose_for_gpu(self) -> None:
        """Highlight the recipe that suits the GPU best, unless somebody has chosen already."""
        recipes = [entry for entry in self.entries.values() if isinstance(entry, Recipe) and not entry.for_cpu]
        if self._moved or not self.choice.cards:
            return
        self._moved = True
        for wanted in (Suitability.YES, Suitability.MAYBE):
            for recipe in recipes:
                if self.choice.suited(recipe).suits is wanted and recipe.name in self.shown:
                    self.query_one(OptionList).highlighted = self.shown.index(recipe.name)
                    return

    def open_filter(self) -> None:
        """Show the filter and type into it."""
        self.query_one("#filter").display = True
        self.query_one("#filter").focus()

    def close_filter(self, *, keep: bool) -> None:
        """Go back to the list; without `keep` it shows every recipe again."""
        if not keep:
            self.query_one("#filter", Input).value = ""
            self.query_one("#filter").display = False
        self.query_one(OptionList).focus()

    @property
    def filtering(self) -> bool:
        """Whether somebody types into the filter."""
        return self.query_one("#filter").has_focus

    def _fill(self, words: str) -> None:
        """List the recipes that have all of `words` in their name or title."""
        table = self.query_one(OptionList)
        wanted = words.lower().split()
        texts = {name: name if isinstance(e, DflashError) else f"{name} {e.title}" for name, e in self.entries.items()}
        self.shown = [name for name, text in texts.items() if all(word in text.lower() for word in wanted)]
        table.clear_options()
        table.add_options([Option("", id=str(index)) for index in range(len(self.shown))])
        table.highlighted = 0 if self.shown else None

    @on(Input.Changed, "#filter")
    def _filter(self, message: Input.Changed) -> None:
        message.stop()
        self._fill(message.value)
        self.draw()
        self.post_message(self.Highlighted())

    @on(OptionList.OptionHighlighted)
    def _highlighted(self, message: OptionList.OptionHighlighted) -> None:
        message.stop()
        self._moved = self._moved or message.option_index > 0
        self.post_message(self.Highlighted())
