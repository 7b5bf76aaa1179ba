"""Text of the launch screen: what is in the machine, what a recipe is, what a launch would do."""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from textual.content import Content

from dflash_tui.common.errors import DflashError
from dflash_tui.common.formatting import (
    GIB,
    UNKNOWN,
    format_duration,
    format_gib,
    format_gigabytes,
    format_megabytes,
    format_number,
    name_commands,
    pluralize,
    shorten_names,
    truncate_middle,
)
from dflash_tui.engines.environments import Engine
from dflash_tui.machine.gpus import Gpu, GpuProbe
from dflash_tui.planning.memory import MemoryEstimate
from dflash_tui.planning.methods import Method
from dflash_tui.planning.plan import Plan, format_command
from dflash_tui.planning.recipes.recipe import EngineSpec
from dflash_tui.planning.recipes.resolution import ResolvedRecipe
from dflash_tui.presentation.plan_text import (
    describe_model,
    format_drafts_offer,
    format_graphs_offer,
    format_published,
    format_restart,
    format_time_to_ready,
    list_shares,
)
from dflash_tui.runs import server_process
from dflash_tui.runs.run import Run
from dflash_tui.tui.launch_selection import SuitabilityReason
from dflash_tui.tui.widgets.basic import MUTED, MUTED_ROW

if TYPE_CHECKING:
    from dflash_tui.engines.model_hub import ModelAvailability
    from dflash_tui.monitoring.foreign_server import FoundServer
    from dflash_tui.monitoring.startup_history import MedianSeconds


_INDENT = 10
_FIT = 24
_SHARES = {"weights": "$series-a", "drafter": "$series-b", "activations": "$series-c"}


