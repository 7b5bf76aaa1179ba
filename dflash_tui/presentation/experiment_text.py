"""The text of an A/B or tune for a terminal: its design, its events and the result of a tune."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dflash_tui.common.formatting import UNKNOWN, format_duration, format_number, pluralize
from dflash_tui.events import Event
from dflash_tui.experiments import store, tune_schedule
from dflash_tui.experiments.analysis.measures import ArmSummary, median_speed, summarize_arm
from dflash_tui.experiments.analysis.report import ExperimentReport, TuneOutcome
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
    Tuning,
)
from dflash_tui.experiments.progress import Progress
from dflash_tui.experiments.tune_schedule import NO_ROOM, is_faster, reckon_verdict_budget
from dflash_tui.presentation.benchmark_text import list_server_facts
from dflash_tui.presentation.report import Table, format_ratio, is_noisy

_SCORES = "the server without speculation scores every token afterwards, which takes as long as its answers"
_MANY_HOURS = 3  # from this many hours on, minutes are left out
STAGES = {
    "starting": "starting",
    "cold": "the first request, alone",
    "warm-up": "warm-up, not counted",
    "round": "measuring",
}
"""What a boot does, by the stage of its latest answer."""


class Designed(Event, frozen=True, tag="experiment"):
    """The design of an experiment that is about to begin."""

    design: Design


class Detached(Event, frozen=True, tag="detached"):
    """The experiment continues in its driver process and is no longer followed."""

    id: str


class Reported(Event, frozen=True, tag="ab report"):
    """The report of an experiment."""

    report: ExperimentReport


def describe_experiment(design: Design, estimate: DurationEstimate, stopped: Sequence[str] = ()) -> str:
    """Return the design of an experiment as labelled lines."""
    return "\n".join(f"{label:<8} {text}" for label, text in list_design_rows(design, estimate, stopped))


def list_design_rows(design: Design, estimate: DurationEstimate, stopped: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return the design of an A/B or tune as labels and texts, for the user to confirm.

    `stopped` are the names of servers that will be stopped first.
    """
    rows = _list_ab_rows(design, estimate, stopped)
    return _list_tune_rows(design, design.tuning, estimate, rows) if design.tuning else rows


def _list_ab_rows(design: Design, estimate: DurationEstimate, stopped: Sequence[str]) -> list[tuple[str, str]]:
    names = " ".join(design.arms[arm].name for arm in design.order)
    boots = f"{pluralize(len(design.order), 'boot')}: {names}"
    decided = design.honest or design.checks_output
    counted = "turns at a running server are one boot" if design.servers else "one boot per arm"
    label = "judges" if design.measures_start else "sends"
    rows = [
        ("recipe", design.recipe),
        ("varies", f"{design.vary}: {', '.join(arm.name for arm in design.arms)}"),
        ("boots", f"{boots}{'' if decided else f' ({counted}: a verdict is only suggestive)'}"),
        *[("" if place else label, text) for place, text in enumerate(describe_sent(design))],
        *([("scores", _SCORES)] if design.checks_output else []),
        ("takes", _format_duration_estimate(estimate)),
        ("caches", describe_caches(design)),
        ("answers", "kept beside the figures, without secrets" if design.keep_answers else "not kept"),
        *(("port", f"{arm.plan.port}; each boot launches a server of its own and stops it")
          for arm in design.launched[:1]),
    ]  # fmt: skip
    rows += [("server", f"{line}; it runs already, and is never stopped") for line in list_servers(design)]
    if peers := list(dict.fromkeys(host for arm in design.arms for host in arm.request.peers)):
        rows.insert(1, ("hosts", f"this one and {', '.join(peers)}"))
    rows += [("stops", f"{name}, which would disturb what is measured") for name in stopped]
    rows += [("note", f"{design.synthetic}: figures say nothing about a real model")] if design.synthetic else []
    return rows


def list_servers(design: Design) -> list[str]:
    """Return what each running server reports, one line each."""
    return ["; ".join(list_server_facts(each.url, each.model, each.facts)) for each in design.servers]


def describe_sent(design: Design) -> list[str]:
    """Return what each boot sends, or that starts are judged, one sentence each."""
    if design.measures_start:
        return ["the seconds until a server is ready; nothing is sent but what shows that"]
    least = "at least " if max(design.concurrency) > 1 else ""
    length = f"answers × {design.scale:g}{'' if design.fixed else ' at most'}"
    temperature = "of the model" if design.temperature is None else f"{design.temperature:g}"
    temperature += "" if design.top_p is None else f", top-p {design.top_p:g}"
    count, streams = store.count_measured_requests(design), ", ".join(map(str, design.concurrency))
    requests = f", {pluralize(count, 'request')} per boot" if count else ""
    return [
        f"the suite {design.suite}, {least}{pluralize(design.rounds, 'round')} per boot, {length}",
        f"{streams} at a time{requests}; temperature {temperature}",
    ]


