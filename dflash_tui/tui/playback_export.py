"""Draws two answers side by side without a terminal: a moment as SVG, all of it as an asciicast (version 2).

Both are the screen of the panel itself. An asciicast is lines of JSON: what it is, then what a terminal gets and when
(https://docs.asciinema.org/manual/asciicast/v2/). `asciinema play FILE` shows it.
"""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from dflash_tui.experiments.analysis.report import Comparison, ExperimentReport
from dflash_tui.presentation.experiment_tables import describe_variation
from dflash_tui.tui.app import DflashApp
from dflash_tui.tui.screens.playback import PlaybackScreen, build_playback

_SIZE = (100, 30)
_FRAMES_PER_SECOND = 10
_MOST_FRAMES = 600
# Seconds for which the end stands still.
_HOLD = 4.0


class PlaybackFiles(NamedTuple):
    """What was drawn."""

    svg: str
    """The moment at which the faster arm is done."""
    cast: str
    """All of it; empty where only the picture was asked for."""


def export_playback(
    report: ExperimentReport, comparison: Comparison | None, prompt: str = "", *, with_cast: bool
) -> PlaybackFiles:
    """Return two arms of an experiment that write the same answer, as a picture and as a cast.

    Args:
        report: the experiment, with the boots that are over.
        comparison: the arms that are compared; None where there is no verdict yet.
        prompt: the kind of the prompt; empty for the one whose ratio is the median.
        with_cast: whether a cast is made, which takes some seconds.

    Raises:
        UsageError: nothing of them can be played, or no prompt is called so.
    """
    os.environ.setdefault("DFLASH_TUI_MARKER", "block")  # every font has it
    moment = _Moment()
    screen = build_playback(report, comparison, prompt, lambda: moment.at)
    return asyncio.run(_draw(screen, moment, with_cast=with_cast))


class _Frame(NamedTuple):
    """What is on the screen after so many seconds, row by row."""

    at: float
    rows: list[Strip]


class _Moment:
    """A clock that is set by hand."""

    at = 0.0


async def _draw(screen: PlaybackScreen, moment: _Moment, *, with_cast: bool) -> PlaybackFiles:
    pair, frames, svg = screen.pair, list[_Frame](), ""
    done = min(pair.a.seconds, pair.b.seconds)
    panel = DflashApp(playback=screen, load=dict)
    panel.console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", legacy_windows=False)
    async with panel.run_test(size=_SIZE) as pilot:
        while not screen.is_active:
            await pilot.pause(0.02)
        for at in sorted({*_list_moments(pair.seconds), done, pair.seconds} if with_cast else {done}):
            moment.at = at
            # The first drawing gives the parts their size; the clock may be less than a moment short of the end.
            for _ in range(1 if frames else 3):
                screen.draw()
                await pilot.pause()
            strips = screen._compositor.render_strips(panel.size)  # noqa: SLF001 - as Textual's own screenshot does
            frames.append(_Frame(at, strips))
            svg = panel.export_screenshot(title="dflash-tui A/B") if at == done else svg
    title = f"dflash-tui ab play: {describe_variation(screen.report.design)}"
    return PlaybackFiles(svg, "".join(_write_cast(frames, title, panel.console)) if with_cast else "")


def _list_moments(seconds: float) -> list[float]:
    count = min(_MOST_FRAMES, int(seconds * _FRAMES_PER_SECOND) + 1)
    return [seconds * place / count for place in range(count)]


def _write_cast(frames: list[_Frame], title: str, console: Console) -> Iterator[str]:
    """Yield the lines of a cast: of each frame the cells that differ from those of the one before."""
    width, height = _SIZE
    header = {"version": 2, "width": width, "height": height, "title": title, "env": {"TERM": "xterm-256color"}}
    yield _encode(header)
    blank = [Strip([Segment("")]) for _ in range(height)]
    for before, (at, rows) in zip([blank, *(frame.rows for frame in frames)], frames, strict=False):
        changed = [
            _render_change(old, new, place, console) for place, (old, new) in enumerate(zip(before, rows, strict=False))
        ]
        if text := "".join(changed):
            yield _encode([round(at, 3), "o", ("\x1b[?25l\x1b[2J" if before is blank else "") + text])
    yield _encode([round(frames[-1].at + _HOLD, 3), "o", "\x1b[?25h"])


def _render_change(old: Strip, new: Strip, row: int, console: Console) -> str:
    """Return what turns a row of the terminal into another: where it begins to differ, and its cells up to the last."""
    ours, theirs = list(_list_characters(old)), list(_list_characters(new))
    if ours == theirs:
        return ""
    alike = _count_alike(ours, theirs)
    compared = min(len(ours), len(theirs)) - alike
    same_width = old.cell_length == new.cell_length
    after = _count_alike(ours[: -compared - 1 : -1], theirs[: -compared - 1 : -1]) if same_width else 0
    start = sum(cell_len(character) for character, _ in theirs[:alike])
    end = new.cell_length - sum(cell_len(character) for character, _ in theirs[len(theirs) - after :])
    return f"\x1b[{row + 1};{start + 1}H{new.crop(start, end).render(console)}"


def _count_alike(ours: Sequence[object], theirs: Sequence[object]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False)))


def _list_characters(strip: Strip) -> Iterator[tuple[str, Style | None]]:
    for segment in strip:
        for character in segment.text:
            yield character, segment.style


def _encode(value: object) -> str:
    return msgspec.json.encode(value).decode() + "\n"
