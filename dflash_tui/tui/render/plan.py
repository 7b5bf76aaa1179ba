"""Text of the launch screen: the machine's GPUs, the recipes, the plan of a launch."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.content import Content

from dflash_tui.common.formatting import (
    GIB,
    format_duration,
    format_gib,
    format_number,
    pluralize,
    shorten_names,
    truncate,
    truncate_middle,
)
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.machine.gpus import Gpu, GpuProbe
from dflash_tui.planning.memory import MemoryEstimate
from dflash_tui.planning.plan import Plan, format_command
from dflash_tui.presentation.plan_text import describe_plan, format_memory, list_plan_rows
from dflash_tui.runs import server_process
from dflash_tui.runs.run import Run
from dflash_tui.runs.verification import Verification, format_badge
from dflash_tui.tui.launch_selection import Suitability, SuitabilityReason
from dflash_tui.tui.widgets.basic import MUTED, MUTED_ROW

if TYPE_CHECKING:
    from dflash_tui.monitoring.foreign_server import FoundServer
    from dflash_tui.monitoring.startup_history import MedianSeconds


_INDENT = 10
_FIT = 24
MARK_STYLES = {
    Suitability.YES: ("✓ ", "bold $success"),
    Suitability.MAYBE: ("! ", "bold $warning"),
    Suitability.NO: ("✗ ", "bold $error"),
}
_SHARES = {"weights": "$series-a", "drafter": "$series-b", "activations": "$series-c"}


def render_machine(probe: GpuProbe | None, taken: Sequence[Gpu], width: int, rows: int) -> Content:
    """Return a row per GPU, marking those that a launch uses; without GPUs, the reason and what works instead.

    If there are more than `rows`, the used and the faulty ones come first and the hidden ones are counted.
    """
    if probe is None:
        return Content.assemble(("looking for GPUs …", MUTED))
    if not probe.gpus:
        why = Content.assemble((probe.why_none, "bold"))
        return Content("\n").join([why, Content.assemble(("the CPU demo runs here: real vLLM, a small model", MUTED))])
    gpus, marks = list(probe.gpus), ("▸ ", "  ") if len(probe.gpus) > 1 else ("", "")
    if len(gpus) > rows:
        urgent = sorted(gpus, key=lambda gpu: not (gpu in taken or gpu.trouble))[: rows - 1]
        gpus = [gpu for gpu in gpus if gpu in urgent]
    lines = [_gpu(gpu, marks[gpu not in taken], width) for gpu in gpus]
    if hidden := len(probe.gpus) - len(gpus):
        lines.append(Content.assemble((f"  and {hidden} more; g chooses the next", MUTED)))
    return Content("\n").join(lines)


def _gpu(gpu: Gpu, mark: str, width: int) -> Content:
    """Return the row of a GPU: facts are dropped if they do not fit, except throttling."""
    short = gpu.name.removeprefix("NVIDIA ").removeprefix("GeForce ").removesuffix(" GPU")
    name = Content.assemble((mark, "$primary"), (f"{gpu.index} {short}".rstrip(), "bold"))
    if gpu.trouble:
        return name + Content.assemble("  ", (gpu.trouble, "$error"))
    memory = f"{gpu.memory_total / GIB:.0f} GiB{' unified' if gpu.unified else ''}" if gpu.memory_total else ""
    if gpu.memory_total and gpu.memory_used is not None:
        memory += f", {100 * gpu.memory_used / gpu.memory_total:.0f} % used"
    facts = [*([memory] if memory else []), *(gpu.throttle or ())]
    more = [f"{gpu.temperature_c} °C"] if gpu.temperature_c is not None else []
    more += [f"{100 * gpu.utilisation:.0f} % busy"] if gpu.utilisation is not None else []
    more += [f"{gpu.power_w:.0f} W"] if gpu.power_w is not None else []
    left = width - name.cell_length - sum(len(fact) + 2 for fact in facts)
    for fact in more:
        if len(fact) + 2 <= left:
            facts.append(fact)
            left -= len(fact) + 2
    return name + f"  {'  '.join(facts)}"


def render_plan(
    planned: PlannedLaunch,
    suited: SuitabilityReason,
    *,
    verified: Verification | None = None,
    before: MedianSeconds | None = None,
    hosts: Sequence[tuple[str, str]] = (),
    width: int = 60,
    height: int = 100,
) -> Content:
    """Return the plan shown before the launch, in at most `height` rows of `width` cells.

    If space is short each fact gets one row, and warnings that do not fit are dropped.
    """
    plan = planned.plan
    head = [
        Content.assemble((plan.title, "bold")),
        Content.assemble((truncate(_list_choices(planned, verified), width), MUTED)),
    ]
    facts = list_plan_rows(planned, before)
    if plan.request and plan.request.settings:
        facts.append(("options", ", ".join(f"{name}={value}" for name, value in plan.request.settings.items())))
    facts += hosts
    rows = [*head, *(render_fact(name, value, width) for name, value in facts)]
    warnings = [] if plan.on_cpu or suited.suits is Suitability.YES else [(MARK_STYLES[suited.suits], suited.why)]
    warnings += [(("~ ", "bold $accent"), f"synthetic: {plan.synthetic}")] if plan.synthetic else []
    shown = {text.partition("; it may not fit")[0] for _, text in warnings}
    warnings += [(("! ", "bold $warning"), text) for text in plan.warnings if text not in shown]
    more = [render_hung(mark, text, width) for mark, text in warnings]
    if _count_rows([*rows, *more]) + 1 > height:
        rows = [*head, *(render_fact(name, truncate(value, width - _INDENT), width) for name, value in facts)]
    shown_warnings: list[Content] = []
    while more and _count_rows([*rows, *shown_warnings, more[0]]) + 1 <= height:
        shown_warnings.append(more.pop(0))
    left = f"{pluralize(len(more), 'more warning')}, " if more else ""
    return Content("\n").join(
        [*rows, *shown_warnings, Content.assemble(("i ", "bold $primary"), (f"{left}details and the command", MUTED))]
    )


def _count_rows(rows: Sequence[Content]) -> int:
    return sum(row.plain.count("\n") + 1 for row in rows)


def _list_choices(planned: PlannedLaunch, verified: Verification | None) -> str:
    resolved, plan = planned.resolved, planned.plan
    own = resolved.num_speculative_tokens
    tokens = f"{plan.method} n={plan.num_speculative_tokens}" if plan.num_speculative_tokens else "no speculation"
    tokens += f" (recipe: {own})" if own != plan.num_speculative_tokens else ""
    mode = plan.mode.value + (f" (recipe: {resolved.mode.value})" if plan.mode is not resolved.mode else "")
    profile = plan.profile if resolved.recipe.profiles else ""
    patches = pluralize(len(plan.patches), "patch") if plan.patches else ""
    badge = format_badge(verified) if verified and not verified.failed else ""
    parts = (profile, plan.variant, tokens, mode, f"{resolved.engine.distribution} {plan.vllm}", patches, badge)
    return " · ".join(filter(None, parts))


def render_details(planned: PlannedLaunch, width: int) -> Content:
    """Return the whole plan, as `plan --verbose` prints it."""
    head = Content.assemble(("i ", "bold $primary"), ("the short plan", MUTED))
    return Content("\n").join([head, Content(describe_plan(planned, width))])


def render_memory(fit: MemoryEstimate, width: int) -> list[Content]:
    """Return the memory estimate as a bar and in words."""
    whole = f" {format_number(fit.budget / GIB)} of {format_gib(fit.total)}{' unified' if fit.unified else ''}"
    bar = max(8, min(_FIT, width - _INDENT - len(whole)))
    scale = bar / max(fit.total, fit.fixed)
    drawn = [("█" * round((share.size or 0) * scale), _SHARES.get(share.name, "$foreground 60%"))
             for share in fit.shares]  # fmt: skip
    drawn.append(("▒" * round(max(0, fit.kv_left) * scale * fit.knows_weights), "$series-a"))
    drawn.append(("░" * max(0, bar - sum(len(part[0]) for part in drawn)), "$border"))
    warned = fit.kv_left <= 0 or not fit.holds_request
    mark = ("! " if warned else "", "bold $warning")
    words = render_hung((f"{'':{_INDENT}}", MUTED), format_memory(fit), width)
    return [Content.assemble((f"{'memory':{_INDENT}}", MUTED), *drawn, whole, " ", mark), words]


def render_servers(runs: Sequence[Run], foreign: Sequence[FoundServer], now: float, width: int) -> list[Content]:
    """Return a row per running server, foreign ones last.

    Long names are truncated so that they stay distinct.
    """
    longest = max((len(run.plan.recipe) for run in runs), default=0)
    ages = [format_duration(server_process.measure_age(run, now)) for run in runs]
    cells = [
        (f"  :{run.plan.port}", f"  age {age}", f"  {run.plan.mode.value}") for run, age in zip(runs, ages, strict=True)
    ]
    for count in (3, 2, 1):  # the name has precedence
        facts = ["".join(row[:count]) for row in cells]
        room = width - 2 - max(map(len, facts), default=0)
        if longest <= room:
            break
    names = shorten_names((run.plan.recipe for run in runs), max(12, room))
    rows = [
        Content.assemble(("● ", "$success"), (names[run.plan.recipe], "bold"), fact)
        for run, fact in zip(runs, facts, strict=True)
    ]
    for server in foreign:
        about = f"  :{server.port}  not ours"
        name = truncate_middle(server.model or "vLLM", max(12, width - 2 - len(about)))
        rows.append(Content.assemble(("○ ", "$accent"), (name, "bold"), (about, MUTED_ROW)))
    return rows


def render_fact(name: str, value: str, width: int) -> Content:
    """Return a name and its value; continuation lines are indented."""
    return render_hung((f"{name:{_INDENT}}", MUTED), value, width)


def render_hung(head: tuple[str, str], text: str, width: int, style: str = "") -> Content:
    """Return a styled head and a text of another style; continuation lines are indented."""
    indent = len(head[0])
    lines = [wrapped for line in text.split("\n") for wrapped in textwrap.wrap(line, max(20, width - indent)) or [""]]
    return Content.assemble(head, (f"\n{'':{indent}}".join(lines), style))


def render_command_diff(before: Plan, after: Plan, width: int) -> list[Content]:
    """Return the differing lines of two commands, in rows of `width` cells, marked `-` and `+`."""
    rows = []
    for line in difflib.ndiff(_list_lines(before), _list_lines(after)):
        mark, text = line[:2], line[2:]
        if mark in {"- ", "+ "}:
            rows.append(render_hung((mark, "bold $error" if mark == "- " else "bold $success"), text, width))
    return rows or [Content.assemble(("no change: the same command again", MUTED))]


def _list_lines(plan: Plan) -> list[str]:
    return [line.strip().removesuffix("\\").strip() for line in format_command(plan).splitlines()]
