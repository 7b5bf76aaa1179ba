"""Run state -> text of the run screen: status line, idle probe, log lines. Pure."""

from __future__ import annotations

import math
import time

from textual.content import Content

from dflash_tui.common.errors import DflashError
from dflash_tui.common.formatting import format_duration, format_number, pluralize, truncate, truncate_middle
from dflash_tui.events import PROBE, Health, LogLine
from dflash_tui.monitoring import recorder
from dflash_tui.monitoring.foreign_server import ForeignIdentity
from dflash_tui.planning.plan import Plan
from dflash_tui.presentation.client_text import Endpoint, list_endpoint_facts
from dflash_tui.run_state.state import RunState
from dflash_tui.runs.run import Run
from dflash_tui.tui.widgets.basic import MUTED, join_fitting

_MARKS = {
    "preparing": ("◐", "$warning"),
    "starting": ("◐", "$warning"),
    "up": ("●", "$primary"),
    "running": ("●", "$primary"),
    "healthy": ("●", "$primary"),
    "warm": ("●", "$success"),
    "unhealthy": ("✗", "$error"),
    "stopping": ("◐", "$warning"),
    "stopped": ("■", "$foreground"),
    "failed": ("✗", "$error"),
    "lost": ("✗", "$error"),
}
# Cells that a name has at least, those from which on the mode stands beside it, and those of why it is synthetic.
_LEAST_NAME, _LONG_NAME, _LEAST_WHY = 12, 28, 16
# Cells that the name of a foreign model has at least, and those of the release beside it.
_LEAST_MODEL, _VERSION = 16, 20
_LEVELS = {"WARNING": "! ", "ERROR": "✗ ", "CRITICAL": "✗ "}


def render_status(
    plan: Plan | None,
    run: Run | None,
    state: RunState,
    error: DflashError | None,
    *,
    now: float,
    frozen: bool,
    width: int,
    endpoint: Endpoint | None = None,
    host: str = "",
) -> Content:
    """Return the status line in `width` cells: the most important first, and what has no room is left out.

    Args:
        plan: What is prepared or was launched; None without a run.
        run: The run, once it was launched.
        state: The state of the run.
        error: Why it could not be prepared, launched or watched.
        now: The present time, in seconds since the epoch.
        frozen: Whether the display is frozen.
        width: The cells of the line.
        endpoint: Where it answers, if it does.
        host: What the user's own machine calls this one; empty where that is this one.
    """
    if plan is None:
        idle = Content.assemble(("○ ", "$foreground"), ("NO SERVER", "bold"), "  1 chooses a recipe")
        return join_fitting([idle, Content(", r an earlier run")], width)
    word = "failed" if error else state.status
    mark, color = _MARKS[word]
    since = state.started_at if word == "starting" else None
    elapsed = "" if since is None else f" {format_duration(max(0.0, now - since))}"
    head = Content.assemble(
        (f"{mark} ", color),
        (f"{word.upper()}{elapsed}", "bold"),
        # Short and early, since there may be no room for why it is synthetic.
        (" SYNTHETIC" if plan.synthetic else "", "bold $accent"),
        (f" on {host}" if host else "", "bold"),
        ("  FROZEN, space resumes" if frozen else "", "bold $accent"),
    )
    place = f"  {endpoint.url}" if endpoint else f"  :{plan.port}"
    about = f"  {plan.mode.value} · n={plan.num_speculative_tokens}"
    beside = width - head.cell_length - 2
    room = beside - len(place) if beside - len(place) >= _LEAST_NAME else beside
    name = truncate_middle(plan.recipe, max(_LEAST_NAME, room - len(about) if room > _LONG_NAME else room))
    parts = [head, Content(f"  {name}"), Content(place), Content(about)]
    parts += [Content(f" · {fact}") for fact in (list_endpoint_facts(endpoint) if endpoint else ())]
    if plan.synthetic:
        left = width - sum(part.cell_length for part in parts) - 3
        why = truncate(plan.synthetic, left) if left >= _LEAST_WHY else plan.synthetic
        parts.append(Content.assemble((f" · {why}", "$accent")))
    if run:
        parts.append(Content.assemble((f" · {run.engine}", MUTED)))
        parts += [Content.assemble((f" +{pluralize(len(run.patches), 'patch')}", MUTED))] if run.patches else []
    return join_fitting(parts, width)


def render_foreign_status(about: ForeignIdentity, health: Health, *, frozen: bool, width: int) -> Content:
    """Return the status line of a server that is not ours, in `width` cells: its health, its model, its release."""
    mark, color = _MARKS.get(health.value, _MARKS["starting"])
    head = Content.assemble(
        (f"{mark} ", color),
        ("CONNECTING" if health is Health.STARTING else health.value.upper(), "bold"),
        ("  FROZEN, space resumes" if frozen else "", "bold $accent"),
    )
    model = truncate_middle(about.model, max(_LEAST_MODEL, width - head.cell_length - _VERSION))
    parts = [head, Content(f"  {model}" if model else "")]
    parts += [Content.assemble((f" · vLLM {about.version}", MUTED))] if about.version else []
    return join_fitting(parts, width)


def render_probe(state: RunState, now: float) -> str:
    """Return how often an idle server is probed with a request of one token, or when it last was."""
    last = next((done for done in reversed(state.requests) if done.kind == PROBE), None)
    if last is not None:
        age, took = format_duration(now - last.at), format_number(last.total, 2, "s")
        return f"idle probe of one token {age} ago took {took}"
    after = recorder.idle_seconds_before_probe()
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
