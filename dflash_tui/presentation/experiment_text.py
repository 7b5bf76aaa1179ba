"""The text of an experiment for a terminal: what it is going to do, what happens, and its report."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dflash_tui.common.formatting import UNKNOWN, format_duration, format_number, format_table, pluralize
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.events import Event, RequestDone
from dflash_tui.experiments import store
from dflash_tui.experiments.analysis.report import Comparison, ExperimentReport
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
from dflash_tui.experiments.estimate import DurationEstimate
from dflash_tui.presentation import output_text, start_phases, stock_text, verdict_text
from dflash_tui.presentation.experiment_tables import (
    ABOUT_RATIOS,
    compares_prompts,
    list_boot_rows,
    list_prompt_rows,
    median_speed,
)

_SCORES = "the server without speculation scores every token afterwards, which takes as long as its answers"
_MANY_HOURS = 3  # from here on minutes say nothing
_STAGES = {"cold": "the first request, alone", "warm-up": "warm-up, not counted", "round": "measured"}


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
    first, least = design.arms[0].plan, "at least " if max(design.concurrency) > 1 else ""
    rounds = f"{least}{pluralize(design.rounds, 'round')} per boot"
    rows = [
        ("recipe", design.recipe),
        ("varies", f"{clean_line(design.vary)}: {', '.join(clean_line(arm.name) for arm in design.arms)}"),
        ("boots", f"{boots}{'' if decided else ' (one boot per arm: a verdict is only suggestive)'}"),
        *_list_sent(design, rounds),
        *([("scores", _SCORES)] if design.checks_output else []),
        ("takes", _format_duration_estimate(estimate)),
        ("caches", _describe_caches(design)),
        ("answers", "kept beside the figures, without secrets" if design.keep_answers else "not kept"),
        ("port", f"{first.port}; each boot launches a server of its own and stops it"),
    ]
    if peers := list(dict.fromkeys(host for arm in design.arms for host in arm.request.peers)):
        rows.insert(1, ("hosts", f"this one and {clean_line(', '.join(peers))}"))
    rows += [("stops", f"{name}, which would disturb what is measured") for name in stopped]
    rows += [("note", f"{design.synthetic}: figures say nothing about a real model")] if design.synthetic else []
    return rows


def _list_sent(design: Design, rounds: str) -> list[tuple[str, str]]:
    """Return what each boot sends, as rows."""
    if design.measures_start:
        return [("judges", "the seconds until a server is ready; nothing is sent but what shows that")]
    length = f"answers × {design.scale:g}{'' if design.fixed else ' at most'}"
    return [
        ("sends", f"the suite {clean_line(design.suite)}, {rounds}, {length}"),
        ("", f"{_format_concurrency(design)}; temperature {_format_temperature(design)}"),
    ]


def _describe_caches(design: Design) -> str:
    if design.cold:
        return "each arm its own, empty at each boot"
    if design.measures_start:
        return "filled by a first boot of each arm, which does not count"
    return "each arm its own, empty at its first boot" if design.own_cache else "shared with your other servers"


def _format_concurrency(design: Design) -> str:
    """Return how many requests are under way at a time, and how many a boot sends: short suites go several times."""
    count, streams = store.count_measured_requests(design), ", ".join(map(str, design.concurrency))
    return f"{streams} at a time" + (f", {pluralize(count, 'request')} per boot" if count else "")


def _format_temperature(design: Design) -> str:
    temperature = "of the model" if design.temperature is None else f"{design.temperature:g}"
    return temperature if design.top_p is None else f"{temperature}, top-p {design.top_p:g}"


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
            return f"  {_STAGES.get(stage, stage):<24}  {request.kind:<9} {_format_answer(request)}"
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


def _format_answer(request: RequestDone) -> str:
    if request.error:
        return f"failed: {clean_line(request.error)}"
    return f"{format_number(request.decode_tok_s, 1, 'tok/s'):>12}  {request.tokens} tokens in {request.total:.1f} s"


def _format_ended_boot(boot: Boot, attempts: int) -> str:
    if boot.error:
        again = "; retrying once" if boot.attempt < attempts else "; continuing without it"
        return f"  failed{again}\n    " + "\n    ".join(map(clean_line, boot.error.split("\n")))
    start = f"ready after {format_duration(boot.ready)}{f' ({boot.cache})' if boot.cache else ''}"
    speed = "" if boot.start else f", {format_number(median_speed(boot), 1, 'tok/s')}"
    return f"  {start}{speed}, took {format_duration(boot.took)}"


def format_report(report: ExperimentReport) -> str:
    """Return a report as lines: each verdict first, then what is behind it, and the boots as a table."""
    lines = [clean_line(verdict_text.format_headline(report, comparison)) for comparison in report.comparisons]
    lines += map(clean_line, verdict_text.describe_sweep(report))
    for comparison in report.comparisons:
        versus = " to ".join(verdict_text.label_arm(report.design, arm) for arm in (comparison.b, comparison.a))
        lines += ["", clean_line(versus)] if len(report.comparisons) > 1 else [""]
        lines += [f"  {clean_line(str(line))}" for line in verdict_text.list_details(report, comparison)]
        lines += [f"  {line}" for line in _list_first_difference(report, comparison)]
        lines += _describe_stock(report, comparison)
    lines += ["", phases] if (phases := _tabulate_phases(report)) else []
    return "\n".join([*lines, "", tabulate_boots(report), *([ABOUT_RATIOS] if compares_prompts(report) else [])])


def _tabulate_phases(report: ExperimentReport) -> str:
    """Return the phases of the starts by arm; nothing where these were not what was measured."""
    rows = [row.cells() for row in start_phases.list_phase_rows(report.design, report.boots)]
    header = ("PHASE", *(clean_line(arm.name).upper() for arm in report.design.arms))
    return format_table(header, rows, right=tuple(range(1, len(header)))) if rows else ""


def _describe_stock(report: ExperimentReport, comparison: Comparison) -> list[str]:
    """Return what stock is, and both arms prompt by prompt; nothing of another experiment."""
    design = report.design
    if not (rows := stock_text.list_stock_rows(design)):
        return []
    commands = [f"  {arm.name:<5}  {stock_text.format_bare_command(arm)}" for arm in design.arms]
    lines = ["", *map(clean_line, rows), *map(clean_line, commands)]
    if design.measures_start:
        return lines
    header = (
        "PROMPT",
        *(f"{design.arms[arm].name.upper()} {comparison.measure}" for arm in (comparison.a, comparison.b)),
        "RATIO",
        "REQUESTS",
    )
    cells = [row.cells() for row in list_prompt_rows(comparison)]
    return [*lines, "", format_table(header, cells, right=(1, 2, 3, 4))]


def format_output_check(report: ExperimentReport) -> str:
    """Return what is known of the answers as lines, and nothing of speeds."""
    lines = []
    for comparison in report.comparisons:
        if outputs := comparison.outputs:
            names = (verdict_text.label_arm(report.design, arm) for arm in (comparison.a, comparison.b))
            lines += [output_text.format_output_headline(outputs)]
            lines += [f"  {clean_line(line)}" for line in output_text.list_output_details(outputs, *names)]
            lines += [f"  {line}" for line in _list_first_difference(report, comparison)]
    return "\n".join(lines or ["no answers were compared"])


def _list_first_difference(report: ExperimentReport, comparison: Comparison) -> list[str]:
    names = (verdict_text.label_arm(report.design, arm) for arm in (comparison.a, comparison.b))
    return output_text.list_first_difference(comparison.outputs, *names) if comparison.outputs else []


def tabulate_boots(report: ExperimentReport, name_arm: Callable[[Design, int], str] = _arm_name) -> str:
    """Return a row per boot: how it started, and what it measured; `name_arm` names its arm."""
    header = ("BOOT", "ARM", "START", "READY", "FIRST REQUEST", "TOK/S", "REQUESTS")
    count = header.index("FIRST REQUEST") if report.design.measures_start else len(header)
    rows = [
        (
            row.number,
            name_arm(report.design, boot.arm),
            row.cache,
            row.ready,
            row.first_speed,
            row.speed,
            row.requests,
        )[:count]
        for boot, row in zip(report.boots, list_boot_rows(report.boots), strict=True)
    ]
    return format_table(header[:count], rows, right=[place for place in (0, 3, 4, 5, 6) if place < count])
