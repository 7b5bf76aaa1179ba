"""Export a run as one file for `replay`, without access tokens, prompts, answers and the path of the home folder.

They may occur in the flags and variables of the launch, and in the log. vLLM logs prompts and answers only when asked
to (`--enable-log-requests`, `--enable-log-outputs`, `VLLM_LOGGING_LEVEL=DEBUG`).
"""

from __future__ import annotations

import re
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from dflash_tui.common import paths
from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.sanitizer import clean_text
from dflash_tui.common.secrets import LEFT_OUT, redact_argv, redact_prompts, redact_secrets, redact_variables
from dflash_tui.events import Exited, encode
from dflash_tui.monitoring import recording
from dflash_tui.monitoring.recording import LOG_PART, RUN_PART, SAMPLES_PART
from dflash_tui.runs import server_process
from dflash_tui.runs.run import Run

_CHUNK = 1 << 20
_LINE_ENDS = re.compile(rb"(?<=[\r\n])")


def export_run(run: Run, output: str | None = None, *, with_prompts: bool = False) -> Path:
    """Write `run` into a zip file and return its path: `output`, or the run's name here.

    Raises:
        UsageError: the file already exists.
        DflashError: it cannot be written.
    """
    path = paths.expand_home(output or f"{run.id}.zip").absolute()
    temporary = path.with_name(f".{path.name}.{time.time_ns()}")
    if path.exists():
        raise UsageError(f"{path} already exists", hint="choose another file with -o")
    try:
        with temporary.open("xb") as file:
            _write_archive(zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=6), run, with_prompts)
        temporary.rename(path)
    except OSError as error:
        raise DflashError(f"{path} cannot be written", evidence=error.strerror or str(error)) from None
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _write_archive(archive: zipfile.ZipFile, run: Run, with_prompts: bool) -> None:
    """Write the parts of a run and close the archive; one that is given up is left open, for its file to be deleted."""
    try:
        archive.writestr(RUN_PART, msgspec.json.format(msgspec.json.encode(_redact_run(run)), indent=1))
        for name, lines in (
            (LOG_PART, _redact_log(run, with_prompts=with_prompts)),
            (SAMPLES_PART, _redact_samples(run)),
        ):
            with archive.open(name, "w", force_zip64=True) as member:
                for line in lines:
                    member.write(line)
        archive.close()
    except BaseException:
        archive.fp = None  # closing it raises where a signal came as a part was opened
        raise


def _redact_text(text: str) -> str:
    """Return clean `text` without secrets, and with ~ for the home folder."""
    text, home = redact_secrets(text), str(Path.home())
    return text.replace(home, "~") if len(home) > 1 else text


def _redact_run(run: Run) -> Any:
    """Return the content of `run.json` as JSON data without secrets."""
    fields = _redact_value(msgspec.to_builtins(run))
    # A flag may carry a secret as the next word, and a variable's name tells what its value is.
    fields["plan"]["argv"] = redact_argv(fields["plan"]["argv"])
    fields["plan"]["env"] = redact_variables(fields["plan"]["env"])
    return fields | {"born": ""}


def _redact_value(value: Any) -> Any:
    if isinstance(value, str):
        return _redact_text(clean_text(value))
    if isinstance(value, list | tuple):
        return [_redact_value(item) for item in value]
    return {key: _redact_value(item) for key, item in value.items()} if isinstance(value, dict) else value


def _redact_log(run: Run, *, with_prompts: bool) -> Iterator[bytes]:
    for line in _read_log_lines(run.log):
        text = _clean_line(line)
        redacted = _redact_text(text if with_prompts else redact_prompts(text))
        yield redacted.encode("utf-8", "surrogateescape") + line[len(line.rstrip(b"\r\n")) :]


def _clean_line(line: bytes) -> str:
    """Return a line without its end, clean; of one that was cut nothing that may be half a word."""
    body = line.rstrip(b"\r\n")
    text, overlong = body.decode("utf-8", "surrogateescape"), len(body) > _CHUNK
    text = clean_text(text, len(text) - overlong)
    return f"{text.rpartition(' ')[0]} {LEFT_OUT}" if overlong else text


def _read_log_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a log with their ends; of a line above a MiB only its beginning, of more than that.

    Whether a text is a secret or a prompt depends on what precedes it, and no reader of a log shows more of a line.
    """
    beginning, overlong = b"", False
    for piece in _read_lines(path):
        *lines, beginning = _LINE_ENDS.split(beginning + piece)
        for line in lines:
            if not overlong:
                yield line
            overlong = False
        if overlong:
            beginning = b""
        elif overlong := len(beginning) > _CHUNK:
            yield beginning[: _CHUNK + 1] + b"\n"
    if not overlong:
        yield beginning


def _redact_samples(run: Run) -> Iterator[bytes]:
    exited = False
    for line in _read_lines(run.samples):
        try:
            event = msgspec.json.decode(line)
            redacted = msgspec.json.encode(_redact_value(event))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue  # half-written, or none of ours
        exited = exited or (isinstance(event, dict) and event.get("event") == "exited")
        yield redacted + b"\n"
    if not exited and not server_process.is_alive(run):  # only this machine can tell, and no observer recorded it
        yield encode(Exited(recording.open_recording(run).last_event_time(), None)) + b"\n"


def _read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file with their ends, a very long one in pieces; there may be no file."""
    try:
        with path.open("rb") as file:
            yield from iter(lambda: file.readline(_CHUNK), b"")
    except FileNotFoundError:
        return
