"""This program run on another host for a user at this one, over ssh: its panel in the user's terminal, or a command."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import IO, cast

from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.formatting import CALLED_AS, has_terminal
from dflash_tui.common.sanitizer import clean_end, clean_text, join_last_lines
from dflash_tui.common.untrusted_json import LineBuffer
from dflash_tui.machine.process_environment import OPENSSH, build_helper_environment
from dflash_tui.peers import transport
from dflash_tui.peers.connection import open_connection, require_same_release
from dflash_tui.peers.messages import Greeting
from dflash_tui.planning.cluster.hosts import LOCAL

# What a program there draws by, besides TERM, which ssh tells of itself.
_SHOWN = ("COLORTERM", "NO_COLOR", "TERM_PROGRAM", "LC_TERMINAL", "DFLASH_TUI_MARKER")
_SSH_FAILED = 255
_ERRORS_KEPT, _LONGEST_LINE = 4096, 1 << 16
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
    if host == LOCAL:
        raise UsageError(f"--host {host} is this machine", hint="leave --host out")
    async with open_connection(host) as connection:
        require_same_release(connection)
        return connection.greeting


def run_program(host: str, words: Sequence[str], show: Callable[[str], None]) -> int:
    """Run the program on `host` with these words until it ends, in this terminal if there is one; return its exit code.

    Args:
        host: as ssh calls it.
        words: what follows the program's name.
        show: writes to stderr, clean, what without a terminal comes from there.

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
    """Return the error that a program on a host went away without an exit code, by the last lines that ssh wrote."""
    last = join_last_lines(errors, 3)
    stays = "what was launched there goes on" if "--foreground" not in words else "a server of up --foreground ends"
    what = f"the connection to {host} broke, or dflash-tui was killed there"
    return DflashError(what, evidence=last, hint=f"{stays}; see it again with: dflash-tui --host {host}")


def _run_ssh(command: Sequence[str], show: Callable[[str], None] | None) -> tuple[int, str]:
    """Run ssh with this program's streams; return its exit code and the end of what it wrote to stderr and none saw.

    On a terminal all that the far program writes comes by stdout, and stderr is ssh's alone. Else both write to it,
    which goes to `show` line by line.
    """
    try:
        ssh = subprocess.Popen(command, stderr=subprocess.PIPE, env=build_helper_environment(OPENSSH), cwd="/")
    except OSError as error:
        raise UsageError(f"{command[0]} could not be started", evidence=str(error), hint="install OpenSSH") from None
    tail, lines, errors = b"", LineBuffer(_LONGEST_LINE), cast("IO[bytes]", ssh.stderr)
    try:
        for data in _read_errors(ssh, errors.fileno()):
            tail = (tail + data)[-_ERRORS_KEPT:]
            if show:  # whole lines, in which a secret is known
                for line in lines.feed(data):
                    show(f"{_clean_line(line)}\n")
        if show and lines.unfinished_line:
            show(_clean_line(lines.unfinished_line))
        code = ssh.wait()
    finally:
        ssh.kill()  # where waiting for it was ended; the program there learns of it from its terminal or pipes
        ssh.wait()
        errors.close()
    return code, "" if show else clean_end(tail)


def _clean_line(line: bytes) -> str:
    return clean_text(line.decode(errors="replace").replace("\r", ""))  # ssh ends its lines with it


def _read_errors(ssh: subprocess.Popen[bytes], errors: int) -> Iterator[bytes]:
    """Yield what ssh writes to stderr until it ends: what it has started may hold that open for longer."""
    until_end, at_end = os.pipe()

    def wait() -> None:
        ssh.wait()
        os.close(at_end)

    threading.Thread(target=wait, daemon=True).start()
    try:
        while errors in select.select([errors, until_end], [], [])[0] and (data := os.read(errors, 1 << 16)):
            yield data
    finally:
        os.close(until_end)


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
