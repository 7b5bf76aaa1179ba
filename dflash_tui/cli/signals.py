"""Handle SIGTERM and SIGHUP like Ctrl-C while a command has something to clean up."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """Let SIGTERM and SIGHUP interrupt the block like Ctrl-C, unless they are ignored, as by nohup.

    Raises:
        SystemExit: one of them ended it.
    """
    received: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        received.append(number)
        on_ctrl_c = signal.getsignal(signal.SIGINT)  # asyncio's cancels the task
        if not callable(on_ctrl_c):  # ignored, as in the background of a script
            raise SystemExit(128 + number)
        on_ctrl_c(number, frame)  # type: ignore[arg-type] # the frame is passed on

    numbers = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        if received:
            raise SystemExit(128 + received[0]) from None
        raise
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def ended_at_once() -> Iterator[None]:
    """Let the signals end a command at once within `ended_like_ctrl_c`, while nothing needs cleaning up."""
    heeded = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, signal.SIG_DFL) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
