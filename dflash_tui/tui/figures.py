"""Run state -> what the run screen writes: status line, tiles, chart values, log lines. Pure."""

from __future__ import annotations

import statistics
import time

from textual.content import Content

from dflash_tui.core.events import WARM_UP, LogLine
from dflash_tui.core.plan import Plan
from dflash_tui.core.server import Run
from dflash_tui.core.state import LONGEST_GAP, RunState
from dflash_tui.errors import DflashError
from dflash_tui.text import GIB, UNKNOWN, cut, duration, gib, number, percent, plural
from dflash_tui.tui.widgets import MUTED, Tile

_RECENT = 10.0
_TTFT_OF = 20
_MARKS = {
    "preparing": ("◐", "$warning"),
    "starting": ("◐", "$warning"),
    "up": ("●", "$primary"),
    "healthy": ("●", "$primary"),
    "warm": ("●", "$success"),
    "unhealthy": ("✗", "$error"),
    "stopping": ("◐", "$warning"),
    "stopped": ("■", "$foreground"),
    "failed": ("✗", "$error"),
}
_LEVELS = {"WARNING": "! ", "ERROR": "✗ ", "CRITICAL": "✗ "}


def status(
    plan: Plan | None, run: Run | None, state: RunState, error: DflashError | None, *, now: float, frozen: bool
) -> Content:
    """Return the status line, the most important first, since it is cut from the right."""
    if plan is None:
        return Content.assemble(("○ ", "$foreground"), ("NO SERVER", "bold"), "  1 shows what can be launched")
    word = "failed" if error else state.status
    mark, color = _MARKS[word]
    since = state.started_at
    elapsed = f" {duration(max(0.0, now - since))}" if word == "starting" and since is not None else ""
    parts: list[tuple[str, str]] = [(f"{mark} ", color), (f"{word.upper()}{elapsed}", "bold")]
    parts += [("  FROZEN, space goes on", "bold $accent")] if frozen else []
    facts = f" :{plan.port}  {cut(plan.recipe, 28)}  {plan.mode.value} · n_spec {plan.num_speculative_tokens}"
    parts.append((facts, "$foreground"))
    parts += [(f" · SYNTHETIC: {plan.synthetic}", "$accent")] if plan.synthetic else []
    if run:
        parts.append((f" · {run.engine}", MUTED))
        parts += [(f" +{plural(len(run.patches), 'patch')}", MUTED)] if run.patches else []
    return Content.assemble(*parts)


def tiles(state: RunState, tokens: int, now: float, span: float) -> list[Tile]:
    """Return the figures: rates of the last ten seconds with the mean of the window; a silent server has none."""
    last = state.readings[-1] if state.readings else None
    fresh = last is not None and state.exit is None and now - last.at <= LONGEST_GAP
    recent = state.window(_RECENT, now) if fresh else None
    mean = state.window(span, now)
    memory = state.memory[-1] if state.memory else None
    times = [done.ttft for done in state.requests if done.ttft is not None and done.kind != WARM_UP][-_TTFT_OF:]
    return [
        Tile(
            f"tok/s {_RECENT:.0f} s",
            number(recent.tok_s if recent else None),
            f"{number(mean.tok_s if mean else None)} in {span / 60:.0f} min",
            17,
        ),
        Tile("acceptance", percent(recent.acceptance if recent else None, 1), "", 12),
        Tile("accept len", number(recent.acceptance_length if recent else None, 2), f"of {tokens + 1}", 12),
        Tile(
            f"memory {memory.source}" if memory else "memory",
            gib(memory.used if memory else None),
            percent(memory.used / memory.total) if memory and memory.total else "",
            17,
        ),
        Tile("TTFT p50", number(statistics.median(times) if times else None, 2, "s"), f"n={len(times)}", 12),
        Tile(
            "running",
            str(last.counters.running) if last and fresh else UNKNOWN,
            f"{last.counters.waiting} wait" if last and fresh else "",
            10,
        ),
    ]


def series(
    state: RunState, chart: str, now: float, span: float, columns: int
) -> tuple[list[float], float, float | None]:
    """Return a chart's values, its span and the height of its axis, or None to keep that."""
    values = state.series(chart, now, span, columns)
    if chart == "memory":
        total = state.memory[-1].total / GIB if state.memory else None
        return [value / GIB for value in values], span, total
    return ([value * 100 for value in values] if chart == "acceptance" else values), span, None


def log_line(line: LogLine, utc_offset: float) -> str:
    """Return a log line with the server's local time and a mark for trouble; the file that logged it comes last.

    A line without a source has no stamp of its own, and none is shown: that of the line before may be long past.
    """
    at = time.strftime("%H:%M:%S", time.gmtime(line.at + utc_offset)) if line.source else f"{'':8}"
    source = line.source.rsplit("/", 1)[-1].removesuffix(".py")
    return f"{at} {_LEVELS.get(line.level, '  ')}{line.text}{f'  [{source}]' if source else ''}"
