"""What Linux says of a machine: recorded roots, and the pages and ports of this one."""

import ctypes
import mmap
import os
import socket
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from dflash_tui.machine import processes, system
from dflash_tui.machine.system import Disk, SystemMemory
from tests.support.waiting import wait_until

KIB, MIB = 1 << 10, 1 << 20
MEMINFO = """\
MemTotal:       125489744 kB
MemFree:         8123456 kB
MemAvailable:   61865984 kB
Buffers:          812340 kB
Cached:         52428800 kB
SwapCached:            0 kB
SwapTotal:      16777212 kB
SwapFree:       12582908 kB
HugePages_Total:       0
"""


def write(root: Path, path: str, content: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)


def test_full_memory_stall_share_is_read(tmp_path):
    write(tmp_path, "proc/pressure/memory", "some avg10=9.00 avg60=0.10 total=3\nfull avg10=3.50 avg60=0.00 total=1\n")
    assert (system.read_memory_stall(tmp_path), system.read_memory_stall(tmp_path / "none")) == (0.035, None)


def test_memory_of_a_recorded_machine(tmp_path):
    """A GB10 whose memory is half page cache: bytes, and swap that is in use."""
    write(tmp_path, "proc/meminfo", MEMINFO)
    found = system.read_system_memory(tmp_path)
    assert found == SystemMemory(125489744 * KIB, 61865984 * KIB, 52428800 * KIB, 16777212 * KIB, 4194304 * KIB)


@pytest.fixture
def block(tmp_path) -> Callable[..., None]:
    """Return a function that puts the disk of this folder into a recorded /sys."""
    number = tmp_path.stat().st_dev
    name = f"{os.major(number)}:{os.minor(number)}"

    def put(path: str, below: str = "") -> None:
        device = tmp_path / "sys/devices" / path
        device.mkdir(parents=True)
        (tmp_path / "sys/dev/block").mkdir(parents=True)
        (tmp_path / "sys/dev/block" / name).symlink_to(device)
        if below:
            (tmp_path / "sys/devices" / below).mkdir(parents=True)
            (device / "slaves").mkdir()
            (device / "slaves" / Path(below).name).symlink_to(tmp_path / "sys/devices" / below)

    return put


@pytest.mark.parametrize(
    ("path", "below", "expected"),
    [
        ("pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1/nvme0n1p2", "", Disk("nvme0n1p2", "nvme")),
        ("pci0000:00/0000:00:14.0/usb2/2-1/2-1:1.0/host0/target0/0:0:0:0/block/sda/sda1", "", Disk("sda1", "usb")),
        ("pci0000:00/0000:00:17.0/ata1/host0/target0/block/sdb/sdb1", "", Disk("sdb1", "disk")),
        ("virtual/block/dm-0", "pci0/nvme/nvme1/nvme1n1/nvme1n1p3", Disk("nvme1n1p3", "nvme")),
    ],
)
def test_the_kind_of_a_disk(tmp_path, block, path, below, expected):
    """By where it hangs in /sys, an encrypted volume by what it lies on; a folder that is not there yet counts too."""
    block(path, below)
    assert system.find_disk(tmp_path / "not" / "there" / "yet", tmp_path) == expected


Partition = namedtuple("Partition", "device mountpoint fstype")


@pytest.mark.parametrize(
    ("device", "kind", "expected"),
    [
        ("server:/models", "nfs4", Disk("", "network")),
        ("user@server:", "fuse.sshfs", Disk("", "network")),
        ("overlay", "overlay", Disk("", "")),
        ("/dev/nvme0n1p2", "btrfs", Disk("nvme0n1p2", "nvme")),
    ],
)
def test_a_file_system_of_no_single_disk(tmp_path, monkeypatch, device, kind, expected):
    """Its number is in no /sys; what is mounted tells the rest."""
    there = tmp_path / "sys/devices/pci0/nvme/nvme0/nvme0n1p2"
    there.mkdir(parents=True)
    (tmp_path / "sys/class/block").mkdir(parents=True)
    (tmp_path / "sys/class/block/nvme0n1p2").symlink_to(there)
    mounts = [Partition("/dev/sda1", "/", "ext4"), Partition(device, str(tmp_path), kind)]
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: mounts)
    assert system.find_disk(tmp_path, tmp_path) == expected


