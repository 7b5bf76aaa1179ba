"""Names of hosts as ssh takes them, and the one that a user of another machine calls this one by (`--host`)."""

from __future__ import annotations

import os
import re

# Set by the program on the user's machine for the one that it runs here; it names that host and nothing else.
CALLED_AS = "DFLASH_TUI_CALLED_AS"
_HOST = re.compile(r"[A-Za-z0-9_][\w.:%@-]{0,254}", re.ASCII)
_PROGRAM = "dflash-tui"
# What is done on a third host ("on HOST: …", "ssh HOST …") is done there; a word that is no command is a sentence's.
_COMMAND = re.compile(
    r"(?<![\w/.-])(?P<elsewhere>\b[Oo]n \S+: |\bssh \S+ )?dflash-tui (?=(?:"
    r"up|attach|bench|ab|verify|verify-output|tune|replay|export|ps|logs|stop|chat|client|runs|orphans|why|report|history"
    r"|service|disk|completion|gpus|plan|doctor|recipes|engine|patch)(?![\w-]))"
)


def is_host_name(text: str) -> bool:
    """Return whether ssh takes a text for a host, and no shell or option of ssh makes anything else of it."""
    return bool(_HOST.fullmatch(text))


def read_called_name() -> str:
    """Return what the user's machine calls this one; empty where the user sits at this one, or is in a shell of it."""
    name = os.environ.get(CALLED_AS, "")
    return name if is_host_name(name) else ""


def name_program() -> str:
    """Return the words by which the user runs this program: `dflash-tui`, from another machine with `--host`."""
    name = read_called_name()
    return f"{_PROGRAM} --host {name}" if name else _PROGRAM


def name_commands(text: str) -> str:
    """Return a text with this program's commands in it as the user types them, from another machine with `--host`."""
    program = name_program()
    if program == _PROGRAM:
        return text
    return _COMMAND.sub(lambda match: match[0] if match["elsewhere"] else f"{program} ", text)