def describe_caches(design: Design) -> str:
    """Return the compile caches of the arms."""
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
    """Return the commands that watch and stop an experiment, one per line."""
    command = f"{program} {design.command_word}"
    return f"  watch: {command} attach {design.id}\n  stop:  {command} stop {design.id}"


def format_event(design: Design, event: Happened) -> str:
    """Return an event in one line; empty for events that are not shown."""
    match event:
        case BootBegan():
            again = f", attempt {event.attempt}" if event.attempt > 1 else ""
            return (
                f"boot {event.number + 1} of {len(design.order)}: {_arm_name(design, event.arm)}{again} as {event.run}"
            )
        case RequestMeasured(stage=stage, request=request):
            answer = f"{format_number(request.decode_tok_s, 1, 'tok/s'):>12}  {request.tokens} tokens"
            answer = f"failed: {request.error}" if request.error else f"{answer} in {request.total:.1f} s"
            return f"  {STAGES.get(stage, stage):<24}  {request.kind:<9} {answer}"
        case BootEnded(boot=boot):
            return _format_ended_boot(boot, design.attempts)
        case RoundBegan() | ExperimentExtended():
            return _format_addition(design, event)
        case ExperimentHalted(why=why):
            return f"ended early: {why}"
        case _:
            return ""


def _format_addition(design: Design, event: RoundBegan | ExperimentExtended) -> str:
    if isinstance(event, ExperimentExtended):
        return f"extended by {pluralize(len(event.order), 'boot')}"
    names = ", ".join(_arm_name(design, arm) for arm in event.field)
    if event.key == CONFIRM:
        return f"to be sure: {names}, {pluralize(len(event.order), 'boot')} in turn" if event.order else ""
    if event.key == PUBLISHED:
        return "the published setting once more"
    return f"round of {event.key}: {pluralize(len(event.field), 'setting')}: {names}"


def _arm_name(design: Design, arm: int) -> str:
    return design.arms[arm].name if 0 <= arm < len(design.arms) else UNKNOWN


def _format_ended_boot(boot: Boot, attempts: int) -> str:
    if boot.error:
        again = "; retrying once" if boot.attempt < attempts else "; continuing without it"
        return f"  failed{again}\n    " + "\n    ".join(boot.error.split("\n"))
    start = f"ready after {format_duration(boot.ready)}{f' ({boot.cache})' if boot.cache else ''}"
    speed = "" if boot.start else f", {format_number(median_speed(boot), 1, 'tok/s')}"
    return f"  {start}{speed}, took {format_duration(boot.took)}"


class CandidateRow(NamedTuple):
    """A setting of a tune: its arm, state, boots and speed."""

    arm: int
    name: str
    standing: str
    """`ahead`, `in the field`, `out`, `failed`, `to come`, or `no figures` if its answers were too short."""
    boots: int
    tok_s: float | None
    ready: float | None
    why: str = ""
    """Why it failed."""


def _list_tune_rows(
    design: Design, tuning: Tuning, boot: DurationEstimate, rows: Sequence[tuple[str, str]]
) -> list[tuple[str, str]]:
    outlook = "how long a boot takes is unknown until the first one is over"
    if boot.seconds:
        room = pluralize(int(tuning.budget / boot.seconds), "boot")
        outlook = f"room for about {room} of {format_duration(boot.seconds)}, {boot.source}"
        if not boot.whole:
            seconds = format_duration(boot.seconds)
            outlook = f"room for fewer than {room}: each starts in {seconds}, {boot.source}, and is measured after that"
    head = [
        ("recipe", design.recipe),
        ("budget", f"{format_duration(tuning.budget)}; {outlook}"),
        *((label, axis) for label, axis in _label_rest("tries", tuning.axes)),
    ]
    left_out = [f"{name}: {why}" for name, why in tuning.left_out.items()]
    tail = [(label, text) for label, text in _label_rest("not", left_out)]
    saved = f"a setting that is shown to be faster becomes the recipe {tuning.save_as}; none is overwritten"
    return [*head, *tail, *(row for row in rows if row[0] not in _REPLACED), ("saves", saved)]


_REPLACED = frozenset({"recipe", "varies", "boots", "takes", "caches"})


