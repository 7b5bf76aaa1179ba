"""An A/B or tune before its verdict: its design, its events, its boots and figures so far, the result of a tune."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import groupby

from dflash_tui.common.formatting import UNKNOWN, format_duration, format_number, format_synthetic, pluralize
from dflash_tui.events import Event, RequestDone
from dflash_tui.experiments import store, tune_schedule
from dflash_tui.experiments.analysis.measures import ArmSummary, is_uncached, median_speed, summarize_arm
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
)
from dflash_tui.experiments.progress import Progress
from dflash_tui.experiments.tune_schedule import NO_ROOM, is_faster, reckon_verdict_budget
from dflash_tui.presentation.benchmark_text import list_server_facts
from dflash_tui.presentation.report import (
    Cell,
    Meter,
    Note,
    Part,
    Span,
    Table,
    format_ratio,
    is_noisy,
)
from dflash_tui.presentation.verdict_text import list_confounds, mark_arm, name_arm

_SCORES = "the server without speculation scores every token afterwards, which takes as long as its answers"
_ARM = 16  # cells of an arm's name
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
    hosts = f"this one and {', '.join(design.other_hosts)}"
    rows = [("recipe", design.recipe), *([("hosts", hosts)] if design.other_hosts else [])]
    if tuning := design.tuning:
        rows += [
            ("budget", f"{format_duration(tuning.budget)}; {_describe_room(tuning.budget, estimate)}"),
            *_label_first("tries", tuning.axes),
            *_label_first("not", [f"{name}: {why}" for name, why in tuning.left_out.items()]),
        ]
    else:
        names = " ".join(design.arms[arm].name for arm in design.order)
        counted = "turns at a running server are one boot" if design.servers else "one boot per arm"
        decided = design.honest or design.checks_output
        suggestive = "" if decided else f" ({counted}: a verdict is only suggestive)"
        rows += [
            ("varies", f"{design.vary}: {', '.join(arm.name for arm in design.arms)}"),
            ("boots", f"{pluralize(len(design.order), 'boot')}: {names}{suggestive}"),
        ]
    rows += _label_first("judges" if design.measures_start else "sends", describe_sent(design))
    rows += [("scores", _SCORES)] if design.checks_output else []
    if not tuning:
        rows += [("takes", _format_duration_estimate(estimate)), ("caches", describe_caches(design))]
    rows += [
        ("answers", "kept beside the figures, without secrets" if design.keep_answers else "not kept"),
        *(
            ("port", f"{arm.plan.port}; each boot launches a server of its own and stops it")
            for arm in design.launched[:1]
        ),
        *(("server", f"{line}; it runs already, and is never stopped") for line in list_servers(design)),
        *(("stops", f"{name}, which would disturb the measurement") for name in stopped),
    ]
    rows += [("note", format_synthetic(design.synthetic))] if design.synthetic else []
    if tuning:
        saved = f"a setting shown to be faster is saved as the recipe {tuning.save_as}; no recipe is overwritten"
        rows.append(("saves", saved))
    return rows


def _label_first(label: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    return [("" if place else label, text) for place, text in enumerate(texts)]


def _describe_room(budget: float, boot: DurationEstimate) -> str:
    if not boot.seconds:
        return "how long a boot takes is unknown until the first one is over"
    room, seconds = pluralize(int(budget / boot.seconds), "boot"), format_duration(boot.seconds)
    if boot.whole:
        return f"room for about {room} of {seconds}, {boot.source}"
    return f"room for fewer than {room}: each starts in {seconds}, {boot.source}, and is measured after that"


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


def build_boots_table(progress: Progress, now: float = 0.0) -> Table:
    """Return a row per boot of the design, also those to come: its start and its measured figures."""
    design, over, current = progress.design, {boot.number: boot for boot in progress.boots}, progress.current
    rows: list[tuple[Cell, ...]] = []
    for number, arm in enumerate(design.order):
        boot, tries = over.get(number), sum(each.number == number for each in progress.tries)
        mark, took, cells, remark = "·", "", [""] * 4, "to come"
        if boot:
            mark, took = "✗" if boot.error else "✓", format_duration(boot.took)
            start = boot.cache or ("none" if is_uncached(progress.boots, arm) else UNKNOWN)
            cells = [start, format_duration(boot.ready), format_number(median_speed(boot)), str(len(boot.requests))]
            tries, remark = boot.attempt - 1, boot.error
        elif current and current.number == number:
            mark, took = "◐" if progress.driven else "!", format_duration(max(0.0, now - current.began))
            tries, remark = current.attempt - 1, describe_stage(progress)
        remark = ", ".join(filter(None, (f"attempt {tries + 1}" if tries else "", " ".join(remark.split()))))
        shown = cells[:2] if design.measures_start else cells
        arm_name = mark_arm(arm, name_arm(design, arm, _ARM))
        rows.append((str(number + 1), arm_name, Span(mark, mark), took, *shown, Span(remark, mark)))
    figures = ("start", "ready") if design.measures_start else ("start", "ready", "tok/s", "requests")
    return Table(("boot", "arm", "", "took", *figures, "remark"), tuple(rows), (0, 3, 5, 6, 7)[: 1 + len(figures)])


def describe_stage(progress: Progress) -> str:
    """Return the current boot's stage, or "" between boots."""
    current = progress.current
    if current is None or current.stage != "round":
        return STAGES.get(current.stage, current.stage) if current else ""
    if not progress.due:
        return f"measuring, {pluralize(current.requests, 'request')} answered"
    if current.requests >= progress.due:
        return f"all {pluralize(progress.due, 'request')} answered"
    return f"request {current.requests + 1} of {progress.due}"


