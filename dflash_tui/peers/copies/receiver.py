"""The far side of a copy: `dflash-tui agent --receive` reads a manifest and the bytes of its files from stdin.

It answers with what is there, takes exactly the bytes that are missing, and gives a file its name when its hash is
right. When stdin ends before, what came stays under its temporary name, and the next copy goes on from there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.formatting import format_gigabytes, truncate
from dflash_tui.peers import messages
from dflash_tui.peers.copies import places
from dflash_tui.peers.copies.manifest import CopyFile, Manifest
from dflash_tui.peers.copies.places import CopyPlace
from dflash_tui.peers.messages import Done, Refused, RoomFound

PIECE = 1 << 20
RESERVE = 1_000_000_000
"""Bytes that stay free on a disk."""
# The other side may compute the hash of what was sent before, which takes a minute for the largest files.
PATIENCE = 120.0
# The process of a copy that was cut ends when its connection does.
_LOCK_SECONDS = 45.0
_SHA256_BYTES = 32


class CutShort(Exception):
    """The other side is gone, or says nothing for long."""


class _Input:
    """What comes on a descriptor, a line or so many bytes at a time."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._ahead = descriptor, b""
        with suppress(OSError):  # a socket, or a limit of this user
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIECE)

    def read(self, most: int) -> bytes:
        """Return the next bytes, some and at most so many."""
        if self._ahead:
            data, self._ahead = self._ahead[:most], self._ahead[most:]
            return data
        if not select.select([self._descriptor], [], [], PATIENCE)[0]:
            raise CutShort
        if not (data := os.read(self._descriptor, min(most, PIECE))):
            raise CutShort
        return data

    def read_exactly(self, count: int) -> bytes:
        """Return the next so many bytes."""
        data = b""
        while len(data) < count:
            data += self.read(count - len(data))
        return data

    def read_line(self) -> bytes:
        """Return the first line; what follows is kept."""
        data = b""
        while b"\n" not in data:
            if len(data) > messages.LONGEST_LINE:
                raise UsageError("no manifest came")
            data += self.read(PIECE)
        line, _, self._ahead = data.partition(b"\n")
        return line


def receive_copy(descriptor: int, write: Callable[[bytes], None]) -> int:
    """Receive the files of one model; return the exit code.

    Args:
        descriptor: where the manifest comes from, and then the bytes.
        write: takes each message as a line.
    """
    try:
        source = _Input(descriptor)
        manifest = messages.decode_manifest(source.read_line())
        if manifest is None:
            raise UsageError("no manifest came")
        _receive(manifest, source, write)
        write(messages.encode_line(Done(0)))
    except CutShort:
        return 1
    except DflashError as error:
        write(messages.encode_line(_refuse(error)))
        return error.exit_code
    except OSError as error:
        write(messages.encode_line(_refuse(explain_write_error(error))))
        return 1
    return 0


def describe_room(number: int, manifest: Manifest) -> RoomFound:
    """Return what of a model is here, and the room for the rest, as the answer to a command.

    Raises:
        UsageError: a name leads out of its place.
        OSError: the disk cannot be looked at.
    """
    place = places.find_place(manifest)
    offsets = places.measure_offsets(place, manifest.files)
    return RoomFound(number, offsets, places.measure_free(place), place.is_done())


def explain_write_error(error: OSError) -> DflashError:
    """Return an error with what to do for one by which a file could not be written here."""
    again = "and run the same command again: the copy resumes where it stopped"
    if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
        hint = f"free some space there, or put the folders elsewhere with HF_HOME and XDG_DATA_HOME, {again}"
        return DflashError("the disk for the models is full", evidence=str(error), hint=hint)
    if error.errno in {errno.ELOOP, errno.EINVAL, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}:
        hint = f"remove what lies there, {again}"
        return DflashError("something else lies where a file of the model belongs", evidence=str(error), hint=hint)
    hint = f"make the folder writable, or choose others with HF_HOME and XDG_DATA_HOME, {again}"
    return DflashError("a file of the model cannot be written", evidence=str(error), hint=hint)


