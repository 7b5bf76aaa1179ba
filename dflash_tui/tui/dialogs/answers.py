"""The answers of two arms of an A/B, prompt by prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from dflash_tui.benchmark.sse import Answer
from dflash_tui.common.formatting import pluralize
from dflash_tui.experiments.analysis.answers import AnswerPair, split_at_difference
from dflash_tui.tui.dialogs.basic import Dialog
from dflash_tui.tui.widgets.basic import MUTED, once_composed

# Characters of the common start that are kept above the first difference.
_LEFT = 200
_COLOURS = ("$series-a", "$series-b")


class AnswersDialog(Dialog[None]):
    """Shows the answers of two arms by prompt; a long common start is folded."""

    HEADING: ClassVar = "answers of both arms"
    BINDINGS: ClassVar = [
        Binding("right,n", "other(1)", "prompt", key_display="→ ←"),
        Binding("left", "other(-1)", "previous prompt", show=False),
        Binding("d", "different", "differing"),
        Binding("space", "whole", "all of it"),
    ]

    def __init__(self, pairs: Sequence[AnswerPair], names: tuple[str, str]) -> None:
        super().__init__()
        self.pairs, self.names, self.place, self.whole = pairs, names, 0, False

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -answers"):
            yield Static(id="prompt", markup=False)
            with Horizontal():
                for side in ("a", "b"):
                    with VerticalScroll(id=f"answer-{side}"):
                        yield Static(markup=False)

    @once_composed
    def on_mount(self) -> None:
        self.query_one("#answer-a").focus()
        self.show_pair()

    def show_pair(self) -> None:
        """Show the answers to the current prompt."""
        pair = self.pairs[self.place]
        self.query_one("#prompt", Static).update(render_prompt(pair, self.place + 1, len(self.pairs)))
        for place, (side, answer) in enumerate(zip("ab", render_answers(pair, whole=self.whole), strict=True)):
            scroll = self.query_one(f"#answer-{side}", VerticalScroll)
            name = f"{self.names[place]}, boot {pair.boots[place] + 1}"
            scroll.border_title = Content.assemble((name, _COLOURS[place]))
            scroll.query_one(Static).update(answer)
            scroll.scroll_home(animate=False)

    def action_other(self, step: int) -> None:
        self.place = (self.place + step) % len(self.pairs)
        self.show_pair()

    def action_different(self) -> None:
        order = [(self.place + step) % len(self.pairs) for step in range(1, len(self.pairs) + 1)]
        self.place = next((place for place in order if self.pairs[place].a != self.pairs[place].b), self.place)
        self.show_pair()

    def action_whole(self) -> None:
        self.whole = not self.whole
        self.show_pair()


def render_prompt(pair: AnswerPair, place: int, count: int) -> Content:
    """Return the line above two answers: the prompt, and where they differ."""
    key = pair.key
    streams = f" ×{key.streams}" if key.streams != 1 else ""
    head = (f"{key.kind}{streams}, round {key.round + 1}", "bold")
    common, _, _ = split_at_difference(pair.a.text, pair.b.text)
    differ = f"differ from character {len(common) + 1} on" if pair.a.text != pair.b.text else "the same text"
    if pair.a.text == pair.b.text and pair.a.tokens != pair.b.tokens:
        differ = "the same text in other tokens"
    return Content.assemble(head, f"  {place} of {count}  ", differ)


def render_answers(pair: AnswerPair, *, whole: bool) -> tuple[Content, Content]:
    """Return two answers with their differences coloured; their common start is folded unless `whole`."""
    common, a, b = split_at_difference(pair.a.text, pair.b.text)
    folded = "" if whole or not (a or b) or len(common) <= 2 * _LEFT else common[:-_LEFT]
    fold = f"[{len(folded)} characters alike]\n…" if folded else ""
    unfolded = common[len(folded) :]
    return _render_answer(fold, unfolded, a, pair.a, 0), _render_answer(fold, unfolded, b, pair.b, 1)


def describe_blank(text: str) -> str:
    """Return a note if an answer is all white space, as with random weights, else ""."""
    return "" if text.strip() else f"[{pluralize(len(text), 'character')}, all white space]"


def _render_answer(fold: str, common: str, own: str, answer: Answer, side: int) -> Content:
    end = describe_blank(answer.text) + ("\n[the rest was not kept]" if answer.cut else "")
    return Content.assemble((fold, MUTED), common, (own, f"bold {_COLOURS[side]}"), (end, MUTED))
