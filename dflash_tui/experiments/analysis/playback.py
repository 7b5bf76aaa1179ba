"""The answers of two arms to the same prompt, to be written again as fast as they came. Pure.

Of each arm that request is taken whose speed is the median of its boots, the lower one of two. Where its arrivals were
kept, tokens come when they came; else at the mean speed of the request after its first token. Which character belongs
to which token is not known, so the text is spread evenly over the tokens.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median_low
from typing import NamedTuple

from dflash_tui.events import RequestDone
from dflash_tui.experiments.analysis.answers import PromptKey
from dflash_tui.experiments.analysis.measures import select_measured_boots
from dflash_tui.experiments.design import Boot, KeptAnswer

# Milliseconds by which an arrival may come after the end of its request: both are rounded.
_ROUNDED = 2


class PlayedAnswer(NamedTuple):
    """One answer as it came."""

    arm: int
    """Whose it is."""
    boot: int
    """The boot that gave it, from 0 on."""
    tokens: int
    """How many it has."""
    ttft: float
    """Seconds to its first token."""
    tok_s: float
    """Its tokens per second after that."""
    marks: tuple[tuple[float, int], ...]
    """Seconds since it was asked for, and how many of its tokens had come by then; none where that was not kept."""
    text: str | None
    """Its beginning; None where no answer was kept."""
    cut: bool
    """Whether it went on after its text."""

    @property
    def seconds(self) -> float:
        """When its last token comes."""
        return self.marks[-1][0] if self.marks else self.ttft + max(0, self.tokens - 1) / self.tok_s

    def count_tokens(self, at: float) -> int:
        """Return how many of its tokens have come after so many seconds."""
        if at >= self.seconds:
            return self.tokens
        if self.marks:
            place = bisect_right(self.marks, at, key=lambda mark: mark[0])
            return self.marks[place - 1][1] if place else 0
        return 0 if at < self.ttft else min(self.tokens, 1 + int((at - self.ttft) * self.tok_s))

    def measure_speed(self, at: float) -> float | None:
        """Return its tokens per second after the first arrival until then; None before there is a second one."""
        if at >= self.seconds or (not self.marks and self.count_tokens(at) > 1):
            return self.tok_s
        place = bisect_right(self.marks, at, key=lambda mark: mark[0])
        if place < 2:
            return None
        (began, first), (ended, last) = self.marks[0], self.marks[place - 1]
        return (last - first) / (ended - began) if ended > began else None

    def measure_output(self, at: float) -> float | None:
        """Return its tokens per second since it was asked for, until its end; None before its first token."""
        tokens, passed = self.count_tokens(at), min(at, self.seconds)
        return tokens / passed if tokens and passed else None

    def read_text(self, at: float) -> str:
        """Return what is written of it after so many seconds."""
        text = self.text or ""
        return text[: round(len(text) * self.count_tokens(at) / self.tokens)]


class PlayedPair(NamedTuple):
    """The answers of two arms to the same prompt."""

    key: PromptKey
    """The prompt."""
    a: PlayedAnswer
    """The answer of the arm that is compared with."""
    b: PlayedAnswer
    """That of the arm that is judged."""

    @property
    def seconds(self) -> float:
        """When both are written."""
        return max(self.a.seconds, self.b.seconds)

    def measure_ratio(self, at: float) -> float | None:
        """Return the output of b as a multiple of that of a after so many seconds; None before both have a token."""
        ours, theirs = self.a.measure_output(at), self.b.measure_output(at)
        return theirs / ours if ours and theirs else None


def list_played_pairs(boots: Sequence[Boot], a: int, b: int, answers: Sequence[KeptAnswer]) -> list[PlayedPair]:
    """Return what can be played of two arms: a pair for each prompt that both have answered.

    Args:
        boots: the boots that are over.
        a: the arm that is compared with.
        b: the arm that is judged.
        answers: the answers that were kept.
    """
    texts = {(line.run, PromptKey(line.kind, line.streams, line.round)): line for line in answers}
    ours, theirs = (dict(_list_answers(boots, arm, texts)) for arm in (a, b))
    return [PlayedPair(key, ours[key], theirs[key]) for key in ours if key in theirs]


def find_typical_pair(pairs: Sequence[PlayedPair]) -> int:
    """Return the place of the pair whose ratio at the end is the median, the lower one of two."""
    ratios = [pair.measure_ratio(pair.seconds) or 0.0 for pair in pairs]
    return ratios.index(median_low(ratios))


def _list_answers(
    boots: Sequence[Boot], arm: int, texts: dict[tuple[str, PromptKey], KeptAnswer]
) -> Iterator[tuple[PromptKey, PlayedAnswer]]:
    by_key: dict[PromptKey, list[PlayedAnswer]] = {}
    for boot in select_measured_boots(boots, arm):
        for done in boot.requests:
            key = PromptKey(done.kind, done.streams, done.round)
            if answer := _build_answer(boot, done, texts.get((boot.run, key))):
                by_key.setdefault(key, []).append(answer)
    for key, answers in by_key.items():
        speed = median_low([answer.tok_s for answer in answers])
        yield key, next(answer for answer in answers if answer.tok_s == speed)


def _build_answer(boot: Boot, done: RequestDone, line: KeptAnswer | None) -> PlayedAnswer | None:
    if done.error or not done.tokens or done.ttft is None or not done.decode_tok_s:
        return None
    marks = _read_marks(line, done) if line else ()
    text, cut = (line.answer.text, line.answer.cut) if line else (None, False)
    return PlayedAnswer(boot.arm, boot.number, done.tokens, done.ttft, done.decode_tok_s, marks, text, cut)


def _read_marks(line: KeptAnswer, done: RequestDone) -> tuple[tuple[float, int], ...]:
    times, counts = [mark[0] for mark in line.arrivals], [mark[1] for mark in line.arrivals]
    ends_well = bool(counts) and counts[-1] == done.tokens and times[-1] <= math.ceil(1000 * done.total) + _ROUNDED
    grows = all(x < y for x, y in pairwise(counts)) and times == sorted(times)
    if not (ends_well and grows and times[-1] > times[0]):
        return ()
    return tuple((at / 1000, count) for at, count in line.arrivals)
