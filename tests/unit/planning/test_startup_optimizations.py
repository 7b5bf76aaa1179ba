"""Startup optimizations: which a launch takes by release, machine and settings, and which are refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dflash_tui.common import paths
from dflash_tui.common.errors import UsageError
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.plan_builder import ChosenEngine, build_plan
from dflash_tui.planning.recipes.recipe import Mode
from dflash_tui.planning.startup_optimizations import ALL_OPTIMIZATIONS_OFF, OPTIMIZATIONS, WSL_PINS, StartConditions
from dflash_tui.presentation import plan_text
from tests.support.plans import resolve

ROOT, METHOD, PLAN = "VLLM_CACHE_ROOT", "VLLM_WORKER_MULTIPROC_METHOD", "VLLM_ENABLE_STARTUP_PLAN"
NOTHING: Mapping[str, Any] = {}
HERE = StartConditions()


def planned(
    name: str = "gemma-4-26b-a4b",
    *,
    vllm: str = "",
    settings: Mapping[str, Any] = NOTHING,
    mode: Mode = Mode.GRAPHS,
    conditions: StartConditions = HERE,
    engine: ChosenEngine | None = None,
) -> Plan:
    hardware = None if name == "demo-cpu" else Hardware.H200
    resolved = resolve(name, hardware, vllm, settings=settings)
    return build_plan(resolved, mode=mode, conditions=conditions, engine=engine)


def test_every_default_is_taken_on_a_gpu():
    plan = planned(vllm="0.32.0")
    assert set(plan.start) == {measure.name for measure in OPTIMIZATIONS.values() if measure.is_default}
    assert plan.start_left_out == {}
    root = paths.cache_folder() / "vllm" / Path(plan.unpatched_folder).name
    assert (plan.env[ROOT], plan.env[METHOD], plan.env[PLAN]) == (str(root), "fork", "1")


@pytest.mark.parametrize(
    ("settings", "conditions", "cause"),
    [
        ({}, StartConditions(on_wsl=True), "WSL"),
        ({"distributed-executor-backend": "ray"}, HERE, "Ray"),
        ({"numa_bind": True}, HERE, "numa-bind"),
        ({f"env.{METHOD}": "spawn"}, HERE, METHOD),
        ({}, StartConditions(exported=frozenset({METHOD})), METHOD),
    ],
)
def test_fork_is_refused_where_vllm_spawns(settings, conditions, cause):
    plan = planned(settings=settings, conditions=conditions)
    assert cause in plan.start_left_out["fork"]
    assert plan.env.get(METHOD) != "fork"
    with pytest.raises(UsageError) as error:
        planned(settings=settings | {"start.fork": True}, conditions=conditions)
    assert cause in error.value.what


@pytest.mark.parametrize(
    ("settings", "conditions"),
    [
        ({"tensor-parallel-size": 2}, HERE),
        ({}, StartConditions(failed={"fork": "it hung"})),
    ],
)
def test_doubtful_startup_measure_is_taken_by_name(settings, conditions):
    """Nobody measured fork on several GPUs, and what failed with an engine is not tried again unasked."""
    plan = planned(settings=settings, conditions=conditions)
    assert "fork" not in plan.start
    assert plan.start_left_out["fork"]
    assert planned(settings=settings | {"start.fork": True}, conditions=conditions).env[METHOD] == "fork"


def test_cpu_plan_forks_only_with_its_patch():
    plan = planned("demo-cpu", mode=Mode.EAGER)
    assert ({*plan.start_left_out}, plan.env[METHOD]) == ({"startup-plan"}, "fork")
    assert {"modelinfos", "cache-root", "fork", "warm-up"} <= {*plan.start}
    off = {"patches.cpu-fork": False}
    plan = planned("demo-cpu", mode=Mode.EAGER, settings=off)
    assert {*plan.start_left_out} == {"fork", "startup-plan"}
    assert METHOD not in plan.env
    with pytest.raises(UsageError, match="cpu-fork"):
        planned("demo-cpu", mode=Mode.EAGER, settings=off | {"start.fork": True})


def test_missing_startup_measure_names_release_with_it():
    plan = planned(vllm="0.25.1")
    assert "startup-plan" not in plan.start
    assert PLAN not in plan.env
    for name, since in (("startup-plan", "0.26.0"), ("instanttensor", "0.29.0")):
        with pytest.raises(UsageError) as error:
            planned(vllm="0.25.1", settings={f"start.{name}": True})
        assert f"--vllm {since}" in (error.value.hint or "")


def test_stock_equals_plain_vllm_serve():
    stock = planned(vllm="0.32.0", settings={name: value == "true" for name, value in ALL_OPTIMIZATIONS_OFF.items()})
    assert not {ROOT, METHOD, PLAN} & stock.env.keys()
    assert all(OPTIMIZATIONS[name].is_fixed for name in stock.start)


@pytest.mark.parametrize("loader", ["fastsafetensors", "instanttensor"])
def test_loaders_are_offered_and_never_taken_unasked(loader):
    plain, asked = planned(vllm="0.32.0"), planned(vllm="0.32.0", settings={f"start.{loader}": True})
    assert "--load-format" not in plain.argv
    assert asked.argv[asked.argv.index("--load-format") + 1] == loader
    for settings in ({"load-format": "dummy"}, {"start.fastsafetensors": True, "start.instanttensor": True}):
        with pytest.raises(UsageError):
            planned(vllm="0.32.0", settings={f"start.{loader}": True} | settings)


def test_text_only_start_needs_recipe_support():
    """Gemma 4 31B's says that it takes no images; a server for both must not lose its eyes."""
    assert "--language-model-only" not in planned("gemma-4-31b").argv
    assert "--language-model-only" in planned("gemma-4-31b", settings={"start.text-only": True}).argv
    with pytest.raises(UsageError):
        planned("gemma-4-26b-a4b", settings={"start.text-only": True})


def test_plan_states_seconds_and_source_per_measure():
    resolved = resolve("gemma-4-26b-a4b", Hardware.H200, "0.33.0")
    plan = planned(vllm="0.33.0", conditions=StartConditions(on_wsl=True))
    assert plan.env[WSL_PINS] == "1"
    lines = plan_text.list_start_measures(resolved, plan)
    for name in plan.start:
        [line] = [line for line in lines if line.startswith(f"{name}: ")]
        assert OPTIMIZATIONS[name].saves in line
        assert not OPTIMIZATIONS[name].saves or OPTIMIZATIONS[name].source in line
    assert any(line.startswith("without fork: ") for line in lines)
    assert any("start.instanttensor=true" in line for line in lines)
