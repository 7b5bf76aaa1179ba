"""This program run on another host for a user at this one, over ssh: its panel in the user's terminal, or a command."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Sequence
from typing import IO

from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.sanitizer import clean_lines
from dflash_tui.common.ssh_host import CALLED_AS
from dflash_tui.machine.process_environment import build_helper_environment
from dflash_tui.peers import transport
from dflash_tui.peers.connection import open_connection, require_same_release
from dflash_tui.peers.messages import Greeting

# What a program there draws by, besides TERM, which ssh tells of itself.
_SHOWN = ("COLORTERM", "NO_COLOR", "TERM_PROGRAM", "LC_TERMINAL", "DFLASH_TUI_MARKER")
_SSH_FAILED = 255
_ERRORS_KEPT = 4096
# What ssh has started may hold its stderr open for longer than ssh lives; a busy machine needs a while to read it.
_LAST_WORDS = 5.0
# Undoes what a panel that was cut off has left: the mouse, reports of paste, size, focus and keys, the other screen, a
# hidden cursor. Then to the bottom, since a terminal that was on no other screen puts its cursor anywhere.
_LEAVE = (
    b"\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l\x1b[?2004l\x1b[?2048l\x1b[?2026l\x1b[?1004l\x1b[<u"
    b"\x1b[0m\x1b[?7h\x1b[?1049l\x1b[?25h\x1b[999H"
)


async def greet_host(host: str) -> Greeting:
    """Return what the program on `host` says of itself.

    Raises:
        NeedsProgram: it has no program of ours, or an installed one of another release.
        UsageError: it is this machine by name, is not reached, or its program speaks another protocol.
    """
    if host == transport.LOCAL:
        raise UsageError(f"--host {host} is this machine", hint="leave --host out")
    async with open_connection(host) as connection:
        require_same_release(connection)
        return connection.greeting


def run_program(host: str, words: Sequence[str]) -> int:
    """Run the program on `host` with these words until it ends, in this terminal if there is one; return its exit code.

    Raises:
        UsageError: there is no ssh here.
        DflashError: the connection broke, or the program was killed there.
    """
    on_terminal = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    variables = {name: os.environ[name] for name in _SHOWN if name in os.environ} | {CALLED_AS: host}
    command = transport.build_program_command(host, words, variables, on_terminal=on_terminal)
    with _kept_terminal() if on_terminal else contextlib.nullcontext():
        code, errors = _run_ssh(command, quietly=on_terminal)
        if 0 <= code < _SSH_FAILED:
            return code
        raise explain_break(host, words, errors)


def explain_break(host: str, words: Sequence[str], errors: str) -> DflashError:
    """Return the error that a program on a host went away without an exit code, by the last lines that ssh wrote."""
    last = " | ".join(line.strip() for line in clean_lines(errors).splitlines()[-3:] if line.strip())
    stays = "what was launched there goes on" if "--foreground" not in words else "a server of up --foreground ends"
    what = f"the connection to {host} broke, or dflash-tui was killed there"
    return DflashError(what, evidence=last, hint=f"{stays}; see it again with: dflash-tui --host {host}")


def _run_ssh(command: Sequence[str], *, quietly: bool) -> tuple[int, str]:
    """Run ssh with this program's streams; return its exit code and, if it is to be quiet, what it said of itself.

    On a terminal all that the far program writes comes by stdout, and stderr is ssh's alone.
    """
    errors = subprocess.PIPE if quietly else None
    try:
        ssh = subprocess.Popen(command, stderr=errors, env=build_helper_environment("SSH_"), cwd="/")
    except OSError as error:
        raise UsageError(f"{command[0]} could not be started", evidence=str(error), hint="install OpenSSH") from None
    tail = bytearray()
    reader = threading.Thread(target=_keep_tail, args=(ssh.stderr, tail), daemon=True)
    try:
        reader.start()
        code = ssh.wait()
        if not 0 <= code < _SSH_FAILED:
            reader.join(_LAST_WORDS)
    finally:
        ssh.kill()  # where waiting for it was ended; the program there learns of it from its terminal or pipes
        ssh.wait()
    return code, bytes(tail).decode(errors="replace")


def _keep_tail(stream: IO[bytes] | None, tail: bytearray) -> None:
    while stream and (data := os.read(stream.fileno(), 1 << 16)):
        tail += data
        del tail[:-_ERRORS_KEPT]


@contextlib.contextmanager
def _kept_terminal() -> Iterator[None]:
    """Give the user the terminal back as it was where the block raises; else the far program has done so."""
    settings = termios.tcgetattr(sys.stdin)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError, termios.error):
            os.write(sys.stdout.fileno(), _LEAVE)
            termios.tcsetattr(sys.stdin, termios.TCSAFLUSH, settings)
            os.write(sys.stdout.fileno(), b"\n")
        raise
