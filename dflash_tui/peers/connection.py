"""A connection to another host's agent: commands with answers, and events; it is lost after a silence."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeVar

import msgspec

from dflash_tui import __version__
from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.sanitizer import clean_end
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.events import GpuLoad, Preparing
from dflash_tui.launch.preflight.check import Check
from dflash_tui.machine.network import Network
from dflash_tui.machine.process_environment import OPENSSH, build_helper_environment, build_own_environment
from dflash_tui.peers import transport
from dflash_tui.peers.transport import NeedsProgram
from dflash_tui.planning.cluster import LOCAL, Cluster
from dflash_tui.planning.memory import MemoryEstimate
from dflash_tui.planning.plan import ArmCache, Plan
from dflash_tui.planning.request import LaunchRequest

# The agent sends a beat each second while a run is watched.
LOST_SECONDS = 5.0
HELLO_SECONDS = 30.0
_MOST_EVENTS = 256
_ERRORS_KEPT = 4096
_CLOSE_SECONDS = 2.0
# The agent ends when it hears nothing for 30 s, and an installation takes longer.
_IDLE_BEAT = 5.0


# Both sides must have the same number.
PROTOCOL = 3
LONGEST_LINE = 16 << 20
# How long a rank lives without a renewed lease; far longer than a lost connection takes to come back.
LEASE_SECONDS = 120.0
T = TypeVar("T")


class RankOrder(msgspec.Struct, frozen=True):
    """The order to one host: be a rank of a launch."""

    request: LaunchRequest
    cluster: Cluster
    rank: int
    folders: dict[str, str] = {}
    """Folders of models by the user's path -> names of their copies among the other host's models."""
    mark: str = ""
    """The experiment of the server's boot; empty for other servers."""
    cache: ArmCache | None = None
    """The compile caches of the boot's arm on that host; None to share those of other servers."""


class Greeting(msgspec.Struct, frozen=True):
    """The identity and state of the remote side."""

    protocol: int
    version: str
    host: str
    machine: str
    boot: str
    memory_available: int
    memory_total: int
    network: Network
    is_own: bool = False
    """Whether its program is in our own folder, where another host installed it."""


class HostSide(msgspec.Struct, frozen=True):
    """Properties that all hosts must share; an empty text is not known yet, as before an installation."""

    vllm: str
    """Distribution and release of vLLM, and its Python."""
    patches: str
    """The plan's patches, and a digest of their texts."""
    setup: str
    """A digest of flags, drafts per step, variables and mode."""
    target: str
    """A digest of the target's files, or the commit of its repository."""
    drafter: str
    """The same for the drafter."""


class RankChecked(msgspec.Struct, frozen=True):
    """A rank's checks, its plan on that host, and the properties to compare."""

    plan: Plan
    checks: tuple[Check, ...]
    side: HostSide
    memory: MemoryEstimate | None = None
    """The memory that the rank needs per GPU; None on the CPU."""


class RankLaunched(msgspec.Struct, frozen=True):
    """The run of a launched rank, on the remote side."""

    run: str


class Done(msgspec.Struct, frozen=True):
    """The command was carried out."""


class Refused(msgspec.Struct, frozen=True):
    """A DflashError of the remote side: what happened, the evidence, and a hint."""

    what: str
    evidence: str = ""
    hint: str = ""
    exit_code: int = 1


class RankProgress(msgspec.Struct, frozen=True):
    """A step of a preparation."""

    event: Preparing


class LogChunk(msgspec.Struct, frozen=True):
    """Further bytes of the watched run's log."""

    data: bytes


class RankBeat(msgspec.Struct, frozen=True):
    """The state of the watched run, once a second."""

    is_alive: bool
    processes: int
    workers: int
    """Processes that are vLLM workers: after one dies, their launcher takes up to 18 s to end."""
    suspended: int
    resident: int
    memory_available: int
    why: str = ""
    """Why the rank was ended on its host, such as an expired lease; empty otherwise."""
    memory_total: int | None = None
    gpus: tuple[GpuLoad, ...] = ()
    worked: float | None = None
    """CPU seconds of its processes, if it has no GPU."""


