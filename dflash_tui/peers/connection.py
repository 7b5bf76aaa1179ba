"""One connection to the agent of another host: commands with answers, and events; lost when nothing is heard."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from dflash_tui import __version__
from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.sanitizer import clean_end
from dflash_tui.common.untrusted_json import LineBuffer
from dflash_tui.events import Preparing
from dflash_tui.machine.process_environment import OPENSSH, build_helper_environment, build_own_environment
from dflash_tui.peers import messages, transport
from dflash_tui.peers.messages import (
    PROTOCOL,
    AgentCommand,
    AgentMessage,
    Beat,
    Greeting,
    LogChunk,
    RankBeat,
    RankProgress,
    Refused,
    SayHello,
)
from dflash_tui.peers.transport import NeedsProgram
from dflash_tui.planning.cluster.hosts import LOCAL

# The agent says something each second while a run is watched.
LOST_SECONDS = 5.0
HELLO_SECONDS = 30.0
_MOST_EVENTS = 256
_ERRORS_KEPT = 4096
_CLOSE_SECONDS = 2.0
# The agent ends when it hears nothing for 30 s, and an installation takes longer.
_IDLE_BEAT = 5.0


class PeerLost(DflashError):
    """The connection ended, or nothing was heard of the other host; what runs there goes on.

    `reason` is the error by which a connection ended that had hardly begun.
    """

    reason: DflashError | None = None


class PeerConnection:
    """A connection that `open_connection` opened."""

    def __init__(self, host: str, process: asyncio.subprocess.Process) -> None:
        self.host = host
        self.greeting: Greeting
        self.skew = 0.0
        """By how many seconds its clock was ahead when it greeted."""
        self.heard = time.monotonic()
        self.events: asyncio.Queue[AgentMessage | None] = asyncio.Queue(_MOST_EVENTS)
        """What was said without being asked; None is the end."""
        self.report: Callable[[Preparing], None] = lambda _: None
        """Called with each step of a preparation over there."""
        self._process, self._answers = process, dict[int, asyncio.Future[AgentMessage]]()
        self._number, self._errors = 0, b""
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._read_errors())]

    async def ask(self, kind: type[AgentCommand], timeout: float = 10.0, **fields: object) -> AgentMessage:
        """Return the answer to a command.

        Raises:
            PeerLost: the connection ended, or there is no answer in time.
            DflashError: the far side refused, with what it says about it.
        """
        self._number += 1
        number = self._number
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            await self._send(kind(id=number, **fields))
            message: AgentMessage = await asyncio.wait_for(answer, timeout)
        except TimeoutError:
            raise PeerLost(f"{self.host} has not answered for {timeout:.0f} s", hint=f"ssh {self.host}") from None
        finally:
            del self._answers[number]
            if answer.done() and not answer.cancelled():
                answer.exception()  # the connection may have ended while the command was sent
        if isinstance(message, Refused):
            error = UsageError if message.exit_code == UsageError.exit_code else DflashError
            raise error(f"{self.host}: {message.what}", evidence=message.evidence, hint=message.hint)
        return message

    async def tell(self, kind: type[AgentCommand], **fields: object) -> None:
        """Send a command whose answer nobody waits for.

        Raises:
            PeerLost: the connection ended.
        """
        self._number += 1
        await self._send(kind(id=self._number, **fields))

    def keep_open(self) -> None:
        """Say from now on that this side is there, however long an answer takes."""
        self._tasks.append(asyncio.create_task(self._beat()))

    async def _beat(self) -> None:
        with contextlib.suppress(PeerLost):
            while True:
                await asyncio.sleep(_IDLE_BEAT)
                await self.tell(Beat, renews=False)

    async def _send(self, command: AgentCommand) -> None:
        writer = self._process.stdin
        try:
            if writer is None:
                raise BrokenPipeError
            writer.write(messages.encode_line(command))
            await writer.drain()
        except (OSError, RuntimeError):
            raise await self._explain_lost() from None

    async def _explain_lost(self) -> DflashError:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), _CLOSE_SECONDS)
        text = clean_end(self._errors)
        error = transport.explain_end(self.host, self._process.returncode, text)
        lost = PeerLost(error.what, evidence=error.evidence, hint=error.hint)
        lost.reason = error
        return lost

    async def _read(self) -> None:
        """Take in what the far side says until it ends; lines that are none of ours are dropped."""
        buffer, reader = LineBuffer(messages.LONGEST_LINE), self._process.stdout
        while reader and (data := await reader.read(1 << 16)):
            self.heard = time.monotonic()
            for line in buffer.feed(data):
                if message := messages.decode_message(line):
                    await self._take(message)
        error = await self._explain_lost()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)
        await self.events.put(None)

    async def _take(self, message: AgentMessage) -> None:
        if isinstance(message, RankProgress):
            self.report(message.event)
        elif message.id == 0:
            if isinstance(message, LogChunk | RankBeat):  # all else answers a command
                await self.events.put(message)  # one who floods waits for who reads
        elif (answer := self._answers.get(message.id)) and not answer.done():
            answer.set_result(message)

    async def _read_errors(self) -> None:
        while self._process.stderr and (data := await self._process.stderr.read(1 << 16)):
            self._errors = (self._errors + data)[-_ERRORS_KEPT:]

    async def close(self) -> None:
        """End the connection; what runs over there goes on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._process.stdin:
            self._process.stdin.close()
        streams = [stream for stream in (self._process.stdout, self._process.stderr) if stream]
        drained = asyncio.gather(*map(_drain, streams), self._process.wait())
        try:
            await asyncio.wait_for(asyncio.shield(drained), _CLOSE_SECONDS)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # what ssh has started, too
            await drained