def list_prompt_parts(
    progress: Progress, current: Sequence[RequestDone], kinds: Sequence[str], most: int
) -> list[Part]:
    """Return the median tok/s so far per kind of prompt and arm in at most `most` lines.

    `current` are the counted requests of the running boot, `kinds` all kinds that its suite has.
    """
    by_kind: dict[str, dict[int, list[float]]] = {kind: {} for kind in kinds}
    here = [(progress.current.arm, done) for done in current] if progress.current else []
    for arm, done in [*((boot.arm, done) for boot in progress.boots for done in boot.requests), *here]:
        if not done.error and done.decode_tok_s is not None:
            kind = done.kind + (f" ×{done.streams}" if done.streams != 1 else "")
            by_kind.setdefault(kind, {}).setdefault(arm, []).append(done.decode_tok_s)
    # A kind measured at several numbers of streams is listed once per number, not under its plain name.
    measured = {name.partition(" ×")[0] for name, arms in by_kind.items() if arms}
    named = {kind: arms for kind, arms in by_kind.items() if arms or kind not in measured}
    longest = max((statistics.median(values) for arms in named.values() for values in arms.values()), default=1.0)
    rows: list[tuple[Cell, ...]] = []
    for kind, arms in named.items():
        for arm in range(len(progress.design.arms)):
            values = arms.get(arm, [])
            median = statistics.median(values) if values else None
            label, count = "" if arm else kind, pluralize(len(values), "request") if values else ""
            bar = Meter(None if median is None else median / longest, f"arm {arm}")
            rows.append((Span(label, "dim"), mark_arm(arm), bar, format_number(median), count))
    if len(rows) <= most:
        return [Table((), tuple(rows), (3,))]
    per_kind = len(progress.design.arms)
    shown = max(1, (most - 1) // per_kind)
    hidden = Note(f"… and {pluralize(len(named) - shown, 'kind')} of prompts", style="dim")
    return [Table((), tuple(rows[: min(most - 1, shown * per_kind)]), (3,)), hidden]


_STANDINGS = {"ahead": "▲", "in the field": "●", "to come": "·", "no figures": "?", "out": "▾", "failed": "✗"}


def list_setting_parts(progress: Progress, most: int = 0) -> list[Part]:
    """Return a row per setting of a tune in at most `most` lines: those ahead first, the failed ones last."""
    design, places = progress.design, list(_STANDINGS)
    field = progress.rounds[-1].field if progress.rounds else (0,)
    best = tune_schedule.choose_leader(progress) if progress.boots else 0
    here = progress.current.arm if progress.current and progress.driven else None
    arms = {arm: summarize_arm(progress.boots, arm) for arm in range(len(design.arms))}
    standings = {arm: _stand(arm, best, field, summary) for arm, summary in arms.items()}
    speeds = {arm: summary.tok_s.median if summary.tok_s else None for arm, summary in arms.items()}
    longest = max(filter(None, speeds.values()), default=1.0)
    ranked = sorted(arms, key=lambda arm: (places.index(standings[arm]), arm != 0, -(speeds[arm] or 0.0)))
    rows: list[tuple[Cell, ...]] = []
    for arm in ranked:
        summary, standing, speed = arms[arm], standings[arm], speeds[arm]
        sign, starts = _STANDINGS[standing], summary.cached or summary.cold
        errors = [boot.error.split("\n")[0] for boot in progress.boots if boot.arm == arm and boot.error]
        word = "measuring" if arm == here else f"failed: {errors[0]}" if standing == "failed" else standing
        rows.append((
            Span(f"{sign} {design.arms[arm].name}", "bold" if arm == here else sign),
            Meter(None if speed is None else speed / longest, sign),
            format_number(speed, 1),
            str(summary.boots) if summary.boots else UNKNOWN,
            format_duration(starts.median if starts else None),
            Span(word, "bold" if arm == here else sign),
        ))  # fmt: skip
    shown = rows if not most or len(rows) <= most else rows[: most - 1]
    hidden = f"… and {pluralize(len(rows) - len(shown), 'setting')}"
    table = Table(("setting", "", "tok/s", "boots", "ready", ""), tuple(shown), (2, 3, 4))
    return [table, *([Note(hidden, style="dim")] if len(shown) < len(rows) else [])]


def _stand(arm: int, best: int, field: Sequence[int], summary: ArmSummary) -> str:
    """Return the place of a setting in a tune; `no figures` if its answers were too short."""
    if not summary.boots:
        return "failed" if summary.failed else "to come"
    if summary.tok_s is None:
        return "no figures"
    if arm == best:
        return "ahead"
    return "in the field" if arm in field else "out"


def build_rounds_table(progress: Progress, most: int) -> Table:
    """Return a row per varied setting, the last `most`: the settings left in each round, and their names."""
    rows: list[tuple[Cell, ...]] = []
    for key, of_key in groupby(progress.rounds, key=lambda each: each.key):
        rounds = list(of_key)
        left = " → ".join(str(len(each.field)) for each in rounds)
        if key == CONFIRM:
            left = pluralize(sum(len(each.order) for each in rounds), "boot")
        is_last = rounds[-1] is progress.rounds[-1] and not progress.finished
        sign = "✓" if not is_last else "◐" if progress.driven else "!"
        name = {CONFIRM: "to be sure", PUBLISHED: "once more"}.get(key, key)
        names = ", ".join(_arm_name(progress.design, arm) for arm in rounds[-1].field)
        rows.append((Span(f"{sign} {name}", sign), left, Span(names, "dim")))
    return Table((), tuple(rows[-most:]))


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
        return f"ahead so far: {name}, {much}, by the same boots that it was chosen by; {answers}"
    refused = (
        [confound.what for confound in outcome.comparison.confounds if confound.refuses] if outcome.comparison else []
    )
    why = f", since {refused[0]}" if refused else ""
    noisy = ": too noisy to tell" if is_noisy(ratio) else ""
    return f"no setting is shown to be faster than the published one{why}{noisy}; the nearest is {name}; {answers}"


def list_outcome(design: Design, boots: Sequence[Boot], outcome: TuneOutcome) -> list[Note]:
    """Return the result of a tune: the best setting first, with a star if it is shown to be faster."""
    lines, confounds = list[str](), list[Note]()
    if outcome.comparison and outcome.confirmed:
        a, b = outcome.comparison.boots
        lines.append(f"by {a} and {b} boots after the choice, in tok/s with the suite {design.suite}")
        confounds = list_confounds(design, outcome.comparison)
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
    rest = [f"dropped: {name}: {why.splitlines()[0]}" for name, why in outcome.dropped.items()]
    rest += [f"not tried: {name}: {why}" for name, why in outcome.left_out.items()]
    best = Note(format_best(design, outcome), "★" if is_faster(outcome) else "", "bold")
    return [best, *map(Note, lines), *confounds, *map(Note, rest)]


def _describe_need(boots: Sequence[Boot], spent: float) -> str:
    seconds = max((boot.prepared or 0.0) + (boot.took or 0.0) for boot in boots)
    minutes = -(-reckon_verdict_budget(boots, spent) // 60)
    return f"a boot takes {format_duration(seconds)}: --budget {minutes:.0f}m has room for a first verdict"
