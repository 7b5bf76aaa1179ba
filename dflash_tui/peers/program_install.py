"""Brings this program to another host: a wheel of its own files goes over ssh, and is installed in our folder there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

from dflash_tui import __version__
from dflash_tui.common import paths
from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.line_buffer import LineBuffer
from dflash_tui.common.sanitizer import clean_end, clean_line
from dflash_tui.machine.process_environment import OPENSSH, build_helper_environment
from dflash_tui.peers import own_wheel, transport
from dflash_tui.peers.far_installer import MARK

# Longer than the far side gives itself, which then says what took so long.
_SECONDS = 1000.0
_LONGEST_LINE, _ERRORS_KEPT = 8192, 4096
# A login shell may print, too, but not without end.
_MOST_OUTPUT = 1 << 20
_INSTALLED = "installed"
_FAILURES = {
    "no-python": (
        "{host} has no Python from 3.11 on",
        "on it: sudo apt install python3 python3-venv, or: uv python install 3.12",
    ),
    "no-venv": ("Python on {host} cannot make virtual environments", "on it: sudo apt install python3-venv"),
    "busy": ("dflash-tui is being installed on {host} already", "try again when that has ended"),
    "write": ("the folder for dflash-tui on {host} cannot be written", "free space there or fix permissions"),
    "venv": ("no virtual environment could be made on {host}", "on it: sudo apt install python3-venv, or free space"),
    "pip": (
        "pip could not install on {host} what dflash-tui needs",
        "see that it reaches an index of packages: ssh {host} python3 -m pip config list",
    ),
    "check": ("dflash-tui does not start on {host} after its installation", "try another Python on it"),
    "late": ("{host} took too long to install dflash-tui", "see what its network does, and try again"),
    "cut": ("the wheel of dflash-tui did not arrive whole on {host}", "try again"),
}


async def install_program(host: str) -> str:
    """Install this program in our own folder on `host`, with packages from the index of that host; return where.

    Nothing is left there when it fails, or when this side ends before.

    Raises:
        UsageError: the host is not reached, for a reason that a user can mend.
        DflashError: it was not installed.
    """
    wheel = await asyncio.to_thread(own_wheel.build_own_wheel)
    text = await asyncio.to_thread((paths.PACKAGE_ROOT / "peers" / "far_installer.py").read_bytes)
    words = (str(len(text)), wheel.name, str(len(wheel.data)), wheel.digest)
    command, pipe = transport.build_install_command(host, *words), asyncio.subprocess.PIPE
    env = build_helper_environment(OPENSSH)
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, env=env, cwd="/", start_new_session=True
        )
    except OSError as error:
        raise UsageError(f"{command[0]} could not be started", evidence=str(error), hint="install OpenSSH") from None
    try:
        return await asyncio.wait_for(_install(host, process, text + wheel.data), _SECONDS)
    except TimeoutError:
        what, hint = _FAILURES["late"]
        raise DflashError(what.format(host=host), hint=hint) from None
    finally:
        await _end(process)


async def _install(host: str, process: asyncio.subprocess.Process, data: bytes) -> str:
    """Send what is installed and read the answer; stdin stays open until then, as its end means that nobody waits."""
    sending = asyncio.create_task(_send(process, data))
    errors = asyncio.create_task(_read_end(process))
    try:
        kind, text = await _read_answer(host, process)
        if kind == _INSTALLED:
            return text
        if kind:
            what, hint = _FAILURES[kind]
            raise DflashError(what.format(host=host), evidence=text, hint=f"{hint.format(host=host)}; nothing was left")
        error = transport.explain_end(host, await process.wait(), await errors)
        if isinstance(error, transport.NeedsProgram):  # sh itself was not found
            raise DflashError(f"{host} has no sh", evidence=error.evidence)
        raise error
    finally:
        for task in (sending, errors):
            task.cancel()
        await asyncio.gather(sending, errors, return_exceptions=True)


async def _send(process: asyncio.subprocess.Process, data: bytes) -> None:
    if process.stdin:
        with contextlib.suppress(OSError):  # how it ended is said elsewhere
            process.stdin.write(data)
            await process.stdin.drain()


async def _read_answer(host: str, process: asyncio.subprocess.Process) -> tuple[str, str]:
    """Return how it ended and the text about it; two empty ones when the output ended without.

    Raises:
        DflashError: there is more of it than any answer takes.
    """
    buffer, total = LineBuffer(_LONGEST_LINE), 0
    while process.stdout and (data := await process.stdout.read(1 << 16)):
        total += len(data)
        if total > _MOST_OUTPUT:
            raise DflashError(f"{host} writes output without end", hint=f"see what its login prints: ssh {host} true")
        for line in buffer.feed(data):
            mark, _, words = clean_line(line.decode(errors="replace")).partition(" ")
            kind, _, text = words.partition(" ")
            if mark == MARK and (kind == _INSTALLED or kind in _FAILURES):
                return kind, text
    return "", ""


async def _read_end(process: asyncio.subprocess.Process) -> str:
    """Return the end of what ssh and the other host write to stderr."""
    tail = b""
    while process.stderr and (data := await process.stderr.read(1 << 16)):
        tail = (tail + data)[-_ERRORS_KEPT:]
    return clean_end(tail)


async def _end(process: asyncio.subprocess.Process) -> None:
    """End ssh and what it has started, which a process on the other host learns from the end of its stdin."""
    if process.stdin:
        process.stdin.close()
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    await asyncio.gather(*(_drain(stream) for stream in (process.stdout, process.stderr) if stream))
    await process.wait()


async def _drain(stream: asyncio.StreamReader) -> None:
    while await stream.read(1 << 16):
        pass


def describe_offer(error: transport.NeedsProgram) -> str:
    """Return what an installation would do, for who is asked about it."""
    return (
        f"{error.what}. Install {__version__} into ~/.local/share/dflash-tui there, with its packages from the index "
        f"that pip of {error.host} uses?"
    )


def build_unheard_error(error: transport.NeedsProgram) -> UsageError:
    """Return the error that another program answers on a host although this one was installed there."""
    what = f"dflash-tui was installed on {error.host}, but it is not what answers there"
    hint = f"remove the other one there: ssh {error.host} 'command -v dflash-tui'"
    return UsageError(what, evidence=error.evidence, hint=hint)
