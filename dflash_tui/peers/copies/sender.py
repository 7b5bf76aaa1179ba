"""The near side of a copy: sends the files that another host lacks to its `dflash-tui agent --receive`, over ssh."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import select
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO

from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.line_buffer import LineBuffer
from dflash_tui.common.sanitizer import clean_end
from dflash_tui.engines.byte_progress import ByteProgress
from dflash_tui.events import Preparing
from dflash_tui.machine.process_environment import OPENSSH, build_helper_environment, build_own_environment
from dflash_tui.peers import messages, transport
from dflash_tui.peers.copies import places
from dflash_tui.peers.copies.manifest import CopyFile
from dflash_tui.peers.copies.receiver import PIECE
from dflash_tui.peers.copies.sources import CopySource
from dflash_tui.peers.messages import AgentMessage, Done, Refused, RoomFound
from dflash_tui.peers.transport import LinkAddress
from dflash_tui.planning.cluster.hosts import LOCAL

AGAIN = "run the same command again: the copy resumes where it stopped"
# It may wait for the process of a copy that was cut.
_ROOM_SECONDS = 90.0
_MOST_SECONDS = 24 * 3600.0
# The last bytes may wait for a slow disk, or to be compared.
_END_SECONDS = 900.0
_INTERVAL = 0.5
_CLOSE_SECONDS = 5.0
_ERRORS_KEPT = 4096
_MOST_OUTPUT = 1 << 20


class NotReached(DflashError):
    """The process on the other host that takes a copy is not there, or not any more."""

    is_begun = False
    """Whether it answered before."""


class _Transfer:
    """One copy under way: the process of ssh, what it says, and how many bytes it took."""

    def __init__(self, host: str, process: asyncio.subprocess.Process, output: BinaryIO) -> None:
        self.host, self.sent, self.is_begun = host, 0, False
        self._process, self._output, self._is_closed = process, output, False
        self._buffer, self._lines, self._read_bytes = LineBuffer(messages.LONGEST_LINE), deque[bytes](), 0
        self._errors = asyncio.create_task(self._read_errors())
        self._writing: asyncio.Task[None] | None = None

    def start_writing(self, pieces: Iterable[bytes]) -> asyncio.Task[None]:
        """Let a thread write what is sent, which waits for the other side; it ends when ssh does."""
        self._writing = asyncio.create_task(asyncio.to_thread(self._write, pieces))
        return self._writing

    def _write(self, pieces: Iterable[bytes]) -> None:
        with contextlib.suppress(BrokenPipeError):  # why it ended is read
            for piece in pieces:
                unsent = memoryview(piece)
                while unsent and not self._is_closed:
                    if select.select([], [self._output], [], _INTERVAL)[1]:
                        written = self._output.write(unsent) or 0
                        unsent, self.sent = unsent[written:], self.sent + written
                if self._is_closed:
                    return

    async def receive(self, timeout: float) -> AgentMessage:
        """Return the next message.

        Raises:
            DflashError: the other side refuses, says nothing, or is gone.
        """
        try:
            message = await asyncio.wait_for(self._read_message(), timeout)
        except TimeoutError:
            raise DflashError(f"{self.host} has not answered for {timeout:.0f} s", hint=AGAIN) from None
        if message is None:
            error = transport.explain_end(self.host, await self._process.wait(), await self._errors)
            hint = f"{AGAIN}; {error.hint}" if self.is_begun else error.hint
            lost = NotReached(error.what, evidence=error.evidence, hint=hint)
            lost.is_begun = self.is_begun
            raise lost
        if isinstance(message, Refused):
            kind = UsageError if message.exit_code == UsageError.exit_code else DflashError
            raise kind(f"{self.host}: {message.what}", evidence=message.evidence, hint=message.hint)
        return message

    async def _read_message(self) -> AgentMessage | None:
        while True:
            while self._lines:
                if message := messages.decode_message(self._lines.popleft()):
                    self.is_begun = True
                    return message
            data = await self._process.stdout.read(1 << 16) if self._process.stdout else b""
            self._read_bytes += len(data)
            if self._read_bytes > _MOST_OUTPUT:
                hint = f"see what its login prints: ssh {self.host} true"
                raise DflashError(f"{self.host} writes output without end", hint=hint)
            if not data:
                return None
            self._lines.extend(self._buffer.feed(data))

    async def _read_errors(self) -> str:
        tail = b""
        while self._process.stderr and (data := await self._process.stderr.read(1 << 16)):
            tail = (tail + data)[-_ERRORS_KEPT:]
        return clean_end(tail)

    async def close(self) -> None:
        """End ssh, by which the other side learns that nothing more comes, and the thread that writes to it."""
        self._is_closed = True
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        if self._writing:
            await asyncio.gather(self._writing, return_exceptions=True)
        self._output.close()
        ended = asyncio.gather(self._drain(), self._errors, self._process.wait())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended, _CLOSE_SECONDS)

    async def _drain(self) -> None:
        while self._process.stdout and await self._process.stdout.read(1 << 16):
            pass


async def send_copy(
    host: str, link: LinkAddress | None, source: CopySource, report: Callable[[Preparing], None], way: str = "by ssh"
) -> None:
    """Send the files of a model that `host` lacks; cancelling ends it on both sides, and it can be resumed.

    Args:
        host: as ssh calls it.
        link: the addresses to use; None for those that ssh is configured for.
        source: the model.
        report: called with each event.
        way: which way it goes, for the events.

    Raises:
        NotReached: nobody answered there, or the connection ended.
        DflashError: the other host refused, or a file changed meanwhile.
    """
    async with _start(host, link) as transfer:
        await transfer.start_writing([messages.encode_line(source.manifest)])
        room = await transfer.receive(_ROOM_SECONDS)
        files = source.manifest.files
        if not isinstance(room, RoomFound) or not is_answer(room, files):
            raise DflashError(f"{host} sent an unexpected answer", hint=AGAIN)
        before = source.size - places.count_missing(files, room.offsets)
        progress, transfer.sent = ByteProgress(source.title, source.size, before, report, way), 0
        writing = transfer.start_writing(_read_pieces(source, room.offsets))
        ending = asyncio.create_task(transfer.receive(_MOST_SECONDS))
        try:
            while not (ending.done() or writing.done()):
                progress.report(min(before + transfer.sent, source.size))
                await asyncio.wait({ending, writing}, timeout=_INTERVAL, return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                await writing
            if not isinstance(await asyncio.wait_for(ending, _END_SECONDS), Done):
                raise DflashError(f"{host} sent an unexpected answer", hint=AGAIN)
        except TimeoutError:
            raise DflashError(f"{host} has not said that all arrived", hint=AGAIN) from None
        finally:
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)
        progress.finish("copied")


def is_answer(room: RoomFound, files: Sequence[CopyFile]) -> bool:
    """Whether it says of each file from which byte on it is needed."""
    return len(room.offsets) == len(files) and all(
        offset is None or offset <= file.size for file, offset in zip(files, room.offsets, strict=True)
    )


def _read_pieces(source: CopySource, offsets: Sequence[int | None]) -> Iterator[bytes]:
    """Yield the bytes that are missing, and after a file whose hash is not its name in the cache its SHA-256.

    Raises:
        DflashError: a file changed meanwhile.
    """
    for file, path, offset in zip(source.manifest.files, source.paths, offsets, strict=True):
        if offset is None:
            continue
        with _open_source(path) as data:
            began, hashed, position = os.fstat(data.fileno()), hashlib.sha256(), 0
            if file.digest:
                position = data.seek(offset)
            while position < file.size:
                piece = data.read(min(PIECE, (offset if position < offset else file.size) - position))
                if not piece:
                    break
                position += len(piece)
                if not file.digest:
                    hashed.update(piece)
                if position > offset:
                    yield piece
            ended = os.fstat(data.fileno())
        if position != file.size or (began.st_mtime_ns, ended.st_size) != (ended.st_mtime_ns, file.size):
            raise DflashError(f"{path} changed while it was copied", hint="run the same command again when it is done")
        if not file.digest:
            yield hashed.digest()


def _open_source(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise DflashError(f"{path} cannot be read", evidence=str(error), hint="make it readable") from None


@asynccontextmanager
async def _start(host: str, link: LinkAddress | None) -> AsyncIterator[_Transfer]:
    """Start what takes a copy on `host`.

    Raises:
        UsageError: ssh cannot be started.
    """
    command = transport.build_receive_command(host, link)
    env = build_own_environment() if host == LOCAL else build_helper_environment(OPENSSH)
    pipe = asyncio.subprocess.PIPE
    reading, writing = os.pipe()
    with contextlib.suppress(OSError):  # a limit of this user
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIECE)
    os.set_blocking(writing, False)
    output = os.fdopen(writing, "wb", buffering=0)
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=reading, stdout=pipe, stderr=pipe, env=env, cwd="/", start_new_session=True
        )
    except OSError as error:
        output.close()
        raise UsageError(f"{command[0]} could not be started", evidence=str(error), hint="install OpenSSH") from None
    finally:
        os.close(reading)
    transfer = _Transfer(host, process, output)
    try:
        yield transfer
    finally:
        await transfer.close()
