"""Run dflash-tui on another host over ssh: its panel in the user's terminal, or a command."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import io
import os
import re
import subprocess
import sys
import termios
import threading
import zipfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple, cast

from dflash_tui import __version__
from dflash_tui.common import paths
from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.formatting import CALLED_AS, has_terminal
from dflash_tui.common.sanitizer import clean_end, clean_line, clean_text, join_last_lines
from dflash_tui.machine.process_environment import OPENSSH, build_helper_environment
from dflash_tui.peers import transport
from dflash_tui.peers.connection import start_process

# Variables that change how the remote program draws, besides TERM, which ssh passes on.
_SHOWN = ("COLORTERM", "NO_COLOR", "TERM_PROGRAM", "LC_TERMINAL", "DFLASH_TUI_MARKER")
_SSH_FAILED = 255
_LINES_KEPT, _LAST_WORDS = 20, 1.0
# Undo the modes of an aborted panel: mouse, reports of paste, size, focus and keys, the alternate screen, a hidden
# cursor. Then go to the bottom, since leaving the alternate screen may put the cursor anywhere.
_LEAVE = (
    b"\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l\x1b[?2004l\x1b[?2048l\x1b[?2026l\x1b[?1004l\x1b[<u"
    b"\x1b[0m\x1b[?7h\x1b[?1049l\x1b[?25h\x1b[999H"
)


def run_program(host: str, words: Sequence[str], show: Callable[[str], None]) -> int:
    """Run dflash-tui on `host` until it ends, in this terminal if there is one; return its exit code.

    Without a terminal, `show` is called with the cleaned stderr of the remote side.

    Raises:
        UsageError: there is no ssh here.
        DflashError: the connection broke, or the program was killed there.
    """
    on_terminal = has_terminal()
    variables = {name: os.environ[name] for name in _SHOWN if name in os.environ} | {CALLED_AS: host}
    command = transport.build_program_command(host, words, variables, on_terminal=on_terminal)
    with _kept_terminal() if on_terminal else contextlib.nullcontext():
        code, errors = _run_ssh(command, None if on_terminal else show)
        if 0 <= code < _SSH_FAILED:
            return code
        raise explain_break(host, words, errors)


def explain_break(host: str, words: Sequence[str], errors: str) -> DflashError:
    """Return the error that a remote program ended without an exit code; `errors` are ssh's last lines."""
    last = join_last_lines(errors, 3)
    stays = "servers there keep running" if "--foreground" not in words else "a server of up --foreground stops"
    what = f"the connection to {host} broke, or dflash-tui was killed there"
    return DflashError(what, evidence=last, hint=f"{stays}; see it again with: dflash-tui --host {host}")


def _run_ssh(command: Sequence[str], show: Callable[[str], None] | None) -> tuple[int, str]:
    """Run ssh with this program's streams; return its exit code, and the end of its stderr unless shown.

    On a terminal stderr has ssh's own messages only: the remote program writes to stdout. Otherwise both write to it,
    and `show` is called line by line.
    """
    try:
        ssh = subprocess.Popen(command, stderr=subprocess.PIPE, env=build_helper_environment(OPENSSH), cwd="/")
    except OSError as error:
        raise UsageError(f"{command[0]} could not be started", evidence=str(error), hint="install OpenSSH") from None
    errors, lines = cast("IO[bytes]", ssh.stderr), deque[bytes](maxlen=_LINES_KEPT)

    def read() -> None:
        with errors:
            for line in errors:  # whole lines, so that secrets are recognized
                lines.append(line)
                if show:
                    show(clean_text(line.decode(errors="replace").rstrip("\r\n")) + "\n" * line.endswith(b"\n"))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        code = ssh.wait()
        reader.join(_LAST_WORDS)  # ssh's child processes may keep its stderr open
    finally:
        ssh.kill()  # if the wait was interrupted; the remote program notices by its terminal or pipes
        ssh.wait()
    return code, "" if show else clean_end(b"".join(lines))


@contextlib.contextmanager
def _kept_terminal() -> Iterator[None]:
    """Restore the user's terminal if the block raises; otherwise the remote program has done so."""
    settings = termios.tcgetattr(sys.stdin)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError, termios.error):
            os.write(sys.stdout.fileno(), _LEAVE)
            termios.tcsetattr(sys.stdin, termios.TCSAFLUSH, settings)
            os.write(sys.stdout.fileno(), b"\n")
        raise


MARK = "dflash-tui-install"
_SECONDS = 1000.0
_INSTALLED = "installed"
_FAILURES = {
    "python": (
        "{host} has no Python 3.11 or newer that can make virtual environments",
        "on it: sudo apt install python3 python3-venv, or: uv python install 3.12",
    ),
    "busy": ("dflash-tui is being installed on {host} already", "try again when that is finished"),
    "write": ("the folder for dflash-tui on {host} cannot be written", "free space there or fix permissions"),
    "venv": ("no virtual environment could be made on {host}", "on it: sudo apt install python3-venv, or free space"),
    "pip": (
        "pip could not install on {host} what dflash-tui needs",
        "check that it reaches a package index: ssh {host} python3 -m pip config list",
    ),
    "check": ("dflash-tui does not start on {host} after its installation", "try another Python on it"),
    "late": ("{host} took too long to install dflash-tui", "check its network, and try again"),
    "cut": ("the wheel of dflash-tui did not arrive whole on {host}", "try again"),
}


