"""The last guard of the terminal: whatever a screen draws, no text in it acts on the terminal."""

from __future__ import annotations

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from dflash_tui.common.sanitizer import ACTS


class Guard(LineFilter):
    """Takes what a terminal would act on out of each drawn line, whose width stays."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002 - Textual's interface
        if all(segment.text.isprintable() for segment in segments):
            return segments
        return [
            segment if segment.text.isprintable() else Segment(_plain(segment.text), segment.style, segment.control)
            for segment in segments
        ]


def _plain(text: str) -> str:
    return ACTS.sub(lambda found: " " * cell_len(found[0]), text)
