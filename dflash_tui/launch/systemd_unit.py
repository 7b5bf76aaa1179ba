"""Render a launch as a unit file for `systemd --user`. Pure.

Quoting follows systemd.syntax(7) and systemd.service(5): words in double quotes with C escapes, `%%` for `%`. The
command's `:` prefix leaves `$` as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from dflash_tui.common.formatting import format_gib

GIB = 1 << 30
_UNQUOTED = re.compile(r"[A-Za-z0-9_./:=,@+-]+")
# The reserve for the system, sshd and a shell: our choice, not a measurement.
_RESERVE, _MIN_RESERVE_PART, _MAX_RESERVE_PART = 4 * GIB, 20, 4
# A server's own memory beside what it takes through CUDA, and some cached files; our choice, too.
_MIN_MEMORY_HIGH = 8 * GIB

_UNIFIED_MEMORY_TEXT = """\
# This GPU uses the memory of the system, and neither MemoryMax nor the OOM killer counts what CUDA allocates:
# gpu-memory-utilization alone bounds it, here to {budget}. MemoryHigh makes the kernel drop cached model files
# early: it is {high}, what {budget} and a reserve of {reserve} leave of {total} (/proc/meminfo), but at least 8 GiB.
MemoryHigh={bytes}
"""
_UNIT_TEXT = """\
# Written by `dflash-tui service`; run it again to change the options.
[Unit]
Description=vLLM with DFlash: {recipe} (dflash-tui)

[Service]
Type=exec
ExecStart=:{command}
{environment}# Tokens and keys (HF_TOKEN, VLLM_API_KEY) belong into this file, not here: NAME=value, chmod 600.
EnvironmentFile=-{secrets}

# {restarts}
# systemd must not: it would also restart after a wrong flag.
Restart=no

# SIGTERM goes to dflash-tui, which stops the server like `dflash-tui stop`; what is left after that is killed.
KillMode=mixed
TimeoutStopSec={patience}
# It was stopped before its server was launched.
SuccessExitStatus=143

# The OOM killer kills this server before sshd and your shell, and dflash-tui, which is smaller, after it.
OOMScoreAdjust=1000
# systemd must not stop the rest when one process is killed: dflash-tui reports it, and continues or exits.
OOMPolicy=continue
# {total} of memory (/proc/meminfo) less {reserve}, so that sshd survives.
MemoryMax={max}
{unified}# A server that swaps does not answer, and stalls the machine.
MemorySwapMax=0

[Install]
WantedBy=default.target
"""


class UnitMemory(msgspec.Struct, frozen=True):
    """The memory that the limits of a unit are computed from, in bytes."""

    total: int
    """The memory of the machine."""
    cuda: int | None = None
    """What vLLM allocates of it through CUDA; None where the GPU has memory of its own."""

    @property
    def reserve(self) -> int:
        """The memory that is left to all other programs."""
        return max(self.total // _MIN_RESERVE_PART, min(_RESERVE, self.total // _MAX_RESERVE_PART))


def unit_name(recipe: str) -> str:
    """Return the unit's name."""
    return f"dflash-tui-{recipe}.service"


def build_unit(
    recipe: str,
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    secrets: str,
    restarts: str,
    patience: int,
    memory: UnitMemory,
) -> str:
    """Return the text of the unit file that runs a recipe.

    Args:
        recipe: the name of the recipe.
        command: the command to run.
        environment: the variables to set.
        secrets: the path of the file with the variables that must not be in the unit.
        restarts: a sentence that says who restarts a failed server.
        patience: how many seconds a stop may take.
        memory: what the memory limits are computed from.
    """
    total, reserve = format_gib(memory.total), format_gib(memory.reserve)
    most = memory.total - memory.reserve
    unified = ""
    if memory.cuda is not None:
        high = min(max(most - memory.cuda, _MIN_MEMORY_HIGH), most)
        amounts = {"budget": format_gib(memory.cuda), "high": format_gib(high), "reserve": reserve, "total": total}
        unified = _UNIFIED_MEMORY_TEXT.format(**amounts, bytes=high)
    return _UNIT_TEXT.format(
        recipe=recipe,
        command=" ".join(map(quote_unit_word, command)),
        environment="".join(f"Environment={quote_unit_word(f'{key}={value}')}\n" for key, value in environment.items()),
        secrets=secrets.replace("%", "%%"),
        restarts=restarts,
        patience=patience,
        total=total,
        reserve=reserve,
        max=most,
        unified=unified,
    )


def quote_unit_word(word: str) -> str:
    """Quote a word of a command or of an environment for a unit file."""
    return word if _UNQUOTED.fullmatch(word) else f'"{"".join(map(_escape_character, word))}"'


def _escape_character(letter: str) -> str:
    if letter in {'"', "\\"}:
        return f"\\{letter}"
    if letter.isprintable():
        return letter.replace("%", "%%")
    code = ord(letter)
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
