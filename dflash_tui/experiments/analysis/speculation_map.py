"""The map of an experiment: speculation against none by kind of prompt and number of streams. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise, product
from statistics import median

from packaging.version import Version

from dflash_tui.benchmark.prompts import name_kind
from dflash_tui.experiments.analysis.measures import TOKENS, collect_measure, compare_measure, is_speculating
from dflash_tui.experiments.analysis.report import (
    ALL_KINDS,
    Comparison,
    MapCell,
    MapLevel,
    SpeculationMap,
    Verdict,
    decide,
)
from dflash_tui.experiments.analysis.stats import BootLogs, PromptCell
from dflash_tui.experiments.design import Boot, Design
from dflash_tui.planning.request import LaunchChanges

# vLLM takes a number of drafts by batch size from this release on.
_FIRST_WITH_SCHEDULE = Version("0.24.0")


def build_map(design: Design, boots: Sequence[Boot], comparisons: Sequence[Comparison]) -> SpeculationMap:
    """Return the cells of a map, each with an interval of its own at 95 %, and the launch that follows from them."""
    kinds = dict.fromkeys(name_kind(done.kind) for boot in boots for done in boot.requests)
    logs = collect_measure(design, boots, TOKENS)
    cells = tuple(
        cell
        for comparison, kind, streams in product(comparisons, (*kinds, ALL_KINDS), design.concurrency)
        if (cell := _judge_cell(logs, comparison, kind, streams))
    )
    if any(cell.word is Verdict.REFUSED for cell in cells):
        return SpeculationMap(cells)
    levels = tuple(level for streams in sorted(design.concurrency) if (level := _choose(design, cells, streams)))
    return SpeculationMap(cells, levels, _format_launch(design, levels))


def _judge_cell(logs: Sequence[Sequence[BootLogs]], comparison: Comparison, kind: str, streams: int) -> MapCell | None:
    def is_inside(cell: PromptCell) -> bool:
        return cell.streams == streams and kind in {ALL_KINDS, name_kind(cell.kind)}

    arms = [[boot.select(filter(is_inside, boot.by_prompt)) for boot in arm] for arm in logs]
    a, b = comparison.a, comparison.b
    if (apart := compare_measure(arms, a, b, TOKENS)) is None:
        return None
    speeds = [
        math.exp(median(log for boot in arms[arm] for of_prompt in boot.by_prompt.values() for log in of_prompt))
        for arm in (a, b)
    ]
    word = Verdict.REFUSED if comparison.word is Verdict.REFUSED else decide(apart)
    return MapCell(kind, streams, b, word, apart.ratio(), *speeds)


def _choose(design: Design, cells: Sequence[MapCell], streams: int) -> MapLevel | None:
    """Return the drafts for a number of streams: those of the fastest arm, or none if it is shown to be slower."""
    all_kinds = [cell for cell in cells if cell.streams == streams and cell.kind == ALL_KINDS]
    if not (drafting := [cell for cell in all_kinds if is_speculating(design.arms[cell.arm])]):
        return None
    best = max(drafting, key=lambda cell: cell.ratio.ratio)
    tokens = 0 if best.word is Verdict.SLOWER else design.arms[best.arm].plan.num_speculative_tokens
    return MapLevel(streams, tokens, is_shown=best.word is not Verdict.NO_DIFFERENCE)


def _format_launch(design: Design, levels: Sequence[MapLevel]) -> str:
    """Return the command of a launch that drafts as the levels say; empty without levels.

    Where a release knows no schedule, it drafts as with the fewest streams.
    """
    if not levels:
        return ""
    tokens, settings = levels[0].tokens, {}
    if not is_uniform(levels) and knows_schedule(design):
        tokens = max(level.tokens for level in levels)
        ends = [level for level, following in pairwise(levels) if level.tokens != following.tokens] + [levels[-1]]
        starts = [1, *(level.streams + 1 for level in ends[:-1])]
        ranges = [f"[{start},{end.streams},{end.tokens}]" for start, end in zip(starts, ends, strict=True)]
        settings = {"speculation.num_speculative_tokens_per_batch_size": f"[{','.join(ranges)}]"}
    changes = LaunchChanges(
        num_speculative_tokens=tokens, settings=settings, removed=("port",), removed_settings=("n",)
    )
    return design.arms[0].request.with_changes(changes).to_command()


def is_uniform(levels: Sequence[MapLevel]) -> bool:
    """Whether all levels draft alike."""
    return len({level.tokens for level in levels}) == 1


def knows_schedule(design: Design) -> bool:
    """Whether the release takes a number of drafts by batch size."""
    return Version(design.arms[0].plan.vllm) >= _FIRST_WITH_SCHEDULE
