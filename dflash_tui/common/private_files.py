"""Create folders and files that only their owner can read, open those that others could have written.

What lies where a file should be may be anything: a link to another file, or a FIFO, a socket or a device, of which to
open one can wait for ever or do something. Only files are opened here.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def make_private_folder(folder: Path) -> None:
    """Make a folder that must not be there yet, and those above it that are missing, each for its owner alone.

    Raises:
        FileExistsError: it is there.
    """
    for parent in reversed(folder.parents):
        if not parent.exists():
            parent.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700)


def open_private(path: str, flags: int) -> int:
    """Open as `open` wants it, with a new file for its owner alone; what is no file, or a link, is not opened.

    Raises:
        OSError: it is no file, or cannot be opened.
    """
    return _open_file(path, flags, follow=False)


def open_file(path: Path, *, follow: bool = False) -> BinaryIO:
    """Open a file for reading that may be of others; a link is opened with `follow` only.

    Raises:
        OSError: it is no file, or cannot be opened.
    """
    return open(path, "rb", opener=lambda name, flags: _open_file(name, flags, follow=follow))


def read_file(path: Path, limit: int, *, follow: bool = False) -> bytes:
    """Return what is in a file of at most `limit` bytes that may be of others; a link is opened with `follow` only.

    Raises:
        OSError: it is no file, is larger, or cannot be read.
    """
    with open_file(path, follow=follow) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        size = f"{limit >> 20} MiB" if limit >> 20 else f"{limit >> 10} KiB"
        raise OSError(errno.EFBIG, f"larger than {size}", str(path))
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


def _open_file(path: str, flags: int, *, follow: bool) -> int:
    try:
        _require_file(path, Path(path).stat(follow_symlinks=follow).st_mode)
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
    # Something else may lie there since, and would be waited for.
    descriptor = os.open(path, flags | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW), 0o600)
    try:
        _require_file(path, os.fstat(descriptor).st_mode)
        os.set_blocking(descriptor, True)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _require_file(path: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"{_KINDS.get(stat.S_IFMT(mode), 'something else')}, not a file", path)


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


def ownership_problem(folder: Path) -> str:
    """Return why a folder is not trusted: others may have written what is in it; empty when it is trusted or gone."""
    try:
        status = folder.stat()
    except OSError:
        return ""
    if status.st_uid != os.geteuid():
        return f"belongs to another user (uid {status.st_uid})"
    return "can be written by everybody" if status.st_mode & 0o002 else ""


def suggest_ownership_fix(folder: Path) -> str:
    """Return what to do about a folder that is not trusted."""
    return f"if you know what is in it: chown it to yourself, and chmod go-w {folder}"
