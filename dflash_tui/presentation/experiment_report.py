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
    format_synthetic,
    format_time,
    pluralize,
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
    select_measured_boots,
    summarize_arm,
)
from dflash_tui.experiments.analysis.report import (
    Comparison,
    ExperimentReport,
    MapCell,
    SpeculationMap,
    Sweep,
    SweepStanding,
    Verdict,
    list_verdicts,
)
from dflash_tui.experiments.analysis.speculation_map import is_uniform, knows_schedule
from dflash_tui.experiments.analysis.stats import LEVEL, Ratio
from dflash_tui.experiments.design import Arm, Boot, Design, HostFacts
from dflash_tui.experiments.progress import Progress
from dflash_tui.planning import startup_optimizations
from dflash_tui.presentation import experiment_text
from dflash_tui.presentation.benchmark_text import TOKEN_VARIETY, list_latency_rows
from dflash_tui.presentation.experiment_text import list_outcome
from dflash_tui.presentation.report import (
    Cell,
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
from dflash_tui.presentation.verdict_text import (
    format_output_headline,
    label_arm,
    letter_arm,
    list_answer,
    list_details,
    list_first_difference,
    list_notes,
    list_output_details,
    list_sweep_notes,
    mark_arm,
    name_arm,
    name_prompt,
)
from dflash_tui.vllm_output.log_facts import describe_network

ABOUT_RATIOS = "Verdicts compare the arms prompt by prompt, so their ratios differ from the quotients of these medians."
_WIDEST = 100
_DIGITS = 12  # hex digits of a SHA-256 shown
# Settings whose effect the plan shows.
_SHOWN_OTHERWISE = ("patches.", "env.", "start.")
_COLUMN, _WIDEST_ARM = 18, 24
_LEAST_REQUESTS = 20  # fewer requests get a median but no percentiles
_FIGURES = ("steps/s", "tok/s", "AL", "TTFT", "cold start", "cached start", "first request")
_CELL_STYLES = {Verdict.FASTER: "▲", Verdict.SLOWER: "▼", Verdict.REFUSED: "dim", Verdict.NO_DIFFERENCE: ""}
_SWEEP_MARKS = {
    SweepStanding.RECOMMENDED: "★",
    SweepStanding.PLATEAU: "=",
    SweepStanding.OPEN: "?",
    SweepStanding.WORSE: " ",
}
_INSPECTED, _FIRST, _WHOLE = "inspected before", "first answer", "ready"
_ABOUT_FIGURES = (
    "tok/s: the decode speed of a request, without its time to the first token (TTFT); steps/s: its verification "
    "steps; AL: its tokens per step, the bonus token counted"
)
_ABOUT_JSON = "Every boot and request, statistics and the environment are in the JSON of this report: report --json."


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
        *(note for each in report.comparisons for note in list_notes(report, each) if note.mark),
    ]


_ABOUT_CELLS = (
    "In parentheses 95 % intervals, each cell on its own: of twenty cells one may be wrong by chance. An interval that "
    "includes 1 shows no difference."
)


def _render_cell(cell: MapCell | None) -> Span:
    return Span(format_ratio(cell.ratio), _CELL_STYLES[cell.word]) if cell else Span(UNKNOWN, "dim")


def _list_map_launch(design: Design, found: SpeculationMap) -> list[Part]:
    words = [
        f"{pluralize(level.streams, 'stream')}: {f'n={level.tokens}' if level.tokens else 'no speculation'}"
        f"{'' if level.is_shown else ' (no difference shown over all kinds)'}"
        for level in found.levels
    ]
    known = is_uniform(found.levels) or knows_schedule(design)
    missing = "" if known else "; this release knows no schedule, so the launch is that of the fewest streams"
    command, _, setting = found.launch.rpartition(" --set ")
    lines = (f"{command} \\", f"  --set {setting}") if command else (setting,)
    return [Note(f"what follows: {', '.join(words)}{missing}", "★"), Lines(lines)]


def _build_map_intervals(design: Design, cells: Sequence[MapCell]) -> Intervals:
    arms = len({cell.arm for cell in cells}) > 1
    rows = [
        Interval(
            f"{cell.kind} ×{cell.streams}{f' {label_arm(design, cell.arm)}' if arms else ''}",
            cell.ratio,
            _CELL_STYLES[cell.word],
        )
        for cell in cells
    ]
    return Intervals(tuple(rows))


def build_report(report: ExperimentReport, *, details: bool = False) -> list[Section]:
    """Return the sections for a terminal; `details` adds the statistics behind the answer."""
    answer, *sections = build_sections(report, list_verdicts(report), details=details)
    if report.design.synthetic:
        answer = Section("", (*answer.parts, Note(format_synthetic(report.design.synthetic), "!")))
    return [answer, *sections]


