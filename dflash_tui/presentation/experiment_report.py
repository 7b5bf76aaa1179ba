"""The report of an experiment as sections: the answer first, then picture and table, then what is behind them."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Sequence
from pathlib import Path

from dflash_tui.common.formatting import UNKNOWN, format_gib, format_time, pluralize, truncate
from dflash_tui.common.secrets import LEFT_OUT, redact_argv, redact_variables
from dflash_tui.experiments import stock
from dflash_tui.experiments.analysis.report import Comparison, ExperimentReport, OutputVerdict, list_verdicts
from dflash_tui.experiments.design import Arm, Boot, Design, HostFacts
from dflash_tui.planning import startup_optimizations
from dflash_tui.presentation import experiment_tables as tables
from dflash_tui.presentation import experiment_text, tune_text, verdict_text
from dflash_tui.presentation.markdown import escape_text, quote_code
from dflash_tui.presentation.report import Lines, Note, Part, Section, to_markdown, to_terminal
from dflash_tui.vllm_output.nccl_log import describe_network

ABOUT_RATIOS = "Verdicts compare the arms prompt by prompt, so that their ratios are not quotients of these medians."
_WIDEST = 100
_DIGITS = 12  # of a SHA-256, enough to tell two apart
# Settings whose effect is in the plan.
_SHOWN_OTHERWISE = ("patches.", "env.", "start.")


def build_answer(report: ExperimentReport, comparison: Comparison) -> Section:
    """Return the answer on two arms in three lines, then what qualifies it."""
    notes = [*verdict_text.list_answer(report, comparison), *verdict_text.list_notes(report, comparison)]
    if comparison.outputs and comparison.outputs.verdict is OutputVerdict.DIFFERENT:
        return Section("", (*notes, Lines(tuple(_list_first_difference(report, comparison)))))
    return Section("", tuple(notes))


def list_sweep_notes(report: ExperimentReport) -> list[Note]:
    """Return what a sweep comes to: the recommended value first; nothing of another experiment."""
    lines = verdict_text.describe_sweep(report)
    return [Note(line, "" if place else "★", "" if place else "bold") for place, line in enumerate(lines)]


def build_report(report: ExperimentReport, *, details: bool = False) -> list[Section]:
    """Return what a terminal shows: the answer, intervals, the arms; with `details` all that is behind it."""
    design, comparisons = report.design, report.comparisons
    if design.checks_output:
        return [Section("", tuple(_list_output_check(report)))]
    sections = [Section("", tuple(list_sweep_notes(report)))] if report.sweep else []
    if not report.sweep or details:
        sections += [build_answer(report, comparison) for comparison in comparisons]
    if design.synthetic:
        sections.append(Section("", (Note(f"{design.synthetic}: not a statement about real answers", "!"),)))
    arms = range(len(design.arms))
    pictures = [tables.build_intervals(comparison) for comparison in comparisons if len(comparisons) == 1]
    drawn: list[Part] = [picture for picture in pictures if picture.intervals]
    drawn += [table] if (table := tables.build_phases_table(design, report.boots, arms)) else []
    sections += [Section("", (part,)) for part in (*drawn, tables.build_arms_table(design, report.boots))]
    return [*sections, *(build_details(report, comparisons) if details else [])]


def list_start_parts(report: ExperimentReport, arms: Sequence[int]) -> list[Part]:
    """Return bars of the starts and of the first requests, and the phases where starts were judged."""
    bars = tables.build_start_bars(report.design, report.boots, arms)
    phases = tables.build_phases_table(report.design, report.boots, arms)
    parts: list[Part] = [bars if bars.bars else Note("no start was measured", style="dim")]
    return [*parts, Note(""), phases] if phases else parts


def list_titled_parts(sections: Sequence[Section]) -> list[Part]:
    """Return the parts of sections, each section after its title."""
    parts: list[Part] = []
    for section in sections:
        parts += [*([Note("")] if parts else []), Note(section.title, style="bold"), *section.parts]
    return parts


def format_report(report: ExperimentReport, width: int = 0, *, details: bool = False) -> str:
    """Return a report as a terminal shows it."""
    return to_terminal(build_report(report, details=details), width)


def build_details(report: ExperimentReport, comparisons: Sequence[Comparison]) -> list[Section]:
    """Return what is behind a report: statistics, prompts, boots, latencies, and what stock is."""
    design = report.design
    sections = []
    for comparison in comparisons:
        names = " to ".join(verdict_text.label_arm(design, arm) for arm in (comparison.b, comparison.a))
        sections.append(Section(f"statistics of {names}", tuple(verdict_text.list_details(report, comparison))))
    if any(comparison.prompts for comparison in comparisons):
        sections.append(Section("", (Note(ABOUT_RATIOS),)))
    sections.append(Section("boots", (tables.build_boots_table(report),)))
    latency, energy = tables.build_latency_table(report), tables.describe_energy(report)
    sections += [Section("latency", (latency, *map(Note, energy)))] if latency else []
    if rows := list_stock_rows(design):
        commands = [f"{arm.name:<5}  {_format_bare_command(arm)}" for arm in design.arms]
        sections.append(Section("stock and ours", (*map(Note, rows), Lines(tuple(commands)))))
    return sections


def _list_output_check(report: ExperimentReport) -> list[Part]:
    """Return what is known of the answers, and nothing of speeds."""
    parts: list[Part] = []
    for comparison in report.comparisons:
        if outputs := comparison.outputs:
            names = [verdict_text.label_arm(report.design, arm) for arm in (comparison.a, comparison.b)]
            parts.append(Note(verdict_text.format_output_headline(outputs), style="bold"))
            parts += [Note(f"  {line}") for line in verdict_text.list_output_details(outputs, *names)]
            parts += [Lines(tuple(lines))] if (lines := _list_first_difference(report, comparison)) else []
    return parts or [Note("no answers were compared")]


def _list_first_difference(report: ExperimentReport, comparison: Comparison) -> list[str]:
    names = (verdict_text.label_arm(report.design, arm) for arm in (comparison.a, comparison.b))
    return verdict_text.list_first_difference(comparison.outputs, *names) if comparison.outputs else []


def render_markdown(report: ExperimentReport) -> str:
    """Return the report that one posts: what was compared, the answer, a table, the plot, conditions, commands."""
    design = report.design
    kind = "Tune" if report.tune else "A/B" if design.suite else "Two runs"
    title = f"{kind} of {quote_code(design.recipe)}{'' if design.suite else ' side by side'}"
    parts = [f"# {title}, {escape_text(tables.describe_variation(design))}"]
    if label := tables.synthetic_label(design):
        parts.append(f"> **{escape_text(label)}.**")
    order = " ".join(map(tables.arm_letter, design.order))
    made = f"{format_time(design.made_at)}, {tables.describe_certainty(design)}, order {order}"
    parts.append(f"{made}, written by dflash-tui {escape_text(design.version)}.")
    if not report.complete:
        parts.append(f"**Not complete**: {len(report.boots)} of {len(design.order)} boots are over.")
    return "\n\n".join([*parts, to_markdown(_list_posted_sections(report))]) + "\n"


def _list_posted_sections(report: ExperimentReport) -> list[Section]:
    design = report.design
    outcome = tune_text.list_outcome_lines(design, report.boots, report.tune) if report.tune else []
    answers: list[Part] = [*map(Note, outcome), *list_sweep_notes(report)]
    for comparison in list_verdicts(report):
        headline, *figures = verdict_text.list_answer(report, comparison)
        answers += [] if report.tune else [headline]
        answers += [note for note in figures if not note.mark]
        answers += verdict_text.list_notes(report, comparison)
        if lines := _list_first_difference(report, comparison):
            answers.append(Lines(tuple(lines)))
    pictures = [tables.build_intervals(comparison) for comparison in list_verdicts(report)]
    plot = pictures[0] if len(pictures) == 1 and pictures[0].intervals else None
    parts: list[Part | None] = [
        tables.build_arms_table(design, report.boots),
        Note(_explain_arms(design)),
        plot,
    ]
    parts.append(tables.build_phases_table(design, report.boots, range(len(design.arms))))
    return [
        Section("", tuple(answers)),
        Section("", tuple(part for part in parts if part)),
        Section("conditions", tuple(map(Note, _list_conditions(report)))),
        Section("commands", (Lines(tuple(_list_commands(report))), Note(_ABOUT_JSON))),
    ]


_ABOUT_JSON = "Every boot and request, statistics and the environment are in the JSON of this report: report --json."


def _explain_arms(design: Design) -> str:
    if design.measures_start:
        return "Seconds from the launch to the first answer; medians of boots, ± half their range."
    return (
        "Medians of boots, ± half their range. tok/s is the decode speed of a request without its time to the first "
        "token (TTFT), steps/s its verification steps, AL its tokens per step, the bonus token counted."
    )


def _list_conditions(report: ExperimentReport) -> list[str]:
    """Return what somebody needs to know to repeat it: prompts, sampling, machine, engine, patches, hosts."""
    design, boots = report.design, report.boots
    gpus = sorted({gpu for boot in boots for gpu in boot.gpus})
    driver = ", ".join(sorted({boot.driver for boot in boots if boot.driver})) or UNKNOWN
    nothing = "none" if design.arms[0].plan.on_cpu else UNKNOWN
    lines = [
        *(_describe_prompts(report) if design.suite else
          ["runs of their own: which prompts were sent, in what order and how sampled was not recorded"]),
        f"compile caches: {experiment_text.describe_caches(design)}",
        f"GPU {', '.join(gpus) or nothing}, driver {driver}, clock {_format_clocks(boots)}",
    ]  # fmt: skip
    lines += [f"measured: {tables.count_requests(boots)} requests in {pluralize(len(boots), 'boot')}"] * (
        not design.measures_start
    )
    limits = sorted({limit for boot in boots for at in (boot.before, boot.after) if at for limit in at.throttle or ()})
    lines += [f"the driver reported: {', '.join(limits)}"] if limits else []
    engines = dict.fromkeys(_describe_engine(boot) for boot in boots if boot.argv)
    lines += engines
    hosts = dict.fromkeys(line for boot in boots for host in boot.hosts for line in _list_host_facts(host))
    return [*lines, *hosts, *list_stock_rows(design)]


def _describe_prompts(report: ExperimentReport) -> list[str]:
    design = report.design
    if design.measures_start:
        return experiment_text.describe_sent(design)
    samplers = sorted({boot.sampler for boot in report.boots if boot.sampler})
    ends = "answers end at the length asked for" if design.fixed else "answers end where the model ends them"
    return [
        *experiment_text.describe_sent(design),
        f"prompts SHA-256 {design.digest[:_DIGITS]}, shuffled from seed {design.seed}; {ends}",
        *([f"sampler: {', '.join(samplers)}"] if samplers else []),
    ]


def _describe_engine(boot: Boot) -> str:
    patches = ", ".join(f"{name} {sha[:_DIGITS]}" for name, sha in boot.patches.items())
    versions = ", ".join(f"{name} {version}" for name, version in boot.versions.items())
    inherited = (
        ", ".join(truncate(f"{name}={value}", _WIDEST) for name, value in boot.inherited.items()) or "none"
        if boot.inherited is not None
        else UNKNOWN
    )
    return (
        f"engine {boot.engine}; {versions or UNKNOWN}; patches: {patches or 'none'}; inherited environment: {inherited}"
    )


def _list_host_facts(host: HostFacts) -> list[str]:
    """Return what is known of another host of a boot: what it is, its link, and what serves the rank."""
    link = f"{host.address} on {host.interface}"
    network = f"; NCCL uses {describe_network(host.network)}" if host.network else ""
    return [
        f"host {host.host}: {host.name}, {host.machine}, {host.hardware}, {format_gib(host.memory)} of memory; "
        f"engine {host.vllm}, patches: {host.patches}",
        f"link: {link}, {', '.join(host.devices) or 'sockets'}{network}",
    ]


def _format_clocks(boots: Sequence[Boot]) -> str:
    """Return the GPU clocks that were seen before and after the boots, their median and ends; or a dash."""
    clocks = [at.clock_mhz for boot in boots for at in (boot.before, boot.after) if at and at.clock_mhz is not None]
    if not clocks:
        return UNKNOWN
    return f"{statistics.median(clocks):.0f} MHz ({min(clocks)} to {max(clocks)}, {pluralize(len(clocks), 'reading')})"


def _list_commands(report: ExperimentReport) -> list[str]:
    """Return the command that repeats it, and what its arms launched: of many the first and the one chosen."""
    design = report.design
    lines = [design.command] if design.command else []
    chosen = {0, report.tune.best} if report.tune else {0, report.sweep.recommended} if report.sweep else None
    for arm, planned in enumerate(design.arms):
        if chosen and arm not in chosen:
            continue
        boot = next((boot for boot in report.boots if boot.arm == arm and boot.argv), None)
        argv, env = (boot.argv, boot.env) if boot else (planned.plan.argv, planned.plan.env)
        lines += [f"# {tables.name_arm(design, arm)}", _format_launch(argv, env)]
        if boot:
            for rank, host in enumerate(boot.hosts, 1):
                lines += [f"# rank {rank} on {host.host}", _format_launch(host.argv, host.env)]
    return lines


def _format_launch(argv: Sequence[str], env: dict[str, str]) -> str:
    """Return a command after its environment, without secrets."""
    values = sorted(redact_variables(env).items())
    settings = [f"{name}={value if value == LEFT_OUT else shlex.quote(value)}" for name, value in values]
    return " ".join([*settings, shlex.join(redact_argv(argv))])


def list_stock_rows(design: Design) -> list[str]:
    """Return what stock is and what ours has beyond it, a sentence each; nothing of another experiment."""
    if design.vary != stock.KEY or len(design.arms) != 2:
        return []
    bare, ours = design.arms
    plan, kind = bare.plan, f"profile {bare.plan.profile}, mode {bare.plan.mode.value}"
    return [
        f"stock is the published command of {plan.recipe} under bare vLLM {plan.vllm} ({kind}), without our "
        "measures for shorter starts and our patches; patches without which it does not run this pair: "
        f"{', '.join(plan.patches) or 'none'}",
        f"ours adds: {', '.join(_list_additions(bare, ours)) or 'none'}",
        f"in both, since it is what is served: {', '.join(_format_settings(bare, shared=True)) or 'none'}",
    ]


def _format_bare_command(arm: Arm) -> str:
    """Return the command of an arm as somebody else would type it, without secrets."""
    program, *words = redact_argv(arm.plan.argv)
    return shlex.join([Path(program).name, *words])


def _list_additions(bare: Arm, ours: Arm) -> list[str]:
    """Return what is in ours and not in stock: what was named, then what comes with it."""
    mode = [f"mode {ours.plan.mode.value}"] if ours.plan.mode is not bare.plan.mode else []
    method = [f"method {ours.plan.method.value}"] if ours.plan.method is not bare.plan.method else []
    tokens = ours.plan.num_speculative_tokens
    drafts = [f"{tokens} drafted tokens"] if tokens != bare.plan.num_speculative_tokens else []
    patches = [f"patch {name}" for name in ours.plan.patches if name not in bare.plan.patches]
    measures = [f"start.{name}" for name in ours.plan.start if name not in bare.plan.start]
    named = [word for word in _format_settings(ours, shared=False) if not word.startswith(_SHOWN_OTHERWISE)]
    of_measures = {name for measure in startup_optimizations.MEASURES.values() for name in measure.env}
    beyond = {name: value for name, value in ours.plan.env.items() if name not in {*bare.plan.env, *of_measures}}
    env = [f"{name}={value}" for name, value in redact_variables(beyond).items()]
    return [*mode, *method, *drafts, *patches, *measures, *named, *env]


def _format_settings(arm: Arm, *, shared: bool) -> list[str]:
    settings = redact_variables(arm.request.settings)
    return [f"{name}={value}" for name, value in settings.items() if stock.is_shared(name) is shared]
