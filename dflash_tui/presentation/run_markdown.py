"""The report of one run in Markdown: what it is, how it came up, and what was measured on it."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterator

from dflash_tui.common import formatting
from dflash_tui.events import RequestDone
from dflash_tui.experiments.run_report import RunReport
from dflash_tui.presentation.markdown import block, bullets, code, said, table


def render(report: RunReport) -> str:
    """Return the whole report."""
    return "\n\n".join(part for part in _parts(report) if part) + "\n"


def _parts(report: RunReport) -> Iterator[str]:
    plan = report.plan
    yield f"# Run {code(report.run)}"
    if plan.synthetic:
        yield f"> **Not a real model's figures: {said(plan.synthetic)}.**"
    drafts = f"{plan.num_speculative_tokens} drafts per step" if plan.num_speculative_tokens else "no speculation"
    launched = f"launched {formatting.format_time(report.at)}, {said(report.status)}"
    yield f"{said(plan.title or plan.recipe)}: {plan.mode.value}, {drafts}, {launched}."
    yield "One launch, so nothing here tells what another launch would measure."
    yield "## Start"
    cache = f", compile cache {said(report.cache)}" if report.cache else ""
    yield f"Up after {formatting.format_duration(report.up)}, ready (first answer) after {formatting.format_duration(report.ready)}{cache}."
    if report.phases:
        rows = [(said(name), formatting.format_duration(seconds)) for name, seconds in report.phases.items()]
        yield table(("phase", "took"), rows, (1,))
    yield from _measured(report)
    yield "## What ran"
    patches = ", ".join(code(name) for name in report.patches) or "none"
    yield bullets(
        [
            f"target {code(plan.target)}, drafter {code(plan.drafter) or 'none'}",
            f"engine {said(report.engine)}, patches {patches}",
            f"hardware {said(plan.hardware.value)}",
            *(f"{said(name)}: {said(', '.join(found))}" for name, found in report.facts.items()),
            *([f"launched although a check failed: {said(report.forced)}"] if report.forced else []),
            *([f"launched in place of {code(report.restarted_from)}, which died"] if report.restarted_from else []),
        ]
    )
    env = [f"{name}={shlex.quote(value)} \\" for name, value in sorted(plan.env.items())]
    yield block(*env, shlex.join(plan.argv))


def _measured(report: RunReport) -> Iterator[str]:
    yield "## Measured"
    rates = report.rates
    if rates and rates.acceptance is not None:
        shares = ", ".join(formatting.format_percent(share) for share in rates.per_position)
        yield (
            f"Acceptance length {formatting.format_number(rates.acceptance_length, 2)} (the bonus token counted), acceptance "
            f"{formatting.format_percent(rates.acceptance, 1)}, over {formatting.format_number(rates.steps, 0)} steps of all traffic"
            f"{f'; by position {shares}' if shares else ''}."
        )
    if not report.requests:
        yield "No request was measured on it."
        return
    good = [done for done in report.requests if not done.error]
    speeds = [done.decode_tok_s for done in good if done.decode_tok_s is not None]
    if speeds:
        ends = f"{min(speeds):.1f} to {max(speeds):.1f}, n={len(speeds)}"
        yield f"Decode speed of a request: median {statistics.median(speeds):.1f} tok/s ({ends})."
    header = ("prompt", "tokens", "TTFT s", "tok/s", "steps/s", "AL", "end")
    yield table(header, [_request(done) for done in report.requests], (1, 2, 3, 4, 5))


def _request(done: RequestDone) -> list[str]:
    figures = (
        formatting.format_number(done.ttft, 3),
        formatting.format_number(done.decode_tok_s),
        formatting.format_number(done.steps_s, 2),
        formatting.format_number(done.acceptance_length, 2),
    )
    return [said(done.kind), str(done.tokens), *figures, said(done.error or done.finish)]
