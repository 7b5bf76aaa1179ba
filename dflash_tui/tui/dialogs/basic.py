"""Dialogs used by several screens: texts, lists to choose from, questions, trust, errors, keys."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.dom import DOMNode
from textual.events import Paste
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Static
from textual.widgets.option_list import Option

from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.formatting import format_duration, name_commands, truncate
from dflash_tui.launch import recipe_trust
from dflash_tui.launch.recipe_trust import Ingredient, Untrusted
from dflash_tui.planning.patch_file import Patch
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import Recipe
from dflash_tui.tui.render.plan import render_hung
from dflash_tui.tui.widgets.basic import (
    COMMON_KEYS,
    MUTED,
    MUTED_ROW,
    Keys,
    MarkedList,
    Result,
    SizedScreen,
    TextField,
    once_composed,
    render_error,
    while_open,
)

if TYPE_CHECKING:
    from dflash_tui.experiments.design import Design
    from dflash_tui.run_state.alarms import Alarm

EVERYWHERE = "everywhere"
_LONGEST_KEY = 8  # longer keys are words and get their own column


class Dialog(ModalScreen[Result], SizedScreen[Result]):
    """A dialog with its title on the border and its keys in the last row; `?` explains them."""

    BOX: ClassVar = ".dialog"
    HEADING: ClassVar = ""
    BINDINGS: ClassVar = [
        Binding("question_mark", "app.keys", "help", key_display="?"),
        Binding("escape,q", "leave", "close", key_display="esc"),
    ]

    @once_composed
    def on_mount(self) -> None:
        """Add the title and the keys."""
        box = self.query_one(self.BOX)
        box.border_title = box.border_title or self.HEADING
        box.mount(Keys())

    def action_leave(self) -> None:
        self.dismiss(None)


def measure_text(pane: Widget) -> int:
    """Return the cells of a text row in a scrolled pane, less a possible scrollbar and a blank."""
    return max(40, pane.scrollable_content_region.width - (not pane.show_vertical_scrollbar) - 1)


class TextDialog(Dialog[Result]):
    """A heading above a scrollable text, which is re-wrapped on resize."""

    def __init__(self, title: str = "", render: Callable[[int], Content] | None = None) -> None:
        """Show what `render` returns for a width under `title`; subclasses have their own."""
        super().__init__(classes="-text" if render else None)
        self.title_text, self._render_given = title, render

    def compose(self) -> ComposeResult:
        heading = Static(id="verdict", markup=False)
        heading.display = False
        with Vertical(classes="dialog -wide") as box:
            box.border_title = self.title_text
            yield heading
            with VerticalScroll(id="checks"):
                yield Static(id="found", markup=False)

    @once_composed
    def on_mount(self) -> None:
        self.query_one("#checks").focus()
        self.call_after_refresh(self.draw)

    def show_heading(self, text: str | Content) -> None:
        """Replace the heading."""
        heading = self.query_one("#verdict", Static)
        heading.display = True
        heading.update(text)

    @while_open
    def draw(self) -> None:
        """Show the text at the current width."""
        self.query_one("#found", Static).update(self.render_text(measure_text(self.query_one("#checks"))))

    def render_text(self, width: int) -> Content:
        """Return the text in rows of `width` cells."""
        return self._render_given(width) if self._render_given else Content("")


class Confirm(ModalScreen[bool], SizedScreen[bool]):
    """Asks a yes-or-no question; only `y` confirms."""

    BINDINGS: ClassVar = [
        Binding("y", "dismiss(True)", "yes"),
        Binding("n,escape,q", "dismiss(False)", "no"),
    ]

    def __init__(self, question: str, detail: str, yes: str, no: str = "cancel") -> None:
        super().__init__()
        self.question, self.detail, self.yes, self.no = question, detail, yes, no

    def compose(self) -> ComposeResult:
        keys = (("y", "bold $primary"), f"  {self.yes}\n", ("n", "bold $primary"), f"  {self.no}")
        with Vertical(classes="dialog") as box:
            box.border_title = "confirm"
            yield Static(Content.assemble((self.question, "bold"), f"\n{self.detail}\n\n", *keys))


def ask(app: App[Any], question: Confirm, then: Callable[[], object]) -> None:
    """Ask a question, and call `then` if the answer is yes."""

    def answer(yes: bool | None) -> None:
        if yes:
            then()

    app.push_screen(question, answer)


class ErrorDialog(Dialog[None]):
    """Shows an error that has no place on the current screen."""

    HEADING: ClassVar = "error"
    BINDINGS: ClassVar = [Binding("enter,space", "leave", "close", show=False)]

    def __init__(self, error: DflashError | OSError) -> None:
        super().__init__()
        self.error = error if isinstance(error, DflashError) else DflashError(str(error))

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -error"):
            yield Static(render_error(self.error))


@contextmanager
def showing_errors(app: App[Any]) -> Iterator[None]:
    """End the block at an error, and show it in a dialog."""
    try:
        yield
    except (DflashError, OSError) as error:
        app.push_screen(ErrorDialog(error))


class KeyGroup(NamedTuple):
    """A group of keys in the help."""

    title: str
    """The heading of the group."""
    keys: list[tuple[str, str]]
    """Each key and its action."""


def render_keys(groups: Sequence[KeyGroup], width: int) -> Content:
    """Return the keys by group, in rows of `width` cells."""
    common = max((len(key) for group in groups for key, _ in group.keys if len(key) <= _LONGEST_KEY), default=0)
    rows: list[Content] = []
    for group in groups:
        column = max([common, *(len(key) for key, _ in group.keys)])
        rows += [Content.assemble((group.title, "bold"))]
        for key, text in group.keys:
            lines = textwrap.wrap(text, width - column - 4) or [""]
            hung = f"\n{'':{column + 4}}".join(lines)
            rows.append(Content.assemble((key.rjust(column + 2), "bold $primary"), f"  {hung}"))
        rows.append(Content(""))
    rows.append(Content("Servers run without the panel: q quits the panel only, S stops a server."))
    rows.append(Content("Without colours: NO_COLOR=1."))
    return Content("\n").join(rows)


def list_keys(screen: Screen[Any]) -> list[KeyGroup]:
    """Return the keys that work now: the screen's, the focused log's, the panel's.

    A log that fills the screen is listed first. The screen's `GLOSSES` (terms and their meanings) come last.
    """
    bindings = (binding for binding in screen.active_bindings.values() if binding.binding.action != "command_palette")
    active = [binding for binding in bindings if binding.binding.show or binding.binding.tooltip]
    groups: dict[str, dict[str, tuple[str, str]]] = {}
    for node, binding, enabled, _ in sorted(active, key=lambda binding: is_below_screen(binding.node)):
        if enabled:
            title = EVERYWHERE if binding in COMMON_KEYS else _name_node(node)
            key = binding.key_display or binding.key.partition(",")[0]
            groups.setdefault(title, {}).setdefault(binding.action, (key, binding.tooltip or binding.description))
    moving = [("tab ↑ ↓", "Move and scroll"), ("ctrl+p", "Command palette: every action, recipes, runs, themes")]
    everywhere = KeyGroup(EVERYWHERE, [*groups.pop(EVERYWHERE, {}).values(), *moving])
    glosses = [KeyGroup(title, list(rows)) for title, rows in getattr(screen, "GLOSSES", {}).items()]
    return [*(KeyGroup(title, list(keys.values())) for title, keys in groups.items()), everywhere, *glosses]


def is_below_screen(node: DOMNode) -> bool:
    """Return whether the keys of `node` come after the screen's; a log that fills the screen comes before."""
    return not isinstance(node, Screen) and not any(parent.has_class("-log") for parent in node.ancestors)


