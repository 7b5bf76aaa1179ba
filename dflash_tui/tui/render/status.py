"""Run state -> text of the run screen: status line, idle probe, log lines. Pure."""

from __future__ import annotations

import math
import time

from textual.content import Content

from dflash_tui.common.errors import DflashError
from dflash_tui.common.formatting import format_duration, format_number, pluralize, truncate_middle
from dflash_tui.events import PROBE, LogLine
from dflash_tui.planning.plan import Plan
from dflash_tui.presentation.clients.client_wiring import Endpoint, format_endpoint
from dflash_tui.run_state import idle_probe
from dflash_tui.run_state.state import RunState
from dflash_tui.runs.run import Run
from dflash_tui.tui.widgets.basic import MUTED

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
    "lost": ("✗", "$error"),
}
_LEVELS = {"WARNING": "! ", "ERROR": "✗ ", "CRITICAL": "✗ "}


def render_status(
    plan: Plan | None,
    run: Run | None,
    state: RunState,
    error: DflashError | None,
    *,
    now: float,
    frozen: bool,
    endpoint: Endpoint | None = None,
    host: str = "",
) -> Content:
    """Return the status line, the most important first, since it is cut off at the right.

    Args:
        plan: What is prepared or was launched; None without a run.
        run: The run, once it was launched.
        state: The state of the run.
        error: Why it could not be prepared, launched or watched.
        now: The present time, in seconds since the epoch.
        frozen: Whether the display is frozen.
        endpoint: Where it answers, if it does.
        host: What the user's own machine calls this one; empty where that is this one.
    """
    if plan is None:
        return Content.assemble(("○ ", "$foreground"), ("NO SERVER", "bold"), "  press 1 to choose a recipe")
    word = "failed" if error else state.status
    mark, color = _MARKS[word]
    since, has_clock = state.started_at, word == "starting" and not state.startup.clock_set
    elapsed = f" {format_duration(max(0.0, now - since))}" if has_clock and since is not None else ""
    parts: list[tuple[str, str]] = [(f"{mark} ", color), (f"{word.upper()}{elapsed}", "bold")]
    # Short and early, since the line is cut from the right; why it is synthetic comes where there is room.
    parts += [(" SYNTHETIC", "bold $accent")] if plan.synthetic else []
    parts += [(f" on {host}", "bold")] if host else []
    parts += [("  FROZEN, space resumes", "bold $accent")] if frozen else []
    place = f"  {format_endpoint(endpoint)}" if endpoint else ""
    port = "" if endpoint else f" :{plan.port}"
    about = f"{truncate_middle(plan.recipe, 28)}  {plan.mode.value} · n={plan.num_speculative_tokens}"
    facts = f"{port}  {about}{place}"
    parts.append((facts, "$foreground"))
    parts += [(f" · {plan.synthetic}", "$accent")] if plan.synthetic else []
    if run:
        parts.append((f" · {run.engine}", MUTED))
        parts += [(f" +{pluralize(len(run.patches), 'patch')}", MUTED)] if run.patches else []
    return Content.assemble(*parts)


def render_probe(state: RunState, now: float) -> str:
    """Return how often an idle server is probed with a request of one token, or when it last was."""
    last = next((done for done in reversed(state.requests) if done.kind == PROBE), None)
    if last is not None:
        age, took = format_duration(now - last.at), format_number(last.total, 2, "s")
        return f"idle probe of one token {age} ago took {took}"
    after = idle_probe.idle_seconds_before_probe()
    return (
        f"probed with one token after every {format_duration(after)} without requests" if math.isfinite(after) else ""
    )


def render_log_line(line: LogLine, utc_offset: float) -> str:
    """Return a log line with the server's local time, a mark for warnings and errors, and the file that logged it.

    A line without a source has no timestamp of its own, and none is shown: that of the line before may be long past.
    """
    at = time.strftime("%H:%M:%S", time.gmtime(line.at + utc_offset)) if line.source else f"{'':8}"
    source = line.source.rsplit("/", 1)[-1].removesuffix(".py")
    return f"{at} {_LEVELS.get(line.level, '  ')}{line.text}{f'  [{source}]' if source else ''}"
