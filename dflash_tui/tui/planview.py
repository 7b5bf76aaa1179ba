"""Text of the launch screen: what is in the machine, what a recipe is, what a launch would do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from textual.content import Content

from dflash_tui.core import plan as plans
from dflash_tui.core.engine import Engine
from dflash_tui.core.plan import Plan
from dflash_tui.core.recipe import Recipe, Status
from dflash_tui.core.server import Run
from dflash_tui.errors import DflashError
from dflash_tui.text import GIB, cut, duration, megabytes, plural
from dflash_tui.tui.widgets import MUTED

if TYPE_CHECKING:  # pynvml costs 80 ms that the first paint is spared
    from dflash_tui.core.gpu import Gpu, Probe

_MARKS = {Status.VERIFIED: "✓", Status.REPORTED: "·", Status.EXPERIMENTAL: "?", Status.BROKEN: "✗"}
_INDENT = 10


def machine(probe: Probe | None) -> Content:
    """Return one row per GPU, or why there are none and what still works."""
    if probe is None:
        return Content.assemble(("looking for GPUs …", MUTED))
    if not probe.gpus:
        rows = Content.assemble((probe.why_none, "bold"))
        return Content("\n").join([rows, Content.assemble(("the CPU demo runs here: real vLLM, toy models", MUTED))])
    return Content("\n").join([_gpu(gpu) for gpu in probe.gpus])


def _gpu(gpu: Gpu) -> Content:
    name = Content.assemble((f"{gpu.index} {gpu.name.removeprefix('NVIDIA ')}".rstrip(), "bold"))
    if gpu.trouble:
        return name + Content.assemble("  ", (gpu.trouble, "$error"))
    facts = [f"{gpu.memory_total / GIB:.0f} GiB{' unified' if gpu.unified else ''}"] if gpu.memory_total else []
    if gpu.memory_total and gpu.memory_used is not None:
        facts.append(f"{100 * gpu.memory_used / gpu.memory_total:.0f} % used")
    facts += [f"{gpu.temperature_c} °C"] if gpu.temperature_c is not None else []
    facts += [f"sm_{gpu.capability.replace('.', '')}"] if gpu.capability else []
    facts += gpu.throttle or ()
    return name + f"  {'  '.join(facts)}"


def columns(name: str, mode: str, tokens: str, status: str, width: int) -> str:
    """Return one row of the recipe table in `width` cells."""
    room = max(8, width - 34)
    return f"{cut(name, room):{room}} {mode:8}{tokens:>3}  {status}"


def row(name: str, entry: Recipe | DflashError, width: int) -> Content:
    """Return the row of a recipe, or of a file that is not one."""
    if isinstance(entry, DflashError):
        return Content(f"✗ {columns(name, '—', '—', 'does not load', width)}")
    status = f"{entry.status.value}{', synthetic' if entry.synthetic else ''}"
    tokens = str(entry.drafter.num_speculative_tokens)
    return Content(f"{_MARKS[entry.status]} {columns(name, entry.mode.value, tokens, status, width)}")


def plan_text(recipe: Recipe, plan: Plan, engine: Engine | None) -> Content:
    """Return what pressing enter would do, in the order in which it happens."""
    own = recipe.drafter.num_speculative_tokens
    tokens = f"{plan.num_speculative_tokens} per step"
    tokens += f" (the recipe says {own})" if own != plan.num_speculative_tokens else ""
    mode = plan.mode.value + (f" (the recipe says {recipe.mode.value})" if plan.mode is not recipe.mode else "")
    rows = [Content.assemble((plan.title, "bold"))]
    if plan.synthetic:
        rows.append(Content.assemble(("~ synthetic: ", "bold $accent"), (plan.synthetic, "$accent")))
    rows.append(Content(""))
    rows += [_row("target", _model(plan, plan.target)), _row("drafter", _model(plan, plan.drafter))]
    rows += [_row("drafts", tokens), _row("mode", mode), _row("engine", _engine(recipe, engine))]
    if recipe.build and not Path(plan.models_folder).is_dir():
        rows.append(_row("models", f"will be built here, {recipe.build.size_mb} MB"))
    rows.append(_row("patches", ", ".join(plan.patches) or "none needed"))
    rows.append(_row("port", str(plan.port)))
    rows += [Content.assemble(("! ", "bold $warning"), warning) for warning in plan.warnings]
    if recipe.why:
        rows += [Content(""), Content.assemble((recipe.why.strip(), MUTED))]
    rows += [
        Content(""),
        Content.assemble(("command", "bold"), ("  y copies it", MUTED)),
        Content(plans.command(plan)),
    ]
    return Content("\n").join(rows)


def error_text(error: DflashError) -> Content:
    """Return why a recipe file cannot be launched."""
    rows = [Content.assemble(("✗ ", "bold $error"), ("this recipe does not load", "bold")), Content(error.what)]
    rows += [Content(error.evidence)] if error.evidence else []
    rows += [Content.assemble(("→ ", "bold $primary"), error.do)] if error.do else []
    return Content("\n").join(rows)


def server_text(run: Run, now: float) -> Content:
    """Return the row of a running server."""
    plan = run.plan
    facts = f"  :{plan.port}  {plan.mode.value}  up {duration(max(0.0, now - run.started_at))}"
    return Content.assemble(("● ", "$success"), (plan.recipe, "bold"), facts)


def _row(name: str, value: str) -> Content:
    return Content.assemble((f"{name:{_INDENT}}", MUTED), value)


def _model(plan: Plan, model: str) -> str:
    """Return a model's name; what the recipe builds itself lies in a folder of ours."""
    if plan.models_folder and model.startswith(plan.models_folder):
        return "made on this machine"
    return model


def _engine(recipe: Recipe, engine: Engine | None) -> str:
    if engine:
        return f"{engine.distribution} {engine.vllm}, installed, {plural(len(engine.packages), 'package')}"
    spec = recipe.engine
    name = spec.distribution
    sizes = f"≈ {megabytes(spec.download_mb)} download, {megabytes(spec.disk_mb)} on disk"
    return f"{name} {spec.vllm} will be installed:\n{'':{_INDENT}}{sizes}"