async def install_program(host: str) -> str:
    """Install dflash-tui in our own folder on `host`, with packages from that host's index; return its path.

    Nothing is left there if the installation fails or this side ends first.

    Raises:
        UsageError: the host is unreachable for a reason that the user can fix.
        DflashError: it was not installed.
    """
    wheel = await asyncio.to_thread(build_own_wheel)
    script = await asyncio.to_thread((paths.PACKAGE_ROOT / "peers" / "install.sh").read_text)
    command = transport.build_install_command(host, script, wheel.name, str(len(wheel.data)), __version__)
    async with start_process(command, build_helper_environment(OPENSSH)) as process:
        try:
            process.stdin.write(wheel.data)  # stdin stays open: closing it aborts the installation
            kind, said = await asyncio.wait_for(_read_answer(process.stdout), _SECONDS)
            if not kind:
                error = transport.explain_end(host, await process.wait(), await process.errors)
                if isinstance(error, transport.NeedsProgram):  # even sh was not found
                    raise DflashError(f"{host} has no sh", evidence=error.evidence)
                raise error
        except TimeoutError:
            kind, said = "late", ""
    if kind == _INSTALLED:
        return said
    what, hint = _FAILURES[kind]
    raise DflashError(what.format(host=host), evidence=said, hint=f"{hint.format(host=host)}; nothing was left")


async def _read_answer(output: asyncio.StreamReader) -> tuple[str, str]:
    """Return the installation's kind of result and its text; both are empty if the output ends without one."""
    while line := await output.readline():
        mark, _, words = clean_line(line.decode(errors="replace")).partition(" ")
        kind, _, text = words.partition(" ")
        if mark == MARK and (kind == _INSTALLED or kind in _FAILURES):
            return kind, text
    return "", ""


def describe_offer(error: transport.NeedsProgram) -> str:
    """Return the question whether to install dflash-tui on a host."""
    return (
        f"{error.what}. Install {__version__} into ~/.local/share/dflash-tui there, with its packages from the index "
        f"that pip of {error.host} uses?"
    )


def build_unheard_error(error: transport.NeedsProgram) -> UsageError:
    """Return the error that another dflash-tui answers on a host after this one was installed there."""
    what = f"dflash-tui was installed on {error.host}, but another installation answers there"
    hint = f"remove the other one there: ssh {error.host} 'command -v dflash-tui'"
    return UsageError(what, evidence=error.evidence, hint=hint)


_DISTRIBUTION, _PACKAGE = "dflash-tui", "dflash_tui"
# Folders that a checkout has beside the package, and a wheel inside it.
_BESIDE = ("recipes", "patches")
_WHEEL = "Wheel-Version: 1.0\nGenerator: dflash-tui\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


class OwnWheel(NamedTuple):
    """A wheel of this program: its file name and content."""

    name: str
    data: bytes


def build_own_wheel() -> OwnWheel:
    """Return a wheel of the running program; raise DflashError if it was never installed."""
    try:
        distribution = importlib.metadata.distribution(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        what = "this dflash-tui runs from a folder that was not installed, so the packages that it needs are unknown"
        raise DflashError(what, hint="pip install -e . in the checkout") from None
    # An editable installation has the version that the checkout had when it was installed.
    metadata = re.sub(
        r"(?m)^Version: .*$", f"Version: {__version__}", distribution.read_text("METADATA") or "", count=1
    )
    entries = distribution.read_text("entry_points.txt") or ""
    roots = {_PACKAGE: paths.PACKAGE_ROOT} | {f"{_PACKAGE}/{kind}": paths.bundled_folder(kind) for kind in _BESIDE}
    files = {f"{place}/{name}": path for place, root in roots.items() for name, path in _walk(root)}
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as wheel:
        for name, path in files.items():
            wheel.write(path, name)
        # pip itself writes the record of installed files.
        for name, text in {"METADATA": metadata, "WHEEL": _WHEEL, "entry_points.txt": entries, "RECORD": ""}.items():
            wheel.writestr(f"{_PACKAGE}-{__version__}.dist-info/{name}", text)
    return OwnWheel(f"{_PACKAGE}-{__version__}-py3-none-any.whl", archive.getvalue())


def _walk(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield each file below a folder, without hidden and compiled ones."""
    for path in root.rglob("*"):
        name = path.relative_to(root)
        if path.is_file() and not any(part.startswith((".", "__pycache__")) for part in name.parts):
            yield name.as_posix(), path
