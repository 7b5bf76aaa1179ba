"""The report of an experiment as sections: the answer, pictures, tables and details."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path

from dflash_tui.benchmark import summary
from dflash_tui.common.formatting import (
    UNKNOWN,
    format_duration,
    format_gib,
    format_number,
    format_time,
    pluralize,
    shorten_names,
    truncate,
    truncate_middle,
)
from dflash_tui.common.secrets import LEFT_OUT, redact_argv, redact_variables
from dflash_tui.events import Phase
from dflash_tui.experiments import variation
from dflash_tui.experiments.analysis.measures import (
    START,
    MedianFigure,
    is_uncached,
    join_turns,
    measure_seconds_to_ready,
    median_speed,
    select_measured_boots,
    summarize_arm,
)
from dflash_tui.experiments.analysis.report import (
    Comparison,
    ExperimentReport,
    MapCell,
    OutputVerdict,
    SpeculationMap,
    Verdict,
    list_verdicts,
)
from dflash_tui.experiments.analysis.speculation_map import is_uniform, knows_schedule
from dflash_tui.experiments.analysis.stats import LEVEL
from dflash_tui.experiments.design import Arm, Boot, Design, HostFacts
from dflash_tui.planning import startup_optimizations
from dflash_tui.presentation import experiment_text, verdict_text
from dflash_tui.presentation.benchmark_text import format_latency
from dflash_tui.presentation.report import (
    Bar,
    Bars,
    Interval,
    Intervals,
    Lines,
    Note,
    Part,
    Section,
    Span,
    Table,
    escape_text,
    format_ratio,
    format_spread,
    is_noisy,
    quote_code,
    render_page,
)
from dflash_tui.presentation.verdict_text import label_arm, name_prompt
from dflash_tui.vllm_output.log_facts import describe_network

ABOUT_RATIOS = "Verdicts compare the arms prompt by prompt, so that their ratios are not quotients of these medians."
_WIDEST = 100
_DIGITS = 12  # hex digits of a SHA-256 shown
# Settings whose effect the plan shows.
_SHOWN_OTHERWISE = ("patches.", "env.", "start.")


def build_answer(report: ExperimentReport, comparison: Comparison) -> Section:
    """Return the answer on two arms, then its qualifications."""
    notes = [*verdict_text.list_answer(report, comparison), *verdict_text.list_notes(report, comparison)]
    if comparison.outputs and comparison.outputs.verdict is OutputVerdict.DIFFERENT:
        return Section("", (*notes, Lines(tuple(_list_first_difference(report, comparison)))))
    return Section("", tuple(notes))


def list_sweep_notes(report: ExperimentReport) -> list[Note]:
    """Return the result of a sweep, the recommended value first; empty if there is no sweep."""
    lines = verdict_text.describe_sweep(report)
    return [Note(line, "" if place else "★", "" if place else "bold") for place, line in enumerate(lines)]


_STYLES = {Verdict.FASTER: "good", Verdict.SLOWER: "bad", Verdict.REFUSED: "dim", Verdict.NO_DIFFERENCE: ""}


def list_map_parts(report: ExperimentReport) -> list[Part]:
    """Return where speculation pays: a table per number of drafts, and the launch that follows."""
    if report.map is None:
        return []
    design, cells = report.design, report.map.cells
    kinds, parts = dict.fromkeys(cell.kind for cell in cells), list[Part]()
    for arm in dict.fromkeys(cell.arm for cell in cells):
        named = {(cell.kind, cell.streams): cell for cell in cells if cell.arm == arm}
        rows = [(Span(kind), *(_render_cell(named.get((kind, at))) for at in design.concurrency)) for kind in kinds]
        streams = tuple(pluralize(count, "stream") for count in design.concurrency)
        parts += [
            Note(f"tok/s of a request with {label_arm(design, arm)} as a multiple of {label_arm(design, 0)}"),
            Table(("kind", *streams), tuple(rows)),
        ]
    parts.append(Note(_ABOUT_CELLS, style="dim"))
    parts += _list_map_launch(design, report.map) if report.map.launch else []
    return [
        *parts,
        *(note for each in report.comparisons for note in verdict_text.list_notes(report, each) if note.mark),
    ]


_ABOUT_CELLS = (
    "In parentheses 95 % intervals, each cell on its own: of twenty cells one may be wrong by chance. An interval that "
    "includes 1 shows no difference."
)


def _render_cell(cell: MapCell | None) -> Span:
    return Span(format_ratio(cell.ratio), _STYLES[cell.word]) if cell else Span(UNKNOWN, "dim")


def _list_map_launch(design: Design, found: SpeculationMap) -> list[Part]:
    words = [
        f"{pluralize(level.streams, 'stream')}: {f'n={level.tokens}' if level.tokens else 'no speculation'}"
        f"{'' if level.is_shown else ' (no difference shown over all kinds)'}"
        for level in found.levels
    ]
    known = is_uniform(found.levels) or knows_schedule(design)
    missing = "" if known else "; this release knows no schedule, so the launch is that of the fewest streams"
    return [Note(f"what follows: {', '.join(words)}{missing}", "★"), Lines((found.launch,))]


def build_map_intervals(report: ExperimentReport) -> Intervals:
    """Return the cells of a map as intervals around 1."""
    cells = report.map.cells if report.map else ()
    arms = len({cell.arm for cell in cells}) > 1
    rows = [
        Interval(
            f"{cell.kind} ×{cell.streams}{f' {label_arm(report.design, cell.arm)}' if arms else ''}",
            cell.ratio,
            _STYLES[cell.word],
        )
        for cell in cells
    ]
    return Intervals(tuple(rows))


def build_report(report: ExperimentReport, *, details: bool = False) -> list[Section]:
    """Return the sections for a terminal; `details` adds the statistics behind the answer."""
    design, comparisons = report.design, report.comparisons
    if design.checks_output:
        return [Section("", tuple(_list_output_check(report)))]
    sections = [Section("", tuple(list_sweep_notes(report)))] if report.sweep else []
    if report.map:
        sections = [Section("", (part,)) for part in list_map_parts(report)]
    if details or not (report.sweep or report.map):
        sections += [build_answer(report, comparison) for comparison in comparisons]
    if design.synthetic:
        sections.append(Section("", (Note(f"{design.synthetic}: not a statement about real answers", "!"),)))
    arms = range(len(design.arms))
    pictures = [build_intervals(comparison) for comparison in comparisons if len(comparisons) == 1]
    drawn: list[Part] = [picture for picture in pictures if picture.intervals and not report.map]
    drawn += [table] if (table := build_phases_table(design, report.boots, arms)) else []
    sections += [Section("", (part,)) for part in (*drawn, build_arms_table(design, report.boots))]
    return [*sections, *(build_details(report, comparisons) if details else [])]


def list_start_parts(report: ExperimentReport, arms: Sequence[int]) -> list[Part]:
    """Return bars of the starts and first requests; in an A/B of starts also the table of phases."""
    bars = build_start_bars(report.design, report.boots, arms)
    phases = build_phases_table(report.design, report.boots, arms)
    parts: list[Part] = [bars if bars.bars else Note("no start was measured", style="dim")]
    return [*parts, Note(""), phases] if phases else parts


def list_titled_parts(sections: Sequence[Section]) -> list[Part]:
    """Return the parts of all sections, each section preceded by its title."""
    parts: list[Part] = []
    for section in sections:
        parts += [*([Note("")] if parts else []), Note(section.title, style="bold"), *section.parts]
    return parts


def build_details(report: ExperimentReport, comparisons: Sequence[Comparison]) -> list[Section]:
    """Return the details: statistics, prompts, boots, latencies, and what the stock arm runs."""
    design = report.design
    sections = []
    for comparison in comparisons:
        names = " to ".join(verdict_text.label_arm(design, arm) for arm in (comparison.b, comparison.a))
        sections.append(Section(f"statistics of {names}", tuple(verdict_text.list_details(report, comparison))))
    if any(comparison.prompts for comparison in comparisons):
        sections.append(Section("", (Note(ABOUT_RATIOS),)))
    sections.append(Section("boots", (build_boots_table(report),)))
    latency, energy = build_latency_table(report), describe_energy(report)
    sections += [Section("latency", (latency, *map(Note, energy)))] if latency else []
    if rows := list_stock_rows(design):
        commands = [f"{arm.name:<5}  {_format_bare_command(arm)}" for arm in design.arms]
        sections.append(Section("stock and ours", (*map(Note, rows), Lines(tuple(commands)))))
    return sections


def _list_output_check(report: ExperimentReport) -> list[Part]:
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
    """Return the report as Markdown to post."""
    design = report.design
    kind = "Tune" if report.tune else "Map" if report.map else "A/B" if design.suite else "Two runs"
    title = f"{kind} of {quote_code(design.recipe)}{'' if design.suite else ' side by side'}"
    order = " ".join(map(arm_letter, design.order))
    made = f"{format_time(design.made_at)}, {describe_certainty(design)}, order {order}"
    lines = [f"{made}, written by dflash-tui {escape_text(design.version)}."]
    if not report.complete:
        lines.append(f"**Not complete**: {len(report.boots)} of {len(design.order)} boots are over.")
    title = f"{title}, {escape_text(describe_variation(design))}"
    return render_page(title, design.synthetic, lines, _list_posted_sections(report))


def _list_posted_sections(report: ExperimentReport) -> list[Section]:
    design = report.design
    outcome = experiment_text.list_outcome_lines(design, report.boots, report.tune) if report.tune else []
    answers: list[Part] = [*map(Note, outcome), *list_map_parts(report)]
    answers += [] if report.map else list_sweep_notes(report)
    for comparison in () if report.map else list_verdicts(report):
        headline, *figures = verdict_text.list_answer(report, comparison)
        answers += [] if report.tune else [headline]
        answers += [note for note in figures if not note.mark]
        answers += verdict_text.list_notes(report, comparison)
        if lines := _list_first_difference(report, comparison):
            answers.append(Lines(tuple(lines)))
    pictures = [build_intervals(comparison) for comparison in list_verdicts(report)]
    plot = build_map_intervals(report) if report.map else pictures[0] if len(pictures) == 1 else None
    parts: list[Part | None] = [
        build_arms_table(design, report.boots),
        Note(_explain_arms(design)),
        plot if plot and plot.intervals else None,
    ]
    parts.append(build_phases_table(design, report.boots, range(len(design.arms))))
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
    design, boots = report.design, report.boots
    gpus = sorted({gpu for boot in boots for gpu in boot.gpus})
    driver = ", ".join(sorted({boot.driver for boot in boots if boot.driver})) or UNKNOWN
    nothing = "none" if any(arm.plan.on_cpu for arm in design.arms) else UNKNOWN
    lines = [
        *(_describe_prompts(report) if design.suite else
          ["runs of their own: which prompts were sent, in what order and how sampled was not recorded"]),
        f"compile caches: {experiment_text.describe_caches(design)}",
        f"GPU {', '.join(gpus) or nothing}, driver {driver}, clock {_format_clocks(boots)}",
    ]  # fmt: skip
    lines += [f"measured: {count_requests(boots)} requests in {pluralize(len(boots), 'boot')}"] * (
        not design.measures_start
    )
    limits = sorted({limit for boot in boots for at in (boot.before, boot.after) if at for limit in at.throttle or ()})
    lines += [f"the driver reported: {', '.join(limits)}"] if limits else []
    engines = dict.fromkeys(_describe_engine(boot) for boot in boots if boot.argv)
    lines += [*experiment_text.list_servers(design), *engines]
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
    link = f"{host.address} on {host.interface}"
    network = f"; NCCL uses {describe_network(host.network)}" if host.network else ""
    return [
        f"host {host.host}: {host.name}, {host.machine}, {host.hardware}, {format_gib(host.memory)} of memory; "
        f"engine {host.vllm}, patches: {host.patches}",
        f"link: {link}, {', '.join(host.devices) or 'sockets'}{network}",
    ]


def _format_clocks(boots: Sequence[Boot]) -> str:
    clocks = [at.clock_mhz for boot in boots for at in (boot.before, boot.after) if at and at.clock_mhz is not None]
    if not clocks:
        return UNKNOWN
    return f"{statistics.median(clocks):.0f} MHz ({min(clocks)} to {max(clocks)}, {pluralize(len(clocks), 'reading')})"


def _list_commands(report: ExperimentReport) -> list[str]:
    design = report.design
    lines = [design.command] if design.command else []
    chosen = {0, report.tune.best} if report.tune else {0, report.sweep.recommended} if report.sweep else None
    for arm, planned in enumerate(design.arms):
        if chosen and arm not in chosen:
            continue
        if planned.server:
            lines.append(f"# {name_arm(design, arm, _WIDEST)}: its command is unknown")
            continue
        boot = next((boot for boot in report.boots if boot.arm == arm and boot.argv), None)
        argv, env = (boot.argv, boot.env) if boot else (planned.plan.argv, planned.plan.env)
        lines += [f"# {name_arm(design, arm)}", _format_launch(argv, env)]
        if boot:
            for rank, host in enumerate(boot.hosts, 1):
                lines += [f"# rank {rank} on {host.host}", _format_launch(host.argv, host.env)]
    return lines


def _format_launch(argv: Sequence[str], env: dict[str, str]) -> str:
    values = sorted(redact_variables(env).items())
    settings = [f"{name}={value if value == LEFT_OUT else shlex.quote(value)}" for name, value in values]
    return " ".join([*settings, shlex.join(redact_argv(argv))])


def list_stock_rows(design: Design) -> list[str]:
    """Return what the stock arm runs and what ours adds, one sentence each; empty for other experiments."""
    if design.vary != variation.STOCK_KEY or len(design.arms) != 2:
        return []
    bare, ours = design.arms
    plan, kind = bare.plan, f"profile {bare.plan.profile}, mode {bare.plan.mode.value}"
    return [
        f"stock is the published command of {plan.recipe} under bare vLLM {plan.vllm} ({kind}), without our "
        "startup optimizations and our patches; patches without which it does not run this pair: "
        f"{', '.join(plan.patches) or 'none'}",
        f"ours adds: {', '.join(_list_additions(bare, ours)) or 'none'}",
        f"in both, since it is what is served: {', '.join(_format_settings(bare, shared=True)) or 'none'}",
    ]


def _format_bare_command(arm: Arm) -> str:
    program, *words = redact_argv(arm.plan.argv)
    return shlex.join([Path(program).name, *words])


def _list_additions(bare: Arm, ours: Arm) -> list[str]:
    mode = [f"mode {ours.plan.mode.value}"] if ours.plan.mode is not bare.plan.mode else []
    method = [f"method {ours.plan.method.value}"] if ours.plan.method is not bare.plan.method else []
    tokens = ours.plan.num_speculative_tokens
    drafts = [f"{tokens} drafted tokens"] if tokens != bare.plan.num_speculative_tokens else []
    patches = [f"patch {name}" for name in ours.plan.patches if name not in bare.plan.patches]
    measures = [f"start.{name}" for name in ours.plan.start if name not in bare.plan.start]
    named = [word for word in _format_settings(ours, shared=False) if not word.startswith(_SHOWN_OTHERWISE)]
    of_measures = {name for measure in startup_optimizations.OPTIMIZATIONS.values() for name in measure.env}
    beyond = {name: value for name, value in ours.plan.env.items() if name not in {*bare.plan.env, *of_measures}}
    env = [f"{name}={value}" for name, value in redact_variables(beyond).items()]
    set_up = [f"the {ours.plan.set_up.value} set-up"] if ours.plan.set_up is not bare.plan.set_up else []
    return [*set_up, *mode, *method, *drafts, *patches, *measures, *named, *env]


def _format_settings(arm: Arm, *, shared: bool) -> list[str]:
    settings = redact_variables(arm.request.settings)
    return [f"{name}={value}" for name, value in settings.items() if variation.is_shared(name) is shared]


MARKS = "●◆▲■▼★"  # one per arm, so that arms do not differ by colour alone
_NAME, _COLUMN = 24, 18
_LEAST_REQUESTS = 20  # fewer requests get a median but no percentiles
_FIGURES = ("steps/s", "tok/s", "AL", "TTFT", "cold start", "cached start", "first request")
_INSPECTED, _FIRST, _WHOLE = "inspected before", "first answer", "ready"


def arm_letter(arm: int) -> str:
    """Return the letter of an arm, `A` for the first."""
    return chr(ord("A") + arm % 26)


def arm_mark(arm: int) -> str:
    """Return the mark of an arm."""
    return MARKS[arm % len(MARKS)]


def name_arm(design: Design, arm: int, width: int = _NAME) -> str:
    """Return the letter and name of an arm; a shortened name still differs from the other arms' names."""
    labels = [label_arm(design, place) for place in range(len(design.arms))]
    return f"{arm_letter(arm)} {shorten_names(labels, width)[labels[arm]]}"


