"""vLLM's engine and worker processes that outlived their server."""

from __future__ import annotations

import os
from typing import NamedTuple

import psutil

from dflash_tui.machine import process_identity, processes

# How vLLM names the processes that a server starts, by setproctitle; the kernel keeps 15 letters of that. The server
# itself is VLLM::APIServer at most.
_STARTED = ("VLLM::EngineCor", "VLLM::Worker", "VLLM::DPCoordin")


class Orphan(NamedTuple):
    """An engine process whose server is gone: its pid, its name, and the resident bytes of it and its children.

    `born` is its identity (see `processes`), `port` one on which it listens: a forked engine has its server's socket.
    """

    pid: int
    name: str
    resident: int
    born: str = ""
    port: int | None = None


def find_orphans() -> list[Orphan]:
    """Return vLLM's engine and worker processes that outlived who started them.

    Who started one is in the same session. When that ends, init or another reaper (systemd --user, a container's
    init) adopts the process, and that is in a session of its own.
    """
    orphans = []
    for process in psutil.process_iter():
        try:
            title = (process.cmdline() or [""])[0]
            if title.startswith(_STARTED) and _adopted(process):
                family = (process, *process.children(recursive=True))
                born, port = process_identity.read_process_identity(process.pid), processes.find_listening_port(process)
                memory = processes.measure_resident_memory(family)
                orphans.append(Orphan(process.pid, title.strip(), memory, born, port))
        except (psutil.Error, OSError):
            continue
    return orphans


def _adopted(process: psutil.Process) -> bool:
    parent = process.parent()
    return parent is None or os.getsid(parent.pid) != os.getsid(process.pid)
