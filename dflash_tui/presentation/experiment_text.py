"""The text of an experiment for a terminal: what it is going to do, and what happens."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_tui.common.formatting import UNKNOWN, format_duration, format_number, pluralize
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.events import Event
from dflash_tui.experiments import store
from dflash_tui.experiments.analysis.report import ExperimentReport
from dflash_tui.experiments.builder import DurationEstimate
from dflash_tui.experiments.design import (
    CONFIRM,
    PUBLISHED,
    Boot,
    BootBegan,
    BootEnded,
    Design,
    ExperimentExtended,
    ExperimentHalted,
    Happened,
    RequestMeasured,
    RoundBegan,
)
from dflash_tui.presentation.experiment_tables import median_speed

_SCORES = "the server without speculation scores every token afterwards, which takes as long as its answers"
_MANY_HOURS = 3  # from here on minutes say nothing
STAGES = {
    "starting": "starting",
    "cold": "the first request, alone",
    "warm-up": "warm-up, not counted",
    "round": "measuring",
}
"""What a boot does, by the stage of its latest answer."""


class Designed(Event, frozen=True, tag="experiment"):
    """What an experiment is going to do."""

    design: Design


class Detached(Event, frozen=True, tag="detached"):
    """An experiment goes on in a process of its own, and is no longer followed."""

    id: str


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
    decided = design.honest or design.checks_output
    label = "judges" if design.measures_start else "sends"
    rows = [
        ("recipe", design.recipe),
        ("varies", f"{clean_line(design.vary)}: {', '.join(clean_line(arm.name) for arm in design.arms)}"),
        ("boots", f"{boots}{'' if decided else ' (one boot per arm: a verdict is only suggestive)'}"),
        *[("" if place else label, text) for place, text in enumerate(describe_sent(design))],
        *([("scores", _SCORES)] if design.checks_output else []),
        ("takes", _format_duration_estimate(estimate)),
        ("caches", describe_caches(design)),
        ("answers", "kept beside the figures, without secrets" if design.keep_answers else "not kept"),
        ("port", f"{design.arms[0].plan.port}; each boot launches a server of its own and stops it"),
    ]
    if peers := list(dict.fromkeys(host for arm in design.arms for host in arm.request.peers)):
        rows.insert(1, ("hosts", f"this one and {clean_line(', '.join(peers))}"))
    rows += [("stops", f"{name}, which would disturb what is measured") for name in stopped]
    rows += [("note", f"{design.synthetic}: figures say nothing about a real model")] if design.synthetic else []
    return rows


def describe_sent(design: Design) -> list[str]:
    """Return what each boot sends, or that it judges starts, a sentence each."""
    if design.measures_start:
        return ["the seconds until a server is ready; nothing is sent but what shows that"]
    least = "at least " if max(design.concurrency) > 1 else ""
    length = f"answers × {design.scale:g}{'' if design.fixed else ' at most'}"
    temperature = "of the model" if design.temperature is None else f"{design.temperature:g}"
    temperature += "" if design.top_p is None else f", top-p {design.top_p:g}"
    count, streams = store.count_measured_requests(design), ", ".join(map(str, design.concurrency))
    requests = f", {pluralize(count, 'request')} per boot" if count else ""
    return [
        f"the suite {clean_line(design.suite)}, {least}{pluralize(design.rounds, 'round')} per boot, {length}",
        f"{streams} at a time{requests}; temperature {temperature}",
    ]


def describe_caches(design: Design) -> str:
    """Return which compile caches the arms have."""
    if design.cold:
        return "each arm its own, empty at each boot"
    if design.measures_start:
        return "filled by a first boot of each arm, which does not count"
    return "each arm its own, empty at its first boot" if design.own_cache else "shared with your other servers"


def _format_duration_estimate(estimate: DurationEstimate) -> str:
    duration = f"about {format_duration(estimate.seconds)}"
    if estimate.whole:
        return f"{duration}, {estimate.source}"
    answers = "the answers"
    if estimate.answers is not None:
        most = estimate.answers / 3600
        hours = f"{most:.0f} h" if most >= _MANY_HOURS else format_duration(estimate.answers)
        answers = f"at most about {hours} for the answers, by published speeds ({estimate.published})"
    if estimate.seconds is not None:
        return f"{duration} for the starts, {estimate.source}; and {answers}"
    return f"{answers}; and the starts" if estimate.answers is not None else "unknown until the first boot is over"


def describe_experiment_commands(design: Design, program: str) -> str:
    """Return the commands that watch and stop an experiment, one per line; `program` is how the user calls this one."""
    command = f"{program} {design.command_word}"
    return f"  watch: {command} attach {design.id}\n  stop:  {command} stop {design.id}"


def format_event(design: Design, event: Happened) -> str:
    """Return what happened in a line; empty for what needs none."""
    match event:
        case BootBegan():
            again = f", attempt {event.attempt}" if event.attempt > 1 else ""
            return (
                f"boot {event.number + 1} of {len(design.order)}: {_arm_name(design, event.arm)}{again} as {event.run}"
            )
        case RequestMeasured(stage=stage, request=request):
            answer = f"{format_number(request.decode_tok_s, 1, 'tok/s'):>12}  {request.tokens} tokens"
            answer = f"failed: {request.error}" if request.error else f"{answer} in {request.total:.1f} s"
            return clean_line(f"  {STAGES.get(stage, stage):<24}  {request.kind:<9} {answer}")
        case BootEnded(boot=boot):
            return _format_ended_boot(boot, design.attempts)
        case RoundBegan() | ExperimentExtended():
            return _format_addition(design, event)
        case ExperimentHalted(why=why):
            return f"ended early: {clean_line(why)}"
        case _:
            return ""


def _format_addition(design: Design, event: RoundBegan | ExperimentExtended) -> str:
    """Return a round of a tune, or what was added to an A/B, in a line; `design` has its arms already."""
    if isinstance(event, ExperimentExtended):
        return f"extended by {pluralize(len(event.order), 'boot')}"
    names = ", ".join(_arm_name(design, arm) for arm in event.field)
    if event.key == CONFIRM:
        return f"to be sure: {names}, {pluralize(len(event.order), 'boot')} in turn" if event.order else ""
    if event.key == PUBLISHED:
        return "the published setting once more"
    return f"round of {clean_line(event.key)}: {pluralize(len(event.field), 'setting')}: {names}"


def _arm_name(design: Design, arm: int) -> str:
    return clean_line(design.arms[arm].name) if 0 <= arm < len(design.arms) else UNKNOWN


def _format_ended_boot(boot: Boot, attempts: int) -> str:
    if boot.error:
        again = "; retrying once" if boot.attempt < attempts else "; continuing without it"
        return f"  failed{again}\n    " + "\n    ".join(map(clean_line, boot.error.split("\n")))
    start = f"ready after {format_duration(boot.ready)}{f' ({boot.cache})' if boot.cache else ''}"
    speed = "" if boot.start else f", {format_number(median_speed(boot), 1, 'tok/s')}"
    return f"  {start}{speed}, took {format_duration(boot.took)}"
