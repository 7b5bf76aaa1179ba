"""Create folders and files that only their owner can read, and read files up to a limit."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def make_private_folder(folder: Path) -> None:
    """Make a folder that must not be there yet, and those above it that are missing, each for its owner alone.

    Raises:
        FileExistsError: it is there.
    """
    for parent in reversed(folder.parents):
        if not parent.exists():
            parent.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700)


def ensure_private_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing, each for its owner alone; one that is there is left so.

    Raises:
        OSError: it cannot be made, or something else is there.
    """
    try:
        make_private_folder(folder)
    except FileExistsError:
        if not folder.is_dir():
            raise


def open_private(path: str, flags: int) -> int:
    """Open as `open` wants it, with a new file for its owner alone."""
    return os.open(path, flags, 0o600)


def read_file(path: Path, limit: int) -> bytes:
    """Return what is in a file of at most `limit` bytes.

    Raises:
        OSError: it is larger, or cannot be read.
    """
    with path.open("rb") as file:
        # Python takes memory for as much as it is asked to read.
        size = os.fstat(file.fileno()).st_size
        data = file.read(min(size, limit) + 1)
        if size < len(data) <= limit:  # it grows, or says no size, as those in /proc
            data += file.read(limit + 1 - len(data))
    if len(data) > limit:
        most = f"{limit >> 20} MiB" if limit >> 20 else f"{limit >> 10} KiB"
        raise OSError(errno.EFBIG, f"larger than {most}", str(path))
    return data


def append_line(path: Path, line: bytes, *, durable: bool = False) -> None:
    """Add a line to a file of ours, in a line of its own also when the last one was torn, as by a full disk.

    Several processes may do so at once as long as lines are short.

    Raises:
        OSError: it cannot be written; the line may be half written.
    """
    with open(path, "ab+", buffering=0, opener=open_private) as file:
        descriptor = file.fileno()
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        data = b"\n" * torn + line + b"\n"
        if (written := file.write(data)) != len(data):
            file.write(data[written or 0 :])  # says why it does not fit
        if durable:
            os.fsync(descriptor)


def write_private_file(path: Path, data: bytes) -> None:
    """Write a file for its owner alone."""
    with open(path, "wb", opener=open_private) as file:
        file.write(data)


def replace_private_file(path: Path, data: bytes) -> None:
    """Write a file for its owner alone and put it in its place in one step, so that a part of one is never there."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write_private_file(temporary, data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