def _label_rest(label: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    return [("" if place else label, text) for place, text in enumerate(texts)]


def list_candidates(progress: Progress) -> list[CandidateRow]:
    """Return every setting of a tune: measured ones, fastest first, then untried and failed ones."""
    design = progress.design
    field = progress.rounds[-1].field if progress.rounds else (0,)
    best = tune_schedule.choose_leader(progress) if progress.boots else 0
    candidates = []
    for arm, setting in enumerate(design.arms):
        summary = summarize_arm(progress.boots, arm)
        errors = [boot.error for boot in progress.boots if boot.arm == arm and boot.error]
        starts = summary.cached or summary.cold
        standing = _stand(arm, best, field, summary)
        candidates.append(
            CandidateRow(
                arm,
                setting.name,
                standing,
                summary.boots,
                summary.tok_s.median if summary.tok_s else None,
                starts.median if starts else None,
                errors[0].split("\n")[0] if errors else "",
            )
        )
    return sorted(
        candidates,
        key=lambda candidate: (candidate.standing == "failed", candidate.tok_s is None, -(candidate.tok_s or 0.0)),
    )


def _stand(arm: int, best: int, field: Sequence[int], summary: ArmSummary) -> str:
    if not summary.boots:
        return "failed" if summary.failed else "to come"
    if summary.tok_s is None:
        return "no figures"
    if arm == best:
        return "ahead"
    return "in the field" if arm in field else "out"


def format_best(design: Design, outcome: TuneOutcome) -> str:
    """Return which setting is fastest and by how much, or that none is shown to be faster."""
    name = design.arms[outcome.best].name
    if outcome.tried <= 1:
        return "only the published setting has been measured" if outcome.tried else "nothing has been measured yet"
    if not outcome.best:
        return f"no setting measured faster than the published one, of {pluralize(outcome.tried, 'setting')}"
    ratio = outcome.comparison.tok_s if outcome.comparison else None
    shown = ratio is not None and ratio.excludes_one and not is_noisy(ratio)
    answers = f"answers alike: {outcome.answers}"
    if is_faster(outcome) and ratio:
        return f"{name} is faster than the published setting: {format_ratio(ratio)} times the tok/s; {answers}"
    if not outcome.confirmed:
        much = f"{format_ratio(ratio)} times the tok/s of the published setting" if shown else "not shown to be faster"
        return f"ahead so far: {name}, {much}, by the boots that it was chosen by; {answers}"
    refused = (
        [confound.what for confound in outcome.comparison.confounds if confound.refuses] if outcome.comparison else []
    )
    why = f", since {refused[0]}" if refused else ""
    noisy = ": too noisy to tell" if is_noisy(ratio) else ""
    return f"no setting is shown to be faster than the published one{why}{noisy}; the nearest is {name}; {answers}"


def list_outcome_lines(design: Design, boots: Sequence[Boot], outcome: TuneOutcome) -> list[str]:
    """Return the result of a tune as lines: the best setting first, then the details."""
    lines = [format_best(design, outcome)]
    confounds = outcome.comparison.confounds if outcome.comparison and outcome.confirmed else ()
    if outcome.comparison and outcome.confirmed:
        a, b = outcome.comparison.boots
        lines.append(f"by {a} and {b} boots after the choice, in tok/s with the suite {design.suite}")
    if outcome.recipe:
        lines.append(f"the recipe: {outcome.recipe}")
    elif outcome.best:
        lines += [f"the recipe was not written: {outcome.unwritten}"] if outcome.unwritten else []
        lines.append(f"to keep it as a recipe: dflash-tui tune keep {design.id}")
    if outcome.tried == 1 and NO_ROOM in outcome.left_out.values():
        lines.append(_describe_need(boots, outcome.spent))
    budget = design.tuning.budget if design.tuning else 0.0
    lines.append(
        f"{pluralize(outcome.tried, 'setting')} tried in {pluralize(len(boots), 'boot')}, "
        f"{format_duration(outcome.spent)} of {format_duration(budget)}"
    )
    lines += [
        f"{'refused' if confound.refuses else 'note'}: {confound.what}: {confound.evidence}" for confound in confounds
    ]
    lines += [f"dropped: {name}: {why.splitlines()[0]}" for name, why in outcome.dropped.items()]
    lines += [f"not tried: {name}: {why}" for name, why in outcome.left_out.items()]
    return lines


def _describe_need(boots: Sequence[Boot], spent: float) -> str:
    seconds = max((boot.prepared or 0.0) + (boot.took or 0.0) for boot in boots)
    minutes = -(-reckon_verdict_budget(boots, spent) // 60)
    return f"a boot takes {format_duration(seconds)}: --budget {minutes:.0f}m has room for a first verdict"


def build_settings_table(progress: Progress) -> Table:
    """Return a row per setting: name, state, boots, tok/s and seconds to ready."""
    rows = [
        (
            candidate.name,
            candidate.standing,
            str(candidate.boots) if candidate.boots else UNKNOWN,
            format_number(candidate.tok_s, 1),
            format_duration(candidate.ready),
        )
        for candidate in list_candidates(progress)
    ]
    return Table(("setting", "", "boots", "tok/s", "ready"), tuple(rows), (2, 3, 4))
