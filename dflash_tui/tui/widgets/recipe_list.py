"""The list of recipes with marks for this machine, the catalogue's pairs below them, and the filter above them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
from dflash_tui.common.formatting import UNKNOWN, shorten_names
from dflash_tui.planning.derivation import catalogue as catalogues
from dflash_tui.planning.derivation.catalogue import Catalogue, CataloguePair
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import PublishedFigures, Recipe, Status
from dflash_tui.presentation import recipe_text
from dflash_tui.presentation.recipe_text import Place, choose_place
from dflash_tui.runs.verification import format_short_badge
from dflash_tui.tui.launch_selection import LaunchSelection, Suitability
from dflash_tui.tui.render.plan import render_hung
from dflash_tui.tui.widgets.basic import MUTED, MUTED_ROW, MarkedList, TextField, once_composed

_EDGES = 2
_SUITS, _TRIED = list(Suitability), list(Status)
_UNPROVEN = 2  # as a rank of published figures

Entry = Recipe | DflashError | CataloguePair
Entries = dict[str, Entry]


class RecipeFilter(TextField):
    """Takes the words that recipes are filtered by; enter goes back to the list, behind all that was typed before."""

    BINDINGS: ClassVar = [
        Binding("enter", "submit", "Keep the filter", tooltip="Back to the list that is filtered"),
    ]

    async def action_submit(self) -> None:
        """Go back to the list at once: keys that come right behind are for what was filtered."""
        self.query_ancestor(RecipeList).keep_filter()


class RecipeList(Vertical):
    """Shows the recipes that fit the filter, then the pairs of the catalogue; `chosen` is the highlighted one."""

    BORDER_TITLE = "recipes"

    class Highlighted(Message):
        """Another recipe is highlighted."""

    def __init__(self, entries: Entries, choice: LaunchSelection) -> None:
        super().__init__(id="list")
        self.entries, self.choice = entries, choice
        self.visible_names = list(entries)
        self._moved = self._is_sorted = False
        self._pairs: tuple[object, list[RecipeRow]] = (None, [])
        self._drawn: object = None
        self._words: str | None = None  # that the list is filtered by; None while it is empty

    def compose(self) -> ComposeResult:
        yield Static(id="columns")
        yield MarkedList(id="recipes", markup=False)

    @once_composed
    def on_mount(self) -> None:
        self.watch(self.query_one(OptionList), "scroll_y", self.show_position, init=False)

    def on_resize(self) -> None:
        """Fit the columns to the room that a change of the screen's layout leaves, and keep the highlighted in it."""
        if self._words is None:
            return
        self.draw()
        self.call_after_refresh(self.query_one(OptionList).scroll_to_highlight)

    @property
    def chosen(self) -> Entry | None:
        """The highlighted recipe or pair, why a recipe's file does not load, or None when there is none."""
        return self.entries.get(self._chosen_name)

    @property
    def _chosen_name(self) -> str:
        self._fill_first()
        index = self.query_one(OptionList).highlighted
        return "" if index is None else self.visible_names[index]

    def draw(self) -> None:
        """Bring the rows up to date; what has not changed is neither computed nor drawn again."""
        self._fill_first()
        table, recipes, pairs = self.query_one(OptionList), *self._build_rows()
        drawn = recipes, pairs, table.scrollable_content_region.width - _EDGES
        if drawn == self._drawn:
            return
        self._drawn = drawn
        head, rows = _render_rows(*drawn)
        columns = self.query_one("#columns", Static)
        if columns.content != head:
            columns.update(head, layout=False)
        for index, row in enumerate(rows):
            if table.get_option_at_index(index).prompt != row:
                table.replace_option_prompt_at_index(index, row)
        self.show_position()

    def show_position(self) -> None:
        """Show which recipe of how many is highlighted, and that there are more above or below."""
        table = self.query_one(OptionList)
        above = "↑ " if table.scroll_offset.y > 0 else ""
        below = " ↓" if table.scroll_offset.y < table.max_scroll_y else ""
        place = f"{table.highlighted + 1} of {len(self.visible_names)}" if table.highlighted is not None else "none"
        self.border_subtitle = f"{above}{place}{below}"

    def _build_rows(self) -> tuple[list[RecipeRow], list[RecipeRow]]:
        """Return the rows of recipes, and those of pairs, which depend on the machine and the filter only."""
        entries = {name: self.entries[name] for name in self.visible_names}
        recipes = [
            build_recipe_row(name, e, self.choice) for name, e in entries.items() if not isinstance(e, CataloguePair)
        ]
        pairs = [entry for entry in entries.values() if isinstance(entry, CataloguePair)]
        if (basis := (self.place, pairs)) != self._pairs[0]:
            self._pairs = basis, build_pair_rows(pairs, self.place)
        return recipes, self._pairs[1]

    @property
    def place(self) -> Place:
        """The machine, as far as the catalogue's pairs depend on it."""
        return choose_place(self.choice.cards)

    def reload(self, entries: Entries) -> None:
        """Show other entries in place of those of before."""
        self.entries = self._sort(entries) if self._is_sorted else entries
        self.close_filter(keep=False)
        self._fill("")
        self.draw()

    def choose(self, name: str) -> None:
        """Highlight the recipe called `name`, whatever is filtered."""
        self._moved = True
        if name in self.entries:
            self.close_filter(keep=False)
            self._fill("", highlight=name)
            self.draw()

    def sort_for_machine(self) -> None:
        """List what suits the machine best first and highlight it, unless somebody has chosen already."""
        if self._moved or self.filtered:
            return
        self._moved = self._is_sorted = True
        self.entries = self._sort(self.entries)
        self._fill("")

    def _sort(self, entries: Entries) -> Entries:
        return dict(sorted(entries.items(), key=lambda item: self._rank(*item)))

    def _rank(self, name: str, entry: Entry) -> tuple[int, int, int, int, str]:
        """Return where an entry stands: by how it suits, how far it was tried, and the speed that is published here.

        Where there is a GPU, what is for a CPU comes behind all that may run on it. Pairs of the catalogue follow in
        their own order, since sorting keeps it.
        """
        if isinstance(entry, CataloguePair):
            return len(_SUITS), 0, 0, 0, ""
        if isinstance(entry, DflashError):  # one of the user's own, to be seen
            return _SUITS.index(Suitability.MAYBE), True, 0, 0, name
        suits = Suitability.MAYBE if entry.for_cpu and self.choice.cards else self.choice.suited(entry).suits
        try:
            resolved = self.choice.plan(entry).resolved
        except DflashError:
            return _SUITS.index(suits), entry.for_cpu, len(_TRIED), _UNPROVEN, name
        here = entry.hardware.get(resolved.hardware)
        gain = min(map(_rank_figures, here.expected), default=_UNPROVEN) if here else _UNPROVEN
        return _SUITS.index(suits), entry.for_cpu, _TRIED.index(resolved.standing.status), gain, name

    async def open_filter(self) -> None:
        """Show the filter, which few starts of the panel need, and type into it."""
        if not self.query(RecipeFilter):
            new = RecipeFilter(id="filter", placeholder="words of a recipe; esc shows all")
            await self.mount(new, before="#columns")
        self.query_one(RecipeFilter).open()
        self.screen.refresh_bindings()

    def close_filter(self, *, keep: bool) -> None:
        """Go back to the list; without `keep` it shows every recipe again."""
        for field in () if keep else self.query(RecipeFilter):
            field.value, field.display = "", False
        self.screen.set_focus(self.query_one(OptionList))  # at once, for what is typed right behind
        self.screen.refresh_bindings()

    @property
    def filtering(self) -> bool:
        """Whether somebody types into the filter."""
        return isinstance(self.screen.focused, RecipeFilter)

    @property
    def filtered(self) -> bool:
        """Whether the filter is open or leaves recipes out."""
        return any(field.display for field in self.query(RecipeFilter))

    def _fill_first(self) -> None:
        """List everything, unless something is listed: rows are made when they are first drawn or asked for."""
        if self._words is None:
            self._fill("")

    def _fill(self, words: str, highlight: str = "") -> None:
        """List the recipes that have all of `words` in their name or title, pairs in their names; both with `fits`.

        The one to `highlight` is looked at then, else the first.
        """
        table, self._words = self.query_one(OptionList), words
        wanted = words.lower().split()
        shared_catalogue = catalogues.load_catalogue()
        texts = {
            name: f"{name} {self._describe(entry, shared_catalogue)}".lower() for name, entry in self.entries.items()
        }
        self.visible_names = [name for name, text in texts.items() if all(word in text for word in wanted)]
        rows: list[Option | None] = [Option("", id=str(index)) for index in range(len(self.visible_names))]
        pairs = [
            index for index, name in enumerate(self.visible_names) if isinstance(self.entries[name], CataloguePair)
        ]
        if pairs and pairs[0]:
            rows.insert(pairs[0], None)  # a line between the recipes and the catalogue
        self.border_title = "recipes, then pairs of the catalogue" if pairs else self.BORDER_TITLE
        self._drawn = None
        table.clear_options()
        table.add_options(rows)
        first = self.visible_names.index(highlight) if highlight in self.visible_names else 0
        table.highlighted = first if self.visible_names else None

    def _describe(self, entry: Entry, shared_catalogue: Catalogue) -> str:
        """Return the words that an entry is found by, beside its name."""
        if isinstance(entry, CataloguePair):
            fits = "fits" if fits_place(shared_catalogue, entry, self.place) else ""
            return f"{entry.drafter} {entry.method} catalogue {fits}"
        if isinstance(entry, DflashError):
            return ""
        return f"{entry.title} {'fits' if self.choice.suited(entry).suits is Suitability.YES else ''}"

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
        """Filter by all that was typed, and go back to the list."""
        self._apply_filter()
        self.close_filter(keep=True)

    @on(OptionList.OptionHighlighted)
    def _highlighted(self, message: OptionList.OptionHighlighted) -> None:
        message.stop()
        self._moved = self._moved or message.option_index > 0
        self.call_after_refresh(self.show_position)
        self.post_message(self.Highlighted())