def describe_variation(design: Design) -> str:
    """Return what is varied, such as `mode: eager against compile`; for a tune its budget."""
    if design.tuning:
        return f"tune within {format_duration(design.tuning.budget)}"
    names = [truncate_middle(arm.name, _NAME) for arm in design.arms]
    joined = " against ".join(names) if len(names) == 2 else ", ".join(names)
    return f"{design.vary}: {joined}"


def describe_certainty(design: Design) -> str:
    """Return the number of boots, such as `4 boots, 2 per arm` or `measured apart, 2 boots`."""
    boots = pluralize(len(design.order), "boot")
    if design.tuning:
        return boots
    if not design.suite:
        return f"measured apart, {boots}"
    if design.servers:
        return f"{pluralize(len(design.order), 'turn')}, those at a running server as one boot"
    counts = sorted({design.order.count(arm) for arm in range(len(design.arms))})
    return f"{boots}, {' to '.join(map(str, counts))} per arm"


def synthetic_label(design: Design) -> str:
    """Return a warning if the figures are not a real model's, else ""."""
    return f"not a real model's figures: {design.synthetic}" if design.synthetic else ""


def count_requests(boots: Iterable[Boot]) -> int:
    """Return the number of measured requests."""
    return sum(len(boot.requests) for boot in boots)


