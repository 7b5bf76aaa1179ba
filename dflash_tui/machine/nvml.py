"""Read GPUs from the NVIDIA driver through NVML; the only module that imports pynvml, which costs 80 ms.

No query raises: what is not known is None. A call into the driver that hangs can neither be ended nor waited for, so
one query runs at a time, in a daemon thread of its own, and callers have a timeout. As long as a query hangs, others
fail at once.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec
import pynvml

from dflash_tui.common.sanitizer import clean_line
from dflash_tui.machine.gpus import NO_DRIVER, Gpu, GpuProbe, GpuProcess, filter_visible_gpus
from dflash_tui.machine.hardware import Hardware, classify_gpu

T = TypeVar("T")

# Until the driver has answered once: it may have to wake the GPUs, which takes seconds where nothing uses them.
FIRST_TIMEOUT = 5.0
TIMEOUT = 1.0
# Only a new session shows that a GPU or a driver was repaired; not too often, GPUs may fall asleep in between.
RENEWAL = 30.0

# Of what the GPUs have consumed, which is asked beside a measurement.
_ENERGY_TIMEOUT = 0.5

_ERRORS = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError, UnicodeDecodeError)

_WHY = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: NO_DRIVER,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is installed but not loaded; "
    "`sudo modprobe nvidia` loads it, and `sudo dmesg` says why when that fails",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the NVIDIA driver that runs and its library do not match, "
    "as after an update; reboot to load the new driver",
    pynvml.NVML_ERROR_NO_PERMISSION: "this user may not talk to the NVIDIA driver; "
    "`ls -l /dev/nvidia*` shows which group may",
}
_TROUBLE = {
    pynvml.NVML_ERROR_GPU_IS_LOST: "GPU is lost: it has fallen off the bus; a reboot brings it back",
    pynvml.NVML_ERROR_RESET_REQUIRED: "GPU needs a reset: end what uses it and run `sudo nvidia-smi --gpu-reset`",
    pynvml.NVML_ERROR_INSUFFICIENT_POWER: "GPU has not enough power: check its power cables",
    pynvml.NVML_ERROR_IRQ_ISSUE: "GPU has a problem with interrupts: `sudo dmesg` says more, a reboot may help",
}

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


class NvmlUnavailableError(Exception):
    """NVML cannot be queried now; the message is a sentence for the user."""


class _Query(threading.Thread, Generic[T]):
    """A query in a thread of its own, which may hang for ever."""

    def __init__(self, query: Callable[[], T]) -> None:
        super().__init__(name="nvml", daemon=True)
        self._query = query
        self._answer: list[T] = []
        self._error: BaseException | None = None
        self.ended = threading.Event()

    def run(self) -> None:
        """Ask the driver."""
        try:
            self._answer.append(self._query())
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            self._error = error
        self.ended.set()

    def wait(self, timeout: float) -> T:
        """Return the answer, or raise what the query raised.

        Raises:
            TimeoutError: there is no answer yet.
        """
        if not self.ended.wait(timeout):
            raise TimeoutError
        if self._error:
            raise self._error
        return self._answer[0]


class _Connection:
    """The session with the driver: one query at a time, each in a thread of its own.

    `failing` is set once a call has failed; the session is then renewed after `RENEWAL` seconds.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._query: _Query[Any] | None = None
        self._queried_at = 0.0
        self._session_at: float | None = None
        self.failing = False
        self._answered = False

    def run_query(self, query: Callable[[], T], timeout: float | None = None) -> T:
        """Return what `query` returns; see `run_nvml_query`."""
        timeout = timeout if timeout is not None else TIMEOUT if self._answered else FIRST_TIMEOUT
        if not self._lock.acquire(timeout=timeout):
            raise self._silent_error()
        try:
            if self._query and not self._query.ended.is_set():
                raise self._silent_error()
            running = _Query(query)
            self._query, self._queried_at = running, time.monotonic()
            try:
                running.start()
            except RuntimeError as error:
                self._query = None
                raise NvmlUnavailableError(f"the NVIDIA driver could not be asked: {error}; see `ulimit -u`") from None
            answer = running.wait(timeout)
            self._answered = True
            return answer
        except TimeoutError:
            raise self._silent_error() from None
        finally:
            self._lock.release()

    def _silent_error(self) -> NvmlUnavailableError:
        return NvmlUnavailableError(
            f"the NVIDIA driver has not answered for {time.monotonic() - self._queried_at:.0f} s; "
            "if it stays silent, look for Xid in `sudo dmesg` and reboot"
        )

    def count_gpus(self) -> int:
        """Return how many GPUs the driver shows; see the function of this name."""
        try:
            if self.failing and self._session_at is not None and time.monotonic() - self._session_at >= RENEWAL:
                self._session_at = None
                query_or_none(pynvml.nvmlShutdown)
            if self._session_at is None:
                pynvml.nvmlInit()
                self.failing = False
                self._session_at = time.monotonic()
            return int(pynvml.nvmlDeviceGetCount())
        except _ERRORS as error:
            self.failing = True
            other = f"the NVIDIA driver does not work, it answers '{error}'; see whether `nvidia-smi` works, or reboot"
            raise NvmlUnavailableError(_WHY.get(getattr(error, "value", None), other)) from error