def build_sections(
    report: ExperimentReport, comparisons: Sequence[Comparison], *, details: bool = False, step: str | None = None
) -> list[Section]:
    """Return the answer on these comparisons, the arms, their ratio by prompt, and the phases of their starts.

    `details` adds the statistics, boots and latencies. `step` replaces the next step, which names a command.
    """
    design, arms = report.design, range(len(report.design.arms))
    if design.checks_output:
        return [Section("", tuple(_list_output_check(report)))]
    answers = list_map_parts(report)
    if details or not report.map:
        answers += _list_answers(report, comparisons, step, is_short=bool(report.sweep) and not details)
    sections = [
        Section("", tuple(answers)),
        Section("arms, medians of boots ± half their range", (build_arms_table(design, report.boots),)),
    ]
    intervals = build_intervals(comparisons[0]) if len(comparisons) == 1 else Intervals(())
    if report.map:
        title = f"tok/s of a request as a multiple of {label_arm(design, 0)}"
        sections.append(Section(title, (_build_map_intervals(design, report.map.cells),)))
    elif report.sweep and report.sweep.best is not None:
        best = label_arm(design, report.sweep.best)
        title = f"tok/s as a multiple of {best}: ★ recommended, = as fast as the best, ? not decided"
        sections.append(Section(title, (_build_sweep_intervals(design, report.sweep),)))
    elif intervals.intervals:
        a, b = (name_arm(design, arm, 16) for arm in (comparisons[0].a, comparisons[0].b))
        sections.append(Section(f"{comparisons[0].measure} of {b} as a multiple of {a}", (intervals,)))
    if phases := build_phases_table(design, report.boots, arms):
        sections.append(Section("start-up phases, medians", (phases,)))
    return [*sections, *(_build_details(report, comparisons) if details else [])]


def _list_answers(
    report: ExperimentReport, comparisons: Sequence[Comparison], step: str | None, *, is_short: bool
) -> list[Part]:
    """Return the result of a tune or a sweep, then the answer on each comparison with its qualifications."""
    parts: list[Part] = [*list_sweep_notes(report)]
    parts += list_outcome(report.design, report.boots, report.tune) if report.tune else []
    for comparison in comparisons:
        headline, *figures = list_answer(report, comparison, step)
        is_told = bool(report.tune) or (is_short and len(comparisons) > 1 and comparison.word is not Verdict.REFUSED)
        parts += [] if is_told else [headline]
        parts += [] if is_short else figures
        parts += [note for note in list_notes(report, comparison) if note.mark or not is_short]
        if lines := _list_first_difference(report, comparison):
            parts.append(Lines(tuple(lines)))
    return list(dict.fromkeys(parts)) or [Note("no two arms can be compared: a boot of each is needed")]


def _build_details(report: ExperimentReport, comparisons: Sequence[Comparison]) -> list[Section]:
    design = report.design
    sections = []
    for comparison in comparisons:
        names = " to ".join(label_arm(design, arm) for arm in (comparison.b, comparison.a))
        sections.append(Section(f"statistics of {names}", tuple(list_details(report, comparison))))
    if any(comparison.prompts for comparison in comparisons):
        sections[-1] = Section(sections[-1].title, (*sections[-1].parts, Note(ABOUT_RATIOS)))
    boots = experiment_text.build_boots_table(Progress(design, report.boots, finished=True))
    sections.append(Section("boots", (boots,)))
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
            names = [label_arm(report.design, arm) for arm in (comparison.a, comparison.b)]
            parts.append(Note(format_output_headline(outputs), style="bold"))
            parts += [Note(f"  {line}") for line in list_output_details(outputs, *names)]
            parts += [Lines(tuple(lines))] if (lines := _list_first_difference(report, comparison)) else []
    return parts or [Note("no answers were compared")]


def _list_first_difference(report: ExperimentReport, comparison: Comparison) -> list[str]:
    names = (label_arm(report.design, arm) for arm in (comparison.a, comparison.b))
    return list_first_difference(comparison.outputs, *names) if comparison.outputs else []


def render_markdown(report: ExperimentReport) -> str:
    """Return the report as Markdown to post."""
    design = report.design
    kind = "Tune" if report.tune else "Map" if report.map else "A/B" if design.suite else "Two runs"
    title = f"{kind} of {quote_code(design.recipe)}{'' if design.suite else ' side by side'}"
    order = " ".join(map(letter_arm, design.order))
    made = f"{format_time(design.made_at)}, {describe_certainty(design)}, order {order}"
    lines = [f"{made}, written by dflash-tui {escape_text(design.version)}."]
    if not report.complete:
        lines.append(f"**Not complete**: {len(report.boots)} of {len(design.order)} boots are over.")
    title = f"{title}, {escape_text(describe_variation(design))}"
    sections = [
        *build_sections(report, list_verdicts(report)),
        Section("conditions", tuple(map(Note, _list_conditions(report)))),
        Section("commands", (Lines(tuple(_list_commands(report))), Note(_ABOUT_JSON))),
    ]
    return render_page(title, design.synthetic, lines, sections)


