"""Judge the figures of speculative decoding by useful draft positions and by published ranges. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, zip_longest
from typing import NamedTuple

import msgspec

from dflash_tui.common.formatting import format_percent
from dflash_tui.events import SpeculationLogged
from dflash_tui.planning.recipes.recipe import PublishedFigures
from dflash_tui.planning.recipes.resolution import ExpectedFigures
from dflash_tui.run_state.finished_requests import FinishedRequest
from dflash_tui.vllm_output.metrics import Rates

# Fewer steps cannot show that a position is never accepted.
_MIN_STEPS = 50
_NO_DRAFTS = 0.05  # accepted drafts per step
_MIN_POSITIONS = 4
_RARELY = 0.01


class SpeculationTotals(NamedTuple):
    """Sums over all speculation lines: drafted and accepted tokens, steps, and accepted tokens by position."""

    drafted: float = 0
    accepted: float = 0
    steps: float = 0.0
    positions: tuple[float, ...] = ()

    def add(self, logged: SpeculationLogged) -> SpeculationTotals:
        """Return the totals with another line; the steps of a line without positions are unknown and not counted."""
        steps = logged.drafted / len(logged.per_position) if logged.per_position else 0.0
        accepted = (share * steps for share in logged.per_position)
        return SpeculationTotals(
            self.drafted + logged.drafted,
            self.accepted + logged.accepted,
            self.steps + steps,
            tuple(a + b for a, b in zip_longest(self.positions, accepted, fillvalue=0.0)),
        )

    @property
    def accepts_nothing(self) -> bool:
        """Whether hardly any draft was accepted, over enough steps to tell."""
        return self.steps >= _MIN_STEPS and self.accepted < _NO_DRAFTS * self.steps

    @property
    def useful_drafts(self) -> int | None:
        """The drafts per step worth their cost, if the later half is hardly ever accepted; else None."""
        shares = [accepted / self.steps for accepted in self.positions] if self.steps >= _MIN_STEPS else []
        later = shares[len(shares) // 2 :]
        hardly = _RARELY if self.steps >= MIN_STEPS else 0.0
        if len(shares) < _MIN_POSITIONS or sum(later) / len(later) > hardly or shares[1] >= 1:
            return None  # synthetic acceptance always takes the first drafts, real acceptance never does
        advice = advise_draft_length(shares, self.steps, _MIN_STEPS)
        return advice.suggested if advice and advice.suggested <= len(shares) // 2 else None

    def describe_positions(self) -> str:
        """Return the share of steps in which each draft position was accepted, as text."""
        return " ".join(format_percent(accepted / self.steps) for accepted in self.positions)


# Fewer steps are too few: at 200 a share of 2 % is known to about one percentage point.
MIN_STEPS = 200
# A position is useful if it adds at least this share to the tokens per step before it.
MIN_GAIN = 0.02
_MAX_SPEEDS = 10
_MIN_PUBLISHED_STEPS = 100


class DraftAdvice(NamedTuple):
    """The first useless draft position (from 1; None if all are useful), and how many tokens to draft instead."""

    first_useless: int | None
    suggested: int


def advise_draft_length(
    shares: Sequence[float | None], steps: float, min_steps: float = MIN_STEPS
) -> DraftAdvice | None:
    """Return how many tokens to draft, from the `shares` of `steps` in which each position was accepted.

    Position p adds shares[p] tokens to a step of 1 (the bonus token) + the shares before it. If it adds less than
    `MIN_GAIN` of that, verifying it cost at least as much in every model measured. Return None for too few steps, or if
    an unknown position precedes the first useless one.
    """
    if not shares or steps < min_steps:
        return None
    length = 1.0
    for index, share in enumerate(shares):
        if share is None:
            return None
        if share < MIN_GAIN * length:
            return DraftAdvice(index + 1, max(1, index))
        length += share
    return DraftAdvice(None, len(shares))


# Boots of one setting differ by 1.5 % and more, so two of them by up to 4 % without a cause.
_LEAST_FORECAST = 1.05
# Half the drafts shorten a step by 15 to 21 % on an H200, so more than this share of them by less than that noise.
_WORTH_A_TRY = 0.75


class DraftForecast(msgspec.Struct, frozen=True):
    """Fewer drafts per step than a bench had, and what its own acceptance and measured steps predict of them."""

    tokens: int
    """The drafts per step."""
    length: float
    """Their acceptance length, and then that of the bench."""
    length_now: float
    step_ratio: float | None = None
    """How long their steps are, of those of the bench; None if steps of other drafts were not measured here."""
    runs: tuple[str, ...] = ()
    """The runs with the other measured steps."""
    command: str = ""
    """The command that tries them."""

    @property
    def speed_ratio(self) -> float | None:
        """Their tok/s, of those of the bench."""
        return self.length / self.length_now / self.step_ratio if self.step_ratio else None


def forecast_drafts(
    shares: Sequence[float | None], steps: float, step_ratios: Mapping[int, float]
) -> DraftForecast | None:
    """Return the fewer drafts that would be fastest, or are to be measured next; None where nothing is to be gained.

    `shares` are as in `advise_draft_length`: a position is accepted as often when fewer are drafted after it, so n
    drafts have the acceptance length 1 + the first n shares. `step_ratios` are the measured step times by drafts, of
    those of this bench; between two of them a line is drawn, beyond them nothing is said.
    """
    now, known = len(shares), [share for share in shares if share is not None]
    if len(known) < now or steps < MIN_STEPS:
        return None
    lengths = [*accumulate(known, initial=1.0)]
    measured = {n: ratio for n, ratio in step_ratios.items() if 0 < n < now} | {now: 1.0}
    if len(measured) == 1:
        advice = advise_draft_length(shares, steps)
        fewer = advice.suggested if advice else now
        return DraftForecast(fewer, lengths[fewer], lengths[now]) if fewer <= _WORTH_A_TRY * now else None
    forecasts = [
        DraftForecast(n, lengths[n], lengths[now], _interpolate(measured, n)) for n in range(min(measured), now)
    ]
    best = max(forecasts, key=lambda forecast: forecast.speed_ratio or 0.0)
    return best if (best.speed_ratio or 0.0) >= _LEAST_FORECAST else None


def _interpolate(measured: Mapping[int, float], n: int) -> float:
    below, above = max(at for at in measured if at <= n), min(at for at in measured if at >= n)
    if below == above:
        return measured[n]
    return measured[below] + (measured[above] - measured[below]) * (n - below) / (above - below)


class PublishedComparison(NamedTuple):
    """A figure and its published range: `position` is `within`, `below` or `above`; shares are 0 to 1."""

    name: str
    value: float
    low: float
    high: float
    position: str
    source: str


def choose_published_figures(published: Sequence[ExpectedFigures], *, speculative: bool) -> ExpectedFigures | None:
    """Return the first of `published` (the nearest first) that a running server can be compared with."""
    return next((figures for figures in published if list_published_ranges(figures, speculative=speculative)), None)


def list_published_ranges(figures: PublishedFigures, *, speculative: bool) -> list[tuple[str, tuple[float, float]]]:
    """Return the published ranges of the figures to compare; without speculation only the speed."""
    ranges = (
        ("tok/s", (figures.tok_s if speculative else figures.baseline_tok_s) if figures.streams in {None, 1} else None),
        ("AL", figures.acceptance_length if speculative else None),
        ("acceptance", figures.acceptance if speculative else None),
    )
    return [(name, (bounds[0], bounds[1])) for name, bounds in ranges if bounds]


def compare_with_published(
    published: PublishedFigures, rates: Rates | None, finished: Iterable[FinishedRequest], *, speculative: bool = True
) -> list[PublishedComparison]:
    """Compare the figures of a run with published ones, the speed first.

    The speed is the median of the last ten requests that ended one at a time: published speeds are of one stream.
    """
    speeds = [r.tok_s for r in finished if r.tok_s and r.averaged_over == 1 and not r.failed][-_MAX_SPEEDS:]
    enough = rates if rates and rates.steps >= _MIN_PUBLISHED_STEPS else None
    measured = {
        "tok/s": statistics.median(speeds) if speeds else None,
        "AL": enough.acceptance_length if enough else None,
        "acceptance": enough.acceptance if enough else None,
    }
    return [
        PublishedComparison(name, value, low, high, _position_in_range(value, low, high), published.source)
        for name, (low, high) in list_published_ranges(published, speculative=speculative)
        if (value := measured[name]) is not None
    ]


def _position_in_range(value: float, low: float, high: float) -> str:
    """Return where a value lies relative to a range, with 5 % tolerance, since published figures are rounded."""
    if value < low * 0.95:
        return "below"
    return "above" if value > high * 1.05 else "within"
