"""The screen to show a colleague: two arms of an A/B write the same answer as fast as they did."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import Screen

from dflash_tui.common.errors import UsageError
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.experiments import store
from dflash_tui.experiments.analysis.measures import select_measured_boots
from dflash_tui.experiments.analysis.playback import PlayedPair, find_typical_pair, list_played_pairs
from dflash_tui.experiments.analysis.report import Comparison, ExperimentReport
from dflash_tui.monitoring.recording import PlaybackClock
from dflash_tui.presentation.experiment_report import synthetic_label
from dflash_tui.tui.composition import once_composed, while_open
from dflash_tui.tui.render import playback
from dflash_tui.tui.render.experiment import render_report_head
from dflash_tui.tui.widgets.basic import Display, Keys, SizedScreen, TooSmall

_EVERY = 0.1
_HINT = "dflash-tui ab attach shows how far it is"
_SIDES = ("a", "b")


class PlaybackScreen(SizedScreen[None]):
    """Plays the answers of two arms side by side, prompt by prompt; it only reads.

    Args:
        report: the experiment, with the boots that are over.
        comparison: the comparison of the two arms; None where there is no verdict yet.
        pairs: what can be played of them.
        place: which of it is played first; by default the one whose ratio is the median.
        clock: returns the real time, in seconds.
    """

    BINDINGS: ClassVar = [
        Binding("space", "pause", "Pause", tooltip="Pause or go on; at the end begin again"),
        Binding("right,n", "other(1)", "Prompt", key_display="→ ←", tooltip="The next prompt"),
        Binding("left", "other(-1)", "Previous prompt", show=False, tooltip="The previous prompt"),
        Binding("minus,less_than_sign", "speed(-1)", "Speed", key_display="- +", tooltip="Half or twice the speed"),
        Binding("plus,greater_than_sign,equals_sign", "speed(1)", "Faster", show=False),
        Binding("home", "to(0)", "Beginning", show=False, tooltip="To the beginning"),
        Binding("end", "to(1)", "End", show=False, tooltip="To the end"),
        Binding("escape", "dismiss", "Back", key_display="esc", tooltip="Back to the A/B"),
        Binding("question_mark", "app.keys", "Help", key_display="?"),
        Binding("q", "app.leave", "Quit", tooltip="Quit the panel"),
    ]

    def __init__(
        self,
        report: ExperimentReport,
        comparison: Comparison | None,
        pairs: Sequence[PlayedPair],
        place: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.report, self.comparison, self.pairs, self._now = report, comparison, pairs, clock
        self.place = find_typical_pair(pairs) if place is None else place
        self.clock = PlaybackClock(self.pair.seconds, 1.0, clock)

    @property
    def pair(self) -> PlayedPair:
        """What is played."""
        return self.pairs[self.place]

    def compose(self) -> ComposeResult:
        yield Display(id="status")
        yield Display(id="label")
        yield Display(id="player")
        with Horizontal(id="sides"):
            for side in _SIDES:
                with Vertical(id=f"side-{side}", classes="pane"):
                    yield Display(id=f"text-{side}")
                    yield Display(id=f"figures-{side}")
        yield Display(id="ratio")
        with Vertical(id="found", classes="pane"):
            yield Display(id="foot")
        yield TooSmall()
        yield Keys()

    @once_composed
    def on_mount(self) -> None:
        self.query_one("#found").border_title = "verdict on all prompts"
        label = synthetic_label(self.report.design)
        self.query_one("#label", Display).show(Content.assemble((f"! {label}", "$accent")))
        self.query_one("#label").display = bool(label)
        self.set_interval(_EVERY, self.draw)
        self.call_after_refresh(self.draw)

    def on_resize(self) -> None:
        self.call_after_refresh(self.draw)

    @while_open
    def draw(self) -> None:
        """Show how far both answers are."""
        pair, at, design = self.pair, self.clock.position, self.report.design
        most = max(pair.a.tokens, pair.b.tokens)
        width = self.size.width - 2
        self.query_one("#status", Display).show(render_report_head(self.report, self.size.width))
        clock = playback.render_clock(pair, self.place, len(self.pairs), self.clock, width)
        self.query_one("#player", Display).show(clock)
        for side, answer in zip(_SIDES, (pair.a, pair.b), strict=True):
            pane, text = self.query_one(f"#side-{side}"), self.query_one(f"#text-{side}", Display)
            cells, rows = pane.content_region.width, text.size.height
            pane.border_title = playback.render_side_title(design, answer, cells)
            text.show(playback.render_text(answer, at, cells, rows))
            figures = playback.render_figures(answer, at, most, cells)
            self.query_one(f"#figures-{side}", Display).show(figures)
        self.query_one("#ratio", Display).show(playback.render_ratio(design, pair, at, width))
        foot = playback.render_foot(self.report, self.comparison, pair, self.query_one("#found").content_region.width)
        self.query_one("#foot", Display).show(foot)

    def action_pause(self) -> None:
        self.clock.pause(not (self.clock.paused or self.clock.finished))
        self.draw()

    def action_other(self, step: int) -> None:
        self.place = (self.place + step) % len(self.pairs)
        self.clock = PlaybackClock(self.pair.seconds, self.clock.speed, self._now)
        self.draw()

    def action_speed(self, steps: int) -> None:
        self.clock.change_speed(steps)
        self.draw()

    def action_to(self, share: float) -> None:
        self.clock.seek(self.clock.duration * share)
        self.draw()


def build_playback(
    report: ExperimentReport,
    comparison: Comparison | None,
    prompt: str = "",
    clock: Callable[[], float] = time.monotonic,
) -> PlaybackScreen:
    """Return the screen that plays two arms of an experiment.

    Args:
        report: the experiment, with the boots that are over.
        comparison: the arms that are compared; None before a verdict: then the first two that have measured.
        prompt: the kind of the prompt that is played first; empty for the one whose ratio is the median.
        clock: returns the real time, in seconds.

    Raises:
        UsageError: nothing of them can be played, or no prompt is called so.
    """
    arms = (comparison.a, comparison.b) if comparison else _find_measured_arms(report)
    kept_answers = store.read_answers(store.experiment_folder(report.design.id))
    if not (pairs := list_played_pairs(report.boots, arms[0], arms[1], kept_answers)):
        raise UsageError("nothing of this A/B can be played: no prompt was answered in both arms", hint=_HINT)
    kinds = [pair.key.kind for pair in pairs]
    if prompt and prompt not in kinds:
        kind_names = ", ".join(map(clean_line, dict.fromkeys(kinds)))
        what = f"no prompt called '{clean_line(prompt)}' was answered in both arms"
        raise UsageError(what, hint=f"there are: {kind_names}")
    return PlaybackScreen(report, comparison, pairs, kinds.index(prompt) if prompt else None, clock)


def _find_measured_arms(report: ExperimentReport) -> tuple[int, int]:
    arms = [arm for arm in range(len(report.design.arms)) if select_measured_boots(report.boots, arm)]
    if len(arms) < 2:
        raise UsageError("a boot of each of two arms has to be over before they are played", hint=_HINT)
    return arms[0], arms[1]


def open_playback(identity: str) -> PlaybackScreen:
    """Return the screen that plays the first two arms of an experiment, with their verdict once it is over.

    Raises:
        UsageError: nothing of them can be played.
    """
    report = store.read_report_so_far(store.experiment_folder(identity))
    return build_playback(report, next(iter(report.comparisons), None))


def show_playback(screen: Screen[None], build: Callable[[], PlaybackScreen]) -> None:
    """Show what `build` returns above a screen, or say why nothing can be played."""

    async def show() -> None:
        try:
            screen.app.push_screen(await asyncio.to_thread(build))
        except UsageError as error:
            screen.notify(error.what, markup=False, timeout=5)

    screen.run_worker(show(), exclusive=True, group="playback")