class _Said(msgspec.Struct, frozen=True):
    """The envelope of each remote line: its kind, and the number of the command that it answers."""

    say: str
    id: int = 0


_EVENTS: dict[str, type[RankProgress | LogChunk | RankBeat]] = {
    "preparing": RankProgress,
    "log": LogChunk,
    "beat": RankBeat,
}
for _kind in (Greeting, RankChecked, RankLaunched, Done, Refused, _Said, *_EVENTS.values()):
    register_type(_kind)


def encode_line(say: str, number: int, said: msgspec.Struct) -> bytes:
    """Return a message of the remote side as a line; `number` is that of the answered command, or 0."""
    return msgspec.json.encode({"say": say, "id": number, **msgspec.structs.asdict(said)}) + b"\n"


def _decode(line: bytes, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, ValueError):
        return None


class PeerConnection:
    """A connection opened by `open_connection`; remote runs continue when it ends."""

    def __init__(self, host: str, process: Process) -> None:
        self.host = host
        self.greeting: Greeting
        self.heard = time.monotonic()
        self.events: asyncio.Queue[LogChunk | RankBeat | None] = asyncio.Queue(_MOST_EVENTS)
        """Messages that answer no command; None marks the end."""
        self.report: Callable[[Preparing], None] = lambda _: None
        """Called with each step of a remote preparation."""
        self._process, self._answers = process, dict[int, asyncio.Future[tuple[str, bytes]]]()
        self._number, self._errors = 0, b""
        self._tasks = [asyncio.create_task(work) for work in (self._read(), self._read_errors(), self._beat())]

    async def ask(self, do: str, kind: type[T], timeout: float = 10.0, **fields: object) -> T:
        """Return the answer to a command; `fields` are the parameters of the agent's function for it.

        Raises:
            DflashError: the connection ended, or the answer was late, a refusal, or of another type.
        """
        self._number += 1
        number = self._number
        future = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            await self._send(do, number, fields)
            say, line = await asyncio.wait_for(future, timeout)
        except TimeoutError:
            raise DflashError(f"{self.host} has not answered for {timeout:.0f} s", hint=f"ssh {self.host}") from None
        finally:
            del self._answers[number]
            if future.done() and not future.cancelled():
                future.exception()  # retrieves it, since the connection may have ended while the command was sent
        if say == "refused" and (refused := _decode(line, Refused)):
            error = UsageError if refused.exit_code == UsageError.exit_code else DflashError
            raise error(f"{self.host}: {refused.what}", evidence=refused.evidence, hint=refused.hint)
        if (answer := _decode(line, kind)) is None:
            raise DflashError(f"{self.host} sent an unexpected answer", hint=f"install {__version__} there")
        return answer

    async def send_beat(self, *, renews: bool) -> None:
        """Send a beat; `renews` renews the lease of the watched rank."""
        await self._send("beat", 0, {"renews": renews})

    async def say_hello(self) -> Greeting:
        """Return a new greeting of the remote side."""
        return await self.ask("hello", Greeting, HELLO_SECONDS, protocol=PROTOCOL, version=__version__)

    async def _beat(self) -> None:
        with contextlib.suppress(DflashError):
            while True:
                await asyncio.sleep(_IDLE_BEAT)
                await self.send_beat(renews=False)

    async def _send(self, do: str, number: int, fields: dict[str, object]) -> None:
        try:
            self._process.stdin.write(msgspec.json.encode({"do": do, "id": number, **fields}) + b"\n")
            await self._process.stdin.drain()
        except (OSError, RuntimeError):
            raise await self._explain_lost() from None

    async def _explain_lost(self) -> DflashError:
        code = None
        with contextlib.suppress(TimeoutError):
            code = await asyncio.wait_for(self._process.wait(), _CLOSE_SECONDS)
        return transport.explain_end(self.host, code, clean_end(self._errors))

    async def _read(self) -> None:
        async for line in self._process.stdout:
            self.heard = time.monotonic()
            await self._take(line)
        error = await self._explain_lost()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)
        await self.events.put(None)

    async def _take(self, line: bytes) -> None:
        said = _decode(line, _Said)
        if said is None:
            return
        if said.id:
            if (answer := self._answers.get(said.id)) and not answer.done():
                answer.set_result((said.say, line))
        elif said.say in _EVENTS and (event := _decode(line, _EVENTS[said.say])):
            if isinstance(event, RankProgress):
                self.report(event.event)
            else:
                await self.events.put(event)  # a flooding sender waits for the reader

    async def _read_errors(self) -> None:
        while data := await self._process.stderr.read(1 << 16):
            self._errors = (self._errors + data)[-_ERRORS_KEPT:]

    async def close(self) -> None:
        """Stop listening; remote runs continue."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Process(NamedTuple):
    """A process with pipes."""

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader
    wait: Callable[[], Awaitable[int]]


@asynccontextmanager
async def start_process(command: Sequence[str], env: Mapping[str, str]) -> AsyncIterator[Process]:
    """Run a command while the block runs; at its end close stdin, and kill the process group two seconds later."""
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, env=env, cwd="/", start_new_session=True, limit=LONGEST_LINE
        )
    except OSError as error:
        raise UsageError(f"{command[0]} could not be started", evidence=str(error), hint="install OpenSSH") from None
    assert process.stdin and process.stdout and process.stderr  # noqa: S101, PT018 - all are PIPE
    try:
        yield Process(process.stdin, process.stdout, process.stderr, process.wait)
    finally:
        process.stdin.close()
        drained = asyncio.gather(read_end(process.stdout), read_end(process.stderr), process.wait())
        try:
            await asyncio.wait_for(asyncio.shield(drained), _CLOSE_SECONDS)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await drained


async def read_end(stream: asyncio.StreamReader) -> str:
    """Return the last bytes of a stream as text, once it ends."""
    tail = b""
    while data := await stream.read(1 << 16):
        tail = (tail + data)[-_ERRORS_KEPT:]
    return clean_end(tail)


@asynccontextmanager
async def open_connection(host: str) -> AsyncIterator[PeerConnection]:
    """Connect to the agent of `host` while the block runs.

    Raises:
        UsageError: the host is unreachable, or uses another protocol.
    """
    command = transport.build_agent_command(host)
    # The local agent launches a server itself. ssh gets only OpenSSH's variables; SSH_ASKPASS is not a secret.
    env = build_own_environment() if host == LOCAL else build_helper_environment(OPENSSH)
    async with start_process(command, env) as process:
        connection = PeerConnection(host, process)
        try:
            connection.greeting = await _greet(connection)
            yield connection
        finally:
            await connection.close()


async def _greet(connection: PeerConnection) -> Greeting:
    try:
        answer = await connection.say_hello()
    except UsageError:
        raise
    except DflashError as error:
        raise UsageError(error.what, evidence=error.evidence, hint=error.hint) from None
    if answer.protocol != PROTOCOL:
        there, here = (f"{version}, protocol {number}" for version, number in
                       ((answer.version, answer.protocol), (__version__, PROTOCOL)))  # fmt: skip
        raise _refuse_version(connection.host, answer, there, here)
    return answer


def require_same_release(connection: PeerConnection) -> None:
    """Raise NeedsProgram if our own folder on the host has another release, which this one may replace."""
    greeting = connection.greeting
    if greeting.is_own and greeting.version != __version__:
        raise _refuse_version(connection.host, greeting, greeting.version, __version__)


def _refuse_version(host: str, greeting: Greeting, there: str, here: str) -> UsageError:
    """Return the error that a host has another version; NeedsProgram if it is in our own folder and replaceable."""
    what, evidence = f"{host} has another version of dflash-tui", f"there: {there}; here: {here}"
    if greeting.is_own:
        return NeedsProgram(host, what, evidence=evidence)
    return UsageError(what, evidence=evidence, hint=f"install {__version__} on both")
