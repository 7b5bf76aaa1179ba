"""CPU time, disk bytes and the log of real processes."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from dflash_tui.events import Activity, Foreign, GpuLoad
from dflash_tui.machine.gpus import Gpu, GpuProcess
from dflash_tui.monitoring import sampler
from dflash_tui.monitoring.sampler import has_load_changed, read_gpu_loads
from tests.support import fake_nvml

WORK = """
import os, subprocess, sys, time
subprocess.run([sys.executable, "-c", "while __import__('time').process_time() < 0.5: pass"], check=True)
with open(sys.argv[1], "wb") as file:
    file.write(os.urandom(8 << 20))
    os.fsync(file.fileno())
print("done", flush=True)
time.sleep(60)
"""


def test_work_of_process_and_ended_child_counts(tmp_path):
    """A compiler that has ended counts through its parent; the bytes written and the log's size are there, too."""
    log = tmp_path / "server.log"
    log.write_bytes(b"a line\n")
    argv = [sys.executable, "-c", WORK, str(tmp_path / "written")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        try:
            members = [psutil.Process(process.pid)]
            assert process.stdout is not None
            assert process.stdout.readline() == b"done\n"
            after = sampler.sample_activity(members, log, 1000.0)
            time.sleep(1.0)
            idle = sampler.sample_activity(members, log, 1001.0)
        finally:
            process.kill()
    assert after.cpu >= 0.5
    assert after.disk >= 8 << 20
    assert (after.at, after.log) == (1000.0, 7)
    assert idle.cpu - after.cpu < 0.5
    gone = sampler.sample_activity(members, tmp_path / "none", 1002.0)
    assert gone == Activity(1002.0, 0.0, 0, 0)


def test_processors_and_threads_of_processes_are_measured():
    argv = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        try:
            members = [psutil.Process(process.pid)]
            assert process.stdout is not None
            process.stdout.readline()
            use, deadline = sampler.measure_processor_use(members), time.monotonic() + 60
            while (later := sampler.measure_processor_use(members)).seconds <= use.seconds:
                assert time.monotonic() < deadline
            assert (later.processors, later.threads) == (len(os.sched_getaffinity(process.pid)), 1)
        finally:
            process.kill()
    assert sampler.measure_processor_use(members) == (0.0, 0.0, 0, 0)


PID = str(psutil.Process().pid)
ASK = """
import json, sys
from dflash_tui.machine import nvml
from dflash_tui.monitoring import sampler
import msgspec
print(msgspec.json.encode(sampler.read_gpu_loads(nvml.probe_gpus().gpus, {pids}, {uuids})).decode())
"""


def asked(folder, machine: str, pids: str, uuids: str = "()", **more: str) -> list[dict[str, object]]:
    found = fake_nvml.python(folder, machine, ASK.replace("{pids}", pids).replace("{uuids}", uuids), **more)
    assert isinstance(found, list)
    return found


def test_gpu_load_has_power_clock_and_throttle(stand_in_nvml):
    [load] = asked(stand_in_nvml, "laptop", f"{{{PID}}}", STAND_IN_PID=PID)
    assert (load["power_w"], load["power_limit_w"], load["clock_mhz"], load["clock_max_mhz"]) == (94.6, 95, 1552, 3090)
    assert (load["temperature_c"], load["throttle"]) == (83, ["power cap", "thermal (hardware)"])
    assert load["foreign"] == []


def test_a_process_of_somebody_else_is_foreign(stand_in_nvml):
    """Ours is not there, so the driver cannot be trusted to show whose a process is."""
    [load] = asked(stand_in_nvml, "laptop", "{1}", STAND_IN_PID=PID)
    assert load.get("foreign") is None
    card = Gpu(0, processes=(GpuProcess(11, "VLLM::EngineCore", 5), GpuProcess(77, "py\x1b[31mthon" + "x" * 90, 9)))
    [found] = read_gpu_loads([card], {11})
    assert found.foreign == (Foreign(77, "py[31mthon" + "x" * 30, 9),)


def test_only_gpus_of_server_are_sampled(stand_in_nvml):
    """Those that hold its processes; until then those that it may use; else all."""
    assert len(asked(stand_in_nvml, "two-h200", "{1}")) == 2
    second = "('GPU-b0000000-0000-4000-8000-000000000000',)"
    assert [load["index"] for load in asked(stand_in_nvml, "two-h200", "{1}", second)] == [1]
    cards = [Gpu(0, processes=()), Gpu(1, processes=(GpuProcess(11),))]
    assert [load.index for load in read_gpu_loads(cards, {11})] == [1]


@pytest.mark.parametrize(
    ("after", "noticed"),
    [
        (GpuLoad(0, 101.0, 300.0, 2000, 2600, 60), False),
        (GpuLoad(0, 130.0, 300.0, 2000, 2600, 60), True),
        (GpuLoad(0, 100.0, 300.0, 1800, 2600, 60), True),
        (GpuLoad(0, 100.0, 300.0, 2000, 2600, 63), True),
        (GpuLoad(0, None, 300.0, 2000, 2600, 60), True),
        (GpuLoad(0, 100.0, 300.0, 2000, 2600, 60, throttle=("power brake",)), True),
        (GpuLoad(0, 100.0, 300.0, 2000, 2600, 60, foreign=()), True),
    ],
)
def test_invisible_load_change_is_not_recorded(after, noticed):
    assert has_load_changed([GpuLoad(0, 100.0, 300.0, 2000, 2600, 60)], [after]) is noticed
    assert has_load_changed([], [after])