def format_seconds(seconds: float, digits: int = 1) -> str:
    """Return seconds with `digits` digits; from one minute on a duration."""
    return f"{seconds:.{digits}f} s" if seconds < 60 else format_duration(seconds)


def _mark_arm(arm: int) -> Span:
    return Span(f"{arm_mark(arm)} {arm_letter(arm)}", f"arm {arm}")


def _list_starts(design: Design, boots: Sequence[Boot], arm: int) -> list[tuple[str, MedianFigure | None]]:
    """Return an arm's starts and first request by name; in an A/B of starts only the judged starts."""
    of = summarize_arm(boots, arm)
    if design.measures_start:
        return [("cold starts", of.ready)] if design.cold else [("first start", of.filling), ("later starts", of.ready)]
    return list(zip(_FIGURES[4:], (of.cold, of.cached, of.first), strict=True))


def build_arms_table(design: Design, boots: Sequence[Boot]) -> Table:
    """Return a row per arm: its boots, and the median over boots of each figure, ± half the range."""
    rows: list[tuple[str | Span, ...]] = []
    for arm in range(len(design.arms)):
        of, starts = summarize_arm(boots, arm), _list_starts(design, boots, arm)
        figures = [] if design.measures_start else [
            _format_figure(of.steps_s), _format_figure(of.tok_s), _format_figure(of.al, 2),
            _format_figure(of.ttft, 2, seconds=True)]  # fmt: skip
        for name, start in starts:
            none = name == _FIGURES[5] and is_uncached(boots, arm)
            figures.append("none" if none and start is None else _format_figure(start, seconds=True))
        failed = f"+{of.failed}✗" if of.failed else ""
        label = Span(f"{arm_mark(arm)} {name_arm(design, arm, _COLUMN)}", f"arm {arm}")
        count = len(join_turns(design, boots, arm)) if design.arms[arm].server else of.boots
        rows.append((label, f"{count}{failed}", *figures))
    names = [name for name, _ in _list_starts(design, boots, 0)] if design.measures_start else _FIGURES
    return Table(("arm", "boots", *names), tuple(rows), tuple(range(1, len(names) + 2)))


