"""GPUs through the real pynvml, against a library that plays the driver of other machines."""

import os

import msgspec
import psutil
import pytest
from msgspec.structs import replace

from dflash_tui.machine.gpus import Gpu, GpuProbe, GpuProcess
from dflash_tui.machine.hardware import Hardware
from dflash_tui.monitoring import sampler
from dflash_tui.runs.run import Run
from tests.support import fake_nvml
from tests.support.plans import plan_of

GIB = 1 << 30
MIB = 1 << 20
PID = str(os.getpid())
PROBE = """
import msgspec
from dflash_tui.machine import nvml
print(msgspec.json.encode(nvml.probe_gpus()).decode())
"""


@pytest.fixture
def look(stand_in_nvml):
    """Return a function that reads the GPUs of a machine."""

    def gpus(machine: str) -> GpuProbe:
        return msgspec.convert(fake_nvml.python(stand_in_nvml, machine, PROBE, STAND_IN_PID=PID), GpuProbe)

    return gpus


def meminfo() -> tuple[int, int]:
    memory = psutil.virtual_memory()
    return memory.total, memory.total - memory.available


def test_gb10_reports_memory_of_its_machine(look):
    """NVML supports no memory query there, but knows the processes."""
    before = meminfo()
    found = look("gb10")
    after = meminfo()
    (card,) = found.gpus
    assert (found.driver, found.cuda, found.why_none) == ("580.95.05", "13.0", "")
    assert (card.name, card.capability, card.hardware, card.unified) == ("NVIDIA GB10", "12.1", Hardware.GB10, True)
    assert card.memory_total == before[0]
    assert card.memory_used is not None
    assert min(before[1], after[1]) - GIB < card.memory_used < max(before[1], after[1]) + GIB
    assert (card.temperature_c, card.power_w, card.power_limit_w, card.mig) == (62, 38.4, None, None)
    assert (card.throttle, card.trouble) == ((), "")
    assert card.processes == (GpuProcess(int(PID), psutil.Process().name(), 21 * GIB),)


def test_laptop_and_desktop_gpus_are_distinguished(look):
    """Both are a 5090; the laptop throttles, the desktop does not say which process uses what."""
    (laptop,), (desktop,) = look("laptop").gpus, look("desktop").gpus
    assert (laptop.hardware, laptop.memory_total) == (Hardware.RTX_5090_LAPTOP, 24463 * MIB)
    assert laptop.throttle == ("power cap", "thermal (hardware)")
    assert (laptop.power_w, laptop.power_limit_w) == (94.6, 95.0)
    assert (laptop.sm_clock_mhz, laptop.sm_clock_max_mhz, laptop.utilisation) == (1552, 3090, 0.71)
    assert (desktop.hardware, desktop.memory_total) == (Hardware.RTX_5090, 32607 * MIB)
    assert (desktop.memory_used, desktop.unified) == (1 * GIB, False)
    assert desktop.throttle == ()
    assert desktop.processes == (GpuProcess(int(PID), psutil.Process().name(), None),)


def test_data_centre_gpus(look):
    """Memory in use is what nvidia-smi shows: without what the driver keeps for itself."""
    found = look("h100")
    (h100,) = found.gpus
    assert (found.cuda, h100.hardware, h100.mig) == ("12.8", Hardware.H100, True)
    assert (h100.memory_total, h100.memory_used) == (81559 * MIB, 40 * GIB)
    first, second = look("two-h200").gpus
    assert first.hardware is second.hardware is Hardware.H200
    assert (first.index, second.index) == (0, 1)
    assert first.uuid != second.uuid
    assert first.mig is False


@pytest.mark.parametrize(("machine", "words"), [("lost", "a reboot brings it back"), ("reset", "GPU needs a reset")])
def test_a_gpu_in_trouble_hides_no_other(look, machine, words):
    """It is listed with a sentence and nothing else."""
    well, bad = look(machine).gpus
    assert (well.name, well.trouble) == ("NVIDIA H200", "")
    assert words in bad.trouble
    assert bad == Gpu(1, trouble=bad.trouble)


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ("failing", "not loaded; `sudo modprobe nvidia`"),
        ("mismatch", "do not match, as after an update; reboot"),
        ("unknown", "it answers 'Unknown Error'"),
        ("no-gpu", "the driver runs but shows none"),
    ],
)
def test_missing_gpu_gives_reason(look, machine, words):
    """A sentence says what is the matter and what to do."""
    found = look(machine)
    assert words in found.why_none
    assert found.gpus == ()


def test_gpus_command_says_why_none_is_found(stand_in_nvml):
    shown = fake_nvml.dflash(stand_in_nvml, "no-gpu", "gpus")
    assert "the driver runs but shows none" in shown.stdout
    assert "recipe demo-cpu" in shown.stderr


