"""The boots of an A/B as results of `vllm bench serve`: one for each boot and each number of requests under way. Pure.

That tool writes one measurement of one server. With `--append-result` it adds one to a file that has others, each in a
line, and with `--metadata` it writes words beside the figures: so an A/B is a line per measurement, and each says of
which experiment, arm and boot it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from dflash_tui.benchmark.result_files import Measured, build_vllm_bench
from dflash_tui.events import RequestDone
from dflash_tui.experiments.analysis.measures import select_measured_boots
from dflash_tui.experiments.analysis.report import ExperimentReport
from dflash_tui.experiments.design import Boot, Design


def export_boots(report: ExperimentReport) -> str:
    """Return the boots that measured something, in their order, as lines of JSON; empty where none did."""
    arms = range(len(report.design.arms))
    boots = sorted((boot for arm in arms for boot in select_measured_boots(report.boots, arm)), key=lambda b: b.number)
    lines = [
        msgspec.json.encode(build_vllm_bench(level)) for boot in boots for level in _list_levels(report.design, boot)
    ]
    return b"\n".join(lines).decode()


def _list_levels(design: Design, boot: Boot) -> Iterator[Measured]:
    """Yield what a boot measured at each number of requests under way."""
    arm, windows = design.arms[boot.arm], {window.streams: window for window in boot.windows}
    metadata = {"experiment": design.id, "varied": design.vary, "arm": arm.name, "boot": str(boot.number + 1)}
    for streams in dict.fromkeys(request.streams for request in boot.requests):
        window = windows.get(streams)
        yield Measured(
            boot.run,
            arm.plan.served_name,
            boot.began,
            _select_level(boot.requests, streams),
            # Of one at a time nothing else is under way, and the busy time says the same.
            output_tok_s=window.tok_s if window and streams != 1 else None,
            metadata=metadata | ({"synthetic": design.synthetic} if design.synthetic else {}),
        )


def _select_level(requests: Sequence[RequestDone], streams: int) -> tuple[RequestDone, ...]:
    return tuple(request for request in requests if request.streams == streams)
