"""The list of recipes: those that would start here first, the rest folded into a line; and its filter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from dflash_tui.common.errors import DflashError, RecipeError
from dflash_tui.common.formatting import GIB, UNKNOWN, format_megabytes, pluralize, shorten_names
from dflash_tui.launch.planner import LaunchOutline
from dflash_tui.planning.plan_builder import list_models
from dflash_tui.planning.recipes import recipe_loader, resolution
from dflash_tui.planning.recipes.recipe import PublishedFigures, Recipe, Status
from dflash_tui.tui.launch_selection import LaunchSelection, Suitability
from dflash_tui.tui.widgets.basic import MUTED_ROW, MarkedList, TextField, once_composed

_EDGES = 2
_SUITS, _TRIED = list(Suitability), list(Status)
_UNPROVEN = 2  # a rank of published figures
FOLD = "▸"
"""The name of the row for the folded recipes."""

Entry = Recipe | DflashError
Entries = dict[str, Entry]


class RecipeFilter(TextField):
    """The filter of the recipes; enter returns to the list after all typed keys were handled."""

    BINDINGS: ClassVar = [
        Binding("enter", "submit", "Keep the filter", tooltip="Back to the filtered list"),
    ]

    async def action_submit(self) -> None:
        """Return to the list at once: keys typed right after enter are for the filtered list."""
        self.query_ancestor(RecipeList).keep_filter()


class RecipeList(Vertical):
    """Shows the recipes that match the filter; `chosen` is the highlighted one."""

    BORDER_TITLE = "recipes"

    class Highlighted(Message):
        """Reports that another recipe is highlighted."""

    def __init__(self, entries: Entries, choice: LaunchSelection) -> None:
        super().__init__(id="list")
        self.entries, self.choice = entries, choice
        self.visible_names = list(entries)
        self.folded: list[str] = []
        self._moved = self._is_unfolded = False
        self._drawn: object = None
        self._words: str | None = None  # the words of the filter; None before the list is filled

    def compose(self) -> ComposeResult:
        yield Static(id="columns")
        yield MarkedList(id="recipes", markup=False)

    @once_composed
    def on_mount(self) -> None:
        self.watch(self.query_one(OptionList), "scroll_y", self.show_position, init=False)

    def on_resize(self) -> None:
        """Fit the columns to the new width, and keep the highlighted row in view."""
        if self._words is None:
            return
        self.draw()
        self.call_after_refresh(self.query_one(OptionList).scroll_to_highlight)

    @property
    def chosen(self) -> Entry | None:
        """The highlighted recipe or its load error; None if there is none."""
        return self.entries.get(self._chosen_name)

    @property
    def is_on_fold(self) -> bool:
        """Whether the row for the folded recipes is highlighted."""
        return bool(self.folded) and self._chosen_name == FOLD

    @property
    def _chosen_name(self) -> str:
        self._fill_first()
        index = self.query_one(OptionList).highlighted
        return "" if index is None else self.visible_names[index]

    def draw(self) -> None:
        """Update the rows if they have changed."""
        self._fill_first()
        table = self.query_one(OptionList)
        rows = [build_recipe_row(name, self.entries[name], self.choice) for name in self.visible_names if name != FOLD]
        drawn = rows, len(self.folded), table.scrollable_content_region.width - _EDGES
        if drawn == self._drawn:
            return
        self._drawn = drawn
        head, prompts = render_recipe_rows(rows, drawn[2])
        if self.folded:
            text = f"▸ {pluralize(len(self.folded), 'recipe')} that would not start here"
            prompts.append(Content.assemble((text, MUTED_ROW)))
        columns = self.query_one("#columns", Static)
        if columns.content != head:
            columns.update(head, layout=False)
        for index, prompt in enumerate(prompts):
            if table.get_option_at_index(index).prompt != prompt:
                table.replace_option_prompt_at_index(index, prompt)
        self.show_position()

    def show_position(self) -> None:
        """Show the position of the highlighted recipe, and arrows if there are rows above or below."""
        table = self.query_one(OptionList)
        above = "↑ " if table.scroll_offset.y > 0 else ""
        below = " ↓" if table.scroll_offset.y < table.max_scroll_y else ""
        count = len(self.visible_names)
        place = f"{table.highlighted + 1} of {count}" if table.highlighted is not None else "none"
        self.border_subtitle = f"{above}{place}{below}"

    def reload(self, entries: Entries) -> None:
        """Replace the entries; the same recipe stays highlighted."""
        chosen = self._chosen_name
        self.entries = entries
        self.close_filter(keep=False)
        self._fill("", highlight=chosen)
        self.draw()

    def choose(self, name: str) -> None:
        """Highlight the recipe called `name`, even if it is filtered out or folded."""
        self._moved = True
        if name in self.entries:
            self.close_filter(keep=False)
            self._fill("", highlight=name)
            self.draw()

    def unfold(self) -> None:
        """Unfold the folded recipes and highlight the first of them."""
        self._is_unfolded = True
        self._fill(self._words or "", highlight=self.folded[0])
        self.draw()

    def sort_for_machine(self) -> None:
        """Sort by suitability and highlight the best, or the recipe that the user has already moved to."""
        if not self._moved and not self.filtered:
            self._fill("", highlight=self._chosen_name if self.query_one(OptionList).highlighted else "")

    def _rank(self, name: str) -> tuple[int, int, int, int, str]:
        """Return the sort key of an entry: suitability, test status, published speed on this GPU.

        If there is a GPU, CPU recipes come after all that may run on it.
        """
        entry = self.entries[name]
        if isinstance(entry, DflashError):  # the user's own file, which should be visible
            return _SUITS.index(Suitability.MAYBE), True, 0, 0, name
        suits = Suitability.MAYBE if entry.for_cpu and self.choice.cards else self.choice.suited(entry).suits
        try:
            resolved = self.choice.outline(entry).resolved
        except DflashError:
            return _SUITS.index(suits), entry.for_cpu, len(_TRIED), _UNPROVEN, name
        here = entry.hardware.get(resolved.hardware)
        gain = min(map(_rank_figures, here.expected), default=_UNPROVEN) if here else _UNPROVEN
        return _SUITS.index(suits), entry.for_cpu, _TRIED.index(resolved.standing.status), gain, name

    async def open_filter(self) -> None:
        """Open the filter, created on first use since few sessions need it."""
        if not self.query(RecipeFilter):
            new = RecipeFilter(id="filter", placeholder="filter recipes by words; esc shows all")
            await self.mount(new, before="#columns")
        self.query_one(RecipeFilter).open()
        self.screen.refresh_bindings()

    def close_filter(self, *, keep: bool) -> None:
        """Return to the list; without `keep` clear the filter."""
        for field in () if keep else self.query(RecipeFilter):
            field.value, field.display = "", False
        self.screen.set_focus(self.query_one(OptionList))  # at once: keys typed right after are for the list
        self.screen.refresh_bindings()

    @property
    def filtering(self) -> bool:
        """Whether the filter has the focus."""
        return isinstance(self.screen.focused, RecipeFilter)

    @property
    def filtered(self) -> bool:
        """Whether the filter is shown."""
        return any(field.display for field in self.query(RecipeFilter))

    def _fill_first(self) -> None:
        if self._words is None:
            self._fill("")

    def _fill(self, words: str, highlight: str = "") -> None:
        """List the recipes with all of `words` in their name or title; without words, fold those that would not start.

        Highlights `highlight`, or else the first.
        """
        table, self._words = self.query_one(OptionList), words
        names = [*self.entries]
        if self.choice.probe:
            self._moved = True
            names.sort(key=self._rank)
        found = [name for name in names if all(word in self._describe(name) for word in words.lower().split())]
        self.folded = (
            []
            if words or self._is_unfolded or not self.choice.probe
            else [
                name
                for name in found
                if isinstance(entry := self.entries[name], Recipe) and self.choice.suited(entry).suits is Suitability.NO
            ]
        )
        if highlight in self.folded:
            self.folded, self._is_unfolded = [], True
        self.visible_names = [name for name in found if name not in self.folded] + [FOLD] * bool(self.folded)
        self._drawn = None
        table.clear_options()
        table.add_options([Option("", id=str(index)) for index in range(len(self.visible_names))])
        first = self.visible_names.index(highlight) if highlight in self.visible_names else 0
        table.highlighted = first if self.visible_names else None

    def _describe(self, name: str) -> str:
        """Return the text that the filter searches."""
        entry = self.entries[name]
        return f"{name} {entry.title if isinstance(entry, Recipe) else ''}".lower()

    @on(Input.Changed, "#filter")
    def _filter(self, message: Input.Changed) -> None:
        message.stop()
        self._apply_filter()

    def _apply_filter(self) -> None:
        words = self.query_one(RecipeFilter).value
        if words != self._words:
            self._fill(words, highlight="" if words else self._chosen_name)
            self.draw()
            self.post_message(self.Highlighted())

    def keep_filter(self) -> None:
        """Apply the typed filter and return to the list."""
        self._apply_filter()
        self.close_filter(keep=True)

    @on(OptionList.OptionHighlighted)
    def _highlighted(self, message: OptionList.OptionHighlighted) -> None:
        message.stop()
        self.call_after_refresh(self.show_position)
        self.post_message(self.Highlighted())


def _rank_figures(figures: PublishedFigures) -> int:
    """Return 0 if the speed exceeds the baseline without speculation, 1 if no baseline is known, else `_UNPROVEN`."""
    if figures.tok_s is None or figures.baseline_tok_s is None:
        return _UNPROVEN if figures.tok_s is None else 1
    return 0 if figures.tok_s[0] > figures.baseline_tok_s[1] else _UNPROVEN


def load_recipes() -> Entries:
    """Return every recipe, or its load error, by name."""
    usable, broken = recipe_loader.load_all_recipes()
    entries: Entries = {**usable}
    entries |= {name: RecipeError(reason) for name, reason in broken.items()}
    return dict(sorted(entries.items()))


class RecipeRow(NamedTuple):
    """The cells of a recipe's row."""

    mark: str
    """The mark of its suitability."""
    name: str
    speed: str = UNKNOWN
    """tok/s measured here, else published for this GPU."""
    fits: str = UNKNOWN
    """The GiB of memory that it needs."""
    size: str = UNKNOWN
    """The size of its models."""
    method: str = UNKNOWN