def test_the_table(stand_in_nvml):
    """People see the same as programs, with what is unknown as a dash."""
    laptop = fake_nvml.dflash(stand_in_nvml, "laptop", "gpus", STAND_IN_PID=PID).stdout
    for words in ("driver 581.42, CUDA 13.0", "rtx-5090-laptop", "3.0 of 23.9 GiB", "71 %", "83 °C", "95 of 95 W"):
        assert words in laptop
    for words in ("1552 of 3090 MHz", "power cap, thermal (hardware)", PID, psutil.Process().name(), "2.0 GiB"):
        assert words in laptop
    assert "GiB unified" in fake_nvml.dflash(stand_in_nvml, "gb10", "gpus").stdout
    assert "! 1: GPU is lost" in fake_nvml.dflash(stand_in_nvml, "lost", "gpus").stdout


USE = f"""
import json
from dflash_tui.machine import nvml
from dflash_tui.monitoring import sampler
print(json.dumps([sampler.measure_gpu_memory(nvml.probe_gpus().gpus, pids) for pids in ({{{PID}}}, {{1 << 30}})]))
"""


@pytest.mark.parametrize(
    ("machine", "ours", "others"),
    [
        ("h100", [39 * GIB, 81559 * MIB, "GPU"], [40 * GIB, 81559 * MIB, "GPU, all"]),
        ("two-h200", [116 * GIB, 287542 * MIB, "GPU"], [61 * GIB, 287542 * MIB, "GPU, all"]),
        ("lost", [58 * GIB, 143771 * MIB, "GPU"], [60 * GIB, 143771 * MIB, "GPU, all"]),
        ("desktop", [1 * GIB, 32607 * MIB, "GPU, all"], [1 * GIB, 32607 * MIB, "GPU, all"]),
        ("no-gpu", None, None),
        ("mismatch", None, None),
    ],
)
def test_memory_of_processes(stand_in_nvml, machine, ours, others):
    """The memory of ours on the GPUs that they use, else of all; none without a GPU."""
    assert fake_nvml.python(stand_in_nvml, machine, USE, STAND_IN_PID=PID) == [ours, others]


def test_shared_gpu_memory_is_listed_per_process(stand_in_nvml):
    """On unified memory what is not the GPU's counts too, and is named so."""
    ours, others = fake_nvml.python(stand_in_nvml, "gb10", USE, STAND_IN_PID=PID)
    assert ours == [21 * GIB, meminfo()[0], "GPU"]
    assert others[1:] == [meminfo()[0], "unified, all"]


ENERGY = """
import json
from dflash_tui.machine import nvml
uuids = [card.uuid for card in nvml.probe_gpus().gpus]
print(json.dumps([nvml.read_energy(uuids), nvml.read_energy(uuids[:1]), nvml.read_energy([*uuids, "GPU-0"])]))
"""


@pytest.mark.parametrize(("machine", "joules"), [("two-h200", [620500.0, 310250.0, None]), ("gb10", [None] * 3)])
def test_energy_covers_exactly_requested_gpus(stand_in_nvml, machine, joules):
    """All of them have to say it: a part would be taken for the whole."""
    assert fake_nvml.python(stand_in_nvml, machine, ENERGY) == joules


HANG = """
import json, os, pathlib, threading
from dflash_tui.machine import nvml
first = nvml.probe_gpus(timeout=0.3).why_none
# Without being turned away at once these would wait for an hour, and the test with them.
turned_away = [nvml.probe_gpus(timeout=3600).why_none, nvml.read_energy(["GPU-0"])]
threads = threading.active_count()
pathlib.Path(os.environ["STAND_IN_UNTIL"]).touch()
while nvml.probe_gpus().why_none:
    pass
print(json.dumps([first, *turned_away, threads, nvml.probe_gpus().gpus[0].name, threading.active_count()]))
"""


def test_hanging_driver_times_out(stand_in_nvml, tmp_path):
    """One call hangs, later ones return at once without another thread, and it all works when the driver is back."""
    until = str(tmp_path / "until")
    first, second, memory, threads, name, after = fake_nvml.python(stand_in_nvml, "hanging", HANG, STAND_IN_UNTIL=until)
    assert "does not answer" in first
    assert "does not answer" in second
    assert (memory, threads, name, after) == (None, 2, "NVIDIA H200", 1)


def test_silent_driver_leaves_gap_in_memory_samples():
    """The recorder does not draw the processes' own memory where the GPU's was drawn before."""
    made = replace(plan_of("demo-cpu"), on_cpu=False)
    looking = sampler.Sampler(Run("nobody", made, 1, "boot:1", 0.0, 0.0, "vllm"))
    card = Gpu(0, memory_used=1, memory_total=2)
    sources = []
    for cards in ((), (card,), ()):
        sample = looking._measure_memory(cards)
        looking._memory = sample or looking._memory
        sources.append(sample and sample.source)
    assert sources == ["resident", "GPU, all", None]