def _rank_figures(figures: PublishedFigures) -> int:
    """Return 0 for a speed above that without speculation, 1 where that is not published, else `_UNPROVEN`."""
    if figures.tok_s is None or figures.baseline_tok_s is None:
        return _UNPROVEN if figures.tok_s is None else 1
    return 0 if figures.tok_s[0] > figures.baseline_tok_s[1] else _UNPROVEN


def _render_rows(recipes: list[RecipeRow], pairs: list[RecipeRow], width: int) -> tuple[Content, list[Content]]:
    """Return the head and the rows of recipes, and those of pairs in the same columns."""
    head, rows = render_recipe_rows([*recipes, *pairs], width)
    return head, [*rows[: len(recipes)], *(row.stylize(MUTED_ROW) for row in rows[len(recipes) :])]


def load_recipes() -> dict[str, Recipe | DflashError]:
    """Return every recipe by name, or why its file does not load."""
    usable, broken = recipe_loader.load_all_recipes()
    entries: dict[str, Recipe | DflashError] = {**usable}
    entries |= {name: RecipeError(reason) for name, reason in broken.items()}
    return dict(sorted(entries.items()))


def load_entries() -> Entries:
    """Return every recipe, and below them the pairs of the catalogue, the ones worth most first."""
    pairs = catalogues.sort_by_rank(catalogues.load_catalogue().pairs)
    return {**load_recipes(), **{pair.id: pair for pair in pairs}}