class _Column(NamedTuple):
    field: str
    head: str
    width: int

    def align(self, text: str) -> str:
        """Return an aligned cell: numbers right, words left."""
        return f" {text:<{self.width - 1}}" if self.field == "method" else f"{text:>{self.width}}"


# The most important first; later columns are dropped if there is no room.
_COLUMNS = (
    _Column("speed", "tok/s", 10),
    _Column("fits", "GiB", 5),
    _Column("size", "size", 8),
    _Column("method", "method", 7),
)
# Longer names are truncated before a column is dropped.
_USUAL = 24


def build_recipe_row(name: str, entry: Entry, choice: LaunchSelection) -> RecipeRow:
    """Return the row of a recipe with its current selection, or of a file that failed to load."""
    if isinstance(entry, DflashError):
        return RecipeRow(Suitability.NO.value, name)
    if choice.probe is None:  # nearly everything depends on it, and it arrives soon
        return RecipeRow(" ", name, "", "", "", "")
    try:
        outline = choice.outline(entry)
    except DflashError:
        return RecipeRow(Suitability.NO.value, name)
    speed = f"{measured:.0f} here" if (measured := choice.measured.get(name)) else _format_speed(entry, outline)
    method = outline.resolved.method.value if outline.tokens else "none"
    return RecipeRow(
        choice.suited(entry).suits.value, name, speed, _format_need(outline), _format_size(outline), method
    )