def _name_node(node: DOMNode) -> str:
    if isinstance(node, App):
        return EVERYWHERE
    if isinstance(node, Screen):
        return "this dialog" if node.is_modal else "this screen"
    return node.id or "the list"


class KeysDialog(TextDialog[None]):
    """Shows keys by group; the key that opens it closes it, too."""

    BINDINGS: ClassVar = [Binding("question_mark", "leave", "close", show=False)]

    def __init__(self, groups: Sequence[KeyGroup]) -> None:
        super().__init__("keys", partial(render_keys, groups))


_ROW_EDGES = 3  # a scrollbar, and a blank on each side


class DialogField(TextField):
    """The text field of a dialog: enter calls the dialog's `action_take`, after all typed keys were handled."""

    BINDINGS: ClassVar = [Binding("enter", "submit", "take it", key_display="⏎")]

    async def action_submit(self) -> None:
        await self.screen.run_action("take")

    def on_paste(self, event: Paste) -> None:
        """Take a pasted line that ends with an Enter."""
        if len(event.text.splitlines()) == 1 and event.text.endswith(("\r", "\n")):
            self.call_later(self.action_submit)


class ListDialog(Dialog[Result]):
    """A list to choose from; `choose` acts on the highlighted row, `take` on the typed text."""

    SECRET: ClassVar = False
    """Whether the typed text is hidden."""

    def __init__(self) -> None:
        super().__init__()
        self.heading, self.rows = Static(id="heading", markup=False), MarkedList(id="rows", markup=False)
        self.field, self.about = DialogField(id="field", password=self.SECRET), Static(id="about", markup=False)
        self.detail = VerticalScroll(self.about, id="detail")
        self.heading.display = self.rows.display = self.field.display = self.detail.display = False
        self.box = Vertical(self.heading, self.rows, self.field, self.detail, classes="dialog -wide -list")

    def compose(self) -> ComposeResult:
        yield self.box

    @property
    def is_typing(self) -> bool:
        """Whether the text field is open."""
        return self.has_class("-typing")

    @property
    def place(self) -> int:
        """The index of the highlighted row; 0 if none is."""
        return self.rows.highlighted or 0

    @property
    def row_width(self) -> int:
        """The cells of a row, also while the list is empty."""
        return self.box.content_size.width - _ROW_EDGES

    def show_heading(self, text: str | Content) -> None:
        """Replace the line above the list."""
        self.heading.display = True
        self.heading.update(text)

    def show_rows(self, rows: Iterable[Content | Option], place: int = 0) -> None:
        """Replace the rows and highlight one."""
        self.rows.clear_options()
        self.rows.add_options([row if isinstance(row, Option) else Option(row) for row in rows])
        self.rows.display = self.rows.option_count > 0
        self.rows.highlighted = min(place, self.rows.option_count - 1) if self.rows.option_count else None
        if not self.is_typing:
            self.set_focus(self.rows)
        self.refresh_bindings()

    def show_detail(self, text: str | Content) -> None:
        """Replace the details below the list."""
        self.detail.display = bool(text)
        self.about.update(text)

    def open_field(self, value: str = "", placeholder: str = "", title: str = "") -> None:
        """Open the text field."""
        self.field.value, self.field.placeholder, self.field.border_title = value, placeholder, Content(title)
        self.add_class("-typing")
        self.field.open()
        self.refresh_bindings()

    def close_field(self) -> None:
        """Close the text field and focus the list."""
        self.remove_class("-typing")
        self.field.display = False
        self.set_focus(self.rows)
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        return action not in {"choose", "type"} or (not self.is_typing and bool(self.rows.option_count))

    def action_leave(self) -> None:
        """Close the text field, discarding its text, or the dialog."""
        if self.is_typing and self.rows.option_count:
            self.close_field()
        else:
            self.dismiss(None)


