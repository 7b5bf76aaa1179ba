"""Read GPUs from the NVIDIA driver through NVML; the only module that imports pynvml, which takes 80 ms.

Unknown values are None. A driver call that hangs cannot be interrupted, so one query runs at a time, in a daemon
thread, and callers have a timeout.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, TypeVar

import msgspec
import psutil
import pynvml

from dflash_tui.common.daemon_thread import start_daemon
from dflash_tui.machine.gpus import NO_DRIVER, Gpu, GpuProbe, GpuProcess, filter_visible_gpus
from dflash_tui.machine.hardware import Hardware, classify_gpu
from dflash_tui.machine.processes import read_process_name

T = TypeVar("T")
_TIMEOUT = 5.0  # seconds; the driver may have to wake idle GPUs first
_ENERGY_TIMEOUT = 0.5  # seconds, since energy is read during a measurement
_ERRORS = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError, UnicodeDecodeError)

_WHY = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: NO_DRIVER,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is installed but not loaded; "
    "`sudo modprobe nvidia` loads it, and `sudo dmesg` says why when that fails",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the NVIDIA driver that runs and its library do not match, "
    "as after an update; reboot to load the new driver",
    pynvml.NVML_ERROR_NO_PERMISSION: "this user may not access the NVIDIA driver; "
    "`ls -l /dev/nvidia*` shows which group may",
}
_TROUBLE = {
    pynvml.NVML_ERROR_GPU_IS_LOST: "GPU is lost: it has fallen off the bus; a reboot brings it back",
    pynvml.NVML_ERROR_RESET_REQUIRED: "GPU needs a reset: end what uses it and run `sudo nvidia-smi --gpu-reset`",
}

# A GPU that shares the machine's memory supports no query of its own.
_NO_MEMORY = SimpleNamespace(total=0, used=0)
_THROTTLE = (
    (pynvml.nvmlClocksEventReasonSwPowerCap, "power cap"),
    (pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown, "power brake"),
    (pynvml.nvmlClocksEventReasonHwThermalSlowdown, "thermal (hardware)"),
    (pynvml.nvmlClocksEventReasonSwThermalSlowdown, "thermal (software)"),
    (pynvml.nvmlClocksEventReasonHwSlowdown, "hardware slowdown"),
    (pynvml.nvmlClocksEventReasonSyncBoost, "sync boost"),
    (pynvml.nvmlClocksEventReasonApplicationsClocksSetting, "clocks set by the user"),
    (pynvml.nvmlClocksEventReasonDisplayClockSetting, "clocks of the display"),
)


_lock = threading.Lock()
_running: Future[Any] | None = None
_begin_session = cache(pynvml.nvmlInit)


def _ask(query: Callable[[], T], timeout: float) -> T:
    """Run `query` in a thread and return its result; raise TimeoutError if the driver does not answer in time."""
    global _running  # noqa: PLW0603 - while one query hangs, others are refused
    if not _lock.acquire(timeout=timeout):
        raise TimeoutError
    try:
        if _running and not _running.done():
            raise TimeoutError
        running: Future[T] = start_daemon(query)
        _running = running
        return running.result(timeout)
    finally:
        _lock.release()


def probe_gpus(timeout: float = _TIMEOUT) -> GpuProbe:
    """Return the GPUs that NVML reports now; if there are none, `why_none` says why and what to do."""
    try:
        return _ask(_probe, timeout)
    except TimeoutError:
        silent = "the NVIDIA driver does not answer; if it stays silent, look for Xid in `sudo dmesg` and reboot"
        return GpuProbe(why_none=silent)


def probe_visible_gpus() -> GpuProbe:
    """Return the result of `probe_gpus` with only the GPUs that our CUDA_VISIBLE_DEVICES allows."""
    probe = probe_gpus()
    visible = filter_visible_gpus(probe.gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    why_none = probe.why_none or ("" if visible else "CUDA_VISIBLE_DEVICES of this shell names no GPU of this machine")
    return msgspec.structs.replace(probe, gpus=visible, why_none=why_none)


def read_energy(uuids: Sequence[str]) -> float | None:
    """Return the joules that these GPUs have consumed since the driver was loaded; None if any is unknown."""

    def add_up() -> float:
        _begin_session()
        handles = [pynvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]
        return float(sum(map(pynvml.nvmlDeviceGetTotalEnergyConsumption, handles))) / 1000

    try:
        return _ask(add_up, _ENERGY_TIMEOUT) if uuids else None
    except (TimeoutError, *_ERRORS):
        return None


def _probe() -> GpuProbe:
    try:
        _begin_session()
        gpus = tuple(map(_read_gpu, range(pynvml.nvmlDeviceGetCount())))
    except _ERRORS as error:
        other = f"the NVIDIA driver does not work, it answers '{error}'; see whether `nvidia-smi` works, or reboot"
        return GpuProbe(why_none=_WHY.get(getattr(error, "value", 0), other))
    driver, cuda = _get(pynvml.nvmlSystemGetDriverVersion) or "", _get(pynvml.nvmlSystemGetCudaDriverVersion)
    why_none = "no NVIDIA GPU: the driver runs but shows none; `lspci` shows whether the machine has one"
    return GpuProbe(gpus, driver, f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "", "" if gpus else why_none)


def _read_gpu(index: int) -> Gpu:
    try:
        return _read_working(index, pynvml.nvmlDeviceGetHandleByIndex(index))
    except _ERRORS as error:
        other = f"the driver gives no access to this GPU: '{error}'; `nvidia-smi` may say more"
        return Gpu(index, trouble=_TROUBLE.get(getattr(error, "value", 0), other))


def _read_working(index: int, handle: Any) -> Gpu:
    get = partial(_get, handle=handle)
    name = get(pynvml.nvmlDeviceGetName) or ""
    version = get(pynvml.nvmlDeviceGetCudaComputeCapability)
    capability = "{}.{}".format(*version) if version else ""
    # Version 2 excludes the memory that the driver reserves for itself, as nvidia-smi does.
    memory = get(pynvml.nvmlDeviceGetMemoryInfo, pynvml.nvmlMemory_v2, unsupported=_NO_MEMORY)
    total, used = (int(memory.total), int(memory.used)) if memory else (None, None)
    hardware = classify_gpu(name, capability, total)
    # Drivers of the GB10 support no memory query or answer 0; any other answer would be the machine's memory.
    unified = hardware is Hardware.GB10 or total == 0
    if unified:
        system = psutil.virtual_memory()
        total, used = system.total, system.total - system.available
    power, limit = get(pynvml.nvmlDeviceGetPowerUsage), get(pynvml.nvmlDeviceGetEnforcedPowerLimit)
    rates, mig = get(pynvml.nvmlDeviceGetUtilizationRates), get(pynvml.nvmlDeviceGetMigMode)
    return Gpu(
        index=index,
        name=name,
        uuid=get(pynvml.nvmlDeviceGetUUID) or "",
        capability=capability,
        hardware=hardware,
        memory_total=total,
        memory_used=used,
        unified=unified,
        temperature_c=get(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
        power_w=None if power is None else power / 1000,
        power_limit_w=None if limit is None else limit / 1000,
        utilisation=None if rates is None else rates.gpu / 100,
        sm_clock_mhz=get(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
        sm_clock_max_mhz=get(pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_SM),
        throttle=_name_throttle(get(pynvml.nvmlDeviceGetCurrentClocksEventReasons)),
        mig=None if mig is None else bool(mig[0]),
        processes=_read_processes(handle),
    )


def _get(query: Callable[..., Any], *args: Any, handle: Any = None, unsupported: Any = None) -> Any:
    """Return NVML's answer, or None if the query fails; the errors of a GPU in trouble are raised."""
    try:
        return query(*args) if handle is None else query(handle, *args)
    except pynvml.NVMLError_NotSupported:
        return unsupported
    except _ERRORS as error:
        if getattr(error, "value", None) in _TROUBLE:
            raise
        return None


def _name_throttle(reasons: int | None) -> tuple[str, ...] | None:
    if reasons is None:
        return None
    # The bit for any slowdown is set together with the specific ones.
    if reasons & (pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown | pynvml.nvmlClocksEventReasonHwThermalSlowdown):
        reasons &= ~pynvml.nvmlClocksEventReasonHwSlowdown
    return tuple(words for bit, words in _THROTTLE if reasons & bit)


def _read_processes(handle: Any) -> tuple[GpuProcess, ...] | None:
    queries = (pynvml.nvmlDeviceGetGraphicsRunningProcesses, pynvml.nvmlDeviceGetComputeRunningProcesses)
    lists = [processes for query in queries if (processes := _get(query, handle)) is not None]
    memory = {process.pid: process.usedGpuMemory or None for processes in lists for process in processes}
    return tuple(GpuProcess(pid, read_process_name(pid), used) for pid, used in memory.items()) if lists else None
