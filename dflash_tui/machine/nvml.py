"""The door to NVML: asked in a thread of its own, since a call into the driver may never come back.

A call that hangs can neither be ended nor waited for. So one question is asked at a time, askers have patience, and
as long as one hangs the others are turned away at once. The thread is a daemon: it does not keep the program alive.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import pynvml

T = TypeVar("T")

# Until the driver has answered once: it may have to wake the GPUs, which takes seconds where nothing uses them.
WAKING = 5.0
ANSWERING = 1.0
# Only a new session shows that an ailing GPU or driver was mended; not too often, GPUs may fall asleep in between.
RENEWAL = 30.0

_ERRORS = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError, UnicodeDecodeError)

_WHY = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no NVIDIA GPU: the driver is not installed; "
    "if there is a GPU, install its driver, or start the container with GPUs",
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


class UnavailableError(Exception):
    """NVML cannot be asked now; the message is a sentence for the user."""


class _Door:
    """Whose turn it is, the question that is asked, and the session with the driver, ailing once something failed."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._answer: Future[Any] | None = None
        self._asked_at = 0.0
        self._session_at: float | None = None
        self.ailing = False
        self._awake = False

    def ask(self, question: Callable[[], T], patience: float | None = None) -> T:
        """Return what `question` returns; see the function of this name."""
        patience = patience if patience is not None else ANSWERING if self._awake else WAKING
        if not self._turn.acquire(timeout=patience):
            raise self._silent()
        try:
            if self._answer and not self._answer.done():
                raise self._silent()
            answer: Future[T] = Future()
            self._answer, self._asked_at = answer, time.monotonic()
            try:
                threading.Thread(target=_settle, args=(question, answer), name="nvml", daemon=True).start()
            except RuntimeError as error:
                self._answer = None
                raise UnavailableError(f"the NVIDIA driver could not be asked: {error}; see `ulimit -u`") from None
            found = answer.result(patience)
            self._awake = True
            return found
        except TimeoutError:
            raise self._silent() from None
        finally:
            self._turn.release()

    def _silent(self) -> UnavailableError:
        return UnavailableError(
            f"the NVIDIA driver has not answered for {time.monotonic() - self._asked_at:.0f} s; "
            "if it stays silent, look for Xid in `sudo dmesg` and reboot"
        )

    def count(self) -> int:
        """Return how many GPUs the driver shows; see the function of this name."""
        try:
            if self.ailing and self._session_at is not None and time.monotonic() - self._session_at >= RENEWAL:
                self._session_at = None
                query_or_none(pynvml.nvmlShutdown)
            if self._session_at is None:
                pynvml.nvmlInit()
                self.ailing = False
                self._session_at = time.monotonic()
            return int(pynvml.nvmlDeviceGetCount())
        except _ERRORS as error:
            self.ailing = True
            answer = f"the NVIDIA driver does not work, it answers '{error}'; see whether `nvidia-smi` works, or reboot"
            raise UnavailableError(_WHY.get(getattr(error, "value", None), answer)) from error


def _settle(question: Callable[[], T], answer: Future[T]) -> None:
    try:
        answer.set_result(question())
    except BaseException as error:  # noqa: BLE001 - whoever asked gets it
        answer.set_exception(error)


_door = _Door()


def run_nvml_query(question: Callable[[], T], patience: float | None = None) -> T:
    """Return what `question` returns, which alone may call the functions below.

    Waits at most `patience` seconds, by default WAKING before the first answer and ANSWERING after it.

    Raises:
        UnavailableError: The driver has not answered in time, or does not work.
    """
    return _door.ask(question, patience)


def count_gpus() -> int:
    """Return how many GPUs the driver shows, having started NVML if need be.

    Raises:
        UnavailableError: There is no driver, or it does not work.
    """
    return _door.count()


def query_or_none(query: Callable[..., Any], *args: Any) -> Any:
    """Return what NVML answers, or None when it does not."""
    try:
        return query(*args)
    except _ERRORS:
        return None


class Device:
    """One GPU to query. `trouble` is a sentence once it has failed as a whole; it is not asked any further then."""

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
            if found := self.get(pynvml.nvmlDeviceGetMemoryInfo, version):
                return int(found.total), int(found.used)
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
        if all(found is None for found in lists):
            return None
        return {process.pid: process.usedGpuMemory or None for found in lists for process in found or ()}

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
            _door.ailing = _door.ailing or bool(self.trouble)
            return None