def _format_figure(figure: MedianFigure | None, digits: int = 1, *, seconds: bool = False) -> str:
    """Return `35.9 ±3%` (half the range over the median), `35.9` for one boot, or a dash."""
    if figure is None:
        return UNKNOWN
    text = format_seconds(figure.median, digits) if seconds else f"{figure.median:.{digits}f}"
    return f"{text} {format_spread(figure.low, figure.high, figure.median)}" if figure.n > 1 else text


def build_intervals(comparison: Comparison) -> Intervals:
    """Return the ratio and interval of each prompt, then of all prompts together.

    An A/B of starts has only the last, a ratio of seconds. Intervals too wide to tell anything are left out.
    """
    if comparison.ratio and is_noisy(comparison.ratio) and not comparison.ratio.excludes_one:
        return Intervals(())
    rows = [Interval(name_prompt(prompt), prompt.ratio) for prompt in comparison.prompts]
    level = comparison.test.level if comparison.test else LEVEL
    name = "all" if level == LEVEL else f"all ({100 * level:.3g} % interval)"
    if ratio := comparison.ratio:
        whole = ratio.inverse if comparison.measure == START else ratio
        rows.append(Interval(name, whole, "bold"))
    colored = [
        row._replace(style=f"arm {comparison.b}") if not row.style and row.ratio.excludes_one else row for row in rows
    ]
    return Intervals(tuple(colored))


