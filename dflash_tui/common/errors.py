"""Errors that a user can act on, with an exit code per class; Ctrl-C while watching exits with 130."""

from __future__ import annotations

import errno
import os


class DflashError(Exception):
    """The operation failed: `what` happened, the `evidence`, such as a line of a log, and a `hint` what to do.

    All three may quote text from outside: code that draws or prints them removes control characters.
    """

    exit_code = 1

    def __init__(self, what: str, *, evidence: str = "", hint: str = "") -> None:
        self.what, self.evidence, self.hint = what, evidence, hint
        super().__init__(self.what)

    def __str__(self) -> str:
        parts = [self.what]
        if self.evidence:
            parts.append(f"  {self.evidence}")
        if self.hint:
            parts.append(f"  → {self.hint}")
        return "\n".join(parts)


class UsageError(DflashError):
    """A flag, name or file that the user gave is wrong; nothing was started."""

    exit_code = 2


class RecipeError(UsageError):
    """A recipe or patch file is invalid; the message starts with `file:line: key`."""


class EngineError(DflashError):
    """A vLLM environment cannot be built or used."""

    exit_code = 3


class PreflightFailed(DflashError):
    """A check before the launch shows that it would fail; nothing was started."""

    exit_code = 4


class MemoryTaken(PreflightFailed):
    """The launch would fit, were its GPU's memory not used by others."""


class PatchError(DflashError):
    """A patch cannot be applied and is not applied already."""

    exit_code = 5


class ServerFailed(DflashError):
    """The server exited before it was ready, or failed while serving."""

    exit_code = 6


class OutputDiffers(DflashError):
    """A server's answers with and without speculation differ by more than rounding."""

    exit_code = 7


def explain_resource_limit(error: BaseException | None) -> DflashError | None:
    """Return an error for a thread, process or memory that the system refused; None for any other error."""
    if isinstance(error, BaseExceptionGroup):
        errors = [explain_resource_limit(member) for member in error.exceptions]
        return errors[0] if all(errors) else None
    if isinstance(error, MemoryError):
        return DflashError("the memory limit is reached", hint="`ulimit -v` shows the limit, `free -h` the free memory")
    # A refused thread has no error class of its own, and a refused fork raises BlockingIOError.
    thread = isinstance(error, RuntimeError) and "can't start new thread" in str(error)
    process = isinstance(error, BlockingIOError) and error.strerror == os.strerror(errno.EAGAIN)
    if not thread and not process:
        return None
    what = "the limit on processes or threads is reached"
    return DflashError(what, evidence=str(error), hint="`ulimit -u` shows the limit, `ps -u $USER` your processes")


def suggest_write_fix(error: OSError) -> str:
    """Return what to do about one of our files or folders that could not be written."""
    if error.errno in {errno.EROFS, errno.EACCES, errno.EPERM}:
        return "make the folder writable, or choose others with XDG_DATA_HOME, XDG_STATE_HOME and XDG_CONFIG_HOME"
    return "free space or fix permissions, and run the command again"
