"""Files and folders private to their owner: make, read up to a limit, replace, lock, list and measure them."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from dflash_tui.common.errors import DflashError

T = TypeVar("T")
_LOCK_INTERVAL = 0.05
_BLOCK = 512  # the unit of st_blocks, whatever the disk's block size


def make_private_folder(folder: Path) -> None:
    """Make a private folder (0700) and its missing parents; raise FileExistsError if it exists."""
    for parent in reversed(folder.parents):
        if not parent.exists():
            parent.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700)


def ensure_private_folder(folder: Path) -> None:
    """Make a private folder (0700) and its missing parents; an existing folder stays as it is."""
    try:
        make_private_folder(folder)
    except FileExistsError:
        if not folder.is_dir():
            raise


def open_private(path: str, flags: int) -> int:
    """Open a file, a new one as private (0600); an opener for `open`."""
    return os.open(path, flags, 0o600)


def read_file(path: Path, limit: int) -> bytes:
    """Return the content of a file; raise OSError if it has more than `limit` bytes or cannot be read."""
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        most = f"{limit >> 20} MiB" if limit >> 20 else f"{limit >> 10} KiB"
        raise OSError(errno.EFBIG, f"larger than {most}", str(path))
    return data


def append_line(path: Path, line: bytes, *, durable: bool = False) -> None:
    """Append a line to a file, on a line of its own even after a half-written one.

    Several processes may append at once if the lines are short.

    Raises:
        OSError: the file cannot be written; the line may be half written.
    """
    with open(path, "ab+", buffering=0, opener=open_private) as file:
        descriptor = file.fileno()
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        data = b"\n" * torn + line + b"\n"
        if (written := file.write(data)) != len(data):
            file.write(data[written or 0 :])  # raises the reason
        if durable:
            os.fsync(descriptor)


def write_private_file(path: Path, data: bytes) -> None:
    """Write a file, a new one as private (0600)."""
    with open(path, "wb", opener=open_private) as file:
        file.write(data)


def replace_private_file(path: Path, data: bytes) -> None:
    """Replace a file with a private one (0600) atomically: no reader sees it half written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write_private_file(temporary, data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def try_lock(descriptor: int) -> bool:
    """Take the exclusive lock on an open file; return False if another process holds it.

    The kernel releases it when its holder ends.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def acquire_lock(descriptor: int, timeout: float, check: Callable[[], None] = lambda: None) -> bool:
    """Wait at most `timeout` seconds for the exclusive lock on an open file; return whether it was taken.

    `check` is called before each attempt, and may raise to give up.
    """
    deadline = time.monotonic() + timeout
    while True:
        check()
        if try_lock(descriptor):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOCK_INTERVAL)


def load_each(files: Mapping[str, Path], load: Callable[[Path], T]) -> tuple[dict[str, T], dict[str, str]]:
    """Load each file; return the loaded values, and why each other file cannot be used, both by name."""
    usable: dict[str, T] = {}
    broken: dict[str, str] = {}
    for name, path in files.items():
        try:
            usable[name] = load(path)
        except (DflashError, OSError) as error:
            broken[name] = str(error)
    return usable, broken


def find_in_folders(root: Path, name: str) -> dict[str, Path]:
    """Return the file called `name` in each folder of `root`, by folder; an unreadable `root` has the key `.`."""
    try:
        return {folder.name: folder / name for folder in sorted(root.iterdir()) if os.path.lexists(folder / name)}
    except FileNotFoundError:
        return {}
    except OSError:
        return {".": root / name}


class DiskCount:
    """Counts the disk space of folders; a file with hard links in several of them counts once."""

    def __init__(self) -> None:
        self._counted_files: set[tuple[int, int]] = set()

    def measure_folder(self, folder: Path) -> int:
        """Return the bytes on disk below `folder`, 0 if it is missing; links are not followed."""
        return sum(self._measure_file(f"{at}/{name}") for at, _, names in os.walk(folder) for name in names)

    def _measure_file(self, path: str) -> int:
        try:
            status = os.lstat(path)
        except OSError:  # removed meanwhile
            return 0
        if status.st_nlink > 1:
            identity = (status.st_dev, status.st_ino)
            if identity in self._counted_files:
                return 0
            self._counted_files.add(identity)
        return status.st_blocks * _BLOCK
