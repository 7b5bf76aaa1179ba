"""Text of the launch screen: what is in the machine, what a recipe is, what a launch would do."""

from __future__ import annotations

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
    pluralize,
    truncate_middle,
)
from dflash_tui.engines.environments import Engine
from dflash_tui.machine.gpus import Gpu, GpuProbe
from dflash_tui.planning import plan as plans
from dflash_tui.planning.memory import MemoryEstimate
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipe import EngineSpec, Recipe
from dflash_tui.planning.resolution import ResolvedRecipe
from dflash_tui.presentation.plan_text import (
    format_graphs_offer,
    format_published,
    format_restart,
    format_time_to_ready,
)
from dflash_tui.runs import server_process
from dflash_tui.runs.run import Run
from dflash_tui.tui.launch_selection import LaunchSelection, SuitabilityReason
from dflash_tui.tui.widgets.basic import MUTED

if TYPE_CHECKING:  # httpx costs 200 ms that the first paint is spared
    from dflash_tui.engines.hub.model_lookup import ModelAvailability
    from dflash_tui.monitoring.startup_history import TimeToReady

_INDENT = 10
_FIT = 24
_SHARES = {"weights": "$series-a", "drafter": "$series-b", "activations": "$series-c"}


def render_machine(probe: GpuProbe | None, taken: Sequence[Gpu]) -> Content:
    """Return one row per GPU, those that a launch takes marked, or why there are none and what still works."""
    if probe is None:
        return Content.assemble(("looking for GPUs …", MUTED))
    if not probe.gpus:
        rows = Content.assemble((probe.why_none, "bold"))
        return Content("\n").join([rows, Content.assemble(("the CPU demo runs here: real vLLM, toy models", MUTED))])
    several = len(probe.gpus) > 1
    return Content("\n").join([_gpu(gpu, "▸ " if several and gpu in taken else "") for gpu in probe.gpus])


def _gpu(gpu: Gpu, mark: str) -> Content:
    name = Content.assemble((mark, "$primary"), (f"{gpu.index} {gpu.name.removeprefix('NVIDIA ')}".rstrip(), "bold"))
    if gpu.trouble:
        return name + Content.assemble("  ", (gpu.trouble, "$error"))
    facts = [f"{gpu.memory_total / GIB:.0f} GiB{' unified' if gpu.unified else ''}"] if gpu.memory_total else []
    if gpu.memory_total and gpu.memory_used is not None:
        facts.append(f"{100 * gpu.memory_used / gpu.memory_total:.0f} % used")
    facts += [f"{gpu.temperature_c} °C"] if gpu.temperature_c is not None else []
    facts += [f"sm_{gpu.capability.replace('.', '')}"] if gpu.capability else []
    facts += gpu.throttle or ()
    return name + f"  {'  '.join(facts)}"


def render_columns(name: str, tokens: str, vllm: str, status: str, width: int) -> str:
    """Return one row of the recipe table in `width` cells."""
    room = max(8, width - 30)
    return f"{truncate_middle(name, room):{room}} {tokens:>3}  {vllm:7} {status}"


def render_recipe_row(name: str, entry: Recipe | DflashError, choice: LaunchSelection, width: int) -> Content:
    """Return the row of a recipe, or of a file that is not one."""
    if isinstance(entry, DflashError):
        return Content(f"✗ {render_columns(name, '—', '—', 'does not load', width)}")
    try:
        setup, plan = choice.plan(entry)[:2]
    except DflashError:
        return Content(f"✗ {render_columns(name, '—', '—', 'not possible', width)}")
    status = f"{setup.standing.status.value}{', synthetic' if setup.synthetic else ''}"
    tokens = str(plan.num_speculative_tokens)
    mark = choice.suited(entry).suits.value
    return Content(f"{mark} {render_columns(name, tokens, setup.engine.vllm, status, width)}")


def render_plan(
    setup: ResolvedRecipe,
    plan: Plan,
    *,
    engine: Engine | None,
    fit: MemoryEstimate | None,
    suited: SuitabilityReason,
    models: tuple[ModelAvailability, ...] = (),
    before: TimeToReady | None = None,
    width: int = 60,
) -> Content:
    """Return what pressing enter would do, in the order in which it happens, in rows of `width` cells."""
    rows = [Content.assemble((plan.title, "bold"))]
    if plan.synthetic:
        rows.append(Content.assemble(("~ synthetic: ", "bold $accent"), (plan.synthetic, "$accent")))
    if not plan.on_cpu:
        rows.append(Content.assemble((f"{suited.suits.value} ", _mark_style(suited)), suited.why))
    rows.append(Content(""))
    facts = [*_what(setup, plan)]
    facts += [("ready", ready)] if (ready := format_time_to_ready(plan, setup, before)) else []
    facts.append(("engine", _engine(setup.engine, engine)))
    facts += [("models", text) for text in _models(setup, plan, models)]
    patches = ", ".join(plan.patches) or (
        "none needed" if plan.skipped_patches or not plan.disabled_patches else "none"
    )
    facts.append(("patches", f"{patches}{'  (p shows them)' if plan.patches else ''}"))
    facts += [("", f"{name}: {why}") for name, why in plan.skipped_patches.items()]
    facts += [("", f"{name}: left out by hand") for name in plan.disabled_patches]
    facts.append(("port", str(plan.port)))
    facts += [("restart", restart)] if (restart := format_restart(plan.restart)) else []
    rows += [_row(name, value, width) for name, value in facts]
    rows += render_memory(fit, width) if fit else []
    rows += [_row("expected", format_published(band), width) for band in setup.expected]
    said = f"{setup.standing.status.value}: {setup.standing.why}"  # at the top already
    warnings = [warning for warning in plan.warnings if warning != said or plan.on_cpu]
    rows += [_hung(("! ", "bold $warning"), warning, width) for warning in warnings]
    rows += [_row("power", str(power), width) for power in plan.powers]
    rows += [_row("differs", f"{name}: {why}", width) for name, why in plan.deviations.items()]
    if setup.recipe.why and plan.on_cpu:
        rows += [Content(""), Content.assemble((setup.recipe.why.strip(), MUTED))]
    rows += [
        Content(""),
        Content.assemble(("command", "bold"), ("  y copies it", MUTED)),
        Content(plans.format_command(plan)),
    ]
    return Content("\n").join(rows)