def build_start_bars(design: Design, boots: Sequence[Boot], arms: Sequence[int]) -> Bars:
    """Return the median starts and first requests of each arm on one scale; unknown ones are left out."""
    starts = {arm: _list_starts(design, boots, arm) for arm in arms}
    figures = [(name, arm, figure) for row in zip(*starts.values(), strict=True) for arm, (name, figure) in
               zip(starts, row, strict=True) if figure]  # fmt: skip
    longest = max((figure.median for _, _, figure in figures), default=0.0) or 1.0
    return Bars(
        tuple(
            Bar(name, _mark_arm(arm), figure.median / longest, format_seconds(figure.median))
            for name, arm, figure in figures
        )
    )


def build_phases_table(design: Design, boots: Sequence[Boot], arms: Sequence[int]) -> Table | None:
    """Return the median seconds of each start-up phase by arm; None unless starts were measured."""
    if not design.measures_start:
        return None
    starts = [[_split_start(boot) for boot in select_measured_boots(boots, arm) if boot.start == "measured"]
              for arm in arms]  # fmt: skip
    rows: list[tuple[str | Span, ...]] = []
    for name in (_INSPECTED, *(phase.value for phase in Phase), _FIRST, _WHOLE):
        seconds = [[start[name] for start in of_arm if name in start] for of_arm in starts]
        if any(map(any, seconds)):
            cells = (format_number(statistics.median(values) if values else None, 1, "s") for values in seconds)
            rows.append((Span(name, "bold" if name == _WHOLE else "dim"), *cells))
    header = ("phase", *(f"{arm_mark(arm)} {arm_letter(arm)}" for arm in arms))
    return Table(header, tuple(rows), tuple(range(1, len(header)))) if rows else None


