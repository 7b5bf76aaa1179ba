"""Which GPUs a launch takes: as many as it needs, of one class, and which of them."""

from collections.abc import Sequence

import pytest

from dflash_tui.common.errors import UsageError
from dflash_tui.experiments import __main__ as driver
from dflash_tui.experiments.builder import ExperimentRequest, build_experiment
from dflash_tui.launch import planner
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.machine import nvml
from dflash_tui.machine.gpus import Gpu, GpuProbe
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.memory import LocalModel
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.request import LaunchRequest
from tests.support.preflight_situations import a_gpu

# It knows H100, H200, RTX 5090 and GB10 among others, and no Ada.
RECIPE = "gemma-4-26b-a4b"
TWO = {"tensor-parallel-size": "2"}
GIB = 1 << 30


def plan(cards: Sequence[Gpu], gpu: str | None = None, **settings: str) -> PlannedLaunch:
    request = LaunchRequest(
        recipe=RECIPE, gpu=gpu, settings={name.replace("_", "-"): text for name, text in settings.items()}
    )
    return planner.plan_launch(request, GpuProbe(tuple(cards), "580.95"))


def h200(index: int, used: int = 0) -> Gpu:
    return a_gpu(Hardware.H200, index, used * GIB)


MIXED = (
    a_gpu(Hardware.RTX_5090, 0),
    h200(1, 9),
    h200(2, 3),
    h200(3, 5),
    Gpu(4, hardware=Hardware.H200, trouble="lost"),
)
ADA = Gpu(0, uuid="GPU-0", hardware=Hardware.ADA, memory_total=300 * GIB, memory_used=0)


@pytest.mark.parametrize(
    ("cards", "gpu", "count", "taken"),
    [
        (MIXED, None, "1", [2]),
        (MIXED, None, "2", [2, 3]),
        (MIXED, None, "4", [1, 2, 3]),
        (MIXED, "rtx-5090", "1", [0]),
        (MIXED, "rtx-5090", "2", [0]),
        (MIXED, "h200", "2", [2, 3]),
        (MIXED, "1", "1", [1]),
        (MIXED, "1", "2", [1, 2]),
        (MIXED, "1", "4", [1, 2, 3]),
        (MIXED, "0", "2", [0]),
        (MIXED, "3,1", "2", [1, 3]),
        (MIXED, "h100", "2", []),
        ((ADA, h200(1)), None, "1", [1]),
        ((ADA, *MIXED[1:]), "0", "1", [0]),
        ((ADA,), None, "1", [0]),
        ((), None, "1", []),
    ],
)
def test_the_gpus_that_a_launch_takes(cards, gpu, count, taken):
    """Of one class, one that has enough and that the recipe knows if there is, and those with the most free memory.

    A GPU that is named comes first, others of its class join it. Where there are not enough, the checks say so.
    """
    planned = plan(cards, gpu, tensor_parallel_size=count)
    assert [card.index for card in planned.gpus] == taken
    assert planned.plan.gpus == tuple(f"GPU-{index}" for index in taken)
    assert planned.plan.env.get("CUDA_VISIBLE_DEVICES", "") == ",".join(planned.plan.gpus)
    assert {card.hardware for card in planned.gpus} <= {planned.plan.hardware}
    assert planned.plan.request is not None
    assert planned.plan.request.gpu == gpu


@pytest.mark.parametrize(
    ("cards", "gpu", "words"),
    [
        (MIXED, "0,1", "several classes: rtx-5090 and h200"),
        (MIXED, "1,2,3", "GPUs needed: 2, found as '1,2,3': 3"),
        (MIXED, "7", "there is no GPU called '7'"),
        (MIXED, "4", "GPU 4 cannot be used"),
        ((), "0", "there is no GPU called '0'"),
    ],
)
def test_gpus_that_cannot_be_taken(cards, gpu, words):
    with pytest.raises(UsageError, match=words):
        plan(cards, gpu, tensor_parallel_size="2")


def test_local_model_files_decide_memory_estimate():
    request, probe = LaunchRequest(recipe=RECIPE), GpuProbe((h200(0),))
    [target, _] = planner.plan_launch(request, probe).plan.models
    models = {(target.name, target.revision): LocalModel(None, 7 * GIB)}
    memory = planner.plan_launch(request, probe, models=models).memory
    assert memory is not None
    weights, encoder, *_ = memory.shares  # the files hold both
    assert ((weights.size or 0) + (encoder.size or 0), weights.source) == (7 * GIB, "files")


