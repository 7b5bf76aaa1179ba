"""What Linux reports about this machine; values may be unknown. `root` replaces `/` to read a recorded machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from dflash_tui.common import paths
from dflash_tui.machine.process_environment import build_helper_environment

_ROOT = Path("/")
_PROBE_BYTES = 256 << 20
_PROBE_SECONDS = 3.0
_CHUNK = 4 << 20
_NETWORK = re.compile(r"nfs|cifs|smb|9p|sshfs|ceph|lustre")


class SystemMemory(NamedTuple):
    """Bytes from /proc/meminfo: in total, available to programs, cached file pages, and swap."""

    total: int
    available: int
    cached: int
    swap_total: int
    swap_used: int


class Disk(NamedTuple):
    """The disk of a folder: its device name, and its kind (`nvme`, `usb`, `disk`, `network`, or empty)."""

    device: str
    kind: str


def read_system_memory(root: Path = _ROOT) -> SystemMemory:
    """Return the machine's memory in bytes."""
    fields: dict[str, int] = {}
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, amount_text = line.partition(":")
        amount = amount_text.split()
        fields[name] = int(amount[0]) * 1024 if amount and amount[0].isdigit() else 0
    total, available = fields.get("MemTotal", 0), fields.get("MemAvailable", 0)
    swap = fields.get("SwapTotal", 0)
    return SystemMemory(total, available, fields.get("Cached", 0), swap, swap - fields.get("SwapFree", 0))


def read_memory_stall(root: Path = _ROOT) -> float | None:
    """Return the share of the last ten seconds in which all programs waited for memory; None if Linux does not say.

    Programs wait while pages are read from swap, or read again after the page cache dropped them (proc(5),
    /proc/pressure/memory).
    """
    try:
        pressure = (root / "proc/pressure/memory").read_text()
    except OSError:
        return None
    share = re.search(r"^full avg10=([\d.]+)", pressure, re.MULTILINE)
    return float(share[1]) / 100 if share else None


def find_disk(folder: Path, root: Path = _ROOT) -> Disk:
    """Return the disk of `folder`, or of the nearest folder above it that exists."""
    folder = paths.find_existing(folder).resolve()
    number = folder.stat().st_dev
    device = root / f"sys/dev/block/{os.major(number)}:{os.minor(number)}"
    if not device.exists():  # the number is not a disk's, but the mount may still name one
        source, kind = _mount(folder)
        if _NETWORK.search(kind):
            return Disk("", "network")
        if not source.startswith("/dev/"):
            return Disk("", "")
        device = root / "sys/class/block" / Path(source).name
    device = device.resolve()
    # An encrypted or logical volume lies on other devices; the first one determines the kind.
    while below := sorted(device.glob("slaves/*")):
        device = below[0].resolve()
    path = str(device)
    return Disk(device.name, "usb" if "/usb" in path else "nvme" if "/nvme" in path else "disk")


def _mount(folder: Path) -> tuple[str, str]:
    import psutil

    mounts = [part for part in psutil.disk_partitions(all=True) if folder.is_relative_to(part.mountpoint)]
    nearest = max(mounts, key=lambda part: len(part.mountpoint), default=None)
    return (nearest.device, nearest.fstype) if nearest else ("", "")


def measure_read_speed(files: Iterable[Path], limit: int = _PROBE_BYTES) -> float | None:
    """Return the speed in bytes per second at which the largest file is read from disk; None without a large file.

    The file is dropped from the page cache first, which needs no privileges. Reading ends after three seconds.
    """
    largest = max(files, key=lambda file: file.stat().st_size, default=None)
    if largest is None or largest.stat().st_size < _CHUNK:
        return None
    with largest.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, limit, os.POSIX_FADV_DONTNEED)
        began, done, seconds = time.monotonic(), 0, 0.0
        while done < limit and seconds < _PROBE_SECONDS and (chunk := file.read(_CHUNK)):
            done += len(chunk)
            seconds = time.monotonic() - began
    return done / seconds if seconds > 0 else None


def release_page_cache(files: Iterable[Path]) -> int:
    """Drop the files from the page cache (posix_fadvise(2), DONTNEED) and return the bytes that this freed."""
    before = read_system_memory().cached
    for path in files:
        try:
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError:
            continue
    return max(0, before - read_system_memory().cached)


def is_on_battery(root: Path = _ROOT) -> bool | None:
    """Whether a laptop runs on battery; None if Linux lists no external power supply."""
    supplies = root.glob("sys/class/power_supply/*")
    # Batteries are ignored: that of a wireless mouse is online, too.
    online = [_word(supply / "online") for supply in supplies if _word(supply / "type") in {"Mains", "USB"}]
    return "1" not in online if online else None


def _word(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


@lru_cache(maxsize=8)
def is_wsl(root: Path = _ROOT) -> bool:
    """Whether this is the Windows Subsystem for Linux."""
    return "microsoft" in _word(root / "proc/sys/kernel/osrelease").lower()


def find_compiler(variable: str = "CC", names: Sequence[str] = ("gcc", "clang")) -> str | None:
    """Return the compiler that Triton and Inductor would use, by `variable` or `names`; None if there is none."""
    command = os.environ.get(variable, "").split()
    return next((path for name in command[:1] or names if (path := shutil.which(name))), None)


def find_nvcc() -> str | None:
    """Return the CUDA compiler in PATH or in CUDA_HOME (/usr/local/cuda), or None."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return shutil.which("nvcc") or shutil.which("nvcc", path=f"{home}/bin")


_TIMEOUT = 5.0
_SYSTEM_UIDS = 1000  # logind leaves the files of system users alone
_BUS = "org.freedesktop.login1"


class LogoutRisk(NamedTuple):
    """The settings that end a server when its user's last login ends; empty if the server survives."""

    settings: tuple[str, ...]
    user: str
    lingers: bool


def read_logout_risk(root: Path = _ROOT, uid: int | None = None) -> LogoutRisk | None:
    """Return what ends a detached server at logout; None if systemd-logind is missing or does not answer."""
    if not (root / "run/systemd/seats").is_dir():
        return None
    uid = os.getuid() if uid is None else uid
    manager = run_helper("busctl", "--json=off", "get-property", _BUS, "/org/freedesktop/login1", f"{_BUS}.Manager",
                   "KillUserProcesses", "RemoveIPC", "KillExcludeUsers")  # fmt: skip
    user = run_helper("loginctl", "show-user", str(uid), "--property=Name", "--property=Linger")
    return judge_logout(manager, user, uid)


def judge_logout(manager: str | None, user: str | None, uid: int) -> LogoutRisk | None:
    """Return the risk by the outputs of `busctl` and `loginctl`; None if the first is unusable."""
    lines = (manager or "").split("\n")
    if len(lines) < 2 or not re.match(r"b (true|false)$", lines[0]):
        return None
    fields = dict(line.partition("=")[::2] for line in (user or "").splitlines())
    name, lingers = fields.get("Name", ""), fields.get("Linger") == "yes"
    excluded = re.findall(r'"([^"]*)"', lines[2]) if len(lines) > 2 else []
    settings = []
    if lines[0] == "b true" and name not in excluded and uid != 0:
        settings.append("KillUserProcesses=yes")
    if lines[1] == "b true" and uid >= _SYSTEM_UIDS:
        settings.append("RemoveIPC=yes")
    return LogoutRisk(() if lingers else tuple(settings), name, lingers)


def run_helper(*command: str) -> str | None:
    """Return the output of a program of the system; None if it is missing, fails, or takes five seconds."""
    env = build_helper_environment() | {"LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, env=env, cwd="/", timeout=_TIMEOUT, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip()
