"""The NVIDIA GPUs of this machine through NVML; no query raises, what is not known is None."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import psutil
import pynvml

from dflash_tui.common.errors import UsageError
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.machine import nvml
from dflash_tui.machine.hardware import Hardware, classify_gpu


class GpuProcess(msgspec.Struct, frozen=True):
    """A process on a GPU: its name, empty when it cannot be seen, and its bytes there, None when NVML does not say."""

    pid: int
    name: str = ""
    memory: int | None = None


class Gpu(msgspec.Struct, frozen=True):
    """One GPU, or what is known of it.

    Memory is in bytes; where it is `unified` (GB10) it is the machine's: MemTotal, and what is not MemAvailable.
    `utilisation` is a share of one, `mig` None where the GPU has no such mode, `throttle` what keeps the clocks down
    (idling does not count), `trouble` a sentence when the GPU does not work. The uuid names it to CUDA, whose indices
    may be others.
    """

    index: int
    name: str = ""
    uuid: str = ""
    capability: str = ""
    hardware: Hardware = Hardware.UNKNOWN
    memory_total: int | None = None
    memory_used: int | None = None
    unified: bool = False
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    utilisation: float | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    throttle: tuple[str, ...] | None = None
    mig: bool | None = None
    processes: tuple[GpuProcess, ...] | None = None
    trouble: str = ""


class GpuMemoryUse(NamedTuple):
    """Bytes of GPU memory in use and in all, and what `used` covers."""

    used: int
    total: int
    source: str


class GpuProbe(msgspec.Struct, frozen=True):
    """What NVML says: the GPUs, the versions of the driver and of its CUDA ("13.0"), and why there are none."""

    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    cuda: str = ""
    why_none: str = ""


def probe_gpus(patience: float | None = None) -> GpuProbe:
    """Return the GPUs that NVML shows now; without any, `why_none` says what is the matter and what to do.

    Waits at most `patience` seconds for the driver, by default what `nvml.ask` waits.
    """
    try:
        return nvml.run_nvml_query(_probe, patience)
    except nvml.UnavailableError as why:
        return GpuProbe(why_none=str(why))


def read_gpus(patience: float | None = None) -> tuple[Gpu, ...] | None:
    """Return the GPUs as they are now, or None when the driver does not answer or does not work."""
    try:
        return nvml.run_nvml_query(_look, patience)
    except nvml.UnavailableError:
        return None


def measure_gpu_memory_use(cards: Sequence[Gpu], pids: set[int]) -> GpuMemoryUse | None:
    """Return the GPU memory that the processes `pids` use on `cards`; None without a GPU that answers.

    Where NVML does not say which process uses what (unified memory, containers with their own pids) it is the
    use of all processes on all GPUs, and `source` says so.
    """
    held = [(card, _held(card, pids)) for card in cards]
    ours = [(card, used) for card, used in held if used is not None]
    if ours and all(used for _, used in ours):
        return GpuMemoryUse(sum(used for _, used in ours), sum(card.memory_total or 0 for card, _ in ours), "GPU")
    known = [card for card in cards if card.memory_total]
    if not known:
        return None
    used, total = sum(card.memory_used or 0 for card in known), sum(card.memory_total or 0 for card in known)
    return GpuMemoryUse(used, total, "unified, all" if known[0].unified else "GPU, all")


def probe_visible_gpus() -> GpuProbe:
    """Return what `probe` does, with the GPUs only that whoever called us may use by CUDA_VISIBLE_DEVICES."""
    found = probe_gpus()
    mine = filter_visible_gpus(found.gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    why = found.why_none or ("" if mine else "CUDA_VISIBLE_DEVICES of this shell names no GPU that is here")
    return msgspec.structs.replace(found, gpus=mine, why_none=why)


def filter_visible_gpus(gpus: Sequence[Gpu], visible: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES, `visible`, lets us use; NVML itself does not heed it.

    Numbers are taken as NVML counts, in the order of the PCI bus.
    """
    if visible is None:
        return tuple(gpus)
    names = [name.strip() for name in visible.split(",")]
    named = {str(card.index): card for card in gpus}
    found = [named.get(name) or next((c for c in gpus if name and c.uuid.startswith(name)), None) for name in names]
    return tuple(card for card in found if card)


