"""The report of an A/B in Markdown: the verdict in words first, then all that somebody else needs to repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from dflash_tui.common.formatting import (
    UNKNOWN,
    format_duration,
    format_gib,
    format_number,
    format_time,
    format_usage,
    pluralize,
    truncate,
)
from dflash_tui.common.redaction import LEFT_OUT, is_secret
from dflash_tui.events import RequestDone
from dflash_tui.experiments.analysis.report import Comparison, ExperimentReport
from dflash_tui.experiments.design import Boot, Conditions
from dflash_tui.planning import request
from dflash_tui.presentation import verdict_text
from dflash_tui.presentation.experiment_tables import (
    ARMS_HEADER,
    arm_letter,
    axis_scale,
    count_requests,
    describe_certainty,
    describe_variation,
    draw_axis,
    draw_interval,
    format_boot_order,
    format_clocks,
    format_factor,
    list_other_details,
    list_start_bars,
    name_arm,
    name_prompt,
    synthetic_label,
    tabulate_arms,
    tabulate_prompts,
    total_seconds,
)
from dflash_tui.presentation.markdown import escape_text, quote_block, quote_code, render_bullets, render_table

_AXIS = 41
_BAR = 40
_WIDEST = 100
_DIGITS = 12  # of a SHA-256, enough to tell two apart


def render_experiment(report: ExperimentReport) -> str:
    """Return the whole report."""
    return "\n\n".join(part for part in _parts(report) if part) + "\n"


def _parts(report: ExperimentReport) -> Iterator[str]:
    design = report.design
    title = f"{'A/B' if design.suite else 'Side by side'} of {quote_code(design.recipe)}"
    yield f"# {title}: {escape_text(describe_variation(design))}"
    if label := synthetic_label(design):
        yield f"> **{escape_text(label)}.** What is compared holds for this set-up of the engine, not for such a model."
    how = f"{describe_certainty(design)}, order {format_boot_order(design)}"
    yield f"{format_time(design.made_at)}, {how}, told by dflash-tui {escape_text(design.version)}."
    if not report.complete:
        yield f"**Not complete**: {len(report.boots)} of {len(design.order)} boots are over."
    for one in report.comparisons:
        yield from _verdict(report, one)
    if report.sweep:
        yield "## Sweep"
        yield render_bullets(escape_text(line) for line in verdict_text.describe_sweep(report))
        yield _sweep(report)
    yield "## Arms"
    yield render_table(
        ARMS_HEADER,
        [[escape_text(cell) for cell in row] for row in tabulate_arms(report)],
        range(1, 9),
    )
    yield "Medians of a boot's requests, then of the boots, with the least and the greatest; a verdict pairs prompts."
    yield from _starts(report)
    yield from _how(report)
    yield from _machine(report)
    yield from _launched(report)
    yield from _samples(report)


def _verdict(report: ExperimentReport, one: Comparison) -> Iterator[str]:
    design = report.design
    yield f"## Verdict: {escape_text(name_arm(design, one.b))} against {escape_text(name_arm(design, one.a))}"
    yield f"**{escape_text(verdict_text.format_headline(report, one))}**"
    yield render_bullets(escape_text(line) for line in list_other_details(report, one))
    if one.prompts:
        a, b = (name_arm(design, arm, 16) for arm in (one.a, one.b))
        measure = escape_text(one.measure)
        header = ("prompt", f"{escape_text(a)}, {measure}", f"{escape_text(b)}, {measure}", "ratio and interval", "n")
        yield render_table(
            header,
            [[escape_text(cell) for cell in row] for row in tabulate_prompts(report, one)],
            range(1, 5),
        )
        yield quote_block(*render_ranges(one))


def render_ranges(one: Comparison) -> list[str]:
    """Return the interval of each prompt and of all, drawn around 1, with an axis below."""
    rows = [(name_prompt(row), row.ratio) for row in one.prompts] + ([("all", one.ratio)] if one.ratio else [])
    most = axis_scale([ratio for _, ratio in rows])
    width = max((len(truncate(kind, 24)) for kind, _ in rows), default=0)
    drawn = [
        f"{truncate(kind, 24):<{width}}  {draw_interval(ratio, most, _AXIS)}  {format_factor(ratio.ratio)}"
        for kind, ratio in rows
    ]
    return [*drawn, f"{'':{width}}  {draw_axis(most, _AXIS)}"]


def _sweep(report: ExperimentReport) -> str:
    if report.sweep is None:
        return ""
    rows = []
    for point in report.sweep.points:
        interval = f"{format_number(point.tok_s)} ({format_number(point.low)} to {format_number(point.high)})"
        standing = report.sweep.standing(point.arm)
        rows.append(
            [
                escape_text(name_arm(report.design, point.arm)),
                interval,
                format_number(point.al, 2),
                standing,
            ]
        )
    return render_table((escape_text(report.design.vary), "tok/s", "AL", ""), rows, (1, 2))


def _starts(report: ExperimentReport) -> Iterator[str]:
    bars = list_start_bars(report.boots, range(len(report.design.arms)))
    if not bars:
        return
    longest = max(bar.seconds for bar in bars) or 1.0
    yield "## Start-up"
    yield quote_block(
        *(
            f"{bar.what:<14}{arm_letter(bar.arm)}  {'█' * max(1, round(bar.seconds / longest * _BAR)):<{_BAR}}"
            f"  {format_number(bar.seconds, 1, 's') if bar.seconds < 60 else format_duration(bar.seconds)}"
            for bar in bars
        )
    )


def _how(report: ExperimentReport) -> Iterator[str]:
    design = report.design
    temperature = "the model's own" if design.temperature is None else f"{design.temperature:g}"
    streams = ", ".join(str(count) for count in design.concurrency)
    yield "## How it was measured"
    if not design.suite:
        yield render_bullets(
            ["in runs of their own: which prompts were sent, in what order and how sampled was not recorded"]
        )
        return
    if design.command:
        yield "Once more, on a machine like this one:"
        yield quote_block(design.command)
    yield render_bullets(
        [
            f"suite {quote_code(design.suite)}, SHA-256 {quote_code(design.digest)}",
            f"{pluralize(design.rounds, 'round')} of every prompt in each boot, in an order shuffled from seed "
            f"{design.seed}; answers {design.scale:g} times their usual length; {streams} at a time"
            f"{', more rounds where one would not keep them busy twice' if max(design.concurrency) > 1 else ''}",
            f"temperature {temperature}; warm-ups are not counted; the first real request is measured alone",
            "the end of an answer is ignored, so that every answer has its full length"
            if _full(report.boots)
            else "some answers ended before their full length",
            f"each arm has a compile cache of its own, empty at its first boot: {'yes' if design.own_cache else 'no'}",
            f"{count_requests(report.boots)} requests in {pluralize(len(report.boots), 'boot')}; "
            f"the boots took {total_seconds(report.boots)} together",
        ]
    )


def _full(boots: Sequence[Boot]) -> bool:
    return all(done.finish in {"length", ""} for boot in boots for done in boot.requests if not done.error)


def _machine(report: ExperimentReport) -> Iterator[str]:
    boots = report.boots
    gpus = sorted({gpu for boot in boots for gpu in boot.gpus})
    drivers = sorted({boot.driver for boot in boots if boot.driver})
    yield "## Machine"
    driver = ", ".join(map(escape_text, drivers)) or UNKNOWN
    nothing = "none" if report.design.arms[0].plan.on_cpu else UNKNOWN
    yield render_bullets(
        [f"GPU: {', '.join(map(escape_text, gpus)) or nothing}, driver {driver}, clock {format_clocks(boots)}"]
    )
    header = ("boot", "arm", "cache", "up", "ready", "took", "before", "after", "")
    yield render_table(header, [_boot(boot) for boot in boots], (0, 3, 4, 5))


def _boot(boot: Boot) -> list[str]:
    seconds = [format_duration(value) for value in (boot.up, boot.ready, boot.took)]
    again_ = f"attempt {boot.attempt}" if boot.attempt > 1 else ""
    remark = ", ".join(filter(None, (again_, escape_text(boot.error))))
    state = [render_conditions(boot.before), render_conditions(boot.after)]
    return [
        str(boot.number + 1),
        arm_letter(boot.arm),
        escape_text(boot.cache) or UNKNOWN,
        *seconds,
        *map(escape_text, state),
        remark,
    ]


def render_conditions(at: Conditions | None) -> str:
    """Return how the machine was, as far as somebody said."""
    if at is None:
        return UNKNOWN
    parts = [
        at.power,
        format_number(at.clock_mhz, 0, "MHz") if at.clock_mhz is not None else "",
        format_number(at.temperature_c, 0, "°C") if at.temperature_c is not None else "",
        format_usage(at.power_w, at.power_limit_w, "W") if at.power_w is not None else "",
        f"throttled: {', '.join(at.throttle)}" if at.throttle else "",
        f"foreign: {', '.join(at.foreign)}" if at.foreign else "",
        f"load {at.load:.1f}" if at.load is not None else "",
        f"{format_gib(at.available)} free" if at.available is not None else "",
    ]
    return ", ".join(part for part in parts if part) or UNKNOWN


def _launched(report: ExperimentReport) -> Iterator[str]:
    yield "## What was launched"
    for arm, made in enumerate(report.design.arms):
        boot = next((boot for boot in report.boots if boot.arm == arm and boot.argv), None)
        yield f"### {escape_text(name_arm(report.design, arm))}"
        yield quote_block(request.command(made.plan, made.options), "", *_command(made.plan.argv, made.plan.env, boot))
        if boot:
            patches = ", ".join(f"{quote_code(name)} {quote_code(sha[:_DIGITS])}" for name, sha in boot.patches.items())
            versions = ", ".join(
                f"{escape_text(name)} {escape_text(version)}" for name, version in boot.versions.items()
            )
            yield render_bullets(
                [
                    f"environment that was there before: {_inherited(boot)}",
                    f"engine: {escape_text(boot.engine)}",
                    f"patches: {patches or 'none'}",
                    f"versions: {versions or UNKNOWN}",
                ]
            )


def _inherited(boot: Boot) -> str:
    if not boot.inherited:
        return UNKNOWN if boot.inherited is None else "nothing that an engine heeds"
    return ", ".join(quote_code(truncate(f"{name}={value}", _WIDEST)) for name, value in boot.inherited.items())


def _command(argv: Sequence[str], env: dict[str, str], boot: Boot | None) -> list[str]:
    """Return the environment, without secrets, and the command that a boot of an arm ran."""
    argv, env = (boot.argv, boot.env) if boot else (argv, env)
    shown = [f"{key}={LEFT_OUT if is_secret(key) else shlex.quote(value)} \\" for key, value in sorted(env.items())]
    return [*shown, shlex.join(argv)]


def _samples(report: ExperimentReport) -> Iterator[str]:
    yield "## Every request"
    header = (
        "boot",
        "arm",
        "prompt",
        "round",
        "streams",
        "tokens",
        "TTFT s",
        "tok/s",
        "steps/s",
        "AL",
        "end",
        "answer",
    )
    rows = []
    for boot in report.boots:
        found = ([("cold", boot.cold_request)] if boot.cold_request else []) + [
            (str(d.round + 1), d) for d in boot.requests
        ]
        rows += [[str(boot.number + 1), arm_letter(boot.arm), *_request(stage, done)] for stage, done in found]
    yield render_table(header, rows, (0, 3, 4, 5, 6, 7, 8, 9))


def _request(stage: str, done: RequestDone) -> list[str]:
    figures = [format_number(value, digits) for value, digits in (
        (done.ttft, 3), (done.decode_tok_s, 1), (done.steps_s, 2), (done.acceptance_length, 2))]  # fmt: skip
    ended = escape_text(done.error) if done.error else escape_text(done.finish)
    digest = quote_code(done.digests[-1][:_DIGITS]) if done.digests else ""
    return [escape_text(done.kind), stage, str(done.streams), str(done.tokens), *figures, ended, digest]
