"""Compare the steps of a bench with what the memory's bandwidth allows. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from dflash_tui.benchmark.summary import LevelSummary
from dflash_tui.events import RequestDone
from dflash_tui.planning.step_limit import MemoryLimit, StepLimit, StepReader


def compare_with_memory(reader: StepReader | None, measured: LevelSummary, done: Sequence[RequestDone]) -> MemoryLimit:
    """Return the steps of one level of a bench beside the memory's limit; without a plan all is unknown.

    One request at a time is compared by kind of prompt. Several share their steps, so they are compared together.
    """
    if reader is None:
        return MemoryLimit({}, unknown=("what its address does not tell: models, flags and GPU",))
    good = [request for request in done if not request.error]
    window = measured.window
    if window and window.streams != 1:
        kinds = {"": _compare(reader, measured, "", good, window.under_way)}
    else:
        kinds = {
            kind: _compare(reader, measured, kind, [request for request in good if request.kind == kind], 1.0)
            for kind in dict.fromkeys(request.kind for request in good)
        }
    return MemoryLimit(kinds, reader.bandwidth, reader.is_measured, reader.unknown)


def _compare(
    reader: StepReader, measured: LevelSummary, kind: str, good: Sequence[RequestDone], streams: float
) -> StepLimit:
    # In the middle of its answer.
    contexts = [request.prompt_tokens + request.tokens / 2 for request in good]
    rates = [request.steps_s for request in good if request.steps_s]
    itl = measured.latency[kind].itl if kind in measured.latency else None
    seconds = 1 / statistics.median(rates) if rates and kind else itl.p50 if itl else None
    return reader.compare(statistics.fmean(contexts) if contexts else 0.0, streams, seconds)
