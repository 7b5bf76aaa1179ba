"""One connection to the agent of another host: commands with answers, and events; lost when nothing is heard."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated

import msgspec
from msgspec import Meta

from dflash_tui import __version__
from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.line_buffer import LineBuffer
from dflash_tui.common.sanitizer import clean_end
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.events import Preparing
from dflash_tui.machine.network import Network
from dflash_tui.machine.process_environment import OPENSSH, build_helper_environment, build_own_environment
from dflash_tui.peers import transport
from dflash_tui.peers.transport import NeedsProgram
from dflash_tui.planning.cluster import LOCAL, Cluster
from dflash_tui.planning.memory import MemoryEstimate
from dflash_tui.planning.plan import ArmCache, Plan
from dflash_tui.planning.request import Hint, LaunchRequest
from dflash_tui.readings import GpuLoad

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
            writer.write(encode_line(command))
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
        buffer, reader = LineBuffer(LONGEST_LINE), self._process.stdout
        while reader and (data := await reader.read(1 << 16)):
            self.heard = time.monotonic()
            for line in buffer.feed(data):
                if message := decode_message(line):
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


# Another number is another language: both sides have to be of a release that speaks it.
PROTOCOL = 2
LONGEST_LINE = 16 << 20
LARGEST_CHUNK = 1 << 15
# How long a rank lives on when nobody has renewed its lease; far longer than a lost connection takes to come back.
LEASE_SECONDS = 120.0

# The name of a folder that is removed: neither empty nor a path.
Mark = Annotated[str, Meta(pattern=r"^\w[\w.:-]*\Z")]


class CopyFile(msgspec.Struct, frozen=True):
    """A file of a model."""

    name: str
    """Its path in the folder of the model."""
    size: int
    """Its bytes."""
    data: str
    """The path of its bytes there: in the hub's cache the name is a link to them."""


class CopyManifest(msgspec.Struct, frozen=True):
    """The files of one model, and their place on the other host."""

    folder: str
    """The name of the model's folder, in the hub's cache or among our own models."""
    version: str
    """The commit; of our own models a digest of names, sizes and times: a copy of another version is not resumed."""
    files: tuple[CopyFile, ...]
    revision: str | None = None
    """The branch, tag or commit in the hub's cache; None for a folder among our own models."""
    path: str = ""
    """The path that the user named: where the other host has a folder there, that is used."""


class RankOrder(msgspec.Struct, frozen=True):
    """What one host is asked to be: a rank of a launch."""

    request: LaunchRequest
    cluster: Cluster
    rank: int
    folders: dict[str, str] = {}
    """By the path that the user named, where a copy of that folder lies among the models of the other host."""
    mark: str = ""
    """The experiment that the server is a boot of; empty for any other."""
    cache: ArmCache | None = None
    """The compile caches of that boot's arm there; None where it takes those of other servers."""


class AgentCommand(msgspec.Struct, frozen=True, tag_field="do"):
    """Something that is asked of the other side, which answers with the same `id`."""

    id: int


class SayHello(AgentCommand, frozen=True, tag="hello"):
    """Who are you? The first command of a connection."""

    protocol: int
    version: str


class CheckRank(AgentCommand, frozen=True, tag="check"):
    """Would the rank start there? Nothing is started."""

    order: RankOrder


class PrepareRank(AgentCommand, frozen=True, tag="prepare"):
    """Install the engine of the rank, fetch its models, and do what else comes before its launch."""

    order: RankOrder


class LaunchRank(AgentCommand, frozen=True, tag="launch"):
    """Launch the rank; it ends by itself when nobody has renewed its lease for so long."""

    order: RankOrder
    lease: float = LEASE_SECONDS


class WatchRank(AgentCommand, frozen=True, tag="watch"):
    """Send the log of a run from a byte on, and a beat each second; its lease is renewed by each `beat`."""

    run: str
    start: int = 0


class StopRank(AgentCommand, frozen=True, tag="stop"):
    """Stop a run and all its processes."""

    run: str


class StopMarked(AgentCommand, frozen=True, tag="stop marked"):
    """Stop the ranks that an experiment has left there, as when its driver was killed."""

    mark: Mark


class RemoveCaches(AgentCommand, frozen=True, tag="remove caches"):
    """Remove what an experiment has compiled there."""

    mark: Mark


class ListOrphans(AgentCommand, frozen=True, tag="orphans"):
    """Which engine processes outlived their server there?"""


class AskRoom(AgentCommand, frozen=True, tag="room"):
    """What of a model is there, and how much room is for the rest?"""

    manifest: CopyManifest
    begins: bool = False
    """Whether its copy begins now, so that a folder for it is made."""


class FinishCopy(AgentCommand, frozen=True, tag="finish copy"):
    """All files of a model came: give them the places that a launch looks for them in."""

    manifest: CopyManifest


class Beat(AgentCommand, frozen=True, tag="beat"):
    """I am still here, and so is rank 0 where the lease of the watched run is to be renewed."""

    renews: bool = True


class AgentMessage(msgspec.Struct, frozen=True, tag_field="say"):
    """Something that the far side says; an answer has the `id` of its command, an event has 0."""

    id: int


