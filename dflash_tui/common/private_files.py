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
_MOST_STEPS = 500  # of a path, links included: a circle of links has an end


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


def tighten_umask() -> None:
    """Let nobody else have new files where everybody could write them; a umask that a group works with is left.

    What it takes from the owner is given back: new folders that their owner cannot enter serve nobody.
    """
    before = os.umask(0o077)
    if before & stat.S_IWOTH:
        os.umask(before & 0o077)


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


def ownership_problem(path: Path, top: Path | None = None, *, shareable: bool = False, named: bool = False) -> str:
    """Return why a file or folder is not trusted: others may have written it; empty when it is trusted or gone.

    Args:
        path: The file or folder.
        top: The highest of the folders above it that are ours, too; who can write one of them can replace the rest.
        shareable: Whether a user may have it from the system, or write it together with a group; what only we
            write, nobody shares.
        named: Whether the user named it by its path: it may belong to anybody then, but not be written by everybody.
    """
    for place in _list_places(path, top):
        if problem := _describe_writers(place, shareable=shareable, named=named):
            return problem if place == path else f"is in {place}, which {problem}"
    return ""


def replacement_problem(path: Path) -> str:
    """Return why a file or folder is not trusted: everybody can replace it, or a link on the way to it."""
    if place := find_replaceable(path):
        problem = _describe_writers(place, shareable=True, named=True)
        return problem if place == path else f"is reached through {place}, which {problem}"
    return ""


def find_replaceable(path: Path, closed: Path | None = None) -> Path | None:
    """Return what everybody can write on the way to a file or folder, links included; None where there is nothing.

    Args:
        path: The file or folder.
        closed: A folder without links on the way to it that nobody else enters: what is in it matters to nobody.
    """
    passed = (place for place in _trace_links(path) if not closed or not place.is_relative_to(closed))
    return next((place for place in passed if _describe_writers(place, shareable=True, named=True)), None)


def find_open_path(folder: Path) -> Path | None:
    """Return what everybody can write in a folder, at whatever depth; None where there is nothing, or nobody enters.

    Locks, which nobody reads, are none: uv makes them so.
    """
    if not folder.stat().st_mode & stat.S_IXOTH:
        return None
    left = [folder]
    while left:
        with os.scandir(left.pop()) as entries:
            for entry in entries:
                mode = entry.stat(follow_symlinks=False).st_mode
                if mode & stat.S_IWOTH and not stat.S_ISLNK(mode) and (stat.S_ISDIR(mode) or entry.name != ".lock"):
                    return Path(entry.path)
                if stat.S_ISDIR(mode):
                    left.append(Path(entry.path))
    return None


def _trace_links(path: Path) -> list[Path]:
    """Return every folder, link and file that is passed on the way to what a path names."""
    place, passed = Path("/"), []
    parts = [*reversed(path.absolute().parts[1:])]
    for _ in range(_MOST_STEPS):
        if not parts:
            break
        place = place.parent if (part := parts.pop()) == ".." else place / part
        passed.append(place)
        if place.is_symlink():
            target = place.readlink()
            parts += reversed(target.parts[target.is_absolute() :])
            place = Path("/") if target.is_absolute() else place.parent
    return passed


def _list_places(path: Path, top: Path | None) -> list[Path]:
    return [path, *(place for place in path.parents if top and place.is_relative_to(top))]


def _describe_writers(path: Path, *, shareable: bool, named: bool = False) -> str:
    try:
        status = path.stat()
    except OSError:
        return ""
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        return ""  # nobody opens it, and a link may lead to a device of the system, whose mode is not ours to advise on
    if named:
        is_sticky = (
            stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        )  # nobody replaces a file of others there
        return "can be written by everybody" if status.st_mode & stat.S_IWOTH and not is_sticky else ""
    if status.st_uid != os.geteuid() and not (shareable and status.st_uid == 0):
        return f"belongs to another user (uid {status.st_uid})"
    if status.st_mode & stat.S_IWOTH:
        return "can be written by everybody"
    return "can be written by its group" if status.st_mode & stat.S_IWGRP and not shareable else ""


def explain_untrusted_record(file: Path, top: Path) -> str:
    """Return as a clause about the folder of `file` why that is not trusted; empty when it is, or is gone."""
    if why := ownership_problem(file.parent, top) or replacement_problem(file.parent):
        return f"it {why}"
    why = ownership_problem(file)
    return f"its {file.name} {why}" if why else ""


def explain_linked_folder(folder: Path) -> str:
    """Return as a clause why a folder of ours is not used if it is a link, whose files would be removed elsewhere."""
    return "it is a link: move what it leads to into its place, or remove the link" if folder.is_symlink() else ""


def suggest_ownership_fix(path: Path, top: Path | None = None) -> str:
    """Return what to do about a file or folder that is not trusted, in which `top` is as for `ownership_problem`."""
    untrusted = [place for place in _list_places(path, top) if _describe_writers(place, shareable=False)]
    place = untrusted[0] if untrusted else find_replaceable(path) or path
    return f"if you know what is in it: chown it to yourself, and chmod {'-R ' * place.is_dir()}go-w {place}"