def render_machine(probe: GpuProbe | None, taken: Sequence[Gpu], width: int, rows: int) -> Content:
    """Return a row of `width` cells per GPU, those that a launch takes marked, or why there are none and what works.

    Where there are more than `rows`, those that a launch takes and those in trouble are shown, and how many are not.
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
    """Return the row of a GPU in `width` cells: facts that do not fit are left out, what slows it down never."""
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
    resolved: ResolvedRecipe,
    plan: Plan,
    *,
    engine: Engine | None,
    fit: MemoryEstimate | None,
    suited: SuitabilityReason,
    models: tuple[ModelAvailability, ...] = (),
    before: MedianSeconds | None = None,
    hosts: Sequence[tuple[str, str]] = (),
    width: int = 60,
) -> Content:
    """Return what pressing enter would do, in the order in which it happens, in rows of `width` cells."""
    rows = [Content.assemble((plan.title, "bold"))]
    if plan.synthetic:
        rows.append(Content.assemble(("~ synthetic: ", "bold $accent"), (plan.synthetic, "$accent")))
    if not plan.on_cpu:
        rows.append(render_hung((f"{suited.suits.value} ", _mark_style(suited)), suited.why, width))
    rows.append(Content(""))
    facts = [*_what(resolved, plan)]
    if plan.request and plan.request.settings:
        options = ", ".join(f"{name}={value}" for name, value in plan.request.settings.items())
        facts.append(("options", f"{options}  (o changes them)"))
    facts += [("expected", format_published(figures)) for figures in plan.expected[:1]]
    facts += [("ready", ready)] if (ready := format_time_to_ready(plan, before)) else []
    facts += [("start", ", ".join(plan.start))] if plan.start else []
    facts.append(("engine", _engine(resolved.engine, engine)))
    facts += [("models", text) for text in _models(resolved, plan, models)]
    patches = ", ".join(plan.patches) or (
        "none needed" if plan.skipped_patches or not plan.disabled_patches else "none"
    )
    facts.append(("patches", f"{patches}{'  (p shows them)' if plan.patches else ''}"))
    facts += [("", f"{name}: {why}") for name, why in plan.skipped_patches.items()]
    facts += [("", f"{name}: disabled by --set") for name in plan.disabled_patches]
    facts.append(("port", str(plan.port)))
    facts += hosts
    facts += [("restart", restart)] if (restart := format_restart(plan.restart)) else []
    rows += [render_fact(name, value, width) for name, value in facts]
    rows += render_memory(fit, width) if fit else []
    rows += [render_fact("expected", format_published(figures), width) for figures in plan.expected[1:]]
    standing = f"{resolved.standing.status.value}: {resolved.standing.why}"  # at the top already
    warnings = [warning for warning in plan.warnings if warning != standing or plan.on_cpu]
    rows += [render_hung(("! ", "bold $warning"), warning, width) for warning in warnings]
    rows += [render_fact("differs", f"{name}: {why}", width) for name, why in plan.deviations.items()]
    if resolved.recipe.why and plan.on_cpu:
        rows += [Content(""), Content.assemble((resolved.recipe.why.strip(), MUTED))]
    rows += [
        Content(""),
        Content.assemble(("command", "bold"), ("  y copies it", MUTED)),
        Content(format_command(plan)),
    ]
    return Content("\n").join(rows)


def _what(resolved: ResolvedRecipe, plan: Plan) -> list[tuple[str, str]]:
    own, recipe = resolved.num_speculative_tokens, resolved.recipe
    method = "" if plan.method is Method.DFLASH else f"{plan.method}, "
    tokens = f"{method}{plan.num_speculative_tokens} per step" if plan.num_speculative_tokens else "none: the baseline"
    tokens += f" (the recipe says {own})" if own != plan.num_speculative_tokens else ""
    mode = plan.mode.value + (f" (the recipe says {resolved.mode.value})" if plan.mode is not resolved.mode else "")
    mode += f": {why}" if (why := resolved.modes.get(plan.mode)) else ""
    graphs, fewer = format_graphs_offer(resolved, plan), format_drafts_offer(resolved, plan)
    # The keys that do the same here.
    fewer = re.sub(r"--set (n=\d+)", r"- for \1", fewer, count=1).replace("or --set ", "or o for ")
    offers = [("", graphs.replace("--mode graphs", "e for graphs")), ("", fewer)]
    rows = []
    if recipe.profiles:
        rows.append(("profile", f"{plan.profile}: {recipe.profiles[plan.profile].title}"))
    if recipe.variants:
        title = recipe.variants[plan.variant].title if plan.variant else f"v chooses {' or '.join(recipe.variants)}"
        rows.append(("variant", f"{plan.variant or 'none'}: {title}"))
    target = describe_model(_model(plan, plan.target), resolved.target.quantization, resolved.target.licence)
    licence = resolved.drafter.licence if resolved.drafter else ""
    rows += [("target", target)]
    rows += [("drafter", describe_model(_model(plan, plan.drafter), licence) if plan.drafter else "none")]
    rows += [("drafts", tokens), ("mode", mode)]
    return [*rows, *(row for row in offers if row[1])]


def _models(resolved: ResolvedRecipe, plan: Plan, models: tuple[ModelAvailability, ...]) -> list[str]:
    """Return a line for each place and its models: here, to fetch, or why it cannot be."""
    if build := resolved.recipe.build:
        built = f"{format_megabytes(build.download_mb)} to download, {format_megabytes(build.size_mb)} on disk"
        return [] if Path(plan.models_folder).is_dir() else [f"will be built here, {built}"]
    if not models:
        sizes = [model.size_gb for model in plan.models]
        return [f"{' + '.join(UNKNOWN if size is None else f'{size:g} GB' for size in sizes)}, looking …"]
    places: dict[str, list[str]] = {}
    for model in models:
        if model.complete:
            place = f"{format_gigabytes(model.total_bytes)}, here"
        elif model.access.ok:
            place = f"{format_gigabytes(model.missing_bytes)} of {format_gigabytes(model.total_bytes)} to fetch"
        else:
            place = model.access.value
        places.setdefault(place, []).append(model.repo.rpartition("/")[2])
    return [f"{', '.join(names)}: {place}" for place, names in places.items()]


def render_memory(fit: MemoryEstimate, width: int) -> list[Content]:
    """Return the memory arithmetic as a bar of what vLLM would take, and its parts in words."""
    parts = [(share.name, share.size or 0) for share in fit.shares]
    whole = f" {format_number(fit.budget / GIB)} of {format_gib(fit.total)}{' unified' if fit.unified else ''}"
    kv, bar = max(0, fit.kv_left), max(8, min(_FIT, width - _INDENT - len(whole)))
    scale = bar / max(fit.total, fit.fixed)
    drawn: list[tuple[str, str] | str] = []
    for name, size in parts:
        drawn.append(("█" * round(size * scale), _SHARES.get(name, "$foreground 60%")))
    drawn.append(("▒" * round(kv * scale * fit.knows_weights), "$series-a"))
    used = sum(len(part[0]) for part in drawn)
    drawn.append(("░" * max(0, bar - used), "$border"))
    left = f"KV cache ▒ {format_gib(fit.kv_left)}" if fit.knows_weights else "KV cache —"
    words = [*list_shares(fit), left if fit.kv_left > 0 else "nothing left for the KV cache"]
    need = f"one request of {fit.max_model_len} tokens needs {format_gib(fit.kv_needed)}" if fit.kv_needed else ""
    rows = [Content.assemble((f"{'memory':{_INDENT}}", MUTED), *drawn, whole)]
    rows.append(render_fact("", f"≈ {', '.join(words)}", width))
    if need:
        warned = f"{'':{_INDENT}}{'' if fit.holds_request else '! '}"
        rows.append(render_hung((warned, "bold $warning"), need, width))
    return rows


def _mark_style(suited: SuitabilityReason) -> str:
    return {"✓": "bold $success", "!": "bold $warning", "✗": "bold $error"}[suited.suits.value]


def render_plan_error(error: DflashError) -> Content:
    """Return why a recipe cannot be launched."""
    rows = [
        Content.assemble(("✗ ", "bold $error"), ("this recipe does not load", "bold")),
        Content(error.what),
    ]
    rows += [Content(error.evidence)] if error.evidence else []
    rows += [Content.assemble(("→ ", "bold $primary"), name_commands(error.hint))] if error.hint else []
    return Content("\n").join(rows)


def render_servers(runs: Sequence[Run], foreign: Sequence[FoundServer], now: float, width: int) -> list[Content]:
    """Return a row of `width` cells per running server, those that dflash-tui did not start last.

    Names that are too long are cut so that they differ.
    """
    longest = max((len(run.plan.recipe) for run in runs), default=0)
    cells = [_list_run_facts(run, now) for run in runs]
    for count in (3, 2, 1):  # a name has the room first
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


def _list_run_facts(run: Run, now: float) -> tuple[str, str, str]:
    """Return what is said beside a running server's name, the most important first."""
    age = format_duration(server_process.measure_age(run, now))
    return f"  :{run.plan.port}", f"  age {age}", f"  {run.plan.mode.value}"


