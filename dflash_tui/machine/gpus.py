"""GPUs as values, which `nvml` fills in: which CUDA_VISIBLE_DEVICES allows, and which to choose."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from dflash_tui.common.errors import UsageError
from dflash_tui.machine.hardware import Hardware

NO_DRIVER = "no NVIDIA GPU: the driver is not installed; if there is one, install it, or start the container with GPUs"


class GpuProcess(msgspec.Struct, frozen=True):
    """A process on a GPU: its name, empty when it cannot be seen, and its bytes there, None when NVML does not say."""

    pid: int
    name: str = ""
    memory: int | None = None


class Gpu(msgspec.Struct, frozen=True):
    """One GPU and its state when it was read; what NVML does not say is None or empty."""

    index: int
    """Its number by NVML, in the order of the PCI bus; CUDA may count otherwise."""
    name: str = ""
    uuid: str = ""
    """What names it to CUDA, e.g. `GPU-8a1f…`."""
    capability: str = ""
    """Its compute capability, e.g. `9.0`."""
    hardware: Hardware = Hardware.UNKNOWN
    memory_total: int | None = None
    """Bytes of memory; of a `unified` GPU the machine's MemTotal."""
    memory_used: int | None = None
    """Bytes of memory in use; of a `unified` GPU what is not MemAvailable."""
    unified: bool = False
    """Whether it shares the machine's memory (GB10)."""
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    utilisation: float | None = None
    """Share of the time in which a kernel ran, 0 to 1."""
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    throttle: tuple[str, ...] | None = None
    """What keeps its clocks down, in words; being idle does not count."""
    mig: bool | None = None
    """Whether it is split by MIG; None where it has no such mode."""
    processes: tuple[GpuProcess, ...] | None = None
    """The processes that use it; None when NVML gives no list."""
    trouble: str = ""
    """Why it does not work and what to do, as a sentence; empty when it works."""
    claimed: str = ""
    """Who will use it although its memory does not show that yet, as a sentence; empty without one."""


class GpuMemoryUse(NamedTuple):
    """Bytes of GPU memory in use and in all, and what `used` covers."""

    used: int
    total: int
    source: str


class GpuProbe(msgspec.Struct, frozen=True):
    """The answer of NVML: the GPUs, the versions of the driver and of its CUDA ("13.0"), and why there are none."""

    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    cuda: str = ""
    why_none: str = ""


def measure_gpu_memory_use(cards: Sequence[Gpu], pids: set[int]) -> GpuMemoryUse | None:
    """Return the GPU memory that the processes `pids` use on `cards`; None without a GPU that answers.

    Where NVML does not say which process uses what (unified memory, containers with their own pids) it is the
    use of all processes on all GPUs, and `source` says so.
    """
    uses = {
        card.index: sum(process.memory or 0 for process in card.processes or () if process.pid in pids)
        for card in cards
        if any(process.pid in pids for process in card.processes or ())
    }
    if uses and all(uses.values()):
        total = sum(card.memory_total or 0 for card in cards if card.index in uses)
        return GpuMemoryUse(sum(uses.values()), total, "GPU")
    readable = [card for card in cards if card.memory_total]
    if not readable:
        return None
    used, total = sum(card.memory_used or 0 for card in readable), sum(card.memory_total or 0 for card in readable)
    return GpuMemoryUse(used, total, "unified, all" if readable[0].unified else "GPU, all")


def has_driver() -> bool:
    """Whether the NVIDIA driver is installed, by its library; who has none is spared what asks it."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def filter_visible_gpus(gpus: Sequence[Gpu], visible: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES, `visible`, allows; NVML itself ignores that variable.

    Numbers are taken as NVML counts, in the order of the PCI bus.
    """
    if visible is None:
        return tuple(gpus)
    names = [name.strip() for name in visible.split(",")]
    by_index = {str(card.index): card for card in gpus}
    cards = [by_index.get(name) or next((c for c in gpus if name and c.uuid.startswith(name)), None) for name in names]
    return tuple(card for card in cards if card)


def choose_gpus(gpus: Sequence[Gpu], wanted: str | None, count: int = 1) -> tuple[Gpu, ...]:
    """Return `count` GPUs in the order of their indices, as `wanted`: indices, UUIDs or their starts, or a class.

    Several indices or UUIDs are separated by commas. Of a class, and without a wish of the first class that has
    enough GPUs, those with the most free memory are taken. A GPU in trouble is never chosen.

    Raises:
        UsageError: There are no such GPUs, or not as many.
    """
    usable = [card for card in gpus if not card.trouble]
    if wanted is None or wanted in set(Hardware):
        kinds = dict.fromkeys(card.hardware for card in usable if wanted in {None, card.hardware})
        groups = [[card for card in usable if card.hardware is kind] for kind in kinds]
        group = next((group for group in groups if len(group) >= count), max(groups, key=len, default=[]))
        chosen = sorted(group, key=free_memory, reverse=True)[:count]
    else:
        chosen = list(dict.fromkeys(_find_gpu(gpus, name.strip()) for name in wanted.split(",")))
    if len(chosen) != count:
        selection = f"as '{wanted}'" if wanted else "of one class"
        raise UsageError(f"GPUs needed: {count}, found {selection}: {len(chosen)}", hint=_list_choices(gpus))
    return tuple(sorted(chosen, key=lambda card: card.index))


def free_memory(card: Gpu) -> int:
    """Return the bytes that nothing uses; 0 where that is not known, and of a GPU that another launch has reserved."""
    return 0 if card.claimed else (card.memory_total or 0) - (card.memory_used or 0)


def _find_gpu(gpus: Sequence[Gpu], name: str) -> Gpu:
    matches = [card for card in gpus if name == str(card.index) or (len(name) > 4 and card.uuid.startswith(name))]
    if len(matches) != 1:
        problem = f"{len(matches)} GPUs have a UUID that starts with" if matches else "there is no GPU called"
        raise UsageError(f"{problem} '{name}'", hint=_list_choices(gpus))
    if matches[0].trouble:
        raise UsageError(
            f"GPU {matches[0].index} cannot be used", evidence=matches[0].trouble, hint=_list_choices(gpus)
        )
    return matches[0]


def _list_choices(gpus: Sequence[Gpu]) -> str:
    usable = ", ".join(f"{card.index} ({card.hardware.value}, {card.uuid})" for card in gpus if not card.trouble)
    return f"available: {usable}" if usable else "no GPU here can be used; `dflash-tui gpus` says why"