class RecipeRow(NamedTuple):
    """The cells of a recipe in the table."""

    name: str
    mark: str
    """How it suits the machine."""
    tokens: str
    """How many tokens are drafted per step."""
    vllm: str
    """The release that serves it."""
    status: str
    """How far it was tried."""


_HEAD = RecipeRow("recipe", " ", "n", "vLLM", "status")
_TOKENS, _VLLM = 4, 9
# Where the status does not fit beside the longest name, longer ones than this cover the columns beside them.
_USUAL = 30


def build_recipe_row(name: str, entry: Recipe | DflashError, choice: LaunchSelection) -> RecipeRow:
    """Return the row of a recipe as it is selected, or of a file that is not one."""
    if isinstance(entry, DflashError):
        return RecipeRow(name, Suitability.NO.value, UNKNOWN, UNKNOWN, "does not load")
    if choice.probe is None:  # which decides nearly everything, and comes at once
        return RecipeRow(name, " ", "", "", "")
    try:
        resolved, plan, *_ = choice.plan(entry)
    except DflashError:
        return RecipeRow(name, Suitability.NO.value, UNKNOWN, UNKNOWN, "not possible")
    status, verified = resolved.standing.status.value, choice.verified.get(name)
    if verified and not verified.failed:
        status = format_short_badge(verified, resolved.engine.vllm)
    status += ", synthetic" if resolved.synthetic else ""
    return RecipeRow(
        name, choice.suited(entry).suits.value, str(plan.num_speculative_tokens), resolved.engine.vllm, status
    )


