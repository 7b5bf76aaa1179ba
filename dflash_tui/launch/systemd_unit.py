"""A launch as a unit of `systemd --user`: the text of the file. Pure.

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
# What the system keeps for itself, sshd and a shell: our choice, not a measurement.
_RESERVE, _MIN_RESERVE_PART, _MAX_RESERVE_PART = 4 * GIB, 20, 4
# A server's own memory beside what it takes through CUDA, and some cached files; our choice, too.
_MIN_MEMORY_HIGH = 8 * GIB

_UNIFIED_MEMORY_TEXT = """\
# On this GPU CUDA's memory is the system's, and neither MemoryMax nor the kernel's choice of whom to kill counts it:
# gpu-memory-utilization alone bounds it, here to {budget}. MemoryHigh has the cached files of the models given back
# early: it is {high}, what {budget} and a reserve of {reserve} leave of {total} (/proc/meminfo), but 8 GiB at least.
MemoryHigh={bytes}
"""
_UNIT_TEXT = """\
# Written by `dflash-tui service`; write it anew to change its options.
[Unit]
Description=vLLM with DFlash: {recipe} (dflash-tui)

[Service]
Type=exec
ExecStart=:{command}
{environment}# Tokens and keys (HF_TOKEN, VLLM_API_KEY) do not belong here, but into this file: NAME=value, chmod 600.
EnvironmentFile=-{secrets}

# {restarts}
# systemd does not: it would also do so where the cause is a wrong flag.
Restart=no

# SIGTERM goes to dflash-tui, which stops the server as `dflash-tui stop` does; what is left after that is killed.
KillMode=mixed
TimeoutStopSec={patience}
# It was ended before its server was launched.
SuccessExitStatus=143

# The kernel takes this server before sshd and your shell, and dflash-tui, which is smaller, after it.
OOMScoreAdjust=1000
# One killed process is no reason for systemd to stop the rest: dflash-tui says what died, and goes on or ends.
OOMPolicy=continue
# {total} of memory (/proc/meminfo) less {reserve}, so that sshd survives.
MemoryMax={max}
{unified}# A server that swaps answers nobody, and stalls the machine.
MemorySwapMax=0

[Install]
WantedBy=default.target
"""


class UnitMemory(msgspec.Struct, frozen=True):
    """The machine's memory, and what vLLM takes of it through CUDA where the GPU has none of its own; bytes."""

    total: int
    cuda: int | None = None

    @property
    def reserve(self) -> int:
        """What is left to everything else."""
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
    """Return the unit that runs `command` for `recipe`.

    `secrets` is the path of the file with the variables that must not be shown, `restarts` a sentence about who
    launches a dead server again, `patience` how many seconds a stop may take.
    """
    total, reserve = format_gib(memory.total), format_gib(memory.reserve)
    most = memory.total - memory.reserve
    unified = ""
    if memory.cuda is not None:
        high = min(max(most - memory.cuda, _MIN_MEMORY_HIGH), most)
        said = {"budget": format_gib(memory.cuda), "high": format_gib(high), "reserve": reserve, "total": total}
        unified = _UNIFIED_MEMORY_TEXT.format(**said, bytes=high)
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


def quote_unit_word(given: str) -> str:
    """Return a word of a command or of an environment as a unit file has it."""
    return given if _UNQUOTED.fullmatch(given) else f'"{"".join(map(_escape_character, given))}"'


def _escape_character(letter: str) -> str:
    if letter in {'"', "\\"}:
        return f"\\{letter}"
    if letter.isprintable():
        return letter.replace("%", "%%")
    code = ord(letter)
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
