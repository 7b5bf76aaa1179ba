"""The text of a benchmark, the Markdown of one run, and its figures beside another benchmark's."""

from __future__ import annotations

import shlex
import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec import structs

from dflash_tui.benchmark.prompts import TokenVariety, name_template
from dflash_tui.benchmark.result_files import ImportedMeasurement, ImportedResult
from dflash_tui.benchmark.server import Server, ServerFacts, TokenCount
from dflash_tui.benchmark.sse import Answer
from dflash_tui.benchmark.summary import Latency, LevelSummary, RequestFigures, Spread
from dflash_tui.common.formatting import (
    UNKNOWN,
    format_duration,
    format_number,
    format_percent,
    format_synthetic,
    format_time,
    pluralize,
    truncate,
)
from dflash_tui.common.sanitizer import join_clean_lines
from dflash_tui.events import RequestDone
from dflash_tui.experiments.analysis.report import ExperimentReport
from dflash_tui.experiments.run_report import RunReport
from dflash_tui.planning.step_limit import MemoryLimit
from dflash_tui.presentation.report import (
    Lines,
    Note,
    Part,
    Section,
    Table,
    escape_text,
    quote_code,
    render_page,
)
from dflash_tui.run_state.speculation import DraftForecast
from dflash_tui.vllm_output.metrics import Rates

KIND_WIDTH = 12
_COUNTS = {
    TokenCount.USAGE: "counted by the server in its stream",
    TokenCount.TOKENIZE: "counted by the server's /tokenize, since its stream has no usage",
    TokenCount.CHUNKS: "chunks of the stream, not tokens: the server reports no usage and has no /tokenize",
}
TOKEN_VARIETY = {
    TokenVariety.RANDOM: "prompts of random tokens, since the tokenizer gives the suite's text hardly different ones",
    TokenVariety.REPEATED: "the prompts' tokens repeat: a mixture of experts reads fewer experts than with real text",
    TokenVariety.UNKNOWN: "unknown whether the prompts' tokens differ: the server's /tokenize does not list them",
}
_WIDTH = 80


def format_request(request: RequestDone | None) -> str:
    """Return a request as a table row, or the header for None."""
    if request is None:
        columns = f"{'TTFT':>8} {'tok/s':>7} {'AL':>5} {'steps/s':>7} {'total':>8} {'tokens':>6}  finish"
        return f"{'prompt':<{KIND_WIDTH}} {columns}"
    end = f"failed: {request.error}" if request.error else request.finish
    return (
        f"{truncate(request.kind, KIND_WIDTH):<{KIND_WIDTH}} {format_number(request.ttft, 3, 's'):>8} "
        f"{format_number(request.decode_tok_s):>7} {format_number(request.acceptance_length, 2):>5} "
        f"{format_number(request.steps_s):>7} {format_number(request.total, 1, 's'):>8} {request.tokens:>6}  {end}"
    )


def format_exchange(question: str, answer: Answer) -> str:
    """Return a question and the beginning of its answer, in at most four lines."""
    lines = textwrap.wrap(join_clean_lines(answer.text), _WIDTH - 2, max_lines=3, placeholder=" …")
    return "\n".join([f"> {truncate(question, _WIDTH - 2)}", *(f"  {line}" for line in lines)])


def format_server(server: Server) -> str:
    """Return the facts that a foreign server reports, and how its tokens are counted."""
    return "\n".join(list_server_facts(server.url, server.model, server.facts))


def list_server_facts(url: str, name: str, facts: ServerFacts) -> list[str]:
    """Return the lines of `format_server`."""
    engine = f"{facts.engine} {facts.version or 'of unknown version'}" if facts.engine else "an unknown engine"
    context = f", context {facts.context}" if facts.context else ""
    lines = [f"{url}: {engine}, model {name}{context}"]
    lines += [f"it answers as {facts.answers_as}, not as {name}"] if facts.answers_as not in {"", name} else []
    settings = ", ".join(f"{key} {value}" for key, value in facts.settings.items())
    lines += [f"settings: {settings}" if settings else "settings: unknown"]
    lines += [f"tokens: {_COUNTS[facts.tokens]}"]
    return [*map(join_clean_lines, lines)]


