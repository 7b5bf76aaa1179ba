"""The input and the result of a preflight check: the situation, and a finding with a fix."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

import msgspec

from dflash_tui.engines import model_hub
from dflash_tui.engines.environments import Engine
from dflash_tui.launch import planner
from dflash_tui.machine.gpus import Gpu, GpuProbe
from dflash_tui.planning.memory import MemoryEstimate
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.resolution import ResolvedRecipe
from dflash_tui.planning.request import Advice, Hint, format_advice

# Text, a change of the launch, or several of both.
Fix = str | Hint | Sequence[str | Hint]


class CheckLevel(StrEnum):
    """The result of a check; `fail` blocks the launch."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Check(msgspec.Struct, frozen=True):
    """The result of one preflight check."""

    name: str
    level: CheckLevel
    finding: str
    advice: Advice = ()
    """What to do about it; empty if it passed."""
    final: bool = False
    """Whether `--force` cannot overrule it, since the launch itself would be refused."""
    memory_taken: bool = False
    """Whether it failed only since others use the memory of the launch's GPU."""

    @property
    def fix(self) -> str:
        """What to do about it, with options of the command line."""
        return format_advice(self.advice)


class Situation(msgspec.Struct, frozen=True):
    """The input of a launch's checks, probed once."""

    resolved: ResolvedRecipe
    plan: Plan
    probe: GpuProbe
    gpus: tuple[Gpu, ...]
    engine: Engine | None
    """The engine; None if it is not installed."""
    models: tuple[model_hub.ModelAvailability, ...]
    """Target and drafter: where they are, and what must be downloaded."""
    bare: bool = False
    """Whether to check only the machine, without a recipe."""

    def fit(self, **changes: int | float) -> MemoryEstimate | None:
        """Return the memory estimate for the GPUs, with other flags if given; None on the CPU or without a GPU."""
        flags = self.resolved.flags | {name.replace("_", "-"): value for name, value in changes.items()}
        resolved = msgspec.structs.replace(self.resolved, flags=flags)
        if not any(card.memory_total for card in self.gpus):
            return None
        models = [model_hub.read_local_model(model) for model in self.models]
        return planner.estimate_memory(resolved, self.plan.mode, self.plan.num_speculative_tokens, self.gpus, models)


def pass_check(name: str, finding: str) -> Check:
    """Return a passed check."""
    return _build_check(name, CheckLevel.OK, finding)


def warn_check(name: str, finding: str, fix: Fix = "") -> Check:
    """Return a check with a warning."""
    return _build_check(name, CheckLevel.WARN, finding, fix)


def fail_check(name: str, finding: str, fix: Fix) -> Check:
    """Return a failed check, which blocks the launch unless it is forced."""
    return _build_check(name, CheckLevel.FAIL, finding, fix)


def refuse_check(name: str, finding: str, fix: Fix) -> Check:
    """Return a failed check that blocks even a forced launch."""
    return msgspec.structs.replace(fail_check(name, finding, fix), final=True)


def _build_check(name: str, level: CheckLevel, finding: str, fix: Fix = "") -> Check:
    parts = (fix,) if isinstance(fix, str | Hint) else fix
    return Check(name, level, finding, tuple(part for part in parts if part))


def list_local_files(models: tuple[model_hub.ModelAvailability, ...]) -> list[Path]:
    """Return the files of the models that are on this machine."""
    return [file for model in models if model.folder for file in Path(model.folder).rglob("*") if file.is_file()]
