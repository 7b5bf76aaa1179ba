"""GPUs as values, filled in by `nvml`: filter them by CUDA_VISIBLE_DEVICES, and choose among them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import msgspec

from dflash_tui.common.errors import UsageError
from dflash_tui.machine.hardware import Hardware

NO_DRIVER = "no NVIDIA GPU: the driver is not installed; if there is one, install it, or start the container with GPUs"


class GpuProcess(msgspec.Struct, frozen=True):
    """A process on a GPU: its name (empty if hidden), and its bytes there (None if NVML does not report them)."""

    pid: int
    name: str = ""
    memory: int | None = None


class Gpu(msgspec.Struct, frozen=True):
    """A GPU and its state when it was read; values that NVML does not report are None or empty."""

    index: int
    """Its NVML index, in PCI bus order; CUDA may number GPUs differently."""
    name: str = ""
    uuid: str = ""
    """Its name for CUDA, e.g. `GPU-8a1f…`."""
    capability: str = ""
    """Its compute capability, e.g. `9.0`."""
    hardware: Hardware = Hardware.UNKNOWN
    memory_total: int | None = None
    """Bytes of memory; for a `unified` GPU the machine's MemTotal."""
    memory_used: int | None = None
    """Bytes of memory in use; for a `unified` GPU MemTotal without MemAvailable."""
    unified: bool = False
    """Whether it shares the machine's memory (GB10)."""
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    utilisation: float | None = None
    """Share of the time in which a kernel ran, from 0 to 1."""
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    throttle: tuple[str, ...] | None = None
    """The reasons for low clocks, in words; idleness does not count."""
    mig: bool | None = None
    """Whether MIG is enabled; None if the GPU does not support it."""
    processes: tuple[GpuProcess, ...] | None = None
    """The processes that use it; None if NVML gives no list."""
    trouble: str = ""
    """Why it does not work and what to do, as a sentence; empty if it works."""
    claimed: str = ""
    """What will use it although its memory does not show it yet, as a sentence; empty if nothing will."""


class GpuProbe(msgspec.Struct, frozen=True):
    """NVML's answer: the GPUs, the versions of the driver and of its CUDA ("13.0"), and why there are no GPUs."""

    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    cuda: str = ""
    why_none: str = ""


def has_driver() -> bool:
    """Whether the library of the NVIDIA driver is installed; a cheap check before asking the driver."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def filter_visible_gpus(gpus: Sequence[Gpu], visible: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs that `visible`, a value of CUDA_VISIBLE_DEVICES, allows; NVML itself ignores that variable.

    Indices are NVML's, in PCI bus order.
    """
    if visible is None:
        return tuple(gpus)
    names = [name.strip() for name in visible.split(",")]
    by_index = {str(card.index): card for card in gpus}
    cards = [by_index.get(name) or next((c for c in gpus if name and c.uuid.startswith(name)), None) for name in names]
    return tuple(card for card in cards if card)


def choose_gpus(gpus: Sequence[Gpu], wanted: str | None, count: int = 1) -> tuple[Gpu, ...]:
    """Return `count` GPUs, sorted by index; `wanted` is a class, or indices, UUIDs or starts of UUIDs.

    Several indices or UUIDs are separated by commas. Of a class, the GPUs with the most free memory are chosen; without
    `wanted`, the first class with enough GPUs is used. A GPU in trouble is never chosen.

    Raises:
        UsageError: there are no such GPUs, or too few.
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
    """Return a GPU's free bytes; 0 if unknown, or if another launch has reserved the GPU."""
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