class ChoiceDialog(ListDialog[Result]):
    """Offers values, and a field for another one, which is opened at once if there is no choice.

    Returns the chosen value, or None. `read` parses what was typed; its UsageError is shown.
    """

    BINDINGS: ClassVar = [Binding("enter", "choose", "take it", key_display="⏎", priority=True)]

    def __init__(
        self,
        title: str,
        offers: Iterable[tuple[Result, Content]],
        chosen: Result,
        read: Callable[[str], Result],
        *,
        other: str = "another …",
        typed: str = "",
        example: str = "",
        about: str = "",
    ) -> None:
        super().__init__()
        self.box.border_title, self.offers, self.chosen, self.read = title, list(offers), chosen, read
        self.other, self.typed, self.example, self.text = other, typed, example, about

    def on_mount(self) -> None:
        if self.text:
            self.show_heading(self.text)
        values = [value for value, _ in self.offers]
        marks = [("● ", "bold $accent") if value == self.chosen else ("  ", "") for value in values]
        rows = [Content.assemble(mark, text) for mark, (_, text) in zip(marks, self.offers, strict=True)]
        rows += [Content.assemble((f"  {self.other}", MUTED_ROW))] if rows else []
        self.show_rows(rows, values.index(self.chosen) if self.chosen in values else 0)
        if len(values) < 2:
            self._type()

    def _type(self) -> None:
        self.open_field(self.typed, self.example)

    def action_choose(self) -> None:
        """Return the highlighted value, or open the field to type another."""
        if self.place < len(self.offers):
            self.dismiss(self.offers[self.place][0])
        else:
            self._type()

    def action_take(self) -> None:
        """Return the typed value."""
        try:
            self.dismiss(self.read(self.field.value))
        except UsageError as error:
            self.show_detail(render_error(error))