@pytest.mark.parametrize(
    ("supplies", "expected"),
    [
        ({}, None),
        ({"AC": ("Mains", "0"), "BAT0": ("Battery", None)}, True),
        ({"AC": ("Mains", "1"), "BAT0": ("Battery", None)}, False),
        ({"AC": ("Mains", "0"), "ucsi-source-psy": ("USB", "1")}, False),
        # A wireless mouse.
        ({"AC": ("Mains", "0"), "hidpp_battery_0": ("Battery", "1")}, True),
        ({"hidpp_battery_0": ("Battery", "1")}, None),
    ],
)
def test_on_battery(tmp_path, supplies, expected):
    """Mains or USB power that is online, nothing else."""
    for name, (kind, online) in supplies.items():
        write(tmp_path, f"sys/class/power_supply/{name}/type", f"{kind}\n")
        if online is not None:
            write(tmp_path, f"sys/class/power_supply/{name}/online", f"{online}\n")
    assert system.is_on_battery(tmp_path) is expected


def resident(path: Path) -> int:
    """Return how many bytes of the file the page cache holds, by mincore(2)."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        pages = len(mapped) // mmap.PAGESIZE
        answer = (ctypes.c_ubyte * pages)()
        start = ctypes.c_char.from_buffer(mapped)
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(len(mapped)), answer)
        del start
        assert failed == 0, os.strerror(ctypes.get_errno())
        return sum(page & 1 for page in answer) * mmap.PAGESIZE


@pytest.fixture
def cached(tmp_path: Path) -> Path:
    """Return a file of 64 MB that the page cache holds."""
    if system._mount(tmp_path)[1] == "tmpfs":
        pytest.skip("what lies in memory only cannot be dropped from it")
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write(os.urandom(MIB) * 64)
        file.flush()
        os.fsync(file.fileno())
    # A kernel that takes pages back at once takes few.
    wait_until(lambda: len(path.read_bytes()) == resident(path) == 64 * MIB)
    return path


def test_page_cache_is_given_back(cached, tmp_path):
    """The kernel forgets the pages of the file, without any rights; a file that is gone is no error."""
    freed = system.release_page_cache([tmp_path / "gone", cached])
    assert resident(cached) < MIB
    assert freed >= 0
    assert cached.stat().st_size == 64 * MIB


def test_disk_speed_is_measured_without_page_cache(cached, tmp_path):
    """What the cache holds is dropped first, so it is the disk that is measured; the largest file is taken."""
    small = tmp_path / "small"
    small.write_bytes(b"x")
    speed = system.measure_read_speed([small, cached], limit=8 * MIB)
    assert speed is not None
    assert speed > 0
    # Beyond the limit nothing is read, but for what the kernel reads ahead.
    assert resident(cached) > 8 * MIB
    assert system.measure_read_speed([small]) is None
    assert system.measure_read_speed([]) is None


def test_port_holder_is_named():
    """Somebody who listens there has a name and a pid; a port that is only connected to is nobody's."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        assert processes.find_port_listener(port) == ""
        listening.listen()
        assert processes.find_port_listener(port) == f"{psutil.Process().name()} (pid {os.getpid()})"
        with socket.create_connection(("127.0.0.1", port)) as client:
            assert processes.find_port_listener(client.getsockname()[1]) == ""


def test_compilers(tmp_path, monkeypatch):
    """By the variable that Triton reads, else by name; a variable that names nothing is none."""
    for name in ("gcc", "clang"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert system.find_compiler() == str(tmp_path / "gcc")
    assert system.find_compiler("CXX", ("g++", "clang++")) is None
    monkeypatch.setenv("CC", "clang -m64")
    assert system.find_compiler() == str(tmp_path / "clang")
    monkeypatch.setenv("CC", "ccache gcc")
    assert system.find_compiler() is None
    monkeypatch.delenv("CC")
    (tmp_path / "gcc").unlink()
    (tmp_path / "clang").unlink()
    assert system.find_compiler() is None
