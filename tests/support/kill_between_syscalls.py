"""Runs work in a process that is killed between two of its system calls, by ptrace(2)."""

import ctypes
import os
import signal
from collections.abc import Callable

_TRACEME, _SYSCALL, _SETOPTIONS = 0, 24, 0x4200
_SYSGOOD, _EXITKILL = 1, 1 << 20
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def _ptrace(request: int, pid: int, data: int = 0) -> None:
    if _libc.ptrace(request, pid, None, data) == -1:
        raise OSError(ctypes.get_errno(), "ptrace")


def _begin() -> None:
    _ptrace(_TRACEME, 0)
    os.kill(os.getpid(), signal.SIGSTOP)


def killed_at(work: Callable[[Callable[[], None]], object], stop: int) -> bool:
    """Run `work` in a child that is killed at the `stop`-th entry to or return from the kernel after it says so.

    `work` is given what it calls to begin the counting. Returns False when it ended by itself before; then its exit
    must have been a good one.
    """
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work(_begin)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), "it ended before it began the counting"
    _ptrace(_SETOPTIONS, pid, _SYSGOOD | _EXITKILL)
    for _ in range(stop):
        _ptrace(_SYSCALL, pid)
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            return False
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return True