def _format_need(outline: LaunchOutline) -> str:
    """Return the GiB needed for one request with all models loaded; "≥" if the weights are a lower bound."""
    memory = outline.memory
    if memory is None or not all(share.size for share in memory.shares if share.name == "weights"):
        return UNKNOWN
    return f"{'' if memory.knows_weights else '≥'}{(memory.fixed + (memory.kv_needed or 0)) / GIB:.0f}"


def _format_size(outline: LaunchOutline) -> str:
    """Return the download size of the models, or the size on disk if they are built here."""
    if build := outline.resolved.recipe.build:
        return format_megabytes(build.size_mb)
    sizes = [model.size_gb for model in list_models(outline.resolved, outline.tokens)]
    known = sum(size for size in sizes if size)
    return f"{'' if all(sizes) else '≥'}{known:.0f} GB" if known else UNKNOWN


def _format_speed(recipe: Recipe, outline: LaunchOutline) -> str:
    """Return the published tok/s for this GPU; in parentheses if they are of another set-up."""
    resolved = outline.resolved
    here = recipe.hardware.get(resolved.hardware)
    if here is None or not any(figures.tok_s for figures in here.expected):
        return UNKNOWN
    bands = resolution.list_expected(resolved, resolved.method, resolved.mode, outline.tokens)
    for band in bands:
        if band.tok_s:
            low, high = (f"{value:.0f}" for value in band.tok_s)
            text = low if low == high else f"{low}–{high}"
            return f"({text})" if band.set_up else text
    return UNKNOWN


def render_recipe_rows(rows: Sequence[RecipeRow], width: int) -> tuple[Content, list[Content]]:
    """Return the table's head and rows in `width` cells; truncated names stay distinct."""
    if not rows:
        return Content(""), []
    longest = max(len(row.name) for row in rows)
    left, columns = width - 2 - min(longest, _USUAL), list[_Column]()
    for column in _COLUMNS:
        if column.width > left:
            break
        columns.append(column)
        left -= column.width
    room = max(1, width - 2 - sum(column.width for column in columns))
    names = shorten_names([row.name for row in rows], room)
    cells = min(room, longest)
    head = "".join(column.align(column.head) for column in columns)
    lines = [
        f"{row.mark} {names[row.name]:<{cells}}"
        + "".join(column.align(getattr(row, column.field)) for column in columns)
        for row in rows
    ]
    return Content(f"  {'recipe':<{cells}}{head}"[:width]), [Content(line[:width].rstrip()) for line in lines]