def require_room(missing: int, free: int) -> None:
    """Raise when so many bytes do not fit into the free ones, with a reserve.

    Raises:
        DflashError: with both.
    """
    if free < missing + RESERVE:
        what = f"not enough disk space: {format_gigabytes(missing)} to copy, {format_gigabytes(RESERVE)} to stay free"
        hint = "free some space there, or put the folders elsewhere with HF_HOME and XDG_DATA_HOME"
        raise DflashError(what, evidence=f"{format_gigabytes(free)} free there", hint=hint)


def _receive(manifest: Manifest, source: _Input, write: Callable[[bytes], None]) -> None:
    place = places.find_place(manifest)
    with _hold_lock(place):
        room = describe_room(0, manifest)
        require_room(places.count_missing(manifest.files, room.offsets), room.free)
        write(messages.encode_line(room))
        if room.is_done:
            return
        for file, offset in zip(manifest.files, room.offsets, strict=True):
            if offset is not None:
                _receive_file(place, file, offset, source)
        place.finish()


@contextmanager
def _hold_lock(place: CopyPlace) -> Iterator[None]:
    """Hold the lock of a place; the process of a copy that was cut lets go of it soon.

    Raises:
        DflashError: another process goes on to hold it.
    """
    path = place.lock_path()
    place.ensure_folder(path.parent)
    with places.open_part(path, place.file_mode) as lock:
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    hint = "wait for it, and run the same command again"
                    raise DflashError("another process writes this model", evidence=str(path), hint=hint) from None
            time.sleep(0.2)
        yield


def _receive_file(place: CopyPlace, file: CopyFile, offset: int, source: _Input) -> None:
    """Take the bytes of a file from `offset` on, and give it its name.

    Raises:
        DflashError: its hash is another one; what came was removed.
    """
    part, path = place.part_path(file), place.file_path(file)
    place.ensure_folder(part.parent)
    place.ensure_folder(path.parent)
    with places.open_part(part, place.file_mode) as out:
        digest = _receive_bytes(out, file, offset, source)
        os.fsync(out.fileno())
    if digest != (file.digest or source.read_exactly(_SHA256_BYTES).hex()):
        part.unlink()
        raise DflashError(
            f"{file.name} did not arrive as it is, by its hash",
            evidence=f"{offset} bytes of an earlier copy, then {file.size - offset}",
            hint="run the same command again; what came was removed. If it happens again, the file itself is damaged: "
            "remove it on the host that sends it, so that it is fetched again",
        )
    part.replace(path)


def _receive_bytes(out: BinaryIO, file: CopyFile, offset: int, source: _Input) -> str:
    """Write the bytes of a file from `offset` on, and return the digest of all."""
    hashed, position = places.start_hash(file), 0
    while position < offset:
        if not (data := out.read(min(PIECE, offset - position))):
            raise DflashError(f"{file.name} became shorter meanwhile", hint="run the same command again")
        hashed.update(data)
        position += len(data)
    out.truncate(offset)
    while position < file.size:
        data = source.read(file.size - position)
        hashed.update(data)
        position += len(data)
        while data:
            data = data[out.write(data) or 0 :]
    return hashed.hexdigest()


def _refuse(error: DflashError) -> Refused:
    what, evidence, hint = (truncate(text, 2000) for text in (error.what, error.evidence, error.hint))
    return Refused(0, what, evidence, hint, error.exit_code)


def serve_stdin() -> int:
    """Receive one copy on stdin, with answers on stdout; return the exit code."""
    output = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what anything else prints is no message
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def write(line: bytes) -> None:
        while line:
            try:
                line = line[os.write(output, line) :]
            except BlockingIOError:
                select.select([], [output], [], PATIENCE)

    try:
        return receive_copy(sys.stdin.fileno(), write)
    except BrokenPipeError:
        return 1
