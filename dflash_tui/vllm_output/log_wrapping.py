"""Take away what containers, services and clusters put around the lines of a server's log. Pure.

What wraps a log is told from its first lines: compose's `vllm-1  | `, the stamps of docker and Kubernetes, journalctl's
host and unit, Docker's own files of JSON, one within the other; else whatever has the same shape before vLLM's stamps.
Anybody may have written the log, and a line may have a megabyte: no pattern looks back and forth in it.
"""

from __future__ import annotations

import re
from collections import Counter

import msgspec

_ANSI = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
_STAMP = rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)"
_WRAPPERS = tuple(
    re.compile(rb"(?m)^" + pattern)
    for pattern in (
        rb"[\w.-]+ +\| ?",  # docker compose
        rb"(?:[A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d|" + _STAMP + rb") [\w.-]+ [\w./@-]+\[\d+\]: ",  # journalctl
        _STAMP + rb" (?:std(?:out|err) [FP] )?",  # docker logs -t, kubectl logs --timestamps, files of containerd
        rb"\[(?:pod/)?[\w.-]+(?:/[\w.-]+)+\] ",  # kubectl logs --prefix
        rb"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?\]:? ",  # stamps of other loggers
        rb" *+\[? *+(?:\d+:\d\d:\d\d|\d+(?=\.\d))(?:[.,]\d+)?\]?:? ",  # seconds since the start, as of ts -s
        rb" *\d{1,4}: ",  # srun --label
        rb"> ?",  # a quotation
    )
)
_OWN = re.compile(
    rb"(?:\([^()\n]{0,80}pid=\d+[^()\n]{0,80}\) ?|\[rank\d+\]: ?)*"
    rb"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d "
)
_LONGEST_HEAD = 80
_JSON = re.compile(rb'^\{"log":"')
_SAMPLE_LINES = 300
_MOST_WRAPPERS = 4
_LEAST_SHARE = 0.6
_MOST_COLORS = 16


class _Entry(msgspec.Struct, frozen=True, gc=False):
    log: str


_decode_entry = msgspec.json.Decoder(_Entry).decode


class Unwrapper:
    """Takes the wrapping of one log away, piece by piece; every piece ends with a whole line."""

    def __init__(self) -> None:
        self._wrappers: tuple[re.Pattern[bytes], ...] | None = None
        self._is_json = False
        self._colors: tuple[bytes, ...] = ()  # a log has a few, and to replace each takes less than to match them

    def unwrap(self, lines: bytes) -> bytes:
        """Return the lines as the server wrote them."""
        lines = self._take_colors_away(lines)
        if self._wrappers is None:
            self._is_json = _share_of(_JSON, _sample(lines)) >= _LEAST_SHARE
        if self._is_json:
            lines = b"\n".join(_read_json_line(line) for line in lines.split(b"\n"))
        if self._wrappers is None:
            self._wrappers = _find_wrappers(lines)
        for wrapper in self._wrappers:
            lines = _take_away(wrapper, lines)
        return lines

    def _take_colors_away(self, lines: bytes) -> bytes:
        for color in self._colors:
            lines = lines.replace(color, b"")
        if b"\x1b" not in lines:
            return lines
        self._colors = tuple(dict.fromkeys((*self._colors, *_ANSI.findall(lines))))[:_MOST_COLORS]
        return _ANSI.sub(b"", lines)


def _sample(lines: bytes) -> list[bytes]:
    return [line for line in lines[: 1 << 17].split(b"\n")[:_SAMPLE_LINES] if line.strip()]


def _share_of(pattern: re.Pattern[bytes], lines: list[bytes]) -> float:
    return sum(bool(pattern.match(line)) for line in lines) / max(1, len(lines))


def _find_wrappers(lines: bytes) -> tuple[re.Pattern[bytes], ...]:
    """Return what most of the first lines begin with, the outermost first."""
    sample, wrappers = _sample(lines), []
    for _ in range(_MOST_WRAPPERS):
        wrapper = next((wrapper for wrapper in _WRAPPERS if _share_of(wrapper, sample) >= _LEAST_SHARE), None)
        if wrapper is None:
            break
        wrappers.append(wrapper)
        sample = [wrapper.sub(b"", line) for line in sample]
    return (*wrappers, *_find_unknown_wrapper(sample))


def _find_unknown_wrapper(sample: list[bytes]) -> tuple[re.Pattern[bytes], ...]:
    """Return what nobody knows and most lines have before vLLM's own stamp: the same but for numbers and blanks."""
    heads = [line[: own.start()] for line in sample if (own := _OWN.search(line))]
    shapes = Counter(_describe_shape(head) if head else b"" for head in heads if len(head) <= _LONGEST_HEAD)
    shape, count = shapes.most_common(1)[0] if shapes else (b"", 0)
    wrapper = re.compile(rb"(?m)^" + shape)
    is_common = count >= _LEAST_SHARE * len(heads) and _share_of(wrapper, sample) >= _LEAST_SHARE
    return (wrapper,) if shape and is_common else ()


def _describe_shape(head: bytes) -> bytes:
    """Return a pattern of what has other numbers and blanks; numbers may be set flush right."""
    if head.isspace():
        return head
    inner = re.sub(rb"\d+(?:\\?[.:,/-]\d+)*", lambda _: rb"\d++(?:[.:,/-]\d++)*+", re.escape(head.strip()))
    inner = re.sub(rb"(?:\\?[ \t])+", lambda _: rb"[^\S\n]++", inner)
    return rb"[^\S\n]*+" + inner + head[len(head.rstrip()) :]  # the blanks after that may be of a traceback


def _take_away(wrapper: re.Pattern[bytes], lines: bytes) -> bytes:
    """Return lines without their wrapping, which mostly is the same before each of them."""
    first = wrapper.match(lines)
    begin = first[0] if first else b""
    if begin.endswith(b" ") and lines.endswith(b"\n") and lines.count(b"\n" + begin) + 1 == lines.count(b"\n"):
        return lines[len(begin) :].replace(b"\n" + begin, b"\n")
    return wrapper.sub(b"", lines)


def _read_json_line(line: bytes) -> bytes:
    """Return the text of a line of Docker's own log file; another line as it is."""
    try:
        return _decode_entry(line).log.rstrip("\n").encode(errors="replace")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return line
