"""What checks are made of: a situation that is looked at, and what was found in it, with a fix."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import msgspec

from dflash_tui.common.sanitizer import clean_line
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.hub import model_lookup
from dflash_tui.machine.gpus import Gpu, GpuProbe
from dflash_tui.planning import memory as fits
from dflash_tui.planning.memory import MemoryEstimate
from dflash_tui.planning.plan import Plan
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
        models = [model_lookup.read_local_model(model) for model in self.models]
        return fits.estimate_plan_memory(setup, self.plan, fits.smallest_gpu_memory(self.gpus), models)


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