def build_level(measured: LevelSummary) -> Section:
    """Return the results at one level of concurrency: a table by kind of prompt, one of latencies, then sentences."""
    kinds, latency = _build_kinds_table(measured), _build_latency_table(measured)
    tables = [table for table in (kinds, latency) if table.rows]
    return Section("", (*tables, *map(Note, _describe_level(measured))))


def build_turns(done: Sequence[RequestDone]) -> Section:
    """Return the turns of sessions, which the ends of their kinds number."""
    rows = []
    good = [request for request in done if not request.error]
    for turn in sorted({int(request.kind.rpartition(" ")[2]) for request in good}):
        of_turn = [request for request in good if request.kind.endswith(f" {turn}")]
        known = [request for request in of_turn if request.cached is not None and request.prompt_tokens]
        hits = sum(request.cached or 0.0 for request in known) / sum(r.prompt_tokens for r in known) if known else None
        calls, broken = (sum(getattr(request, name) for request in of_turn) for name in ("calls", "broken_calls"))
        ttfts = [request.ttft for request in of_turn if request.ttft is not None]
        rows.append(
            (
                f"turn {turn}",
                str(len(of_turn)),
                f"{statistics.median(request.prompt_tokens for request in of_turn):.0f}",
                format_percent(hits),
                format_number(statistics.median(ttfts) if ttfts else None, 3, "s"),
                format_number(statistics.median(request.total for request in of_turn), 1, "s"),
                f"{calls - broken} of {calls} parse" if calls else "none",
            )
        )
    header = ("median of", "#", "prompt tokens", "prefix hits", "TTFT", "total", "tool calls")
    return Section("", (Table(header, tuple(rows), (1, 2, 3, 4, 5)),))


def _build_kinds_table(measured: LevelSummary) -> Table:
    header = ("median of", "#", "tok/s", "spread", "AL", "steps/s", "TTFT", "chunk p95")
    rows = [_figures_row(kind, figures) for kind, figures in measured.kinds.items()]
    if measured.figures and len(rows) > 1:
        rows.append(_figures_row("all", measured.figures))
    once = all(figures.n + figures.failed <= 1 for figures in measured.kinds.values())
    return Table(header, () if once else tuple(rows), (1, 2, 3, 4, 5, 6, 7))


def _figures_row(kind: str, figures: RequestFigures) -> tuple[str, ...]:
    speed = figures.tok_s
    return (
        truncate(kind, KIND_WIDTH),
        f"{figures.n}" + (f"/{figures.n + figures.failed}" if figures.failed else ""),
        _median(speed),
        f"{speed.low:.1f} to {speed.high:.1f}" if speed else UNKNOWN,
        _median(figures.acceptance_length, 2),
        _median(figures.steps_s),
        _median(figures.ttft, 3, "s"),
        _median(figures.chunk_p95, 3, "s"),
    )


def _median(spread: Spread | None, digits: int = 1, unit: str = "") -> str:
    return format_number(spread.median if spread else None, digits, unit)


def _build_latency_table(measured: LevelSummary) -> Table:
    kinds = {kind: latency for kind, latency in measured.latency.items() if kind or len(measured.latency) != 2}
    several = any(latency.e2e and latency.e2e.n > 1 for kind, latency in kinds.items() if kind)
    shown = {kind: latency for kind, latency in kinds.items() if several or not kind}
    rows = tuple(list_latency_rows(shown)) if measured.requests > 1 else ()
    return Table(("latency of", "", "#", "p50", "p90", "p95", "p99"), rows, (2, 3, 4, 5, 6))


def list_latency_rows(kinds: Mapping[str, Latency], least: int = 0) -> Iterator[tuple[str, ...]]:
    """Yield the percentiles by kind of prompt and latency; of fewer than `least` requests only the overall median."""
    for kind, latency in kinds.items():
        named = (("TTFT", latency.ttft), ("TPOT", latency.tpot), ("ITL", latency.itl), ("E2E", latency.e2e))
        for name, percentiles in named:
            if percentiles and (percentiles.n >= least or not kind):
                median, *others = map(format_latency, percentiles.values)
                others = others if percentiles.n >= least else [UNKNOWN] * len(others)
                yield truncate(kind or "all", KIND_WIDTH), name, str(percentiles.n), median, *others


