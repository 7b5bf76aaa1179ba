"""Replace files atomically and durably: in one step, with the new content on the disk before it."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from dflash_tui.common import private_files


def new_file_path(path: Path) -> Path:
    """Return where the file that is to take the place of `path` waits."""
    return path.with_name(f".{path.name}.dflash-new")


def old_file_path(path: Path) -> Path:
    """Return where the file that was at `path` is kept while it is being replaced."""
    return path.with_name(f".{path.name}.dflash-old")


def replace_file(path: Path, data: bytes) -> None:
    """Put a new file with `data` in the place of `path` in one step; its folder is made when it is not there."""
    if not path.parent.is_dir():
        path.parent.mkdir(mode=0o700)
        _give(path.parent, path.parent.parent.stat())
    write_synced_file(new_file_path(path), data, like=path.parent)
    new_file_path(path).replace(path)
    sync_folder(path.parent)


def write_synced_file(path: Path, data: bytes, *, like: Path) -> None:
    """Write a new file and have it on the disk, with the owner of `like` and for those who may read that.

    In the place of a file, those may write it who could before, but not everybody.
    """
    path.unlink(missing_ok=True)  # one that a killed write left, or a link
    with open(path, "xb", opener=private_files.open_private) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    model = like.stat()
    _give(path, model)
    path.chmod(stat.S_IMODE(model.st_mode) & (~stat.S_IWOTH if stat.S_ISREG(model.st_mode) else 0o644))


def _give(path: Path, model: os.stat_result) -> None:
    """Root leaves a user's environment to its user; nobody else may give files away."""
    with contextlib.suppress(PermissionError):
        os.chown(path, model.st_uid, model.st_gid)


def sync_folder(folder: Path) -> None:
    """Have the disk know the names in `folder`, so that a power failure keeps the order of the steps, if it can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_byte_code(path: Path) -> None:
    """Remove what Python has compiled from the file that was in this place; nothing where a link leads elsewhere."""
    folder = path.parent / "__pycache__"
    for stale in () if folder.is_symlink() else folder.glob(f"{path.stem}.*.pyc"):
        stale.unlink(missing_ok=True)
