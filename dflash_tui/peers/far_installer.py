"""Install dflash-tui into our own folder on the host that runs this text, with any Python from 3.11 on.

stdin has this text, then the wheel; stdout gets one line with the result. The new environment gets its own folder, and
a link is switched to it once it works: an environment cannot be moved, and ranks that run from an earlier one continue.
If stdin ends before that, the other side is gone, and nothing is left behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

MARK = "dflash-tui-install"
LINK = "program"
_SECONDS = 900.0
_LONGEST = 1500
_PIP = ("pip", "install", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--quiet")


class InstallFailed(Exception):
    """The installation failed, with a `kind` that the other side knows and a tool's output."""

    def __init__(self, kind: str, evidence: str = "") -> None:
        super().__init__(kind)
        self.kind, self.evidence = kind, evidence


def install_wheel(name: str, size: int) -> Path:
    """Install the wheel that follows on stdin, by file name and size; return the link to the environment.

    Raises:
        InstallFailed: nothing was installed; an earlier installation is kept.
        OSError: the folder cannot be written.
    """
    data = sys.stdin.buffer.read(size)
    if len(data) != size:
        raise InstallFailed("cut", f"{len(data)} of {size} bytes came")
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    home = _find_folder()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (home / f"{LINK}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InstallFailed("busy") from None
        _remove_others(home)
        folder = Path(tempfile.mkdtemp(prefix=f"{LINK}-", dir=home))
        try:
            _build(folder, name, data)
            new = folder / LINK
            new.symlink_to(folder.name)
            new.replace(home / LINK)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        _remove_others(home)
    return home / LINK


def _end_with_stdin() -> None:
    sys.stdin.buffer.read()
    os.killpg(0, signal.SIGTERM)


def _find_folder() -> Path:
    return Path(os.environ.get("XDG_DATA_HOME", "").strip() or Path.home() / ".local" / "share") / "dflash-tui"


def _build(folder: Path, name: str, data: bytes) -> None:
    python, wheel = str(folder / "bin" / "python"), folder / name
    _run("venv", sys.executable, "-I", "-m", "venv", str(folder))
    wheel.write_bytes(data)
    _run("pip", python, "-I", "-m", *_PIP, str(wheel))
    version_text = _run("check", str(folder / "bin" / "dflash-tui"), "--version")
    if version_text.split() != ["dflash-tui", name.split("-")[1]]:
        raise InstallFailed("check", version_text)
    wheel.unlink()


def _run(kind: str, *command: str) -> str:
    env = os.environ | {"PYTHONSAFEPATH": "1"}
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env=env, cwd="/", timeout=_SECONDS, check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        raise InstallFailed("late", kind) from None
    text = done.stdout[-_LONGEST:].decode(errors="replace")
    if done.returncode:
        raise InstallFailed(kind, text)
    return text


def _remove_others(home: Path) -> None:
    """Remove environments that the link does not name and no process uses: earlier and unfinished ones."""
    used_folder = os.path.realpath(home / LINK)
    for folder in home.glob(f"{LINK}-*"):
        if (
            folder.is_dir()
            and not folder.is_symlink()
            and os.path.realpath(folder) != used_folder
            and not _is_used(folder)
        ):
            shutil.rmtree(folder, ignore_errors=True)


def _is_used(folder: Path) -> bool:
    sign = f"{folder}/".encode()
    for words in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if sign in words.read_bytes():
                return True
    return False


def main(words: list[str]) -> int:
    """Install, and print the result as `MARK KIND TEXT`; the kind is `installed` on success."""
    with contextlib.suppress(PermissionError):
        os.setsid()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.umask(0o077)
    try:
        link = install_wheel(words[0], int(words[1]))
        kind, text = "installed", f"{link} {'.'.join(map(str, sys.version_info[:3]))}"
    except InstallFailed as failure:
        kind, text = failure.kind, failure.evidence
    except OSError as error:
        kind, text = "write", str(error)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    lines = filter(None, map(str.strip, text.split("\n")))
    with contextlib.suppress(BrokenPipeError):
        print(MARK, kind, " | ".join(lines), flush=True)  # noqa: T201 - read by the other side
    return int(kind != "installed")


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:]))