def test_two_host_server_takes_one_gpu_each():
    request = LaunchRequest(recipe="gemma-4-31b", variant="gb10-pair")
    planned = planner.plan_launch(request, GpuProbe((h200(0), h200(1))))
    assert [card.index for card in planned.gpus] == [0]


@pytest.mark.parametrize(
    ("peers", "gpu", "taken"),
    [
        (["local"], None, [[2], [3]]),
        (["local"], "h200", [[2], [3]]),
        (["local"], "3", [[3], [2]]),
        (["local"], "3,2", [[2], [3]]),
        (["local", "spark"], None, [[2], [3], [2]]),
        (["spark"], None, [[2], [2]]),
    ],
)
def test_ranks_on_one_machine_take_separate_gpus(peers, gpu, taken):
    """Each plans by itself, and before any of them is there; a rank of another machine has that one's GPUs."""
    settings = {"tensor-parallel-size": str(len(taken)), "hosts": str(len(taken))}
    request = LaunchRequest(recipe=RECIPE, gpu=gpu, settings=settings, peers=tuple(peers))
    probe = GpuProbe((h200(2), h200(3)), "580.95")
    ranks = [planner.plan_launch(request, probe, rank=rank) for rank in range(len(taken))]
    assert [[card.index for card in planned.gpus] for planned in ranks] == taken
    assert [list(planned.plan.gpus) for planned in ranks] == [[f"GPU-{index}" for index in own] for own in taken]


def test_later_rank_avoids_gpus_named_for_first():
    request = LaunchRequest(
        recipe=RECIPE, gpu="GPU-3,GPU-4", settings={"tensor-parallel-size": "4", "hosts": "2"}, peers=("local",)
    )
    probe = GpuProbe(tuple(map(h200, range(2, 6))), "580.95")
    taken = [[card.index for card in planner.plan_launch(request, probe, rank=rank).gpus] for rank in (0, 1)]
    assert [sorted(own) for own in taken] == [[3, 4], [2, 5]]


def test_too_few_gpus_for_ranks_is_refused():
    request = LaunchRequest(recipe=RECIPE, settings=TWO, peers=("local",))
    for rank in (0, 1):
        with pytest.raises(UsageError, match="2 ranks on this machine"):
            planner.plan_launch(request, GpuProbe((h200(2),), "580.95"), rank=rank)
    assert planner.plan_launch(request, GpuProbe()).gpus == ()


def test_all_arms_share_the_same_gpus(folders, monkeypatch):
    """Others may use the memory of one between two plans; the GPUs are asked once."""
    probes = iter([GpuProbe((h200(0, 1), h200(1))), GpuProbe((h200(0), h200(1, 1)))])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(nvml, "probe_gpus", lambda: next(probes))
    design, _ = build_experiment(ExperimentRequest(LaunchRequest(recipe=RECIPE), "n=3,7"))
    assert [arm.plan.gpus for arm in design.arms] == [("GPU-1",), ("GPU-1",)]
    assert {arm.request.gpu for arm in design.arms} == {None}
    assert {arm.request.port for arm in design.arms} == {design.arms[0].plan.port}


@pytest.mark.parametrize("gpu", [None, "1", "h200"])
def test_experiment_driver_keeps_its_planned_gpus(gpu, folders, monkeypatch):
    """Also when another GPU has more free memory by the time it begins; without its GPU it does not begin."""
    probe, recipe = GpuProbe((h200(0, 1), h200(1))), recipe_loader.find_recipe(RECIPE)
    monkeypatch.setattr(planner, "probe_for", lambda _recipe: probe)
    design, resolved_recipes = build_experiment(ExperimentRequest(LaunchRequest(recipe=RECIPE, gpu=gpu), "n=3,7"))
    later = GpuProbe((h200(0), h200(1, 1)))
    assert [driver._resolve_arm(arm, later, recipe) for arm in design.arms] == resolved_recipes
    with pytest.raises(UsageError):
        driver._resolve_arm(design.arms[0], GpuProbe((h200(0),)), recipe)


def test_engine_is_planned_only_for_its_hardware():
    for request in (LaunchRequest(recipe="gemma-4-31b", gpu="cpu"), LaunchRequest(recipe="demo-cpu", gpu="h100")):
        with pytest.raises(UsageError):
            planner.plan_launch(request, GpuProbe())
    assert planner.plan_launch(LaunchRequest(recipe="demo-cpu", gpu="cpu"), GpuProbe()).plan.hardware is Hardware.CPU
