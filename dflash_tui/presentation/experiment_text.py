"""The text of an experiment for a terminal: what it is going to do, what happens, and its report."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_tui.common.formatting import UNKNOWN, format_duration, format_number, format_table, pluralize
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.events import Event, RequestDone
from dflash_tui.experiments import store
from dflash_tui.experiments.analysis.report import ExperimentReport
from dflash_tui.experiments.design import (
    Boot,
    BootBegan,
    BootEnded,
    Design,
    ExperimentHalted,
    Happened,
    RequestMeasured,
)
from dflash_tui.experiments.estimate import DurationEstimate
from dflash_tui.experiments.progress import ATTEMPTS
from dflash_tui.presentation import verdict_text
from dflash_tui.presentation.experiment_tables import list_boot_rows, median_speed

_STAGES = {"cold": "the first request, alone", "warm-up": "warm-up, not counted", "round": "measured"}


class Designed(Event, frozen=True, tag="experiment"):
    """What an experiment is going to do."""

    design: Design


class Reported(Event, frozen=True, tag="ab report"):
    """What an experiment has found."""

    report: ExperimentReport


def describe_experiment(design: Design, estimate: DurationEstimate, stopped: Sequence[str] = ()) -> str:
    """Return what an experiment is going to do as lines of a label and a text."""
    return "\n".join(f"{label:<8} {text}" for label, text in list_design_rows(design, estimate, stopped))


def list_design_rows(design: Design, estimate: DurationEstimate, stopped: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return what an experiment is going to do, for somebody who decides whether it may: labels and texts.

    The servers that are called `stopped` are stopped before it begins.
    """
    names = " ".join(clean_line(design.arms[arm].name) for arm in design.order)
    boots = f"{pluralize(len(design.order), 'boot')}: {names}"
    caches = "each arm its own, empty at its first boot" if design.own_cache else "shared with your other servers"
    first, least = design.arms[0].plan, "at least " if max(design.concurrency) > 1 else ""
    rounds = f"{least}{pluralize(design.rounds, 'round')} per boot"
    rows = [
        ("recipe", design.recipe),
        ("varies", f"{clean_line(design.vary)}: {', '.join(clean_line(arm.name) for arm in design.arms)}"),
        ("boots", f"{boots}{'' if design.honest else ' (one boot per arm: a verdict is only suggestive)'}"),
        ("sends", f"{clean_line(design.suite)}, {rounds}, answers × {design.scale:g}"),
        ("", f"{_format_concurrency(design)}; temperature {_format_temperature(design)}"),
        ("takes", _format_duration_estimate(estimate)),
        ("caches", caches),
        ("port", f"{first.port}; each boot launches a server of its own and stops it"),
    ]
    rows += [("stops", f"{name}, which uses the same GPU or port") for name in stopped]
    rows += [("note", f"{design.synthetic}: figures say nothing about a real model")] if design.synthetic else []
    return rows


def _format_concurrency(design: Design) -> str:
    """Return how many requests are under way at a time, and how many a boot sends: short suites go several times."""
    count, streams = store.count_measured_requests(design), ", ".join(map(str, design.concurrency))
    return f"{streams} at a time" + (f", {pluralize(count, 'request')} per boot" if count else "")


def _format_temperature(design: Design) -> str:
    return "of the model" if design.temperature is None else f"{design.temperature:g}"


def _format_duration_estimate(estimate: DurationEstimate) -> str:
    if estimate.seconds is None:
        return "unknown until the first boot is over"
    duration = f"about {format_duration(estimate.seconds)}"
    return (
        f"{duration}, {estimate.source}"
        if estimate.whole
        else f"{duration} for the starts, {estimate.source}; and the answers"
    )


def describe_experiment_commands(identity: str) -> str:
    """Return the commands that watch and stop an experiment, one per line."""
    return f"  watch: dflash-tui ab attach {identity}\n  stop:  dflash-tui ab stop {identity}"


def format_event(design: Design, event: Happened) -> str:
    """Return what happened in a line; empty for what needs none."""
    match event:
        case BootBegan():
            again = f", attempt {event.attempt}" if event.attempt > 1 else ""
            return (
                f"boot {event.number + 1} of {len(design.order)}: {_arm_name(design, event.arm)}{again} as {event.run}"
            )
        case RequestMeasured(stage=stage, request=request):
            return f"  {_STAGES.get(stage, stage):<24}  {request.kind:<9} {_format_answer(request)}"
        case BootEnded(boot=boot):
            return _format_ended_boot(boot)
        case ExperimentHalted(why=why):
            return f"ended early: {clean_line(why)}"
        case _:
            return ""


def _arm_name(design: Design, arm: int) -> str:
    return clean_line(design.arms[arm].name) if arm < len(design.arms) else UNKNOWN


def _format_answer(request: RequestDone) -> str:
    if request.error:
        return f"failed: {clean_line(request.error)}"
    return f"{format_number(request.decode_tok_s, 1, 'tok/s'):>12}  {request.tokens} tokens in {request.total:.1f} s"


def _format_ended_boot(boot: Boot) -> str:
    if boot.error:
        again = "; retrying once" if boot.attempt < ATTEMPTS else "; continuing without it"
        return f"  failed{again}\n    " + "\n    ".join(map(clean_line, boot.error.splitlines()))
    start = f"ready after {format_duration(boot.ready)}{f' ({boot.cache})' if boot.cache else ''}"
    return f"  {start}, {format_number(median_speed(boot), 1, 'tok/s')}, took {format_duration(boot.took)}"


def format_report(report: ExperimentReport) -> str:
    """Return a report as lines: each verdict first, then what is behind it, and the boots as a table."""
    lines = [clean_line(verdict_text.format_headline(report, each)) for each in report.comparisons]
    lines += map(clean_line, verdict_text.describe_sweep(report))
    for each in report.comparisons:
        versus = f"{verdict_text.label_arm(report.design, each.b)} to {verdict_text.label_arm(report.design, each.a)}"
        lines += ["", clean_line(versus)] if len(report.comparisons) > 1 else [""]
        lines += [f"  {clean_line(str(line))}" for line in verdict_text.list_details(report, each)]
    return "\n".join([*lines, "", _tabulate_boots(report)])


def _tabulate_boots(report: ExperimentReport) -> str:
    header = ("BOOT", "ARM", "START", "READY", "FIRST REQUEST", "TOK/S", "REQUESTS")
    rows = [
        (
            row.number,
            _arm_name(report.design, boot.arm),
            row.cache,
            row.ready,
            row.first_speed,
            row.speed,
            row.requests,
        )
        for boot, row in zip(report.boots, list_boot_rows(report.boots), strict=True)
    ]
    return format_table(header, rows, right=(0, 3, 4, 5, 6))
