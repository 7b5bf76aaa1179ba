"""The text of a benchmark, in lines of at most 80 characters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from dflash_tui.benchmark.stats import LEVEL
from dflash_tui.benchmark.summary import LevelSummary, RequestFigures, Spread
from dflash_tui.benchmark.vllm_bench import VllmBenchCompared
from dflash_tui.common.formatting import UNKNOWN, format_number, format_percent, format_table, pluralize, truncate
from dflash_tui.events import RequestDone

KIND_WIDTH = 12


def format_request(request: RequestDone | None) -> str:
    """Return a request as a row, or the header for None."""
    if request is None:
        columns = f"{'TTFT':>8} {'tok/s':>7} {'AL':>5} {'steps/s':>7} {'total':>8} {'tokens':>6}  finish"
        return f"{'prompt':<{KIND_WIDTH}} {columns}"
    end = f"failed: {request.error}" if request.error else request.finish
    return (
        f"{truncate(request.kind, KIND_WIDTH):<{KIND_WIDTH}} {format_number(request.ttft, 3, 's'):>8} "
        f"{format_number(request.decode_tok_s):>7} {format_number(request.acceptance_length, 2):>5} "
        f"{format_number(request.steps_s):>7} {format_number(request.total, 1, 's'):>8} {request.tokens:>6}  {end}"
    )


def tabulate_kinds(measured: LevelSummary) -> str:
    """Return the medians of each kind, with the spread of its speed; empty when every kind was sent once."""
    if all(figures.n + figures.failed <= 1 for figures in measured.kinds.values()):
        return ""
    header = ("median of", "n", "tok/s", "spread", "AL", "steps/s", "TTFT", "chunk p95")
    rows = [_figures_row(kind, figures) for kind, figures in measured.kinds.items()]
    if measured.figures and len(rows) > 1:
        rows.append(_figures_row("all", measured.figures))
    return format_table(header, rows, right=(1, 2, 3, 4, 5, 6, 7))


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


def format_level(measured: LevelSummary) -> str:
    """Return the sum of a level in two or three lines."""
    failed = f", {measured.failed} failed" if measured.failed else ""
    lines = [
        f"{pluralize(measured.requests, 'request')}{failed}, {pluralize(measured.tokens, 'token')} in "
        f"{measured.seconds:.1f} s: "
        f"{measured.tok_s:.1f} tok/s"
    ]
    if measured.figures and (speed := measured.figures.tok_s):
        bounds = f"{speed.low:.1f} to {speed.high:.1f}" + (" (p5 to p95)" if speed.percentiles else "")
        lines.append(f"decode tok/s median {speed.median:.1f}, {bounds}, n={speed.n}")
    if measured.acceptance is not None:
        positions = " ".join(f"{share:.0%}" for share in measured.per_position)
        lines.append(
            f"acceptance {format_percent(measured.acceptance, 1)}, acceptance length "
            f"{format_number(measured.acceptance_length, 2)} with the bonus token, over {measured.steps:.0f} steps"
        )
        lines.append(f"by position {positions}")
    if measured.synthetic:
        lines.append(format_synthetic_warning(measured.synthetic))
    return "\n".join(lines)


def format_synthetic_warning(why: str) -> str:
    """Return the warning beside the figures of a model that is none."""
    return f"({why}: these figures say nothing about a real model)"


def tabulate_levels(levels: Sequence[LevelSummary]) -> str:
    """Return the levels of concurrency beside each other."""
    header = ("streams", "n", "output tok/s", "TTFT p50", "p95 or max", "TPOT p50", "acceptance", "AL")
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
    return format_table(header, rows, right=range(8))


def tabulate_with_vllm(ours: Sequence[LevelSummary], compared: VllmBenchCompared) -> str:
    """Return what we measured beside what `vllm bench serve` did on the same prompts and server, as means of turns."""
    theirs = [one.measured[0] for one in compared.theirs]
    mine, other = _mean(one.tok_s for one in ours), _mean(one.tok_s for one in theirs)
    if compared.tok_s:
        low, high = (f"{(bound - 1) * 100:+.1f}" for bound in (compared.tok_s.low, compared.tok_s.high))
        speed = f"{(compared.tok_s.ratio - 1) * 100:+.1f} % ({low} to {high})"
    else:
        speed = f"{(mine / other - 1) * 100:+.1f} %" if mine and other else UNKNOWN
    rows = (
        ("output tok/s", format_number(mine), format_number(other), speed),
        _acceptance(_mean(one.acceptance for one in ours), _mean(one.acceptance for one in theirs)),
        _length(_mean(one.acceptance_length for one in ours), _mean(one.acceptance_length for one in theirs)),
        ("requests", _out_of([(one.requests - one.failed, one.failed) for one in ours]),
         _out_of([(one.n, one.failed) for one in theirs]), ""),
    )  # fmt: skip
    streams = "one stream" if compared.streams == 1 else f"{compared.streams} streams"
    what = streams if len(ours) == 1 else f"{streams}, {len(ours)} turns"
    between = "difference" if compared.tok_s is None else f"difference ({LEVEL:.0%})"
    return format_table((what, "dflash-tui", compared.theirs[0].source, between), rows, right=(1, 2, 3))


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean; None when one is unknown."""
    known = list(values)
    return None if None in known else fmean(value for value in known if value is not None)


def _acceptance(mine: float | None, other: float | None) -> tuple[str, ...]:
    points = UNKNOWN if mine is None or other is None else f"{(mine - other) * 100:+.1f} points"
    return "acceptance", format_percent(mine, 1), format_percent(other, 1), points


def _length(mine: float | None, other: float | None) -> tuple[str, ...]:
    apart = UNKNOWN if mine is None or other is None else f"{mine - other:+.2f}"
    return "AL", format_number(mine, 2), format_number(other, 2), apart


def _out_of(turns: Sequence[tuple[int, int]]) -> str:
    good, failed = (sum(side) for side in zip(*turns, strict=True))
    return f"{good} of {good + failed}" if failed else str(good)