def _list_conditions(report: ExperimentReport) -> list[str]:
    design, boots = report.design, report.boots
    gpus = sorted({gpu for boot in boots for gpu in boot.gpus})
    driver = ", ".join(sorted({boot.driver for boot in boots if boot.driver})) or UNKNOWN
    nothing = "none" if any(arm.plan.on_cpu for arm in design.arms) else UNKNOWN
    lines = [
        "seconds count from the launch to the first answer" if design.measures_start else _ABOUT_FIGURES,
        *(_describe_prompts(report) if design.suite else
          ["separate runs: the prompts, their order and their sampling were not recorded"]),
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
        *(TOKEN_VARIETY[found] for found in TOKEN_VARIETY if any(boot.token_variety is found for boot in report.boots)),
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
        "startup optimizations and our patches; patches that this pair needs to run: "
        f"{', '.join(plan.patches) or 'none'}",
        f"ours adds: {', '.join(_list_additions(bare, ours)) or 'none'}",
        f"in both: {', '.join(_format_settings(bare, shared=True)) or 'none'}",
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


def describe_variation(design: Design) -> str:
    """Return what is varied, such as `mode: eager against compile`; for a tune its budget."""
    if design.tuning:
        return f"tune within {format_duration(design.tuning.budget)}"
    names = [truncate_middle(arm.name, _WIDEST_ARM) for arm in design.arms]
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


def count_requests(boots: Iterable[Boot]) -> int:
    """Return the number of measured requests."""
    return sum(len(boot.requests) for boot in boots)


def format_seconds(seconds: float, digits: int = 1) -> str:
    """Return seconds with `digits` digits; from one minute on a duration."""
    return f"{seconds:.{digits}f} s" if seconds < 60 else format_duration(seconds)


def _list_starts(design: Design, boots: Sequence[Boot], arm: int) -> list[tuple[str, MedianFigure | None]]:
    """Return an arm's starts and first request by name; in an A/B of starts only the judged starts."""
    of = summarize_arm(boots, arm)
    if design.measures_start:
        return [("cold starts", of.ready)] if design.cold else [("first start", of.filling), ("later starts", of.ready)]
    return list(zip(_FIGURES[4:], (of.cold, of.cached, of.first), strict=True))


def build_arms_table(design: Design, boots: Sequence[Boot]) -> Table:
    """Return a row per arm: its boots, and the median over boots of each figure, ± half the range."""
    rows: list[tuple[Cell, ...]] = []
    for arm in range(len(design.arms)):
        of, starts = summarize_arm(boots, arm), _list_starts(design, boots, arm)
        figures = [] if design.measures_start else [
            _format_figure(of.steps_s), _format_figure(of.tok_s), _format_figure(of.al, 2),
            _format_figure(of.ttft, 2, seconds=True)]  # fmt: skip
        for name, start in starts:
            none = name == _FIGURES[5] and is_uncached(boots, arm)
            figures.append("none" if none and start is None else _format_figure(start, seconds=True))
        failed = f"+{of.failed}✗" if of.failed else ""
        label = mark_arm(arm, name_arm(design, arm, _COLUMN))
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


def _build_sweep_intervals(design: Design, sweep: Sweep) -> Intervals:
    best = next(point.tok_s for point in sweep.points if point.arm == sweep.best)
    rows = [
        Interval(
            f"{_SWEEP_MARKS[sweep.standing(point.arm)]} {label_arm(design, point.arm)}",
            Ratio(*(value / best for value in (point.tok_s, point.low or point.tok_s, point.high or point.tok_s))),
            "bold" if point.arm == sweep.recommended else "",
        )
        for point in sweep.points
    ]
    return Intervals(tuple(rows))


def build_phases_table(design: Design, boots: Sequence[Boot], arms: Sequence[int]) -> Table | None:
    """Return the median seconds of each start-up phase by arm; None unless starts were measured."""
    if not design.measures_start:
        return None
    starts = [[_split_start(boot) for boot in select_measured_boots(boots, arm) if boot.start == "measured"]
              for arm in arms]  # fmt: skip
    rows: list[tuple[Cell, ...]] = []
    for name in (_INSPECTED, *(phase.value for phase in Phase), _FIRST, _WHOLE):
        seconds = [[start[name] for start in of_arm if name in start] for of_arm in starts]
        if any(map(any, seconds)):
            cells = (format_number(statistics.median(values) if values else None, 1, "s") for values in seconds)
            rows.append((Span(name, "bold" if name == _WHOLE else "dim"), *cells))
    header = ("phase", *(mark_arm(arm).text for arm in arms))
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


def build_latency_table(report: ExperimentReport) -> Table | None:
    """Return latencies by arm and streams, and by prompt if it has enough requests for percentiles."""
    rows: list[tuple[Cell, ...]] = []
    for arm in range(len(report.design.arms)):
        requests = [done for boot in select_measured_boots(report.boots, arm) for done in boot.requests]
        for streams in report.design.concurrency:
            groups = summary.group_latencies([done for done in requests if done.streams == streams], {})
            head = (name_arm(report.design, arm), str(streams))
            rows += [(*head, *row) for row in list_latency_rows(groups, _LEAST_REQUESTS)]
    header = ("arm", "streams", "prompt", "latency", "requests", "p50", "p90", "p95", "p99")
    return Table(header, tuple(rows), (1, *range(4, 9)), keys=4) if rows else None


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