def _split_start(boot: Boot) -> dict[str, float]:
    parts = dict(boot.phases)
    if boot.inspected:
        parts[_INSPECTED] = boot.inspected
    if boot.ready is not None and boot.up is not None:
        parts[_FIRST] = boot.ready - boot.up
    if (whole := measure_seconds_to_ready(boot)) is not None:
        parts[_WHOLE] = whole
    return parts


def build_boots_table(report: ExperimentReport) -> Table:
    """Return a row per boot: its start and its measured figures."""
    design, boots = report.design, report.boots
    header = ("boot", "arm", "start", "ready", "first request", "tok/s", "requests", "remark")
    rows: list[tuple[str | Span, ...]] = []
    for boot in boots:
        first = boot.cold_request.decode_tok_s if boot.cold_request else None
        measured = (format_number(first, 1, "tok/s"), format_number(median_speed(boot)), str(len(boot.requests)))
        rows.append(
            (
                str(boot.number + 1),
                name_arm(design, boot.arm),
                boot.cache or ("none" if is_uncached(boots, boot.arm) else UNKNOWN),
                format_duration(boot.ready),
                *(() if design.measures_start else measured),
                ", ".join(filter(None, (f"attempt {boot.attempt}" if boot.attempt > 1 else "", boot.error))),
            )
        )
    if design.measures_start:
        return Table((*header[:4], header[-1]), tuple(rows), (0, 3))
    return Table(header, tuple(rows), (0, 3, 4, 5, 6))


