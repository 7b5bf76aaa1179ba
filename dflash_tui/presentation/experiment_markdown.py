"""The Markdown report of an experiment: the verdict first, then all that somebody else needs to repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from statistics import fmean

from dflash_tui.common.formatting import (
    UNKNOWN,
    format_gib,
    format_number,
    format_time,
    pluralize,
    truncate,
)
from dflash_tui.common.secrets import LEFT_OUT, is_secret
from dflash_tui.events import RequestDone
from dflash_tui.experiments.analysis.measures import START, TOKENS
from dflash_tui.experiments.analysis.report import Comparison, ExperimentReport, Sweep, list_verdicts
from dflash_tui.experiments.design import Boot, Design, HostFacts
from dflash_tui.presentation import experiment_tables as tables
from dflash_tui.presentation import intervals, output_text, start_phases, stock_text, tune_text, verdict_text
from dflash_tui.presentation.markdown import (
    escape_cells,
    escape_text,
    quote_block,
    quote_code,
    render_bullets,
    render_table,
)
from dflash_tui.vllm_output.nccl_log import describe_network

_AXIS = 41
_BAR = 40
_WIDEST = 100
_DIGITS = 12  # of a SHA-256, enough to tell two apart
_ABOUT_ARMS = (
    "The median of each boot's requests, then the median of the boots, with the least and the greatest boot. "
    f"{tables.ABOUT_RATIOS} "
    "tok/s is the decode speed of a request, its time to the first token (TTFT) left out; steps/s are its "
    "verification steps in that time. AL is the acceptance length: the tokens of an answer per verification step, "
    "the bonus token counted. Ready is the first answer after the launch; first request is what the first real one "
    "then took, sent alone. A dash is a figure that is not known."
)
_ABOUT_STARTS = (
    "Seconds from the launch to the first answer, and of inspecting models before it: the median of the boots with the "
    "least and the greatest. The first start of an arm filled its caches. A dash is a figure that is not known."
)


def render_experiment(report: ExperimentReport) -> str:
    """Return the whole report."""
    return "\n\n".join(part for part in _render_sections(report) if part) + "\n"


def _render_sections(report: ExperimentReport) -> Iterator[str]:
    design = report.design
    kind = "Tune" if report.tune else "A/B" if design.suite else "Two runs"
    title = f"{kind} of {quote_code(design.recipe)}{'' if design.suite else ' side by side'}"
    yield f"# {title}, {escape_text(tables.describe_variation(design))}"
    if label := tables.synthetic_label(design):
        yield f"> **{escape_text(label)}.** The comparison holds for this engine configuration, not for a real model."
    how = f"{tables.describe_certainty(design)}, order {tables.format_boot_order(design)}"
    yield f"{format_time(design.made_at)}, {how}, written by dflash-tui {escape_text(design.version)}."
    if not report.complete:
        yield f"**Not complete**: {len(report.boots)} of {len(design.order)} boots are over."
    yield from _render_stock(design)
    if report.tune:
        yield render_bullets(map(escape_text, tune_text.list_outcome_lines(design, report.boots, report.tune)))
    if report.sweep:
        yield "## Sweep"
        yield render_bullets(escape_text(line) for line in verdict_text.describe_sweep(report))
        yield _render_sweep(design, report.sweep)
    for comparison in list_verdicts(report):
        yield from _render_verdict(report, comparison)
    yield "## Arms"
    rows = [
        (tables.name_arm(design, row.arm), _format_boot_count(row), *(cell.with_range() for cell in row.figures))
        for row in tables.list_arm_rows(design, report.boots)
    ]
    figures = tables.list_figures(design)
    yield render_table(("arm", "boots", *figures), escape_cells(rows), range(1, len(figures) + 2))
    yield _ABOUT_STARTS if design.measures_start else _ABOUT_ARMS
    yield from _render_latency(report)
    yield from _render_starts(report)
    yield from _render_method(report)
    yield from _render_machine(report)
    yield from _render_commands(report)
    yield from _render_requests(report)


def _render_stock(design: Design) -> Iterator[str]:
    """Yield what stock is and what ours, where that is what is compared."""
    if rows := stock_text.list_stock_rows(design):
        yield "## Stock and ours"
        yield render_bullets(escape_text(row) for row in rows)
        yield quote_block(*(f"# {arm.name}\n{stock_text.format_bare_command(arm)}" for arm in design.arms))


def _format_boot_count(row: tables.ArmRow) -> str:
    return f"{row.boots} of {row.boots + row.failed}" if row.failed else str(row.boots)


def _render_verdict(report: ExperimentReport, comparison: Comparison) -> Iterator[str]:
    design = report.design
    sides = f"{tables.name_arm(design, comparison.b)} against {tables.name_arm(design, comparison.a)}"
    yield f"## Verdict: {escape_text(sides)}"
    yield f"**{escape_text(verdict_text.format_headline(report, comparison))}**"
    yield render_bullets(
        escape_text(str(line)) for line in verdict_text.list_details(report, comparison, labelled=True)
    )
    names = (verdict_text.label_arm(design, arm) for arm in (comparison.a, comparison.b))
    if comparison.outputs and (lines := output_text.list_first_difference(comparison.outputs, *names)):
        yield quote_block(*lines)
    if comparison.prompts:
        rows = tables.list_prompt_rows(comparison)
        a, b = (
            escape_text(f"{tables.name_arm(design, arm, 16)}, {comparison.measure}")
            for arm in (comparison.a, comparison.b)
        )
        letters = "/".join(tables.arm_letter(arm) for arm in (comparison.b, comparison.a))
        header = ("prompt", a, b, f"{letters} (95 % interval)", "requests of both")
        yield render_table(header, escape_cells(row.cells() for row in rows), range(1, 5))
        yield quote_block(*_draw_intervals(rows))
        if comparison.measure == TOKENS and design.rounds == 1 and min(comparison.boots) > 1:
            part = "intervals of tok/s and AL include" if design.levels else "interval of a single prompt includes"
            yield (
                f"However well the boots agree, the {part} ±17 % for what another text may do: two requests on a GB10 "
                "differed by that."
            )
    if comparison.figures:
        figure = f"{escape_text(comparison.measure)}, {_name_mean(comparison)}"
        yield render_table(("boot", "arm", figure), escape_cells(tables.list_figure_rows(comparison)), (0, 2))


def _name_mean(comparison: Comparison) -> str:
    return "seconds" if comparison.measure == START else "geometric mean over the prompts"


def _draw_intervals(rows: Sequence[tables.PromptRow]) -> list[str]:
    """Return the interval of each prompt and of all, drawn around 1, with an axis below."""
    ratios = [(truncate(row.name, 24), row.ratio) for row in rows if row.ratio]
    most = intervals.axis_scale(ratio for _, ratio in ratios)
    width = max((len(name) for name, _ in ratios), default=0)
    drawn = [
        f"{name:<{width}}  {intervals.draw_interval(ratio, most, _AXIS)}  {verdict_text.format_factor(ratio.ratio)}"
        for name, ratio in ratios
    ]
    return [*drawn, f"{'':{width}}  {intervals.draw_axis(most, _AXIS)}"]


def _render_sweep(design: Design, sweep: Sweep) -> str:
    rows = [
        (
            tables.name_arm(design, point.arm),
            tables.format_point(point),
            format_number(point.al, 2),
            sweep.standing(point.arm),
        )
        for point in sweep.points
    ]
    header = (escape_text(design.vary), "tok/s (interval against the fastest)", "AL", "")
    return render_table(header, escape_cells(rows), (1, 2))


def _render_latency(report: ExperimentReport) -> Iterator[str]:
    if rows := tables.list_latency_rows(report):
        yield "## Latency"
        header = ("arm", "concurrency", "prompt", "latency", "requests", "p50", "p90", "p95", "p99")
        yield render_table(header, escape_cells(rows), (1, *range(4, 9)))
    if energy := tables.describe_energy(report):
        yield render_bullets(map(escape_text, energy))


def _render_starts(report: ExperimentReport) -> Iterator[str]:
    design = report.design
    if rows := start_phases.list_phase_rows(design, report.boots):
        names = [escape_text(tables.name_arm(design, arm)) for arm in range(len(design.arms))]
        yield "## Starts by phase"
        yield render_table(("phase", *names), escape_cells(row.cells() for row in rows), range(1, len(names) + 1))
        yield "Medians of the boots that count, so that the parts need not add up to the whole."
    bars = tables.list_start_rows(design, report.boots, range(len(design.arms)))
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
    temperature += "" if design.top_p is None else f", top-p {design.top_p:g}"
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
    if design.measures_start:
        caches = "are emptied before each boot" if design.cold else "are filled by a first boot that does not count"
        yield render_bullets(
            [
                "the seconds from the launch to the first answer, and those of inspecting models before it; "
                "nothing else was sent",
                f"the caches of each arm {caches}",
            ]
        )
        return
    yield render_bullets(
        [
            f"suite {quote_code(design.suite)}, SHA-256 {quote_code(design.digest)}",
            f"{pluralize(design.rounds, 'round')} of every prompt in each boot, in an order shuffled from seed "
            f"{design.seed}; {_format_length(design.scale)}; concurrency {streams}"
            f"{_describe_fillers(report)}",
            f"temperature {temperature}{_name_samplers(report.boots)}; warm-ups are not counted; the first real "
            "request is measured alone",
            _describe_ends(report),
            _describe_caches(design),
            f"{tables.count_requests(report.boots)} requests in {pluralize(len(report.boots), 'boot')}; "
            f"the boots took {tables.format_total_time(report.boots)} together",
        ]
    )


def _describe_caches(design: Design) -> str:
    if design.own_cache:
        return "each arm has compile caches of its own, empty at its first boot"
    return "all arms share the compile caches of the machine's other servers"


def _format_length(scale: float) -> str:
    return "max_tokens as in the suite" if scale == 1 else f"max_tokens {scale:g} times those of the suite"


def _describe_fillers(report: ExperimentReport) -> str:
    """Return how many requests were under way on average, and how they were kept at that."""
    windows = [window for boot in report.boots for window in boot.windows if window.streams > 1]
    if not windows:
        return ", more rounds where one would not keep them busy twice" if max(report.design.concurrency) > 1 else ""
    levels = {streams: [w.under_way for w in windows if w.streams == streams] for streams in report.design.concurrency}
    means = ", ".join(f"{fmean(counts):.1f}" for counts in levels.values() if counts)
    return f" (on average {means}: others that do not count take the places of those that are over)"


def _name_samplers(boots: Sequence[Boot]) -> str:
    names = sorted({boot.sampler for boot in boots if boot.sampler})
    return f", sampler: {', '.join(map(escape_text, names))}" if names else ""


def _describe_ends(report: ExperimentReport) -> str:
    if not report.design.fixed:
        return "answers end where the model ends them, or at the length that was asked for (`ignore_eos` is off)"
    if _all_full_length(report.boots):
        return "every answer has the length that was asked for (`ignore_eos`), also past the model's own end"
    return "some answers ended before their full length"


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
    header = ("boot", "arm", "compile cache", "up", "ready", "took", "before", "after", "remark")
    rows = [
        (row.number, tables.arm_letter(boot.arm), *row[1:5], row.before, row.after, row.remark)
        for boot, row in zip(boots, tables.list_boot_rows(boots), strict=True)
    ]
    yield render_table(header, escape_cells(rows), (0, 3, 4, 5))
    yield (
        "Times since the launch: *up*, the log says that the server listens; *ready*, its first answer. *Took* is all "
        "of the boot; *before* and *after* are of the machine around its requests, the load that of a minute."
    )


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
            for rank, host in enumerate(boot.hosts, 1):
                yield f"#### Rank {rank} on {escape_text(host.host)}"
                yield quote_block(*_format_launch(host.argv, host.env, None))
                yield render_bullets([escape_text(fact) for fact in _list_host_facts(host)])


def _list_host_facts(host: HostFacts) -> list[str]:
    """Return what is known of another host of a boot: what it is, its link, and what serves the rank."""
    link = f"{host.address} on {host.interface}"
    network = f"; NCCL uses {describe_network(host.network)}" if host.network else ""
    return [
        f"host: {host.name}, {host.machine}, {host.hardware}, {format_gib(host.memory)} of memory",
        f"link: {link}, {', '.join(host.devices) or 'sockets'}{network}",
        f"engine: {host.vllm}",
        f"patches: {host.patches}",
    ]


def _render_inherited(boot: Boot) -> str:
    if not boot.inherited:
        return UNKNOWN if boot.inherited is None else "nothing that affects an engine"
    return ", ".join(quote_code(truncate(f"{name}={value}", _WIDEST)) for name, value in boot.inherited.items())


def _format_launch(argv: Sequence[str], env: dict[str, str], boot: Boot | None) -> list[str]:
    """Return the environment, without secrets, and the command that a boot of an arm ran."""
    argv, env = (boot.argv, boot.env) if boot else (argv, env)
    variables = [f"{key}={LEFT_OUT if is_secret(key) else shlex.quote(value)} \\" for key, value in sorted(env.items())]
    return [*variables, shlex.join(argv)]


def _render_requests(report: ExperimentReport) -> Iterator[str]:
    if report.design.measures_start:
        return
    yield "## Every request"
    header = (
        *["boot", "arm", "prompt", "round", "concurrency", "tokens"],
        *tables.REQUEST_FIGURES,
        "finish",
        "answer (SHA-256)",
    )
    rows = [
        [str(boot.number + 1), tables.arm_letter(boot.arm), *_request_row(stage, done)]
        for boot in report.boots
        for stage, done in (
            *([("first", boot.cold_request)] if boot.cold_request else []),
            *((str(done.round + 1), done) for done in boot.requests),
        )
    ]
    yield render_table(header, rows, (0, *range(3, 10)))


def _request_row(stage: str, done: RequestDone) -> list[str]:
    digest = quote_code(done.digests[-1][:_DIGITS]) if done.digests else ""
    figures = (str(done.streams), str(done.tokens), *tables.request_cells(done))
    return [escape_text(done.kind), stage, *figures, escape_text(done.error or done.finish), digest]
