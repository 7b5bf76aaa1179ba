"""Targets for files that a user was given or finds again: recordings as folders and archives, `run.json`."""

from __future__ import annotations

import contextlib
import io
import shutil
import zipfile
from argparse import Namespace
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from dflash_tui.cli import console
from dflash_tui.cli.commands import servers
from dflash_tui.common import paths
from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.monitoring import recording
from dflash_tui.monitoring.recording import LOG_PART, RUN_PART, SAMPLES_PART
from dflash_tui.runs import registry
from tests import DATA
from tests.fuzz.json_edits import EDITED, edited
from tests.fuzz.promises import assert_folds, assert_is_error, assert_plain, assert_prints_plain, scratch_folder

# Between the parts of a recording in one input; a recording without a first part has the one of the sample.
_CUT = b"\n=== \n"
_RUN = "20261121-010221-h200-gemma-4-26b-a4b"
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)


def recorded_folder(data: bytes) -> None:
    """The three parts of a recording, in a folder."""
    folder = scratch_folder() / "recorded"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    if data[:1] == bytes([EDITED]):
        samples, log = edited([_samples()], data[1:]).removeprefix(b"[").replace(b"}, {", b"}\n{"), b""
        record = edited(_records(), data[-30:])
    else:
        record, _, rest = data.partition(_CUT)
        log, _, samples = rest.partition(_CUT)
    parts = {RUN_PART: record or (paths.sample_folder() / RUN_PART).read_bytes(), LOG_PART: log, SAMPLES_PART: samples}
    for name, part in parts.items():
        (folder / name).write_bytes(part)
    _play(folder, most=8 * (data.count(b"\n") + data.count(b"\r")) + 100)


def archive(data: bytes) -> None:
    """A recording as one file: whatever is in it, it is played or refused, and not unpacked to more than it may be."""
    path = scratch_folder() / "recorded.zip"
    path.write_bytes(data)
    _play(path, most=1 << 20)


def _play(path: Path, most: int) -> None:
    """Read a recording and play it: plain events, not more than `most`, or one error."""
    try:
        read = recording.read_recording(path)
    except UsageError as error:
        assert_is_error(str(error), str(path))
        return
    assert_prints_plain(msgspec.json.encode(read).decode())
    assert read.born == ""  # no pid in it is taken for one of ours
    events = []
    try:
        for event in read.events():
            events.append(event)
            assert len(events) <= most
    except DflashError as error:
        assert_is_error(str(error), str(path))
    read.last_event_time()
    assert_folds(events)


def run(data: bytes) -> None:
    """A run.json among our runs: it is listed or named as one that cannot be read, and nothing is taken for alive."""
    folder = paths.runs_folder() / _RUN
    if not folder.is_dir():
        folder.mkdir(mode=0o700, parents=True)
        (folder / LOG_PART).write_bytes(b"INFO:     Application startup complete.\n")
    (folder / registry.RUN_FILE).write_bytes(edited(_records(), data[1:]) if data[:1] == bytes([EDITED]) else data)
    known, unknown = registry.list_runs(), registry.list_broken_runs()
    assert len(known) + len(unknown) == 1
    for each in known:
        assert each.url.startswith("http://")
        assert 1 < each.pid < 1 << 31
        assert registry.find_run(each.id) == each
    for as_json in (False, True):
        console.use_json(as_json)
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            assert (
                servers.ps(Namespace(command="runs", run="", program="", all=True, json=as_json, verbose=not as_json))
                == 0
            )
        assert_plain(out.getvalue() + err.getvalue())


def recording_seeds() -> Iterator[bytes]:
    """Yield parts of recordings of this and of earlier releases, short ones."""
    sample = paths.sample_folder()
    kept = sorted({path.parent for path in (DATA / "earlier" / "runs").glob(f"*/{RUN_PART}")})
    for folder in (sample, *kept[:2]):
        run_part, log, samples = ((folder / name).read_bytes() for name in (RUN_PART, LOG_PART, SAMPLES_PART))
        yield _CUT.join((run_part, log[:600], samples[:600]))
    yield _CUT.join((b"", b"", b"".join(msgspec.json.encode(event) + b"\n" for event in _samples())))
    yield bytes([EDITED, 0, 0, 9, 27])
    yield _CUT.join((b"", (sample / LOG_PART).read_bytes()[:1500], b""))


def archive_seeds() -> Iterator[bytes]:
    """Yield small archives, one for each method that packs them."""
    sample = paths.sample_folder()
    for method in _METHODS:
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", method) as file:
            for name in (RUN_PART, LOG_PART, SAMPLES_PART):
                file.writestr(name, (sample / name).read_bytes()[: 2000 if name == RUN_PART else 400])
        yield packed.getvalue()


def run_seeds() -> Iterator[bytes]:
    """Yield records of this and of earlier releases, all called alike, and what stands for edits of them."""
    yield from map(msgspec.json.encode, _records())
    yield from (bytes([EDITED, number, 0, 20, 27]) for number in range(len(_records())))


@cache
def _records() -> list[Any]:
    files = (paths.sample_folder() / RUN_PART, *sorted((DATA / "earlier" / "runs").glob(f"*/{RUN_PART}")))
    return [msgspec.json.decode(path.read_bytes()) | {"id": _RUN} for path in files]


@cache
def _samples() -> list[Any]:
    """Return one event of each kind and size that recordings hold."""
    files = (paths.sample_folder() / SAMPLES_PART, *sorted((DATA / "earlier" / "runs").glob(f"*/{SAMPLES_PART}")))
    lines = [msgspec.json.decode(line) for path in files for line in path.read_bytes().splitlines()]
    return [*{(line["event"], *line): line for line in lines}.values()]