def _what(setup: ResolvedRecipe, plan: Plan) -> list[tuple[str, str]]:
    own, recipe = setup.num_speculative_tokens, setup.recipe
    tokens = f"{plan.num_speculative_tokens} per step" if plan.num_speculative_tokens else "none: the baseline"
    tokens += f" (the recipe says {own})" if own != plan.num_speculative_tokens else ""
    mode = plan.mode.value + (f" (the recipe says {setup.mode.value})" if plan.mode is not setup.mode else "")
    mode += f": {why}" if (why := setup.modes.get(plan.mode)) else ""
    offer = format_graphs_offer(setup, plan)
    rows = []
    if recipe.profiles:
        rows.append(("profile", f"{plan.profile}: {recipe.profiles[plan.profile].title}"))
    if recipe.variants:
        title = recipe.variants[plan.variant].title if plan.variant else f"v chooses {' or '.join(recipe.variants)}"
        rows.append(("variant", f"{plan.variant or 'none'}: {title}"))
    quantization = f" ({setup.target.quantization})" if setup.target.quantization else ""
    drafter = _model(plan, plan.drafter) if plan.drafter else "none"
    rows += [("target", _model(plan, plan.target) + quantization), ("drafter", drafter)]
    rows += [("drafts", tokens), ("mode", mode)]
    return [*rows, ("", offer.replace("--mode graphs", "e for graphs"))] if offer else rows


def _models(setup: ResolvedRecipe, plan: Plan, models: tuple[ModelAvailability, ...]) -> list[str]:
    """Return a line per model: here, to fetch, or why it cannot be."""
    if build := setup.recipe.build:
        return [] if Path(plan.models_folder).is_dir() else [f"will be built here, {build.size_mb} MB"]
    if not models:
        sizes = [model.size_gb for model in plan.models]
        return [f"{' + '.join(UNKNOWN if size is None else f'{size:g} GB' for size in sizes)}, looking …"]
    lines = []
    for model in models:
        if model.complete:
            said = f"{format_gigabytes(model.total_bytes)}, here"
        elif model.access.ok:
            said = f"{format_gigabytes(model.missing_bytes)} of {format_gigabytes(model.total_bytes)} to fetch"
        else:
            said = model.access.value
        lines.append(f"{model.repo.rpartition('/')[2]}: {said}")
    return lines


def render_memory(fit: MemoryEstimate, width: int) -> list[Content]:
    """Return the memory arithmetic as a bar of what vLLM would take, and its parts in words."""
    parts = [(share.name, share.size or 0) for share in fit.shares]
    kv = max(0, fit.kv_left)
    scale = _FIT / max(fit.total, fit.fixed)
    drawn: list[tuple[str, str] | str] = []
    for name, size in parts:
        drawn.append(("█" * round(size * scale), _SHARES.get(name, "$foreground 60%")))
    drawn.append(("▒" * round(kv * scale), "$series-a"))
    used = sum(len(part[0]) for part in drawn)
    drawn.append(("░" * max(0, _FIT - used), "$border"))
    enough = fit.kv_needed is None or fit.kv_needed <= fit.kv_left
    words = [f"{share.name} {format_gib(share.size)}" for share in fit.shares]
    words.append(f"KV cache ▒ {format_gib(fit.kv_left)}" if fit.kv_left > 0 else "nothing left for the KV cache")
    need = f"one request of {fit.max_model_len} tokens needs {format_gib(fit.kv_needed)}" if fit.kv_needed else ""
    whole = f" {format_number(fit.budget / GIB)} of {format_gib(fit.total)}{' unified' if fit.unified else ''}"
    rows = [Content.assemble((f"{'memory':{_INDENT}}", MUTED), *drawn, whole)]
    rows.append(_row("", f"≈ {', '.join(words)}", width))
    if need:
        rows.append(Content.assemble(" " * _INDENT, ("" if enough else "! ", "bold $warning"), need))
    return rows


def _mark_style(suited: SuitabilityReason) -> str:
    return {"✓": "bold $success", "!": "bold $warning", "✗": "bold $error"}[suited.suits.value]


def render_plan_error(error: DflashError) -> Content:
    """Return why a recipe cannot be launched."""
    rows = [Content.assemble(("✗ ", "bold $error"), ("this recipe does not load", "bold")), Content(error.what)]
    rows += [Content(error.evidence)] if error.evidence else []
    rows += [Content.assemble(("→ ", "bold $primary"), error.hint)] if error.hint else []
    return Content("\n").join(rows)


def render_server_row(run: Run, now: float) -> Content:
    """Return the row of a running server."""
    plan = run.plan
    facts = f"  :{plan.port}  {plan.mode.value}  up {format_duration(server_process.measure_age(run, now))}"
    return Content.assemble(("● ", "$success"), (plan.recipe, "bold"), facts)


def _row(name: str, value: str, width: int) -> Content:
    """Return a name and its value, whose further lines hang below the first."""
    return _hung((f"{name:{_INDENT}}", MUTED), value, width)


def _hung(head: tuple[str, str], text: str, width: int) -> Content:
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
