"""The Markdown report of an experiment: the verdict first, then all that somebody else needs to repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from dflash_tui.common.formatting import (
    UNKNOWN,
    format_number,
    format_time,
    pluralize,
    truncate,
)
from dflash_tui.common.own_secrets import LEFT_OUT
from dflash_tui.common.secret_names import is_secret
from dflash_tui.events import RequestDone
from dflash_tui.experiments.analysis.report import Comparison, ExperimentReport, Sweep
from dflash_tui.experiments.design import Boot, Design
from dflash_tui.presentation import experiment_tables as tables
from dflash_tui.presentation import verdict_text
from dflash_tui.presentation.markdown import (
    escape_cells,
    escape_text,
    quote_block,
    quote_code,
    render_bullets,
    render_table,
)

_AXIS = 41
_BAR = 40
_WIDEST = 100
_DIGITS = 12  # of a SHA-256, enough to tell two apart


def render_experiment(report: ExperimentReport) -> str:
    """Return the whole report."""
    return "\n\n".join(part for part in _render_sections(report) if part) + "\n"


def _render_sections(report: ExperimentReport) -> Iterator[str]:
    design = report.design
    title = f"{'A/B' if design.suite else 'Side by side'} of {quote_code(design.recipe)}"
    yield f"# {title}: {escape_text(tables.describe_variation(design))}"
    if label := tables.synthetic_label(design):
        yield f"> **{escape_text(label)}.** The comparison holds for this engine configuration, not for a real model."
    how = f"{tables.describe_certainty(design)}, order {tables.format_boot_order(design)}"
    yield f"{format_time(design.made_at)}, {how}, written by dflash-tui {escape_text(design.version)}."
    if not report.complete:
        yield f"**Not complete**: {len(report.boots)} of {len(design.order)} boots are over."
    for one in report.comparisons:
        yield from _render_verdict(report, one)
    if report.sweep:
        yield "## Sweep"
        yield render_bullets(escape_text(line) for line in verdict_text.describe_sweep(report))
        yield _render_sweep(design, report.sweep)
    yield "## Arms"
    rows = [
        (tables.name_arm(design, row.arm), _format_boot_count(row), *(cell.with_range() for cell in row.figures))
        for row in tables.list_arm_rows(design, report.boots)
    ]
    yield render_table(("arm", "boots", *tables.FIGURES), escape_cells(rows), range(1, 9))
    yield "Medians of a boot's requests, then of the boots, with the least and the greatest; a verdict pairs prompts."
    yield from _render_starts(report)
    yield from _render_method(report)
    yield from _render_machine(report)
    yield from _render_commands(report)
    yield from _render_requests(report)


def _format_boot_count(row: tables.ArmRow) -> str:
    return f"{row.boots} of {row.boots + row.failed}" if row.failed else str(row.boots)


def _render_verdict(report: ExperimentReport, one: Comparison) -> Iterator[str]:
    design = report.design
    yield f"## Verdict: {escape_text(f'{tables.name_arm(design, one.b)} against {tables.name_arm(design, one.a)}')}"
    yield f"**{escape_text(verdict_text.format_headline(report, one))}**"
    yield render_bullets(escape_text(str(line)) for line in verdict_text.list_details(report, one, labelled=True))
    if one.prompts:
        rows = tables.list_prompt_rows(report, one)
        a, b = (escape_text(f"{tables.name_arm(design, arm, 16)}, {one.measure}") for arm in (one.a, one.b))
        header = ("prompt", a, b, "ratio and interval", "n")
        yield render_table(header, escape_cells(row.cells() for row in rows), range(1, 5))
        yield quote_block(*_draw_intervals(rows))


def _draw_intervals(rows: Sequence[tables.PromptRow]) -> list[str]:
    """Return the interval of each prompt and of all, drawn around 1, with an axis below."""
    ratios = [(truncate(row.name, 24), row.ratio) for row in rows if row.ratio]
    most = tables.axis_scale(ratio for _, ratio in ratios)
    width = max((len(name) for name, _ in ratios), default=0)
    drawn = [
        f"{name:<{width}}  {tables.draw_interval(ratio, most, _AXIS)}  {verdict_text.format_factor(ratio.ratio)}"
        for name, ratio in ratios
    ]
    return [*drawn, f"{'':{width}}  {tables.draw_axis(most, _AXIS)}"]


def _render_sweep(design: Design, sweep: Sweep) -> str:
    rows = [
        (
            tables.name_arm(design, point.arm),
            f"{format_number(point.tok_s)} ({format_number(point.low)} to {format_number(point.high)})",
            format_number(point.al, 2),
            sweep.standing(point.arm),
        )
        for point in sweep.points
    ]
    return render_table((escape_text(design.vary), "tok/s", "AL", ""), escape_cells(rows), (1, 2))


def _render_starts(report: ExperimentReport) -> Iterator[str]:
    bars = tables.list_start_rows(report.boots, range(len(report.design.arms)))
    if bars:
        yield "## Start-up"
        yield quote_block(
            *(
                f"{bar.what:<14}{tables.arm_letter(bar.arm)}  {'█' * max(1, round(bar.share * _BAR)):<{_BAR}}"
                f"  {tables.format_seconds(bar.seconds)}"
                for bar in bars
            )
        )


def _render_method(report: ExperimentReport) -> Iterator[str]:
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
        yield "To repeat it on a machine like this one:"
        yield quote_block(design.command)
    yield render_bullets(
        [
            f"suite {quote_code(design.suite)}, SHA-256 {quote_code(design.digest)}",
            f"{pluralize(design.rounds, 'round')} of every prompt in each boot, in an order shuffled from seed "
            f"{design.seed}; answers {design.scale:g} times their usual length; {streams} at a time"
            f"{', more rounds where one would not keep them busy twice' if max(design.concurrency) > 1 else ''}",
            f"temperature {temperature}; warm-ups are not counted; the first real request is measured alone",
            "the end of an answer is ignored, so that every answer has its full length"
            if _all_full_length(report.boots)
            else "some answers ended before their full length",
            f"each arm has a compile cache of its own, empty at its first boot: {'yes' if design.own_cache else 'no'}",
            f"{tables.count_requests(report.boots)} requests in {pluralize(len(report.boots), 'boot')}; "
            f"the boots took {tables.total_seconds(report.boots)} together",
        ]
    )


def _all_full_length(boots: Sequence[Boot]) -> bool:
    return all(done.finish in {"length", ""} for boot in boots for done in boot.requests if not done.error)


def _render_machine(report: ExperimentReport) -> Iterator[str]:
    boots = report.boots
    gpus = sorted({gpu for boot in boots for gpu in boot.gpus})
    drivers = sorted({boot.driver for boot in boots if boot.driver})
    yield "## Machine"
    driver = ", ".join(map(escape_text, drivers)) or UNKNOWN
    nothing = "none" if report.design.arms[0].plan.on_cpu else UNKNOWN
    yield render_bullets(
        [f"GPU: {', '.join(map(escape_text, gpus)) or nothing}, driver {driver}, clock {tables.format_clocks(boots)}"]
    )
    header = ("boot", "arm", "cache", "up", "ready", "took", "before", "after", "")
    rows = [
        (row.number, tables.arm_letter(boot.arm), *row[1:5], row.before, row.after, row.remark)
        for boot, row in zip(boots, tables.list_boot_rows(boots), strict=True)
    ]
    yield render_table(header, escape_cells(rows), (0, 3, 4, 5))


def _render_commands(report: ExperimentReport) -> Iterator[str]:
    yield "## What was launched"
    for arm, planned in enumerate(report.design.arms):
        boot = next((boot for boot in report.boots if boot.arm == arm and boot.argv), None)
        yield f"### {escape_text(tables.name_arm(report.design, arm))}"
        yield quote_block(planned.request.to_command(), "", *_format_launch(planned.plan.argv, planned.plan.env, boot))
        if boot:
            patches = ", ".join(f"{quote_code(name)} {quote_code(sha[:_DIGITS])}" for name, sha in boot.patches.items())
            versions = ", ".join(
                f"{escape_text(name)} {escape_text(version)}" for name, version in boot.versions.items()
            )
            yield render_bullets(
                [
                    f"inherited environment: {_render_inherited(boot)}",
                    f"engine: {escape_text(boot.engine)}",
                    f"patches: {patches or 'none'}",
                    f"versions: {versions or UNKNOWN}",
                ]
            )


def _render_inherited(boot: Boot) -> str:
    if not boot.inherited:
        return UNKNOWN if boot.inherited is None else "nothing that affects an engine"
    return ", ".join(quote_code(truncate(f"{name}={value}", _WIDEST)) for name, value in boot.inherited.items())


def _format_launch(argv: Sequence[str], env: dict[str, str], boot: Boot | None) -> list[str]:
    """Return the environment, without secrets, and the command that a boot of an arm ran."""
    argv, env = (boot.argv, boot.env) if boot else (argv, env)
    shown = [f"{key}={LEFT_OUT if is_secret(key) else shlex.quote(value)} \\" for key, value in sorted(env.items())]
    return [*shown, shlex.join(argv)]


def _render_requests(report: ExperimentReport) -> Iterator[str]:
    yield "## Every request"
    header = (*["boot", "arm", "prompt", "round", "streams", "tokens"], *tables.REQUEST_FIGURES, "end", "answer")
    rows = [
        [str(boot.number + 1), tables.arm_letter(boot.arm), *_request_row(stage, done)]
        for boot in report.boots
        for stage, done in (
            *([("cold", boot.cold_request)] if boot.cold_request else []),
            *((str(done.round + 1), done) for done in boot.requests),
        )
    ]
    yield render_table(header, rows, (0, *range(3, 10)))


def _request_row(stage: str, done: RequestDone) -> list[str]:
    digest = quote_code(done.digests[-1][:_DIGITS]) if done.digests else ""
    figures = (str(done.streams), str(done.tokens), *tables.request_cells(done))
    return [escape_text(done.kind), stage, *figures, escape_text(done.error or done.finish), digest]
