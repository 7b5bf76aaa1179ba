"""Run state as text of the run screen: status line, start-up, ranks, log lines. Pure."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Mapping, Sequence

from textual.content import Content

from dflash_tui.common.errors import DflashError
from dflash_tui.common.formatting import (
    UNKNOWN,
    draw_bar,
    format_duration,
    format_gib,
    format_percent,
    pluralize,
    truncate,
    truncate_middle,
)
from dflash_tui.events import GpuLoad, Health, LogLine, RankSampled, RankState, Step
from dflash_tui.monitoring.foreign_server import ForeignIdentity
from dflash_tui.monitoring.startup_history import ExpectedStart, MedianSeconds
from dflash_tui.planning.cluster import Cluster, ClusterHost
from dflash_tui.planning.plan import Plan
from dflash_tui.presentation.client_text import Endpoint, list_endpoint_facts
from dflash_tui.presentation.startup_text import (
    RowMark,
    StartupRow,
    build_startup_rows,
    build_step_rows,
    find_silence,
    format_expected,
    format_ready_in,
    format_silence,
    list_facts,
)
from dflash_tui.run_state.series import MAX_GAP
from dflash_tui.run_state.state import RunState
from dflash_tui.runs.run import Run
from dflash_tui.tui.widgets.basic import MUTED, join_fitting
from dflash_tui.vllm_output import log_facts

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
# The minimum cells of a name, those from which the mode is shown beside it, and those of the synthetic note.
_LEAST_NAME, _LONG_NAME, _LEAST_WHY = 12, 28, 16
# The minimum cells of a foreign model's name, and those of the vLLM release beside it.
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
    """Return the status line in `width` cells; the least important parts are dropped first."""
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
        # Short and early: the reason may not fit.
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
    if state.time_to_ready is not None:
        parts.append(Content.assemble((f" · ready in {format_duration(state.time_to_ready)}", MUTED)))
    if run:
        parts.append(Content.assemble((f" · {run.engine}", MUTED)))
        parts += [Content.assemble((f" +{pluralize(len(run.patches), 'patch')}", MUTED))] if run.patches else []
    return join_fitting(parts, width)


def render_foreign_status(about: ForeignIdentity, health: Health, *, frozen: bool, width: int) -> Content:
    """Return the status line of a foreign server: health, model, release."""
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


def render_log_line(line: LogLine, utc_offset: float) -> str:
    """Return a log line with the server's local time, a mark for warnings and errors, and its source file.

    Lines without a source have no timestamp; none is shown, since the previous one may be long past.
    """
    at = time.strftime("%H:%M:%S", time.gmtime(line.at + utc_offset)) if line.source else f"{'':8}"
    source = line.source.rsplit("/", 1)[-1].removesuffix(".py")
    return f"{at} {_LEVELS.get(line.level, '  ')}{line.text}{f'  [{source}]' if source else ''}"


_NAME = 12
_BAR = 24
_SHARE = 16
_EXPECTED = 20
_TALL = 16  # below this height, facts get a single line
_COLOURS = {
    RowMark.DONE: "$success",
    RowMark.RUNNING: "$warning",
    RowMark.STALLED: "bold $warning",
    RowMark.FAILED: "$error",
    RowMark.TO_COME: MUTED,
}


def render_startup(
    state: RunState,
    now: float,
    width: int,
    height: int = 99,
    expected: ExpectedStart | None = None,
    *,
    usual: Mapping[Step, MedianSeconds] | None = None,
    ahead: bool = True,
) -> Content:
    """Return the start in at most `height` lines: steps, phases, facts about the server, time to ready.

    Finished phases are folded first, then future ones; the running phase is always shown. `usual` are the durations of
    the steps in earlier runs. Without `ahead` nothing is estimated.
    """
    step_rows = build_step_rows(state, now, usual or {})
    timed = any(row.expected for row in step_rows)  # hide an empty column
    steps = [_render_row(row, 0.0, width, timed=timed) for row in step_rows]
    rows = build_startup_rows(state, now, expected)
    if not rows:
        when = format_ready_in(state, now, expected, usual)
        below = [Content.assemble(("→ ", "$primary"), (truncate(when, width - 2), "bold"))] if when else []
        return Content("\n").join([*(steps or [Content.assemble(("preparing …", MUTED))]), *below])
    below = [*_render_facts(state, width, 1 if height < _TALL else 3)]
    if quiet := None if state.exit else find_silence(state, now, expected):
        colour = "$warning" if quiet.warning else MUTED
        lines = textwrap.wrap(format_silence(quiet), max(20, width - 2))[:3]
        below += [
            Content.assemble(("! " if not i else "  ", f"bold {colour}"), (line, colour))
            for i, line in enumerate(lines)
        ]
    if ahead and (when := format_ready_in(state, now, expected)):
        below.append(Content.assemble(("→ ", "$primary"), (truncate(when, width - 2), "bold")))
    room = max(3, height - len(below))
    longest = max((row.seconds or 0.0 for row in rows), default=0.0)
    timed = any(row.expected for row in rows)
    drawn = [_render_row(row, longest, width, timed=timed) for row in rows]
    if height >= _TALL and len(steps) + len(rows) < room:
        title = "  expected here" if timed else ""
        steps.append(Content.assemble((f"  {'phase'.ljust(_NAME)}{'took':>7}{title}", MUTED)))
    drawn = steps + drawn if len(steps) + len(rows) <= room else _fold_phases(rows, drawn, room, width)
    return Content("\n").join(drawn + below)


def _fold_phases(rows: list[StartupRow], drawn: list[Content], room: int, width: int) -> list[Content]:
    """Return at most `room` lines: finished rows are folded into one line, then future ones into another."""
    first = next((i for i, row in enumerate(rows) if row.mark not in {RowMark.DONE, RowMark.TO_COME}), len(rows) - 1)
    skipped = min(first, len(rows) - room + 1)
    took = sum(row.seconds or 0.0 for row in rows[:skipped])
    head = Content.assemble((f"✓ {skipped} phases".ljust(_NAME + 2), "$success"), f"{format_duration(took):>7}")
    lines = [head, *drawn[skipped:]] if skipped > 1 else drawn
    if len(lines) <= room:
        return lines
    left = len(lines) - room + 1
    expected = sum(row.expected.seconds for row in rows[-left:] if row.expected)
    about = f", ≈ {format_duration(expected)}" if expected else ""
    return [*lines[: room - 1], Content.assemble((truncate(f"· {left} more to come{about}", width), MUTED))]


def _render_facts(state: RunState, width: int, most: int) -> list[Content]:
    """Return facts about the server, as many per line as fit."""
    lines: list[Content] = []
    for label, value in list_facts(state):
        fact = Content.assemble((f"{label} ", MUTED), (f"{value}   ", "$foreground"))
        if lines and lines[-1].cell_length + fact.cell_length <= width:
            lines[-1] += fact
        else:
            lines.append(fact)
    return [line.rstrip() for line in lines[:most]]


def _render_row(row: StartupRow, longest: float, width: int, *, timed: bool) -> Content:
    """Return a row with the bar of its fraction or, where it is wide enough, of its share of the `longest` seconds."""
    room, drawn = width - _NAME - 11 - (_EXPECTED if timed else 0), ""
    running = row.mark in {RowMark.RUNNING, RowMark.STALLED}
    if row.fraction:
        cells = _BAR if room >= 2 * _BAR else _BAR // 3 if room >= _BAR else 0  # shorten the bar before the text
        drawn = f"{draw_bar(row.fraction, cells).ljust(cells, '░')} {format_percent(row.fraction)} ".lstrip()
    elif longest and room > 4 * _SHARE:
        drawn = f"{draw_bar((row.seconds or 0.0) / longest, _SHARE).ljust(_SHARE)}  "
    note = "$warning" if row.mark is RowMark.STALLED else "$foreground" if running else MUTED
    return Content.assemble(
        (f"{row.mark.value} ", _COLOURS[row.mark]),
        (row.name.ljust(_NAME), MUTED if row.mark is RowMark.TO_COME else "bold"),
        f"{'' if row.seconds is None else format_duration(row.seconds):>7}  ",
        (format_expected(row.expected).ljust(_EXPECTED) if timed else "", MUTED),
        (drawn, "$series-a" if running else "$series-dim"),
        (truncate(row.note, max(10, room - len(drawn))), note),
    )


_HERE = "this machine"
_LONGEST_NAME, _RANK_STATE = 19, 10
# The mark and its style, the state, the facts, and the link after its problem.
_RankCells = tuple[tuple[str, str], str, list[str], tuple[str, str]]
_RANK_MARKS = {
    RankState.RUNNING: ("●", "$success"),
    RankState.SUSPENDED: ("!", "bold $warning"),
    RankState.LOST: ("!", "bold $warning"),
    RankState.ENDED: ("✗", "bold $error"),
    RankState.STOPPED: ("■", "$foreground"),
    RankState.LEFT: ("!", "bold $warning"),
}


def render_ranks(cluster: Cluster, state: RunState, now: float) -> Content:
    """Return a row per host of a server, rank 0 first; only rank 0 knows about the others."""
    own = state.launched.rank if state.launched else 0
    names = [
        truncate_middle(_HERE if rank == own else host.host or host.address, _LONGEST_NAME)
        for rank, host in enumerate(cluster.hosts)
    ]
    longest = max(map(len, names), default=0)
    rows = []
    for rank, (name, host) in enumerate(zip(names, cluster.hosts, strict=True)):
        (sign, color), word, facts, (problem, link) = (
            _describe_near(host, state, now) if rank == own else _describe_far(host, state.far_ranks.get(rank))
        )
        row = Content.assemble(
            (f"rank {rank} ", MUTED),
            (f"{name:<{longest}} ", "bold"),
            (f"{sign} ", color),
            f"{word:<{_RANK_STATE}} ",
            (problem, "$warning"),
            "  ".join([*facts, link]),
        )
        rows.append(row.rstrip())
    return Content("\n").join(rows)


def _describe_near(host: ClusterHost, state: RunState, now: float) -> _RankCells:
    memory, gpus = state.memory.latest(now, MAX_GAP), state.gpus.latest(now, MAX_GAP)
    facts = [format_gib(memory.used) if memory else UNKNOWN]
    if memory and memory.available is not None:
        facts.append(f"{format_gib(memory.available)} free")
    facts += _describe_gpus(gpus.gpus if gpus else ())
    network = state.startup.facts.get(log_facts.NCCL_NETWORK, ("",))[-1]
    return _MARKS[state.status], state.status, facts, _describe_link(host, network)


def _describe_far(host: ClusterHost, sample: RankSampled | None) -> _RankCells:
    if sample is None:
        return ("·", MUTED), UNKNOWN, [], _describe_link(host)
    facts = [UNKNOWN]
    if sample.available is not None:
        facts = [format_gib(sample.resident), f"{format_gib(sample.available)} free"]
    facts = [sample.why] if sample.why else facts + _describe_gpus(sample.gpus)
    return _RANK_MARKS[sample.state], sample.state.value, facts, _describe_link(host, sample.network)


def _describe_gpus(gpus: Sequence[GpuLoad]) -> list[str]:
    return [
        f"GPU {gpu.index} {'' if gpu.utilisation is None else format_percent(gpu.utilisation)}".rstrip()
        + ("" if gpu.memory_used is None else f" {format_gib(gpu.memory_used)}")
        for gpu in gpus
    ]


def _describe_link(host: ClusterHost, network: str = "") -> tuple[str, str]:
    """Return the problem of a host's link, and the link: planned, or in use once NCCL has logged it."""
    if not host.address:
        return "", ""
    end, devices = f"{host.interface} {host.address}".strip(), ", ".join(host.devices)
    if not network:
        return "", f"{end} {devices or 'sockets'}"
    if network == log_facts.SOCKETS and devices:
        return "sockets, not RoCE  ", end
    if log_facts.is_within_host(network):
        return "", log_facts.describe_network(network)
    return "", f"{log_facts.describe_network(network)} on {end} {devices}".rstrip()
