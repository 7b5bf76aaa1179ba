"""The text of plans, published figures and checks, the same in the panel and on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dflash_tui.common.errors import UsageError
from dflash_tui.common.formatting import UNKNOWN, format_duration, format_gib, format_megabytes, pluralize
from dflash_tui.engines import inventory
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.machine.hardware import Hardware
from dflash_tui.monitoring import startup_history
from dflash_tui.planning import cuda_graphs
from dflash_tui.planning import plan as plans
from dflash_tui.planning.memory import MemoryEstimate
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipe import Mode, PublishedFigures, RestartPolicy
from dflash_tui.planning.resolution import ResolvedRecipe

if TYPE_CHECKING:  # pynvml and httpx cost 280 ms that the panel's first paint is spared
    from dflash_tui.launch.preflight.check import Check
    from dflash_tui.launch.preflight.runner import PreflightReport
    from dflash_tui.monitoring.startup_history import TimeToReady

# Measured with vLLM 0.26.0, Gemma 4 26B-A4B's shape in random weights, one stream, 15 tokens per step.
_GRAPHS_ELSEWHERE = "CUDA graphs without compiling; 4.4 times eager's and 0.9 of compile's tok/s on an H200"
MARKS = {"ok": "✓", "warn": "!", "fail": "✗"}


def describe_plan(planned: PlannedLaunch) -> str:
    """Return the plan for a reader: what is served, with what, what has to be fetched, and what is known about it."""
    setup, plan = planned.setup, planned.plan
    spec, recipe = setup.engine, setup.recipe
    engine = inventory.find_any_engine(Path(plan.engine_folder))
    fetched = (
        f"to install: ≈ {format_megabytes(spec.download_mb)} to download, {format_megabytes(spec.disk_mb)} on disk"
    )
    drafter = f"{plan.drafter}, {plan.num_speculative_tokens} tokens per step"
    rows = [("recipe", f"{plan.recipe}: {plan.title}")]
    if not plan.on_cpu:
        here = ", ".join(f"GPU {card.index} {card.name}" for card in planned.gpus) or "not in this machine"
        kind = "any GPU" if plan.hardware is Hardware.UNKNOWN else plan.hardware.value
        rows.append(("for", f"{kind} ({here})"))
    if recipe.profiles:
        rows.append(("profile", f"{plan.profile}: {recipe.profiles[plan.profile].title}"))
    if plan.variant:
        rows.append(("variant", f"{plan.variant}: {recipe.variants[plan.variant].title}"))
    rows += [
        ("status", f"{setup.standing.status.value}: {setup.standing.why.strip()}"),
        ("target", " ".join([plan.target, f"({setup.target.quantization})" if setup.target.quantization else ""])),
        ("drafter", drafter if plan.num_speculative_tokens else "none: the baseline without speculation"),
        ("mode", f"{plan.mode.value}{': ' + why if (why := setup.modes.get(plan.mode)) else ''}"),
        *([("", offer)] if (offer := format_graphs_offer(setup, plan)) else []),
        ("engine", f"{spec.distribution} {spec.vllm}, {'installed' if engine else fetched}"),
        ("patches", ", ".join(plan.patches) or "none"),
    ]
    rows += [("", f"{name}: not needed, {why}") for name, why in plan.skipped_patches.items()]
    rows += [("", f"{name}: left out by hand") for name in plan.disabled_patches]
    if recipe.build:
        built = Path(plan.models_folder).is_dir()
        rows.append(("models", "built" if built else f"to build here: {recipe.build.size_mb} MB, a few seconds"))
    if ready := format_time_to_ready(plan, setup, startup_history.estimate_ready(plan)):
        rows.append(("ready", ready))
    if fit := planned.memory:
        rows.append(("memory", format_memory(fit)))
    rows += [("expected", format_published(band)) for band in setup.expected if plan.num_speculative_tokens]
    if restart := format_restart(plan.restart):
        rows.append(("restart", restart))
    if plan.synthetic:
        rows.append(("note", f"{plan.synthetic}: figures say nothing about a real model"))
    rows += [("differs", f"{name}: {why}") for name, why in plan.deviations.items()]
    rows += [("warning", warning) for warning in plan.warnings]
    rows += [("power", str(power)) for power in plan.powers]
    lines = [f"{label:<8} {value}".rstrip() for label, value in rows]
    return "\n".join([*lines, "command", *(f"  {line}" for line in plans.format_command(plan).splitlines())])


def format_graphs_offer(setup: ResolvedRecipe, plan: Plan) -> str:
    """Return why graphs mode is worth a try where the recipe does not take it; empty where it is no choice."""
    if plan.on_cpu or plan.mode is Mode.GRAPHS:
        return ""
    try:
        cuda_graphs.apply_graphs_mode(setup, plan.num_speculative_tokens)
    except UsageError:
        return ""
    known = setup.modes.get(Mode.GRAPHS, _GRAPHS_ELSEWHERE)
    unmeasured = "" if cuda_graphs.is_measured(setup) else f"; not measured on {plan.hardware.value}"
    return f"try --mode graphs: {known}{unmeasured}"


def format_memory(fit: MemoryEstimate) -> str:
    """Return the memory arithmetic in a line; what is unknown is named."""
    parts = [f"{share.name} {format_gib(share.size)}" for share in fit.shares]
    parts.append(f"KV for {fit.max_model_len or UNKNOWN} tokens {format_gib(fit.kv_needed)}")
    kind = "unified memory" if fit.unified else "GPU memory"
    return f"≈ {', '.join(parts)}; {format_gib(fit.budget)} of {format_gib(fit.total)} {kind} taken"


def format_time_to_ready(plan: Plan, setup: ResolvedRecipe, before: TimeToReady | None) -> str:
    """Return how long a start will take, by earlier runs here or else by what was published; empty when unknown."""
    if before:
        often = "the last time" if before.runs == 1 else f"the last {before.runs} times (median)"
        return f"after about {format_duration(before.seconds)}, as {often} here"
    bands = [band for band in setup.expected if band.ready_s and band.mode in {None, plan.mode}]
    if not bands or not bands[0].ready_s:
        return ""
    low, high = (format_duration(seconds) for seconds in bands[0].ready_s)
    return f"after {low if low == high else f'{low} to {high}'} elsewhere ({bands[0].source})"


def format_restart(policy: RestartPolicy) -> str:
    """Return how a server that dies is launched again, and by whom; empty when it is not."""
    if not policy.times:
        return ""
    return f"after a crash, {format_restart_limit(policy)}, by `up` while it watches and by `service`; not by the panel"


def format_restart_limit(policy: RestartPolicy) -> str:
    """Return how often a server that dies is launched again."""
    return f"at most {pluralize(policy.times, 'time')} within {format_duration(policy.within_s)}"


def format_published(band: PublishedFigures) -> str:
    """Return published figures in a line, with what they are from."""
    mode = f"{band.mode.value}: " if band.mode else ""
    figures = [
        f"{name} {_range(values, scale, unit)}"
        for name, values, scale, unit in (
            ("tok/s", band.tok_s, 1, ""),
            ("without speculation", band.baseline_tok_s, 1, ""),
            ("acceptance", band.acceptance, 100, " %"),
            ("AL", band.acceptance_length, 1, ""),
            ("ready after", band.ready_s, 1, " s"),
        )
        if values
    ]
    runs = f", n={band.runs}" if band.runs else ""
    remark = f"; {band.note}" if band.note else ""
    return f"{mode}{', '.join(figures)} ({band.source}{runs}){remark}"


def _range(values: tuple[float, ...], scale: float, unit: str) -> str:
    low, high = (f"{value * scale:.4g}" for value in values)
    return f"{low}{unit}" if low == high else f"{low} to {high}{unit}"


def format_check(check: Check) -> str:
    """Return a check in one line, or two with its fix."""
    fix = f"\n{'':4}→ {check.fix}" if check.fix and check.level.value != "ok" else ""
    return f"{MARKS[check.level.value]} {check.name}: {check.finding}{fix}"


def format_verdict(report: PreflightReport) -> str:
    """Return what the checks come to."""
    warnings = sum(check.level.value == "warn" for check in report.checks)
    noted = f", {pluralize(warnings, 'warning')}" if warnings else ""
    if failed := len(report.failed):
        return f"{failed} of {len(report.checks)} checks failed{noted}: it would not start"
    return f"{len(report.checks)} checks, none failed{noted}"