def format_latency(seconds: float) -> str:
    """Return a latency in the unit that shows three digits."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def _format_window(measured: LevelSummary) -> list[str]:
    window, lines = measured.window, list[str]()
    if window and window.streams != 1:
        load = f"{window.rate:g} requests/s arriving" if window.rate else f"{window.streams} at a time"
        lines.append(f"{load}: {window.under_way:.1f} under way on average, {pluralize(window.tokens, 'token')} in all")
    if window and window.joules_per_token is not None:
        lines.append(f"{window.joules_per_token:.3g} J per output token of all GPUs, {window.joules:.0f} J")
    if goodput := measured.goodput:
        limits = ", ".join(f"{name} {limit:g} s" for name, limit in structs.asdict(goodput.slo).items() if limit)
        rate = format_number(goodput.per_second, 2)
        lines.append(f"goodput {rate} requests/s: {goodput.met} of {goodput.n} within {limits}")
    return lines


def _describe_level(measured: LevelSummary) -> list[str]:
    failed = f", {measured.failed} failed" if measured.failed else ""
    unit, rate = ("chunk", "chunks/s") if measured.token_count is TokenCount.CHUNKS else ("token", "tok/s")
    lines = [
        f"{pluralize(measured.requests, 'request')}{failed}, {pluralize(measured.tokens, unit)} in "
        f"{measured.seconds:.1f} s: {measured.tok_s:.1f} {rate}",
        *_format_window(measured),
    ]
    lines += _describe_speed(measured.figures, rate)
    lines += _explain_missing_speeds(measured)
    lines += _describe_acceptance(measured)
    if forecast := measured.fewer_drafts:
        lines.append(f"{format_forecast(forecast)}: {forecast.command}")
    lines += [_format_memory_limit(measured.memory_limit)] if measured.memory_limit else []
    if measured.token_count is not TokenCount.USAGE:
        lines.append(f"tokens: {_COUNTS[measured.token_count]}")
    lines += [TOKEN_VARIETY[measured.token_variety]] if measured.token_variety in TOKEN_VARIETY else []
    if measured.sampler:
        end = "of full length (ignore_eos)" if measured.fixed else "to the model's own end"
        lines.append(f"answers {end}; sampler: {measured.sampler}")
    lines += [f"sampling: {measured.sampling}"] if measured.sampling else []
    return [*lines, *filter(None, [format_synthetic(measured.synthetic)])]


def _describe_speed(figures: RequestFigures | None, rate: str = "tok/s") -> list[str]:
    if figures is None or (speed := figures.tok_s) is None:
        return []
    bounds = f"{speed.low:.1f} to {speed.high:.1f}" + (" (p5 to p95)" if speed.percentiles else "")
    return [f"decode {rate} median {speed.median:.1f}, {bounds}, {pluralize(speed.n, 'request')}"]


def _describe_acceptance(measured: LevelSummary | Rates) -> list[str]:
    if measured.acceptance_length is None and measured.acceptance is None:
        return []
    share = "" if measured.acceptance is None else f"acceptance {format_percent(measured.acceptance, 1)}, "
    length, steps = format_number(measured.acceptance_length, 2), format_number(measured.steps, 0)
    positions = " ".join(UNKNOWN if each is None else f"{each:.0%}" for each in measured.per_position)
    return [
        f"{share}acceptance length {length} with the bonus token, over {steps} steps",
        *([f"by position {positions}"] if positions else []),
    ]


def format_forecast(forecast: DraftForecast) -> str:
    """Return what fewer drafts would give, without the command that tries them."""
    lengths = f"acceptance length {forecast.length:.2f} instead of {forecast.length_now:.2f}"
    if forecast.step_ratio is None or forecast.speed_ratio is None:
        return f"n={forecast.tokens} would have {lengths}; its steps were not measured here"
    return (
        f"n={forecast.tokens} would give about {forecast.speed_ratio:.2f} times the tok/s: {lengths}, steps "
        f"{forecast.step_ratio:.2f} as long, from {', '.join(forecast.runs)}"
    )


def _format_memory_limit(limit: MemoryLimit) -> str:
    if limit.unknown or not limit.bandwidth:
        return f"of what this card's memory allows: unknown, without {'; '.join(limit.unknown)}"
    parts = (
        f"{kind} {format_number(step.share, 2)} ({format_number(_to_ms(step.least_seconds), 2)} of "
        f"{format_number(_to_ms(step.seconds), 2)} ms)".strip()
        for kind, step in limit.kinds.items()
    )
    source = "measured by copying" if limit.is_measured else "published"
    return (
        f"of what this card's memory allows: {', '.join(parts)}; a step's bytes over {limit.bandwidth / 1e12:.3g} TB/s "
        f"({source})"
    )


def _to_ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def _explain_missing_speeds(measured: LevelSummary) -> list[str]:
    if measured.figures is None:
        return []
    missing = measured.figures.n - (measured.figures.tok_s.n if measured.figures.tok_s else 0)
    why = "without tok/s: the whole answer arrived, or was read, at once"
    return [f"{pluralize(missing, 'request')} {why}"] if missing else []


def build_levels(levels: Sequence[LevelSummary]) -> Section:
    """Return the levels of concurrency side by side, and the warning if the model is synthetic."""
    header = ("streams", "#", "output tok/s", "TTFT p50", "p95 or max", "TPOT p50", "acceptance", "AL")
    rows = []
    for level in levels:
        figures = level.figures or RequestFigures.from_requests(())
        rows.append((
            str(level.streams),
            f"{figures.n}" + (f"/{level.requests}" if level.failed else ""),
            format_number(level.tok_s),
            _median(figures.ttft, 3, "s"),
            format_number(figures.ttft.high if figures.ttft else None, 3, "s"),
            format_number(figures.tpot.median * 1000 if figures.tpot else None, 1, "ms"),
            format_percent(level.acceptance, 1),
            format_number(level.acceptance_length, 2),
        ))  # fmt: skip
    warnings = dict.fromkeys(format_synthetic(level.synthetic) for level in levels if level.synthetic)
    return Section("", (Table(header, tuple(rows), tuple(range(8))), *map(Note, warnings)))


def render_run(report: RunReport) -> str:
    """Return the report of a run as Markdown."""
    plan, tokens = report.plan, report.plan.num_speculative_tokens
    drafts = f"{plan.method}, {tokens} drafts per step" if tokens else "no speculation"
    launched = f"launched {format_time(report.at)}, {report.status}"
    lines = (
        escape_text(f"{plan.title or plan.recipe}: {plan.mode.value}, {drafts}, {launched}."),
        "One launch, so it does not show how launches differ.",
    )
    return render_page(f"Run {quote_code(report.run)}", plan.synthetic, lines, _build_sections(report))


def _build_sections(report: RunReport) -> list[Section]:
    plan = report.plan
    cache = f", compile cache {report.cache}" if report.cache else ""
    up = f"up after {format_duration(report.up)}, ready (first answer) after {format_duration(report.ready)}{cache}"
    phases = tuple((name, format_duration(seconds)) for name, seconds in report.phases.items())
    env = [f"{name}={shlex.quote(value)} \\" for name, value in sorted(plan.env.items())]
    facts = [
        f"target {plan.target}, drafter {plan.drafter or 'none'}",
        f"engine {report.engine}, patches {', '.join(report.patches) or 'none'}",
        f"hardware {plan.hardware.value}",
        # The label above already says so.
        *(f"{name}: {', '.join(values)}" for name, values in report.facts.items() if name != "synthetic"),
        *([f"launched although a check failed: {report.forced}"] if report.forced else []),
        *([f"launched in place of {report.restarted_from}, which failed"] if report.restarted_from else []),
    ]
    return [
        Section("start", (Note(up), *([Table(("phase", "took"), phases, (1,))] if phases else []))),
        Section("measured", tuple(_list_measured(report))),
        Section("what ran", (*map(Note, facts), Lines((*env, shlex.join(plan.argv))))),
    ]


def _list_measured(report: RunReport) -> Iterator[Part]:
    yield from (Note(f"all traffic: {line}") for line in (_describe_acceptance(report.rates) if report.rates else ()))
    if not report.requests:
        yield Note("no request was measured")
        return
    yield from map(Note, _describe_speed(RequestFigures.from_requests(report.requests)))
    if ways := list(dict.fromkeys(done.sampling for done in report.requests if done.sampling)):
        yield Note(f"sampling: {name_template('; '.join(ways), report.plan)}")
    header = ("prompt", "concurrency or rate", "tokens", "TTFT s", "tok/s", "steps/s", "AL", "finish")
    yield Table(header, tuple(map(_list_cells, report.requests)), tuple(range(1, 7)))


def _list_cells(done: RequestDone) -> tuple[str, ...]:
    load = f"{done.rate:g}/s" if done.rate else str(done.streams) if done.streams else UNKNOWN
    values = ((done.ttft, 3), (done.decode_tok_s, 1), (done.steps_s, 2), (done.acceptance_length, 2))
    figures = (format_number(value, digits) for value, digits in values)
    return done.kind, load, str(done.tokens), *figures, done.error or done.finish


_REFUSAL = "the flags, versions, patches, prompts and the machine of {} are not recorded in it"
AnyReport = ExperimentReport | RunReport | ImportedResult


class SideBySide(msgspec.Struct, frozen=True):
    """The figures of two results side by side, and the reason why they get no verdict."""

    refused: str
    names: tuple[str, str]
    measured: tuple[tuple[ImportedMeasurement, ...], tuple[ImportedMeasurement, ...]]
    synthetic: str = ""


def compare_imported(names: tuple[str, str], results: tuple[AnyReport, AnyReport]) -> SideBySide:
    """Return the figures of both results side by side."""
    foreign = [
        f"{name} ({result.source})"
        for name, result in zip(names, results, strict=True)
        if isinstance(result, ImportedResult)
    ]
    labels = [
        of.synthetic if isinstance(of, ImportedResult)
        else (of.plan if isinstance(of, RunReport) else of.design).synthetic for of in results
    ]  # fmt: skip
    synthetic = "; ".join(dict.fromkeys(filter(None, labels)))
    measured = (tuple(_list_measurements(results[0])), tuple(_list_measurements(results[1])))
    return SideBySide(_REFUSAL.format(" and ".join(foreign)), names, measured, synthetic)


def render_comparison(sides: SideBySide) -> str:
    """Return both results side by side as Markdown."""
    header = ("of", "what", "requests", "concurrency or rate", "tok/s", "TTFT s", "acceptance", "AL", "failed")
    rows = tuple(
        (name, *_list_measured_cells(measurement))
        for name, measured in zip(sides.names, sides.measured, strict=True)
        for measurement in measured
    )
    lines = (
        f"**refused: {escape_text(sides.refused)}**",
        "The figures, each as its own source defines it; tok/s of another tool may count the first token too.",
    )
    title = f"{escape_text(sides.names[0])} beside {escape_text(sides.names[1])}"
    table = Table(header, rows, tuple(range(2, 9)))
    return render_page(title, sides.synthetic, lines, [Section("", (table,))])


def _list_measured_cells(measurement: ImportedMeasurement) -> tuple[str, ...]:
    streams = UNKNOWN if measurement.streams is None else str(measurement.streams)
    return (
        measurement.what,
        str(measurement.n),
        f"{measurement.rate:g}/s" if measurement.rate else streams,
        format_number(measurement.tok_s),
        UNKNOWN if measurement.ttft is None else f"{format_number(measurement.ttft, 3)} (median)",
        format_percent(measurement.acceptance, 1),
        format_number(measurement.acceptance_length, 2),
        str(measurement.failed),
    )


def _list_measurements(report: AnyReport) -> Iterator[ImportedMeasurement]:
    if isinstance(report, ImportedResult):
        yield from report.measured
    elif isinstance(report, RunReport):
        yield from _summarize_prompts("", report.requests)
    else:
        for place, arm in enumerate(report.design.arms):
            yield from _summarize_prompts(
                f"{arm.name}: ", [done for boot in report.boots if boot.arm == place for done in boot.requests]
            )


def _summarize_prompts(
    head: str, requests: tuple[RequestDone, ...] | list[RequestDone]
) -> Iterator[ImportedMeasurement]:
    for kind, streams, rate in dict.fromkeys((done.kind, done.streams, done.rate) for done in requests):
        figures = RequestFigures.from_requests(
            [done for done in requests if (done.kind, done.streams, done.rate) == (kind, streams, rate)]
        )
        yield ImportedMeasurement(
            what=f"{head}{kind}",
            n=figures.n,
            streams=streams or None,
            rate=rate or None,
            tok_s=figures.tok_s.median if figures.tok_s else None,
            ttft=figures.ttft.median if figures.ttft else None,
            acceptance_length=figures.acceptance_length.median if figures.acceptance_length else None,
            failed=figures.failed,
        )