def render_recipe_rows(rows: Sequence[RecipeRow], width: int) -> tuple[Content, list[Content]]:
    """Return the head of the table and its rows, in `width` cells.

    The names come first, then the status, how many tokens are drafted, and the release. Where the status does not fit
    beside the longest name, longer ones than usual cover the columns beside them.
    """
    if not rows:
        return Content(""), []
    room = max(0, width - 2)  # beside the mark
    lengths = [len(_HEAD.name), *(len(row.name) for row in rows)]
    status = max([len(_HEAD.status), *(len(row.status) for row in rows)])
    usual = max(length for length in lengths if length <= _USUAL)
    name = max(lengths) if max(lengths) + status + 1 <= room else usual
    left = room - name - status - 1
    tokens, vllm = left >= _TOKENS, left >= _TOKENS + _VLLM
    before = max(0, room - status - 1) if left < 0 else name
    covered = before + tokens * _TOKENS + vllm * _VLLM
    names = shorten_names([row.name for row in rows], room)

    def render(row: RecipeRow, label: str) -> Content:
        cells = [f"{row.mark} {label:{before}}"]
        if len(label) <= before:
            cells += [f"{row.tokens:>{_TOKENS}}"] if tokens else []
            cells += [f"{row.vllm:>{_VLLM}}"] if vllm else []
        cells += [f"{'':{covered - max(before, len(label))}} {row.status}"] if before < len(label) <= covered else []
        cells += [f" {row.status}"] if len(label) <= before else []
        return Content("".join(cells))

    return render(_HEAD, _HEAD.name), [render(row, names[row.name]) for row in rows]


_MARKS = {True: "✓", False: "✗", None: " "}


def fits_place(catalogue: Catalogue, pair: CataloguePair, place: Place) -> bool | None:
    """Return whether a precision of the pair's target fits; None where the machine or all sizes are not known."""
    has_size = any(
        catalogues.estimate_need(catalogue, pair, variant) for variant in catalogue.targets[pair.target].variants
    )
    if place.budget is None or not has_size:
        return None
    return any(catalogues.list_fitting_models(catalogue, pair, place.budget))


def build_pair_rows(pairs: Iterable[CataloguePair], place: Place) -> list[RecipeRow]:
    """Return the rows of pairs: whether each fits, drafts, the first release that runs it, and who published it."""
    catalogue = catalogues.load_catalogue()
    return [_build_pair_row(catalogue, pair, place) for pair in pairs]


def _build_pair_row(catalogue: Catalogue, pair: CataloguePair, place: Place) -> RecipeRow:
    tokens = UNKNOWN if pair.tokens is None else str(pair.tokens)
    release, source = recipe_text.format_release(pair), recipe_text.format_source(pair)
    return RecipeRow(pair.id, _MARKS[fits_place(catalogue, pair, place)], tokens, release, source)


def render_catalogue_pair(pair: CataloguePair, place: Place, width: int) -> Content:
    """Return what is known of a pair, in rows of `width` cells, and what enter does with it."""
    catalogue = catalogues.load_catalogue()
    model = catalogues.choose_model(catalogue, pair, place.budget)
    does = "makes it a recipe of yours" if model else "does nothing: no repository of its target is known"
    rows = [Content.assemble((pair.id, "bold"), (" from the catalogue, published by others", MUTED))]
    rows += [Content.assemble(("enter ", "bold $primary"), does), Content("")]
    facts = list(recipe_text.list_pair_facts(catalogue, pair, place))
    column = max(len(name) for name, _ in facts) + 1
    rows += [render_hung((f"{name:{column}}", MUTED), text, width) for name, text in facts]
    return Content("\n").join(rows)