async def _drain(stream: asyncio.StreamReader) -> None:
    while await stream.read(1 << 16):
        pass


@asynccontextmanager
async def open_connection(host: str) -> AsyncIterator[PeerConnection]:
    """Connect to the agent of `host` for as long as the block lasts.

    Raises:
        UsageError: the host is not reached, for a reason that a user can mend, or speaks another protocol.
        PeerLost: the connection ended, or nothing was heard.
    """
    command = transport.build_agent_command(host)
    # The local agent launches a server itself; of what ssh gets, SSH_ASKPASS is no secret.
    env = build_own_environment() if host == LOCAL else build_helper_environment(OPENSSH)
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, env=env, cwd="/", start_new_session=True
        )
    except OSError as error:
        raise UsageError(f"{command[0]} could not be started", evidence=str(error), hint="install OpenSSH") from None
    connection = PeerConnection(host, process)
    try:
        connection.greeting = await _greet(connection)
        connection.keep_open()
        yield connection
    finally:
        await connection.close()


async def _greet(connection: PeerConnection) -> Greeting:
    host, sent_at = connection.host, time.time()
    try:
        answer = await connection.ask(SayHello, HELLO_SECONDS, protocol=PROTOCOL, version=__version__)
    except PeerLost as error:
        if isinstance(error.reason, NeedsProgram):
            raise error.reason from None
        raise UsageError(error.what, evidence=error.evidence, hint=error.hint) from None
    if not isinstance(answer, Greeting) or answer.protocol != PROTOCOL:
        theirs = f"{answer.version}, protocol {answer.protocol}" if isinstance(answer, Greeting) else "no greeting"
        what = f"{host} has another version of dflash-tui"
        evidence = f"there: {theirs}; here: {__version__}, protocol {PROTOCOL}"
        if isinstance(answer, Greeting) and answer.is_own:
            raise NeedsProgram(host, what, evidence=evidence)
        raise UsageError(what, evidence=evidence, hint=f"install {__version__} on both")
    now = time.time()
    # An answer may have taken long: what lies between question and answer is no skew.
    connection.skew = answer.clock - min(max(answer.clock, sent_at), now)
    return answer


def require_same_release(connection: PeerConnection) -> None:
    """Raise where another release lies in our own folder there, which can be replaced.

    Raises:
        NeedsProgram: this one may be installed in its place.
    """
    host, greeting = connection.host, connection.greeting
    if greeting.is_own and greeting.version != __version__:
        what = f"{host} has another version of dflash-tui"
        raise NeedsProgram(host, what, evidence=f"there: {greeting.version}; here: {__version__}")
