"""Put the lines of errors together: traceback, exception and a message of several lines, process by process. Pure.

The lines of several processes are mixed in one log. A source line of a traceback is never an error, whatever it says.
"""

from __future__ import annotations

import re
from collections import deque

from dflash_tui.events import Problem
from dflash_tui.vllm_output.known_failures import recognize_failure
from dflash_tui.vllm_output.nccl_log import is_information

MOST_FRAMES = 8
_MOST_LINES = 24
_MOST_CHARACTERS = 6000
_MOST_PROCESSES = 64
_EXCEPTION = re.compile(r"^(?:[A-Za-z_][\w]*\.)*[A-Z]\w*(?:Error|Exception|NotFound|Interrupt|Timeout|OutOfResources)"
                        r"(?:: .+)?$|^(?:\w+: )?Value error, |^Input should be ")  # fmt: skip
_RAISED = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:\[[^\]]*\])?(?:: |$)")
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")
_FRAME = re.compile(r'^ {0,3}File [\'"*<‹].+')
_SOURCE = re.compile(
    r"^ {4}|^\s*[\^~]+\s*$|^(?:raise|return|await|self\.|from|import|with|if|for|assert|yield)\b[^:]*[(.)=]"
)
# What torch adds to every error of CUDA, and the frames of its native code.
_ADDED = re.compile(r"CUDA kernel errors might be|For debugging consider passing|Compile with `TORCH_USE_CUDA_DSA`|"
                    r"Search for `cuda|frame #\d+: |other API call, so the stacktrace|https?://\S+$|Process \S+:$|"
                    r"\[repeated \d+x")  # fmt: skip


_WARNING_OF_TORCH = re.compile(r"\[[DIW]\d{3,4} [\d:.]+ ")


class _Place:
    """Where one process is: the frames of its traceback, and the error whose message may go on."""

    __slots__ = ("frames", "ignored", "lines", "problem", "source")

    def __init__(self, source: str) -> None:
        self.source = source
        self.frames: deque[str] = deque(maxlen=MOST_FRAMES)
        self.problem: Problem | None = None
        self.lines = 0
        self.ignored = False


class ErrorReader:
    """Reads the lines of one log that may tell of an error, and reports each error when its first line is there.

    Where a message goes on in the next line, the error is reported again with the longer text.
    """

    def __init__(self) -> None:
        self._places: dict[str, _Place] = {}

    @property
    def is_reading(self) -> bool:
        """Whether some process is within a traceback or a message."""
        return bool(self._places)

    def end_message(self, process: str) -> None:
        """Note that a process logs something else now."""
        self._places.pop(process, None)

    def read_line(self, process: str, source: str, body: str, at: float) -> tuple[Problem, ...]:
        """Return the error that a line of a process, logged by a source file, tells of, or nothing."""
        place = self._places.get(process)
        if place and place.source != source:  # another record
            self.end_message(process)
            place = None
        if body.startswith("    "):
            if place is None or place.ignored or place.problem is None:
                return ()
            return self._read_message(process, place, body, at)
        if "File" in body[:8] and _FRAME.match(body):
            place = place or self._enter(process, source)
            place.frames.append(body.strip())
            place.problem = None
        elif body.startswith("Traceback (most recent call last)"):
            self._enter(process, source).ignored = bool(place and place.ignored)
        elif body.startswith(_CHAINED):
            self.end_message(process)
        elif body.startswith("Exception ignored in"):
            self._enter(process, source).ignored = True
        else:
            return self._read_message(process, place or _Place(source), body, at)
        return ()

    def _read_message(self, process: str, place: _Place, body: str, at: float) -> tuple[Problem, ...]:
        text = body.strip()
        frames = tuple(place.frames)
        in_traceback = place.problem is None and bool(frames)
        headline = bool(_EXCEPTION.match(text)) or (in_traceback and bool(_RAISED.match(text)))
        if place.ignored and headline:
            self.end_message(process)
            return ()
        if in_traceback and not headline and _SOURCE.match(body):
            return ()
        if _WARNING_OF_TORCH.match(text) or is_information(text):
            return ()
        kind = recognize_failure(text, frames)
        if headline or kind:
            self._enter(process, place.source, place)
            place.problem, place.lines = Problem(at, text, kind, process, frames), 1
            return (place.problem,)
        if place.problem and (process or body[0] == " "):  # else anything may have written it
            return self._go_on(place, place.problem, text)
        self.end_message(process)
        return ()

    def _go_on(self, place: _Place, problem: Problem, text: str) -> tuple[Problem, ...]:
        place.lines += 1
        if place.lines > _MOST_LINES or len(problem.text) + len(text) > _MOST_CHARACTERS or _ADDED.match(text):
            return ()
        place.problem = Problem(problem.at, f"{problem.text}\n{text}", problem.kind, problem.process, problem.frames)
        return (place.problem,)

    def _enter(self, process: str, source: str, place: _Place | None = None) -> _Place:
        """Put a process to a place, without one to a fresh one, and return it."""
        self._places.pop(process, None)
        if len(self._places) >= _MOST_PROCESSES:
            self._places.pop(next(iter(self._places)))
        self._places[process] = place or _Place(source)
        return self._places[process]