_connection = _Connection()


def run_nvml_query(query: Callable[[], T], timeout: float | None = None) -> T:
    """Run `query`, which alone may use `count_gpus` and `Device`, in the thread for NVML and return what it returns.

    Waits at most `timeout` seconds, by default FIRST_TIMEOUT before the first answer and TIMEOUT after it.

    Raises:
        NvmlUnavailableError: The driver has not answered in time, or does not work.
    """
    return _connection.run_query(query, timeout)


def count_gpus() -> int:
    """Return how many GPUs the driver shows, having started NVML if need be.

    Raises:
        NvmlUnavailableError: There is no driver, or it does not work.
    """
    return _connection.count_gpus()


def query_or_none(query: Callable[..., Any], *args: Any) -> Any:
    """Return what NVML answers, or None when it does not."""
    try:
        return query(*args)
    except _ERRORS:
        return None


class Device:
    """One GPU to query. `trouble` is a sentence once it has failed as a whole; it is not queried any further then."""

    def __init__(self, index: int) -> None:
        self.trouble = ""
        self._unsupported = False
        self._handle = self._try(pynvml.nvmlDeviceGetHandleByIndex, index)

    def get(self, query: Callable[..., Any], *args: Any) -> Any:
        """Return what NVML answers, or None when it does not."""
        return None if self.trouble else self._try(query, self._handle, *args)

    def memory(self) -> tuple[int | None, int | None]:
        """Return the bytes of memory in all and in use: zeros where the GPU has none of its own, None if unknown."""
        # The second version leaves out what the driver reserves for itself, as nvidia-smi does; old drivers lack it.
        for version in (pynvml.nvmlMemory_v2, None):
            if memory := self.get(pynvml.nvmlDeviceGetMemoryInfo, version):
                return int(memory.total), int(memory.used)
        return (0, 0) if self._unsupported else (None, None)

    def throttle(self) -> tuple[str, ...] | None:
        """Return what keeps the clocks down in plain words, None if unknown; being idle does not count."""
        reasons = self.get(pynvml.nvmlDeviceGetCurrentClocksEventReasons)
        if reasons is None:
            return None
        # The general slowdown comes with the particular ones.
        if reasons & (pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown | pynvml.nvmlClocksEventReasonHwThermalSlowdown):
            reasons &= ~pynvml.nvmlClocksEventReasonHwSlowdown
        return tuple(words for bit, words in _THROTTLE if reasons & bit)

    def processes(self) -> dict[int, int | None] | None:
        """Return the bytes of each process by its pid, None where they are unknown; None when no list is given."""
        lists = [
            self.get(query)
            for query in (pynvml.nvmlDeviceGetGraphicsRunningProcesses, pynvml.nvmlDeviceGetComputeRunningProcesses)
        ]
        if all(processes is None for processes in lists):
            return None
        return {process.pid: process.usedGpuMemory or None for processes in lists for process in processes or ()}

    def _try(self, query: Callable[..., Any], *args: Any) -> Any:
        self._unsupported = False
        try:
            return query(*args)
        except _ERRORS as error:
            code = getattr(error, "value", None)
            self._unsupported = code == pynvml.NVML_ERROR_NOT_SUPPORTED
            self.trouble = _TROUBLE.get(code, "")
            if query is pynvml.nvmlDeviceGetHandleByIndex and not self.trouble:
                self.trouble = f"the driver gives no access to this GPU: '{error}'; `nvidia-smi` may say more"
            _connection.failing = _connection.failing or bool(self.trouble)
            return None


