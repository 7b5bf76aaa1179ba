"""Installs dflash-tui into our own folder on the host where it runs: sent there as text, for any Python from 3.11 on.

stdin is this text, then the wheel; stdout gets one line with how it ended. The new environment gets a folder of its
own, and a link is put in its place in one step when it works: an environment cannot be moved, and ranks that run from
an earlier one go on from it. When stdin ends before that, whoever asked is gone, and nothing is left.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MARK = "dflash-tui-install"
LINK = "program"
_LARGEST_WHEEL = 64 << 20
_SECONDS = 900.0
_LONGEST = 1500
_PIP = ("pip", "install", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--quiet")


class InstallFailed(Exception):
    """It was not installed: a `kind` that the other side knows, and what a tool said about it."""

    def __init__(self, kind: str, evidence: str = "") -> None:
        super().__init__(kind)
        self.kind, self.evidence = kind, evidence


class _Connection:
    """Whether who asked is there still, by what comes of stdin: nothing, until it ends."""

    def __init__(self, lock: int) -> None:
        self.lock = lock
        self.deadline = time.monotonic() + _SECONDS

    def is_open(self) -> bool:
        return not select.select([0], [], [], 0.1)[0] or bool(os.read(0, 1 << 16))

    def run(self, kind: str, log: Path, *command: str) -> str:
        """Run a program and return what it wrote; it ends when stdin does, and keeps the lock for as long as it runs.

        Raises:
            InstallFailed: it failed, with the end of what it wrote, took too long, or nobody waits for it.
        """
        with log.open("w+b") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONSAFEPATH": "1"},
                cwd="/",
                pass_fds=(self.lock,),
                start_new_session=True,
            )
            try:
                while process.poll() is None:
                    if not self.is_open():
                        raise InstallFailed("cut")
                    if time.monotonic() > self.deadline:
                        raise InstallFailed("late", kind)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        text = log.read_bytes()[-_LONGEST:].decode(errors="replace")
        if process.returncode:
            raise InstallFailed(kind, text)
        return text


def install_wheel(name: str, size: int, digest: str) -> Path:
    """Install the wheel that comes next on stdin, and return the link to the environment.

    Args:
        name: of the wheel's file.
        size: of it in bytes.
        digest: its SHA-256, in hexadecimal digits.

    Raises:
        InstallFailed: nothing was installed; what was there before is there still.
        OSError: the folder cannot be written.
    """
    if not re.fullmatch(r"dflash_tui-([\w.+!]+)-py3-none-any\.whl", name, re.ASCII) or size > _LARGEST_WHEEL:
        raise InstallFailed("cut", name)
    data = sys.stdin.buffer.read(size)
    if len(data) != size or hashlib.sha256(data).hexdigest() != digest:
        raise InstallFailed("cut", f"{len(data)} of {size} bytes came")
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
            _build(folder, name, data, _Connection(lock.fileno()))
            new = folder / LINK
            new.symlink_to(folder.name)
            new.replace(home / LINK)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        _remove_others(home)
    return home / LINK


def _find_folder() -> Path:
    """Return the folder of what is installed and built, as `common/paths.py` says it."""
    return Path(os.environ.get("XDG_DATA_HOME", "").strip() or Path.home() / ".local" / "share") / "dflash-tui"


def _build(folder: Path, name: str, data: bytes, connection: _Connection) -> None:
    """Make the environment, install the wheel into it, and see that it starts."""
    python, log, wheel = str(folder / "bin" / "python"), folder / "install.log", folder / name
    connection.run("venv", log, sys.executable, "-I", "-m", "venv", str(folder))
    wheel.write_bytes(data)
    connection.run("pip", log, python, "-I", "-m", *_PIP, str(wheel))
    version_text = connection.run("check", log, str(folder / "bin" / "dflash-tui"), "--version")
    if version_text.split() != ["dflash-tui", name.split("-")[1]]:
        raise InstallFailed("check", version_text)
    wheel.unlink()
    log.unlink()
    if not connection.is_open():
        raise InstallFailed("cut")


def _remove_others(home: Path) -> None:
    """Remove environments that the link does not lead to and no process runs from: earlier ones, and what was cut."""
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
    """Whether a process runs from an environment."""
    sign = f"{folder}/".encode()
    for words in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if sign in words.read_bytes():
                return True
    return False


def main(words: list[str]) -> int:
    """Install, and say on stdout how that ended: `MARK KIND TEXT`, with `installed` for the kind when it worked."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    os.umask(0o077)
    try:
        link = install_wheel(words[0], int(words[1]), words[2])
        kind, text = "installed", f"{link} {'.'.join(map(str, sys.version_info[:3]))}"
    except InstallFailed as failure:
        kind, text = failure.kind, failure.evidence
    except OSError as error:
        kind, text = "write", str(error)
    lines = filter(None, map(str.strip, text.split("\n")))
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(f"{MARK} {kind} {' | '.join(lines)}\n")
        sys.stdout.flush()
    return int(kind != "installed")


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:]))