def render_fact(name: str, value: str, width: int) -> Content:
    """Return a name and its value, whose further lines hang below the first."""
    return render_hung((f"{name:{_INDENT}}", MUTED), value, width)


def render_hung(head: tuple[str, str], text: str, width: int) -> Content:
    """Return a styled head and a text, whose further lines hang below its first."""
    indent = len(head[0])
    lines = [wrapped for line in text.split("\n") for wrapped in textwrap.wrap(line, max(20, width - indent)) or [""]]
    return Content.assemble(head, f"\n{'':{indent}}".join(lines))


def _model(plan: Plan, model: str) -> str:
    """Return a model's name; what the recipe builds itself lies in a folder of ours."""
    if plan.models_folder and model.startswith(plan.models_folder):
        return "made on this machine"
    return model


def _engine(spec: EngineSpec, engine: Engine | None) -> str:
    if engine:
        return f"{engine.distribution} {engine.vllm}, installed, {pluralize(len(engine.packages), 'package')}"
    sizes = f"≈ {format_megabytes(spec.download_mb)} download, {format_megabytes(spec.disk_mb)} on disk"
    return f"{spec.distribution} {spec.vllm} will be installed:\n{sizes}"


def render_command_diff(before: Plan, after: Plan, width: int) -> list[Content]:
    """Return the lines of the two commands that differ, in rows of `width` cells, the old ones with a minus."""
    rows = []
    for line in difflib.ndiff(_list_lines(before), _list_lines(after)):
        mark, text = line[:2], line[2:]
        if mark in {"- ", "+ "}:
            rows.append(render_hung((mark, "bold $error" if mark == "- " else "bold $success"), text, width))
    return rows or [Content.assemble(("no change: the same command again", MUTED))]


def _list_lines(plan: Plan) -> list[str]:
    """Return the lines of a command without what continues them, which the last one does not have."""
    return [line.strip().removesuffix("\\").strip() for line in format_command(plan).splitlines()]
