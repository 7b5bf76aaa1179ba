"""Where a run's log is, also when somebody renamed it in its folder: the server goes on writing into that file."""

from __future__ import annotations

from pathlib import Path

NAME = "server.log"


def find(folder: Path, pid: int = 0) -> Path:
    """Return the file that the process `pid` writes its output to when it is in `folder`, else the log there.

    That is `server.log`, or when there is none, or an empty one in its place, the newest `server.log.*`.
    """
    log = folder / NAME
    try:
        written = Path(f"/proc/{pid}/fd/1").readlink()
        if written.parent == folder.resolve() and written.is_file():  # a deleted one is no file
            return folder / written.name
    except OSError:
        pass
    try:
        if log.stat().st_size:
            return log
    except OSError:
        pass
    others = [path for path in folder.glob(f"{NAME}.*") if path.is_file() and not path.is_symlink()]
    return max(others, key=_changed, default=log)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