NONE = "no alarms"


def render_alarms(alarms: Sequence[Alarm], now: float, width: int, rows: int, calm: str = "") -> Content:
    """Return the worst alarms in `rows` lines; the last line counts the remaining ones.

    `calm` is appended to "no alarms".
    """
    if not alarms:
        return Content.assemble(("✓ ", "$success"), NONE, (f" · {calm}" if calm else "", MUTED))
    lines = []
    for place, alarm in enumerate(alarms[:rows]):
        more = len(alarms) - rows if place == rows - 1 else 0
        since = f" {format_duration(max(0.0, now - alarm.since))}"
        tail = f"  {alarm.evidence} → {name_commands(alarm.hint)}"
        is_cut = len(alarm.what) + 2 + len(since) + len(tail) > width
        overflow = f"  +{more} more: !" if more > 0 else "  in full: !" if is_cut else ""
        head = truncate(f"! {alarm.what}", max(10, width - len(since) - len(overflow)))
        tail = truncate(tail, max(0, width - len(head) - len(since) - len(overflow)))
        lines.append(Content.assemble((head, "bold $error"), (since, "bold"), tail, (overflow, "bold")))
    return Content("\n").join(lines)


def render_alarm_list(alarms: Sequence[Alarm], now: float, width: int) -> Content:
    """Return all alarms with their evidence and remedies, in rows of `width` cells."""
    rows = []
    for alarm in alarms:
        rows += [
            render_hung(("! ", "bold $error"), alarm.what, width).stylize("bold"),
            Content.assemble((f"  for {format_duration(max(0.0, now - alarm.since))}, {alarm.kind}", MUTED)),
            render_hung(("  ", ""), alarm.evidence, width),
            render_hung(("  → ", "bold $primary"), f"{name_commands(alarm.hint)}\n", width),
        ]
    return Content("\n").join(rows or [Content(NONE)])


class TrustDialog(TextDialog[bool]):
    """Lists what a recipe or patch may run, and asks for trust; only `y` confirms."""

    HEADING: ClassVar = "trust"
    BINDINGS: ClassVar = [
        Binding("y", "dismiss(True)", "yes, until it changes"),
        Binding("n", "leave", "cancel"),
    ]

    def __init__(self, question: str, ingredients: Sequence[Ingredient]) -> None:
        super().__init__()
        self.question, self.ingredients = question, ingredients

    @once_composed
    def on_mount(self) -> None:
        advice = (
            "It has parts that are not shipped with dflash-tui. They can run code as you: read this before you say yes."
        )
        self.show_heading(Content.assemble((self.question, "bold"), f"\n{advice}"))

    def render_text(self, width: int) -> Content:
        rows = [render_hung((f"{part.kind:11} ", "bold"), part.text, width) for part in self.ingredients]
        return Content("\n").join(rows)


async def confirm_design(app: App[Any], design: Design) -> bool:
    """Return whether the arms of an experiment are trusted, asking the user if needed."""
    if not design.launched:
        return True
    with showing_errors(app):
        recipe = recipe_loader.find_recipe(design.launched[0].request.recipe)
        return await confirm_trust(app, recipe, [arm.plan for arm in design.launched])
    return False


async def confirm_trust(app: App[Any], recipe: Recipe, plans: Sequence[Plan]) -> bool:
    """Return whether plans of a recipe are trusted, asking the user if needed."""
    with showing_errors(app):  # such as of a patch of the plan that was removed or is invalid
        untrusted = recipe_trust.find_untrusted(recipe_trust.list_launched(recipe, plans))
        return await _confirm(app, f"Run {recipe.name}?", untrusted)
    return False


async def confirm_patch_trust(app: App[Any], patches: Sequence[Patch]) -> bool:
    """Return whether an engine may be built with these patches, asking the user if needed."""
    untrusted = recipe_trust.find_untrusted(patches)
    return await _confirm(app, f"Change vLLM by {', '.join(patch.name for patch in untrusted.contents)}?", untrusted)


async def _confirm(app: App[Any], question: str, untrusted: Untrusted) -> bool:
    if not untrusted.contents:
        return True
    if not await app.push_screen_wait(TrustDialog(question, untrusted.ingredients)):
        return False
    try:
        recipe_trust.trust_contents(*untrusted.contents)
    except OSError as error:
        app.push_screen(ErrorDialog(DflashError(f"the answer cannot be kept: {error}")))
        return False
    return True
