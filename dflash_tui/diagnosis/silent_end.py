"""What a server waits for whose log ends without an error before it is up: its last line of vLLM tells. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from dflash_tui.events import LogLine

_STOPPED = re.compile(r"resource_tracker|warnings\.warn|\[c10d\]|return func\(|Warning: ")


class Wait(NamedTuple):
    """What a server waits for and logs nothing of: its name, the last line before, why, and what to do."""

    kind: str
    pattern: re.Pattern[str]
    cause: str
    fix: str


_WAITS = tuple(
    Wait(kind, re.compile(pattern), cause, fix)
    for kind, pattern, cause, fix in (
        ("waits_for_ranks", r"world_size=(?!1\b)\d+ rank=\d+ .*distributed_init_method=tcp://(?!127\.|localhost)",
         "the log ends while the server waits for the other ranks: one was not started, or cannot be reached",
         "Start every rank with the same --master-addr and --master-port, and open the ports between the machines; the "
         "wait ends after --distributed-timeout-seconds (30 minutes by default)."),
        ("waits_for_nccl", r"vLLM is using nccl==|CustomAllreduce is disabled|CPU SHM communicator disabled|NCCL INFO",
         "the log ends while GPUs or machines begin to talk to each other (NCCL), which hangs",
         "Set VLLM_HOST_IP on each machine to an address that the others reach, NCCL_SOCKET_IFNAME and "
         "GLOO_SOCKET_IFNAME "
         "to that network; on one machine try NCCL_P2P_DISABLE=1 and --disable-custom-all-reduce. NCCL_DEBUG=INFO "
         "shows more."),
        ("waits_for_ray", r"Waiting for creating a placement group|No available node types can fulfill",
         "the log ends while Ray looks for the GPUs that the command asks for",
         "See ray status: join the other machines, and set VLLM_HOST_IP to the address that Ray knows each by."),
        ("waits_for_worker", r"No available shared memory broadcast block found in",
         "a worker does not answer: it hangs, or it compiles for a long time",
         "Look at the worker with py-spy dump, and at its log; eager mode shows whether it compiles."),
    )
)  # fmt: skip


def find_wait(lines: Iterable[LogLine]) -> tuple[Wait, str] | None:
    """Return what a server waits for by the last line that says something, with that line; None for nothing known."""
    telling = [line.text for line in lines if line.level and not _STOPPED.search(line.text)][-1:]
    return next(((wait, text) for text in telling for wait in _WAITS if wait.pattern.search(text)), None)
