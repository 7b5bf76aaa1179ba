"""What checks are made of: a situation that is looked at, and what was found in it, with a fix."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

import msgspec

from dflash_tui.common.sanitizer import clean_line
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.hub import model_lookup
from dflash_tui.machine.gpus import Gpu, GpuProbe
from dflash_tui.planning import kv_cache
from dflash_tui.planning import memory as fits
from dflash_tui.planning.memory import GpuMemory, MemoryEstimate
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipe import ModelConfig
from dflash_tui.planning.resolution import ResolvedRecipe


class CheckLevel(StrEnum):
    """How a check came out; a `fail` blocks the launch."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at: what was found, and what to do about it when it is not right."""

    name: str
    level: CheckLevel
    found: str
    fix: str = ""


class Situation(msgspec.Struct, frozen=True):
    """What a launch would meet: the GPUs of the machine and those it would take, its engine if it is here, its models.

    Without a recipe, `bare`, it is the machine alone that is looked at.
    """

    setup: ResolvedRecipe
    plan: Plan
    probe: GpuProbe
    gpus: tuple[Gpu, ...]
    engine: Engine | None
    models: tuple[model_lookup.ModelAvailability, ...]
    bare: bool = False

    def fit(self, **changes: int | float) -> MemoryEstimate | None:
        """Return the memory arithmetic on its GPUs, with other flags if given; None on the CPU or without a GPU."""
        flags = self.setup.flags | {name.replace("_", "-"): value for name, value in changes.items()}
        setup = msgspec.structs.replace(self.setup, flags=flags)
        return estimate_plan_memory(setup, self.plan, fits.smallest_gpu_memory(self.gpus), self.models)


def estimate_plan_memory(
    setup: ResolvedRecipe,
    plan: Plan,
    machine: GpuMemory | None,
    models: Sequence[model_lookup.ModelAvailability | None],
) -> MemoryEstimate | None:
    """Return the memory arithmetic of a plan, by its models where they are known, else by what the recipe says.

    None on the CPU, or when the machine's memory is unknown.
    """
    if plan.on_cpu or machine is None:
        return None
    target, drafter = [*models, None, None][:2]
    return fits.estimate_memory(
        setup,
        machine,
        mode=plan.mode,
        tokens=plan.num_speculative_tokens,
        target=_read_model_shape(target),
        drafter=_read_model_shape(drafter),
        target_bytes=target.total_bytes if target else None,
        drafter_bytes=drafter.total_bytes if drafter else None,
    )


def pass_check(name: str, found: str) -> Check:
    """Return a check that is right."""
    return _clean_check(name, CheckLevel.OK, found)


def warn_check(name: str, found: str, fix: str = "") -> Check:
    """Return a check that somebody should know about."""
    return _clean_check(name, CheckLevel.WARN, found, fix)


def fail_check(name: str, found: str, fix: str) -> Check:
    """Return a check that blocks the launch; `fix` says what unblocks it."""
    return _clean_check(name, CheckLevel.FAIL, found, fix)


def _clean_check(name: str, level: CheckLevel, found: str, fix: str = "") -> Check:
    """Names of processes, devices and models come from others: nothing of them may steer a terminal."""
    return Check(name, level, clean_line(found), clean_line(fix))


def list_local_files(models: tuple[model_lookup.ModelAvailability, ...]) -> list[Path]:
    """Return the files of the models that are on this machine."""
    return [file for model in models if model.folder for file in Path(model.folder).rglob("*") if file.is_file()]


def _read_model_shape(model: model_lookup.ModelAvailability | None) -> ModelConfig | None:
    """Return what the model's config.json says, when it is on this machine."""
    if model is None or model.folder is None:
        return None
    try:
        found = msgspec.json.decode((Path(model.folder) / "config.json").read_bytes())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return kv_cache.read_model_shape(found) if isinstance(found, dict) else None