class Greeting(AgentMessage, frozen=True, tag="hello"):
    """Who the far side is."""

    protocol: int
    version: str
    host: str
    machine: str
    boot: str
    clock: float
    memory_available: int
    memory_total: int
    network: Network
    is_own: bool = False
    """Whether the program there lies in our own folder, where another host installed it."""


class Finding(msgspec.Struct, frozen=True):
    """The result of a check on the far side."""

    name: str
    level: str
    finding: str
    advice: tuple[str | Hint, ...] = ()


class HostSide(msgspec.Struct, frozen=True):
    """What has to be the same on all hosts; empty texts are not known yet, as before anything is installed."""

    vllm: str
    """Distribution and release of vLLM, and the Python that runs it."""
    patches: str
    """The patches that the plan has, and a digest of their texts."""
    setup: str
    """A digest of flags, drafts, variables and mode."""
    target: str
    """A digest of the target's files, or the commit of its repository."""
    drafter: str
    """The same of the drafter."""


class RankChecked(AgentMessage, frozen=True, tag="checked"):
    """What the checks of a rank found, the plan of it there, and what it is made of."""

    plan: Plan
    findings: tuple[Finding, ...]
    side: HostSide
    memory: MemoryEstimate | None = None
    """The memory that the rank needs on a GPU there; None on the CPU."""


class RankPrepared(AgentMessage, frozen=True, tag="prepared"):
    """Engine and models are there; what they are made of."""

    side: HostSide


class RankLaunched(AgentMessage, frozen=True, tag="launched"):
    """The rank was launched, as this run of the far side."""

    run: str
    pid: int


class Done(AgentMessage, frozen=True, tag="done"):
    """It is done."""


class Refused(AgentMessage, frozen=True, tag="refused"):
    """It cannot be done: what happened, the evidence, what to do, as any error of ours."""

    what: str
    evidence: str = ""
    hint: str = ""
    exit_code: int = 1


class OrphanFound(msgspec.Struct, frozen=True):
    """An engine process of the far side that outlived its server."""

    pid: int
    name: str
    resident: int
    port: int | None = None


class OrphansListed(AgentMessage, frozen=True, tag="orphans"):
    """The orphans of the far side."""

    orphans: tuple[OrphanFound, ...]


class RoomFound(AgentMessage, frozen=True, tag="room"):
    """What is there of a model."""

    offsets: tuple[int | None, ...]
    """The byte that each file goes on from; None for one that is not needed."""
    free: int
    """The free bytes of the disk."""
    is_done: bool
    """Whether nothing is left to do."""
    folder: str
    """Where the files are to be copied to."""
    has_rsync: bool


class RankProgress(AgentMessage, frozen=True, tag="preparing"):
    """A step of the preparation moves."""

    event: Preparing


class LogChunk(AgentMessage, frozen=True, tag="log"):
    """Further bytes of the watched run's log."""

    data: bytes


class RankBeat(AgentMessage, frozen=True, tag="beat"):
    """How the watched run is, once a second."""

    is_alive: bool
    processes: int
    workers: int
    """How many of them are vLLM's workers: their launcher takes up to 18 s to end after one of them died."""
    suspended: int
    resident: int
    memory_available: int
    why: str = ""
    """Why it was ended by itself, such as its lease; empty otherwise."""
    memory_total: int | None = None
    gpus: tuple[GpuLoad, ...] = ()
    worked: float | None = None
    """The seconds that processors have worked for its processes, where it has no GPU."""


AnyCommand = (
    SayHello
    | CheckRank
    | PrepareRank
    | LaunchRank
    | WatchRank
    | StopRank
    | StopMarked
    | RemoveCaches
    | ListOrphans
    | AskRoom
    | FinishCopy
    | Beat
)
AnyMessage = (
    Greeting
    | RankChecked
    | RankPrepared
    | RankLaunched
    | Done
    | Refused
    | OrphansListed
    | RoomFound
    | RankProgress
    | LogChunk
    | RankBeat
)


class _Numbered(msgspec.Struct, frozen=True):
    """A command of another release."""

    id: int = 0


register_type(_Numbered)


_commands: msgspec.json.Decoder[AnyCommand] = msgspec.json.Decoder(AnyCommand)
_messages: msgspec.json.Decoder[AnyMessage] = msgspec.json.Decoder(AnyMessage)
_encoder = msgspec.json.Encoder()


def encode_line(message: AgentCommand | AgentMessage) -> bytes:
    """Return a command or message as one line, with its end."""
    return _encoder.encode(message) + b"\n"


def decode_command(line: bytes) -> AnyCommand | None:
    """Return the command of a line; None for what is none."""
    try:
        return _commands.decode(line)
    except (msgspec.MsgspecError, ValueError):
        return None


def decode_message(line: bytes) -> AnyMessage | None:
    """Return the message of a line; None for what is none."""
    try:
        return _messages.decode(line)
    except (msgspec.MsgspecError, ValueError):
        return None


def read_command_id(line: bytes) -> int:
    """Return the id of a line that is not a command of ours, so that it can be refused; 0 where it has none."""
    try:
        return msgspec.json.decode(line, type=_Numbered).id
    except (msgspec.MsgspecError, ValueError):
        return 0
