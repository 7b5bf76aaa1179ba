"""The Markdown report of one run: what it is, how it started, and what was measured on it."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterator

from dflash_tui.benchmark.sampling import name_template
from dflash_tui.common.formatting import format_duration, format_number, format_percent, format_time, pluralize
from dflash_tui.events import RequestDone
from dflash_tui.experiments.run_report import RunReport
from dflash_tui.presentation.experiment_tables import REQUEST_FIGURES, format_load, request_cells
from dflash_tui.presentation.markdown import escape_text, quote_block, quote_code, render_bullets, render_table


def render_run(report: RunReport) -> str:
    """Return the whole report."""
    return "\n\n".join(part for part in _render_sections(report) if part) + "\n"


def _render_sections(report: RunReport) -> Iterator[str]:
    plan = report.plan
    yield f"# Run {quote_code(report.run)}"
    if plan.synthetic:
        yield f"> **Not a real model's figures: {escape_text(plan.synthetic)}.**"
    tokens = plan.num_speculative_tokens
    drafts = f"{plan.method}, {tokens} drafts per step" if tokens else "no speculation"
    launched = f"launched {format_time(report.at)}, {escape_text(report.status)}"
    yield f"{escape_text(plan.title or plan.recipe)}: {plan.mode.value}, {drafts}, {launched}."
    yield "One launch, so nothing here tells what another launch would measure."
    yield "## Start"
    cache = f", compile cache {escape_text(report.cache)}" if report.cache else ""
    yield f"Up after {format_duration(report.up)}, ready (first answer) after {format_duration(report.ready)}{cache}."
    if report.phases:
        rows = [(escape_text(name), format_duration(seconds)) for name, seconds in report.phases.items()]
        yield render_table(("phase", "took"), rows, (1,))
    yield from _render_measured(report)
    yield "## What ran"
    patches = ", ".join(quote_code(name) for name in report.patches) or "none"
    yield render_bullets(
        [
            f"target {quote_code(plan.target)}, drafter {quote_code(plan.drafter) or 'none'}",
            f"engine {escape_text(report.engine)}, patches {patches}",
            f"hardware {escape_text(plan.hardware.value)}",
            *(f"{escape_text(name)}: {escape_text(', '.join(values))}" for name, values in report.facts.items()),
            *([f"launched although a check failed: {escape_text(report.forced)}"] if report.forced else []),
            *(
                [f"launched in place of {quote_code(report.restarted_from)}, which failed"]
                if report.restarted_from
                else []
            ),
        ]
    )
    env = [f"{name}={shlex.quote(value)} \\" for name, value in sorted(plan.env.items())]
    yield quote_block(*env, shlex.join(plan.argv))


def _render_measured(report: RunReport) -> Iterator[str]:
    yield "## Measured"
    rates = report.rates
    if rates and rates.acceptance is not None:
        shares = ", ".join(format_percent(share) for share in rates.per_position)
        yield (
            f"Acceptance length {format_number(rates.acceptance_length, 2)} (the bonus token counted), acceptance "
            f"{format_percent(rates.acceptance, 1)}, over {format_number(rates.steps, 0)} steps of all traffic"
            f"{f'; by position {shares}' if shares else ''}."
        )
    if not report.requests:
        yield "No request was measured on it."
        return
    good = [done for done in report.requests if not done.error]
    speeds = [done.decode_tok_s for done in good if done.decode_tok_s is not None]
    if speeds:
        ends = f"{min(speeds):.1f} to {max(speeds):.1f}, {pluralize(len(speeds), 'request')}"
        yield f"Decode speed of a request: median {statistics.median(speeds):.1f} tok/s ({ends})."
    if ways := list(dict.fromkeys(done.sampling for done in report.requests if done.sampling)):
        yield f"Sampling: {escape_text(name_template('; '.join(ways), report.plan))}."
    header = ("prompt", "concurrency or rate", "tokens", *REQUEST_FIGURES, "finish")
    yield render_table(header, [_request_row(done) for done in report.requests], range(1, 7))


def _request_row(done: RequestDone) -> list[str]:
    figures = (format_load(done), str(done.tokens), *request_cells(done))
    return [escape_text(done.kind), *figures, escape_text(done.error or done.finish)]
