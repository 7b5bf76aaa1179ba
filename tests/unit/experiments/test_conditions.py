"""The machine while a boot is measured: whose servers and whose work disturb it."""

import subprocess
import sys
import time

import pytest
from msgspec.structs import replace

from dflash_tui.events import Foreign, GpuLoad, RankSampled, RankState
from dflash_tui.experiments import boot_server
from dflash_tui.experiments.boot_server import ProcessorTimes
from dflash_tui.machine import processes
from dflash_tui.run_state.state import RunState
from dflash_tui.runs import registry, server_process
from dflash_tui.runs.run import FarRank, Run
from tests.support.boot_factories import plan
from tests.support.waiting import wait_until


def a_run(name: str, pid: int = 0, **changes) -> Run:
    return Run(name, plan(**changes), pid, processes.read_process_identity(pid) if pid else "", 0.0, 0.0, "vllm")


@pytest.mark.parametrize(
    ("other", "disturbs"),
    [
        ({"gpus": ("b",)}, False),
        ({"gpus": ("a", "b")}, True),
        ({}, True),
        ({"on_cpu": True}, False),
    ],
)
def test_server_on_another_gpu_is_not_foreign(monkeypatch, other, disturbs):
    """Only who computes on the same is foreign load; a plan that names no GPU may use any."""
    ours = a_run("ours", gpus=("a",))
    monkeypatch.setattr(registry, "list_runs", lambda: [ours, a_run("theirs", **other)])
    monkeypatch.setattr(server_process, "is_alive", lambda _: True)
    assert boot_server.measure_conditions(ours, RunState(), 0.0).foreign == (("server theirs",) if disturbs else None)


def test_foreign_processors_exclude_ours_and_idle():
    """Two processors' worth of work of which ours is half; nothing is said of a moment."""
    assert boot_server.count_foreign_processors(ProcessorTimes(0, 100, 10), ProcessorTimes(10, 120, 20)) == 1.0
    assert boot_server.count_foreign_processors(ProcessorTimes(0, 100, 10), ProcessorTimes(10, 105, 20)) == 0.0
    assert boot_server.count_foreign_processors(ProcessorTimes(0, 100, 10), ProcessorTimes(0.5, 120, 20)) is None


def test_cpu_time_of_server_counts():
    """A session that spins adds as much to ours as it works."""
    spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
    try:
        run = a_run("ours", spinning.pid)
        before = boot_server.read_processor_times(run)

        def worked() -> bool:
            after = boot_server.read_processor_times(run)
            return after.ours - before.ours > 0.1 and after.busy - before.busy > 0.1

        wait_until(worked)
    finally:
        spinning.kill()
        spinning.wait()


def test_far_hosts_are_judged_by_keeper_samples(folders, monkeypatch):
    """Throttling in between counts, others are told with their host, and the ranks of this machine are no strangers."""
    far = (FarRank(1, "spark-b", "far"), FarRank(2, "local", "near"))
    ours = replace(a_run("ours", gpus=("a",)), far_ranks=far)
    ours.folder.mkdir(parents=True)
    now, memory = time.time(), 1 << 30
    for age, card in (
        (40, GpuLoad(0, throttle=("power brake",))),
        (20, GpuLoad(0, throttle=("thermal (hardware)",), foreign=(Foreign(7, "python", memory),))),
        (1, GpuLoad(0, clock_mhz=1500, throttle=(), foreign=())),
    ):
        sample = RankSampled(now - age, 1, "spark-b", RankState.RUNNING, 0.0, available=5, total=9, gpus=(card,))
        ours.record(sample)
    monkeypatch.setattr(registry, "list_runs", lambda: [ours, a_run("near", gpus=("a",))])
    monkeypatch.setattr(server_process, "is_alive", lambda _: True)
    seen = boot_server.measure_conditions(ours, RunState(), now - 10)
    assert seen.foreign is None
    spark, local = seen.hosts["rank 1 on spark-b"], seen.hosts["rank 2 on local"]
    assert (spark.clock_mhz, spark.available, spark.throttle) == (1500, 5, ("thermal (hardware)",))
    assert spark.foreign == ("python (pid 7) on spark-b",)
    assert (local.available, local.throttle) == (None, None)