def build_latency_table(report: ExperimentReport) -> Table | None:
    """Return latencies by arm and streams, and by prompt if it has enough requests for percentiles."""
    rows: list[tuple[str | Span, ...]] = []
    for arm in range(len(report.design.arms)):
        requests = [done for boot in select_measured_boots(report.boots, arm) for done in boot.requests]
        for streams in report.design.concurrency:
            groups = summary.group_latencies([done for done in requests if done.streams == streams], {})
            named = (("TTFT", "ttft"), ("TPOT", "tpot"), ("E2E", "e2e"))
            rows += [
                (name_arm(report.design, arm), str(streams), kind or "all", name, str(percentiles.n),
                 format_latency(percentiles.values[0]),
                 *(format_latency(value) if percentiles.n >= _LEAST_REQUESTS else UNKNOWN
                   for value in percentiles.values[1:]))
                for kind, group in groups.items() for name, field in named
                if (percentiles := getattr(group, field)) and (percentiles.n >= _LEAST_REQUESTS or not kind)
            ]  # fmt: skip
    header = ("arm", "streams", "prompt", "latency", "requests", "p50", "p90", "p95", "p99")
    return Table(header, tuple(rows), (1, *range(4, 9))) if rows else None


def describe_energy(report: ExperimentReport) -> list[str]:
    """Return the energy per output token of each arm, one line per number of streams; empty if unknown."""
    lines: dict[int, list[str]] = {}
    for streams, arm in product(report.design.concurrency, range(len(report.design.arms))):
        windows = [w for boot in report.boots if boot.arm == arm for w in boot.windows if w.streams == streams]
        if joules := [window.joules_per_token for window in windows if window.joules_per_token is not None]:
            figure = f"{statistics.fmean(joules):.3g} J ({pluralize(len(joules), 'boot')})"
            lines.setdefault(streams, []).append(f"{name_arm(report.design, arm)} {figure}")
    return [
        f"energy of an output token, all GPUs, {streams} at a time: {', '.join(figures)}"
        for streams, figures in lines.items()
    ]
