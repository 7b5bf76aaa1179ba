"""The text of a plan: what would be served and with what, what has to be fetched, and what is known about it."""

from __future__ import annotations

from pathlib import Path

from dflash_tui.common.formatting import format_megabytes
from dflash_tui.engines import inventory
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.machine.hardware import Hardware
from dflash_tui.monitoring import startup_history
from dflash_tui.planning import plan as plans
from dflash_tui.presentation.plan_words import format_memory, format_published, format_restart, format_time_to_ready


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
    lines = [f"{label:<8} {value}".rstrip() for label, value in rows]
    return "\n".join([*lines, "command", *(f"  {line}" for line in plans.format_command(plan).splitlines())])
