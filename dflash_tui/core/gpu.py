"""The NVIDIA GPUs of this machine through NVML; no query raises, what is not known is None."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeVar

import msgspec
import psutil
import pynvml

T = TypeVar("T")


class Gpu(msgspec.Struct, frozen=True):
    """One GPU. Memory is in bytes; on unified memory (GB10) it is the machine's, from /proc/meminfo."""

    index: int
    name: str
    uuid: str
    capability: str
    memory_total: int
    memory_used: int
    unified: bool
    temperature_c: int | None = None
    power_w: float | None = None
    utilisation: float | None = None


class Use(NamedTuple):
    """Bytes of GPU memory in use and in all, and what `used` covers."""

    used: int
    total: int
    source: str


class Probe(msgspec.Struct, frozen=True):
    """What NVML says: the GPUs, the driver's version, and why there are none."""

    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    why_none: str = ""


def probe() -> Probe:
    """Return the GPUs that NVML shows now; without any, `why_none` is a sentence for the user."""
    if why_not := _initialise():
        return Probe(why_none=why_not)
    driver = str(_ask(pynvml.nvmlSystemGetDriverVersion, default="unknown"))
    handles = [_ask(pynvml.nvmlDeviceGetHandleByIndex, i, default=None) for i in range(_count())]
    gpus = tuple(_describe(i, handle) for i, handle in enumerate(handles) if handle is not None)
    return Probe(gpus, driver, "" if gpus else "no NVIDIA GPU: the driver runs but shows none")


def memory_of(pids: set[int]) -> Use | None:
    """Return the GPU memory that the processes `pids` use, on the GPUs they use; None without a GPU.

    Where NVML does not say which process uses what (unified memory, containers with their own pids) it is the
    use of all processes on all GPUs, and `source` says so.
    """
    if _initialise():
        return None
    devices = [_ask(pynvml.nvmlDeviceGetHandleByIndex, i, default=None) for i in range(_count())]
    cards = [(_describe(i, handle), _process_memory(handle)) for i, handle in enumerate(devices) if handle is not None]
    ours = [(card, sum(used[pid] for pid in pids & used.keys())) for card, used in cards if pids & used.keys()]
    if ours and all(used for _, used in ours):
        return Use(sum(used for _, used in ours), sum(card.memory_total for card, _ in ours), "GPU")
    if not cards:
        return None
    used, total = sum(card.memory_used for card, _ in cards), sum(card.memory_total for card, _ in cards)
    return Use(used, total, "unified, all" if cards[0][0].unified else "GPU, all")


def _process_memory(handle: Any) -> dict[int, int]:
    """Return the bytes each process uses on a GPU; 0 where NVML knows the process but not its memory."""
    found: list[Any] = _ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle, default=[])
    return {process.pid: process.usedGpuMemory or 0 for process in found}


@cache
def _initialise() -> str:
    """Load NVML once for this process, since the driver may take a second to wake; return why that failed."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        return "no NVIDIA GPU: the driver is not installed"
    except pynvml.NVMLError as error:
        return f"no NVIDIA GPU: the driver answers '{error}'"
    return ""


def _ask(query: Callable[..., T], *args: Any, default: T) -> T:
    """Return what NVML answers, or `default` when it does not (not supported, lost, unknown)."""
    try:
        return query(*args)
    except pynvml.NVMLError:
        return default


def _count() -> int:
    return int(_ask(pynvml.nvmlDeviceGetCount, default=0))


def _describe(index: int, handle: Any) -> Gpu:
    # The second version leaves out what the driver reserves for itself, as nvidia-smi does; old drivers lack it.
    memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2, default=None)
    memory = memory or _ask(pynvml.nvmlDeviceGetMemoryInfo, handle, default=None)
    unified = memory is None or not memory.total
    if unified:
        system = psutil.virtual_memory()
        total, used = system.total, system.total - system.available
    else:
        total, used = int(memory.total), int(memory.used)
    major, minor = _ask(pynvml.nvmlDeviceGetCudaComputeCapability, handle, default=(0, 0))
    power = _ask(pynvml.nvmlDeviceGetPowerUsage, handle, default=None)
    busy = _ask(pynvml.nvmlDeviceGetUtilizationRates, handle, default=None)
    return Gpu(
        index=index,
        name=str(_ask(pynvml.nvmlDeviceGetName, handle, default="unknown GPU")),
        uuid=str(_ask(pynvml.nvmlDeviceGetUUID, handle, default="")),
        capability=f"{major}.{minor}" if major else "",
        memory_total=total,
        memory_used=used,
        unified=unified,
        temperature_c=_ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU, default=None),
        power_w=None if power is None else power / 1000,
        utilisation=None if busy is None else busy.gpu / 100,
    )