def probe_gpus(timeout: float | None = None) -> GpuProbe:
    """Return the GPUs that NVML shows now; without any, `why_none` says why and what to do.

    Waits at most `timeout` seconds for the driver, by default as `run_nvml_query` does.
    """
    try:
        return run_nvml_query(_probe, timeout)
    except NvmlUnavailableError as error:
        return GpuProbe(why_none=str(error))


def probe_visible_gpus() -> GpuProbe:
    """Return what `probe_gpus` does, with the GPUs only that CUDA_VISIBLE_DEVICES of our environment allows."""
    probe = probe_gpus()
    visible = filter_visible_gpus(probe.gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    why_none = probe.why_none or ("" if visible else "CUDA_VISIBLE_DEVICES of this shell names no GPU of this machine")
    return msgspec.structs.replace(probe, gpus=visible, why_none=why_none)


def read_gpus(timeout: float | None = None) -> tuple[Gpu, ...] | None:
    """Return the GPUs as they are now, or None when the driver does not answer or does not work."""
    try:
        return run_nvml_query(_read_all, timeout)
    except NvmlUnavailableError:
        return None


def find_energy_meter(uuids: Sequence[str]) -> Callable[[], float | None] | None:
    """Return what reads the joules that these GPUs have consumed; None without any."""
    return partial(read_energy, uuids) if uuids else None


def read_energy(uuids: Sequence[str]) -> float | None:
    """Return the joules that these GPUs have consumed since their driver was loaded; None where one does not say."""
    try:
        return run_nvml_query(partial(_read_energy, uuids), _ENERGY_TIMEOUT)
    except NvmlUnavailableError:
        return None


def _read_energy(uuids: Sequence[str]) -> float | None:
    devices = [Device(index) for index in range(count_gpus())]
    ours = [device for device in devices if device.get(pynvml.nvmlDeviceGetUUID) in uuids]
    joules = [device.get(pynvml.nvmlDeviceGetTotalEnergyConsumption) for device in ours]
    readings = [value / 1000 for value in joules if value is not None]
    return sum(readings) if readings and len(readings) == len(uuids) else None


def _probe() -> GpuProbe:
    gpus = _read_all()
    driver = query_or_none(pynvml.nvmlSystemGetDriverVersion) or ""
    cuda = query_or_none(pynvml.nvmlSystemGetCudaDriverVersion)
    why_none = "no NVIDIA GPU: the driver runs but shows none; `lspci` shows whether the machine has one"
    return GpuProbe(gpus, driver, f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "", "" if gpus else why_none)


def _read_all() -> tuple[Gpu, ...]:
    return tuple(_read_gpu(index) for index in range(count_gpus()))


def _read_gpu(index: int) -> Gpu:
    device = Device(index)
    name = clean_line(device.get(pynvml.nvmlDeviceGetName) or "")
    version = device.get(pynvml.nvmlDeviceGetCudaComputeCapability)
    capability = "{}.{}".format(*version) if version else ""
    total, used = device.memory()
    hardware = classify_gpu(name, capability, total)
    # Drivers of the GB10 support no memory query, or answer 0; one that answers would still mean the machine's.
    unified = hardware is Hardware.GB10 or total == 0
    if unified:
        import psutil

        system = psutil.virtual_memory()
        total, used = system.total, system.total - system.available
    power, limit = device.get(pynvml.nvmlDeviceGetPowerUsage), device.get(pynvml.nvmlDeviceGetEnforcedPowerLimit)
    rates = device.get(pynvml.nvmlDeviceGetUtilizationRates)
    mig, processes = device.get(pynvml.nvmlDeviceGetMigMode), device.processes()
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
        utilisation=None if rates is None else rates.gpu / 100,
        sm_clock_mhz=device.get(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
        sm_clock_max_mhz=device.get(pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_SM),
        throttle=device.throttle(),
        mig=None if mig is None else bool(mig[0]),
        processes=None if processes is None else tuple(_read_process(*entry) for entry in processes.items()),
        trouble=device.trouble,
    )


def _read_process(pid: int, memory: int | None) -> GpuProcess:
    import psutil

    try:
        return GpuProcess(pid, clean_line(psutil.Process(pid).name()), memory)
    except psutil.Error:
        return GpuProcess(pid, memory=memory)
