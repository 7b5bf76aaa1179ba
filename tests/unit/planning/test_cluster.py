"""One server over several hosts: what each rank runs, by the link that was found, and what cannot be split."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from dflash_tui.common import paths
from dflash_tui.common.errors import UsageError
from dflash_tui.machine.hardware import Hardware
from dflash_tui.machine.network import choose_link
from dflash_tui.planning.cluster import Cluster, ClusterHost, check_cluster, count_gpus_needed, count_gpus_per_host
from dflash_tui.planning.plan import Plan, format_command
from dflash_tui.planning.plan_builder import build_plan
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.resolution import ResolvedRecipe, resolve_recipe
from dflash_tui.planning.request import LaunchRequest
from dflash_tui.runs.run import Run
from tests import DATA
from tests.support.recorded_links import read_recorded

GOLDEN = DATA / "plans" / "ranks"


def resolve(variant: str = "gb10-pair", profile: str = "seed", **settings) -> ResolvedRecipe:
    recipe = recipe_loader.find_recipe("gemma-4-31b")
    named = {name.replace("_", "-"): value for name, value in settings.items()}
    return resolve_recipe(recipe, Hardware.GB10, profile=profile, variant=variant, settings=named)


def words_of(plan: Plan) -> list[tuple[str, ...]]:
    return [plan.argv, *(rank.argv for rank in plan.ranks)]


def flag(argv: tuple[str, ...], name: str) -> str:
    return argv[argv.index(name) + 1]


@pytest.mark.parametrize("profile", ["seed", "stock"])
def test_two_gb10s_with_roce(profile, tmp_path, pytestconfig):
    """Golden files: the command and the variables of both, from the recorded files of their networks."""
    networks = [read_recorded(name, tmp_path / name) for name in ("gb10-a", "gb10-b")]
    ends = choose_link(networks, ["spark-a", "spark-b"]).ends
    hosts = ["", "spark-b"]
    endpoints = [
        ClusterHost(host, e.address, e.interface, e.devices, e.gid_index) for host, e in zip(hosts, ends, strict=True)
    ]
    request = LaunchRequest(recipe="gemma-4-31b", cluster=Cluster(tuple(endpoints)))
    plan = build_plan(resolve(profile=profile), request=request)
    text = format_command(plan).replace(plan.engine_folder, "{engine}") + "\n"
    text = text.replace(str(paths.cache_folder()), "{cache}").replace(Path(plan.unpatched_folder).name, "vllm")
    path = GOLDEN / f"gemma-4-31b.gb10.{profile}.txt"
    if pytestconfig.getoption("--update-plans"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("devices", "settings", "expected"),
    [
        (("rocep1s0f1", "roceP2p1s0f1"), {}, "rocep1s0f1,roceP2p1s0f1"),
        (("rocep1s0f1",), {"env.NCCL_NET": "Socket"}, "rocep1s0f1"),  # found, whatever a published command says
        ((), {}, ""),
        ((), {"env.NCCL_IB_HCA": "mlx5_0"}, "mlx5_0"),
        ((), {"env.NCCL_NET": "IB"}, "any device"),
    ],
)
def test_launch_records_roce_devices_meant_for_nccl(devices, settings, expected):
    ends = (ClusterHost("", "10.0.0.1", "eth0", devices), ClusterHost("b", "10.0.0.2", "eth0", devices))
    recipe = recipe_loader.find_recipe("gemma-4-31b")
    resolved = resolve_recipe(recipe, Hardware.GB10, profile="seed", variant="gb10-pair", settings=settings)
    request = LaunchRequest(recipe="gemma-4-31b", cluster=Cluster(ends))
    run = Run("r", build_plan(resolved, request=request), 1, "", 0.0, 0.0, "fake")
    assert run.launched.roce == expected
    alone = replace(run, plan=build_plan(resolve(variant="")))
    assert alone.launched.roce == ""


def test_recipe_timeout_and_master_port_win():
    first, _ = words_of(build_plan(resolve(distributed_timeout_seconds=20, master_port=29777)))
    assert first.count("--distributed-timeout-seconds") == first.count("--master-port") == 1
    assert (flag(first, "--distributed-timeout-seconds"), flag(first, "--master-port")) == ("20", "29777")


def test_ray_finds_its_hosts_itself():
    plan = build_plan(resolve(distributed_executor_backend="ray"))
    assert (plan.cluster, plan.ranks, "--nnodes" in plan.argv) == (None, (), False)


def test_each_host_takes_its_share_of_gpus():
    assert count_gpus_per_host(resolve()) == 1
    assert count_gpus_per_host(resolve(tensor_parallel_size=8)) == 4
    assert count_gpus_per_host(resolve(variant="", tensor_parallel_size=8)) == 8


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"tensor_parallel_size": 3}, "evenly"),
        ({"tensor_parallel_size": 1}, "evenly"),
        ({"nnodes": 4}, "nnodes"),
        ({"headless": True}, "headless"),
    ],
)
def test_unsplittable_set_up_is_refused(settings, word):
    with pytest.raises(UsageError, match=word):
        check_cluster(resolved := resolve(**settings), count_gpus_needed(resolved.flags))


def test_one_address_for_all_hosts_is_refused():
    resolved = resolve()
    with pytest.raises(UsageError, match="VLLM_HOST_IP"):
        check_cluster(replace(resolved, env={"VLLM_HOST_IP": "127.0.0.1"}), count_gpus_needed(resolved.flags))