def choose_gpus(gpus: Sequence[Gpu], wanted: str | None, count: int = 1) -> tuple[Gpu, ...]:
    """Return `count` GPUs in the order of their indices, as `wanted`: indices, UUIDs or their starts, or a class.

    Several indices or UUIDs are separated by commas. Of a class, and without a wish of the first class that has
    enough GPUs, those with the most free memory are taken. A GPU in trouble is never chosen.

    Raises:
        UsageError: There are no such GPUs, or not as many.
    """
    well = [card for card in gpus if not card.trouble]
    if wanted is None or wanted in set(Hardware):
        kinds = dict.fromkeys(card.hardware for card in well if wanted in {None, card.hardware})
        groups = [[card for card in well if card.hardware is kind] for kind in kinds]
        group = next((group for group in groups if len(group) >= count), max(groups, key=len, default=[]))
        found = sorted(group, key=lambda card: (card.memory_total or 0) - (card.memory_used or 0), reverse=True)[:count]
    else:
        found = list(dict.fromkeys(_named(gpus, name.strip()) for name in wanted.split(",")))
    if len(found) != count:
        wish = f"as '{wanted}'" if wanted else "of one class"
        raise UsageError(f"GPUs needed: {count}, found {wish}: {len(found)}", do=_choice(gpus))
    return tuple(sorted(found, key=lambda card: card.index))


def _named(gpus: Sequence[Gpu], name: str) -> Gpu:
    """Return the one GPU with this index or start of a UUID."""
    found = [card for card in gpus if name == str(card.index) or (len(name) > 4 and card.uuid.startswith(name))]
    if len(found) != 1:
        what = f"{len(found)} GPUs have a UUID that starts with" if found else "there is no GPU called"
        raise UsageError(f"{what} '{name}'", do=_choice(gpus))
    if found[0].trouble:
        raise UsageError(f"GPU {found[0].index} cannot be used", evidence=found[0].trouble, do=_choice(gpus))
    return found[0]


def _choice(gpus: Sequence[Gpu]) -> str:
    """Return what there is to choose from."""
    there = ", ".join(f"{card.index} ({card.hardware.value}, {card.uuid})" for card in gpus if not card.trouble)
    return f"there is: {there}" if there else "no GPU here can be used; `dflash-tui gpus` says why"


def _held(card: Gpu, pids: set[int]) -> int | None:
    """Return the bytes that `pids` hold on a GPU, 0 where NVML does not say; None if none of them is there."""
    memory = [holder.memory or 0 for holder in card.processes or () if holder.pid in pids]
    return sum(memory) if memory else None


def _probe() -> GpuProbe:
    gpus = _look()
    driver, cuda = (
        nvml.query_or_none(pynvml.nvmlSystemGetDriverVersion),
        nvml.query_or_none(pynvml.nvmlSystemGetCudaDriverVersion),
    )
    why = "no NVIDIA GPU: the driver runs but shows none; `lspci` shows whether the machine has one"
    return GpuProbe(gpus, driver or "", f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "", "" if gpus else why)


def _look() -> tuple[Gpu, ...]:
    return tuple(_describe(index) for index in range(nvml.count_gpus()))


def _describe(index: int) -> Gpu:
    device = nvml.Device(index)
    name = clean_line(device.get(pynvml.nvmlDeviceGetName) or "")
    version = device.get(pynvml.nvmlDeviceGetCudaComputeCapability)
    capability = "{}.{}".format(*version) if version else ""
    total, used = device.memory()
    hardware = classify_gpu(name, capability, total)
    # Drivers of the GB10 support no memory query, or answer 0; one that answers would still mean the machine's.
    unified = hardware is Hardware.GB10 or total == 0
    if unified:
        system = psutil.virtual_memory()
        total, used = system.total, system.total - system.available
    power, limit = device.get(pynvml.nvmlDeviceGetPowerUsage), device.get(pynvml.nvmlDeviceGetEnforcedPowerLimit)
    busy = device.get(pynvml.nvmlDeviceGetUtilizationRates)
    mig, held = device.get(pynvml.nvmlDeviceGetMigMode), device.processes()
    return Gpu(
        index=index,
        name=name,
        uuid=device.get(pynvml.nvmlDeviceGetUUID) or "",
        capability=capability,
        hardware=hardware,
        memory_total=total,
        memory_used=used,
        unified=unified,
        temperature_c=device.get(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
        power_w=None if power is None else power / 1000,
        power_limit_w=None if limit is None else limit / 1000,
        utilisation=None if busy is None else busy.gpu / 100,
        sm_clock_mhz=device.get(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
        sm_clock_max_mhz=device.get(pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_SM),
        throttle=device.throttle(),
        mig=None if mig is None else bool(mig[0]),
        processes=None if held is None else tuple(_holder(*one) for one in held.items()),
        trouble=device.trouble,
    )


def _holder(pid: int, memory: int | None) -> GpuProcess:
    try:
        return GpuProcess(pid, clean_line(psutil.Process(pid).name()), memory)
    except psutil.Error:
        return GpuProcess(pid, memory=memory)
