"""Figures of another benchmark beside ours, without a verdict, and why there is none."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from dflash_tui.benchmark.result_files import ImportedMeasurement, ImportedResult
from dflash_tui.benchmark.summary import RequestFigures
from dflash_tui.common.formatting import UNKNOWN, format_number, format_percent
from dflash_tui.events import RequestDone
from dflash_tui.experiments.analysis.report import ExperimentReport
from dflash_tui.experiments.run_report import RunReport
from dflash_tui.presentation.markdown import escape_text, render_table

_REFUSAL = "the flags, versions, patches, prompts and the machine of {} are not recorded in it"
AnyReport = ExperimentReport | RunReport | ImportedResult


class SideBySide(msgspec.Struct, frozen=True):
    """The figures of two, in their order, and why they are not judged."""

    refused: str
    names: tuple[str, str]
    measured: tuple[tuple[ImportedMeasurement, ...], tuple[ImportedMeasurement, ...]]
    synthetic: str = ""


def compare_imported(names: tuple[str, str], results: tuple[AnyReport, AnyReport]) -> SideBySide:
    """Return the figures of both."""
    foreign = [
        f"{name} ({result.source})"
        for name, result in zip(names, results, strict=True)
        if isinstance(result, ImportedResult)
    ]
    synthetic = "; ".join(dict.fromkeys(filter(None, map(_synthetic_label, results))))
    measured = (tuple(_list_measured(results[0])), tuple(_list_measured(results[1])))
    return SideBySide(_REFUSAL.format(" and ".join(foreign)), names, measured, synthetic)


def render_comparison(sides: SideBySide) -> str:
    """Return them in Markdown."""
    parts = [f"# {escape_text(sides.names[0])} beside {escape_text(sides.names[1])}"]
    parts += [f"> **Not a real model's figures: {escape_text(sides.synthetic)}.**"] if sides.synthetic else []
    parts.append(f"**refused: {escape_text(sides.refused)}**")
    parts.append("The figures, each as its own source defines it; tok/s of another tool may count the first token too.")
    header = ("of", "what", "requests", "concurrency or rate", "tok/s", "TTFT s", "acceptance", "AL", "failed")
    rows = [
        (escape_text(name), *_table_row(measurement))
        for name, measured in zip(sides.names, sides.measured, strict=True)
        for measurement in measured
    ]
    return "\n\n".join([*parts, render_table(header, rows, range(2, 9))]) + "\n"


def _table_row(measurement: ImportedMeasurement) -> tuple[str, ...]:
    streams = (
        f"{measurement.rate:g}/s"
        if measurement.rate
        else UNKNOWN
        if measurement.streams is None
        else str(measurement.streams)
    )
    ttft = UNKNOWN if measurement.ttft is None else f"{format_number(measurement.ttft, 3)} (median)"
    figures = (
        format_number(measurement.tok_s),
        ttft,
        format_percent(measurement.acceptance, 1),
        format_number(measurement.acceptance_length, 2),
    )
    return (escape_text(measurement.what), str(measurement.n), streams, *figures, str(measurement.failed))


def _synthetic_label(report: AnyReport) -> str:
    if isinstance(report, ExperimentReport):
        return report.design.synthetic
    return report.plan.synthetic if isinstance(report, RunReport) else report.synthetic


def _list_measured(report: AnyReport) -> Iterator[ImportedMeasurement]:
    if isinstance(report, ImportedResult):
        yield from report.measured
    elif isinstance(report, RunReport):
        yield from _summarize_prompts("", report.requests)
    else:
        for place, arm in enumerate(report.design.arms):
            yield from _summarize_prompts(
                f"{arm.name}: ", [done for boot in report.boots if boot.arm == place for done in boot.requests]
            )


def _summarize_prompts(
    head: str, requests: tuple[RequestDone, ...] | list[RequestDone]
) -> Iterator[ImportedMeasurement]:
    """Yield the medians of each prompt; the speed is that of one stream while it decodes."""
    for kind, streams, rate in dict.fromkeys((done.kind, done.streams, done.rate) for done in requests):
        figures = RequestFigures.from_requests(
            [done for done in requests if (done.kind, done.streams, done.rate) == (kind, streams, rate)]
        )
        yield ImportedMeasurement(
            what=f"{head}{kind}",
            n=figures.n,
            streams=streams or None,
            rate=rate or None,
            tok_s=figures.tok_s.median if figures.tok_s else None,
            ttft=figures.ttft.median if figures.ttft else None,
            acceptance_length=figures.acceptance_length.median if figures.acceptance_length else None,
            failed=figures.failed,
        )
