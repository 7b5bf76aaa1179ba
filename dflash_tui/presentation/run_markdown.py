"""The Markdown report of one run: what it is, how it started, and what was measured on it."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterator

from dflash_tui.benchmark.prompts import name_template
from dflash_tui.common.formatting import UNKNOWN, format_duration, format_number, format_percent, format_time, pluralize
from dflash_tui.events import RequestDone
from dflash_tui.experiments.run_report import RunReport
from dflash_tui.presentation.markdown import escape_text, quote_code
from dflash_tui.presentation.report import Lines, Note, Part, Section, Table, to_markdown


def render_run(report: RunReport) -> str:
    """Return the whole report."""
    plan, tokens = report.plan, report.plan.num_speculative_tokens
    drafts = f"{plan.method}, {tokens} drafts per step" if tokens else "no speculation"
    launched = f"launched {format_time(report.at)}, {report.status}"
    parts = [f"# Run {quote_code(report.run)}"]
    parts += [f"> **Not a real model's figures: {escape_text(plan.synthetic)}.**"] if plan.synthetic else []
    parts.append(escape_text(f"{plan.title or plan.recipe}: {plan.mode.value}, {drafts}, {launched}."))
    parts.append("One launch, so nothing here tells what another launch would measure.")
    return "\n\n".join([*parts, to_markdown(_build_sections(report))]) + "\n"


def _build_sections(report: RunReport) -> list[Section]:
    plan = report.plan
    cache = f", compile cache {report.cache}" if report.cache else ""
    up = f"Up after {format_duration(report.up)}, ready (first answer) after {format_duration(report.ready)}{cache}."
    phases = tuple((name, format_duration(seconds)) for name, seconds in report.phases.items())
    env = [f"{name}={shlex.quote(value)} \\" for name, value in sorted(plan.env.items())]
    facts = [
        f"target {plan.target}, drafter {plan.drafter or 'none'}",
        f"engine {report.engine}, patches {', '.join(report.patches) or 'none'}",
        f"hardware {plan.hardware.value}",
        # The label above says that it is synthetic.
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
    rates = report.rates
    if rates and rates.acceptance is not None:
        shares = ", ".join(format_percent(share) for share in rates.per_position)
        yield Note(
            f"Acceptance length {format_number(rates.acceptance_length, 2)} (the bonus token counted), acceptance "
            f"{format_percent(rates.acceptance, 1)}, over {format_number(rates.steps, 0)} steps of all traffic"
            f"{f'; by position {shares}' if shares else ''}."
        )
    if not report.requests:
        yield Note("No request was measured on it.")
        return
    speeds = [done.decode_tok_s for done in report.requests if not done.error and done.decode_tok_s is not None]
    if speeds:
        ends = f"{min(speeds):.1f} to {max(speeds):.1f}, {pluralize(len(speeds), 'request')}"
        yield Note(f"Decode speed of a request: median {statistics.median(speeds):.1f} tok/s ({ends}).")
    if ways := list(dict.fromkeys(done.sampling for done in report.requests if done.sampling)):
        yield Note(f"Sampling: {name_template('; '.join(ways), report.plan)}.")
    header = ("prompt", "concurrency or rate", "tokens", "TTFT s", "tok/s", "steps/s", "AL", "finish")
    yield Table(header, tuple(map(_list_cells, report.requests)), tuple(range(1, 7)))


def _list_cells(done: RequestDone) -> tuple[str, ...]:
    load = f"{done.rate:g}/s" if done.rate else str(done.streams) if done.streams else UNKNOWN
    values = ((done.ttft, 3), (done.decode_tok_s, 1), (done.steps_s, 2), (done.acceptance_length, 2))
    figures = (format_number(value, digits) for value, digits in values)
    return done.kind, load, str(done.tokens), *figures, done.error or done.finish
