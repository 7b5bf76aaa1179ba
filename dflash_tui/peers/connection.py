"""Run `dflash-tui agent VERB` on another host: one ssh command, the events of its work, and its answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeVar

import msgspec

from dflash_tui import __version__
from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.sanitizer import clean_end
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.events import Preparing, RankSampled
from dflash_tui.launch.preflight.check import Check
from dflash_tui.machine.network import Network
from dflash_tui.machine.process_environment import OPENSSH, build_helper_environment, build_own_environment
from dflash_tui.peers import transport
from dflash_tui.peers.transport import NeedsProgram
from dflash_tui.planning.cluster import LOCAL, Cluster
from dflash_tui.planning.memory import MemoryEstimate
from dflash_tui.planning.plan import ArmCache, Plan
from dflash_tui.planning.request import LaunchRequest

HELLO_SECONDS = 30.0
_ERRORS_KEPT = 4096
_CLOSE_SECONDS = 2.0
_LONGEST_LINE = 16 << 20
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
    """The identity and state of another host."""

    version: str
    host: str
    machine: str
    boot: str
    memory_available: int
    memory_total: int
    network: Network
    is_own: bool = False
    """Whether its program is in our own folder, where another host installed it."""


class Peer(NamedTuple):
    """Another host of a server, by its ssh name, and its greeting."""

    host: str
    greeting: Greeting


class HostSide(msgspec.Struct, frozen=True):
    """Properties that all hosts must share, as words or digests; empty while unknown, as before an installation."""

    vllm: str
    patches: str
    setup: str
    """Flags, drafts per step, variables and mode."""
    target: str
    drafter: str


class RankChecked(msgspec.Struct, frozen=True):
    """A rank's checks, its plan on that host, and the properties to compare."""

    plan: Plan
    checks: tuple[Check, ...]
    side: HostSide
    memory: MemoryEstimate | None = None
    """The memory that the rank needs per GPU; None on the CPU."""


class LogChunk(msgspec.Struct, frozen=True, tag_field="event", tag="log"):
    """Further bytes of the watched run's log."""

    data: bytes


class VerbAnswer(msgspec.Struct, frozen=True, tag_field="event", tag="answer"):
    """The result of a verb, as JSON."""

    value: msgspec.Raw


class VerbError(msgspec.Struct, frozen=True, tag_field="event", tag="error"):
    """An error, as every command with `--json` prints it."""

    what: str
    evidence: str = ""
    do: str = ""
    exit_code: int = 1


Message = Preparing | RankSampled | LogChunk | VerbAnswer
for _kind in (Greeting, RankChecked, HostSide):
    register_type(_kind)
_decoder: msgspec.json.Decoder[Message | VerbError] = msgspec.json.Decoder(Message | VerbError)


class VerbRun:
    """A verb that runs on another host; it is cancelled there when the block of `run_verb` ends."""

    def __init__(self, host: str, process: Process) -> None:
        self._host, self._process = host, process

    async def read(self) -> Message:
        """Return the next message.

        Raises:
            DflashError: the verb failed, or the connection ended.
        """
        while line := await self._process.stdout.readline():
            try:
                message = _decoder.decode(line)
            except (msgspec.MsgspecError, ValueError):  # what a login shell prints
                continue
            if not isinstance(message, VerbError):
                return message
            error = UsageError if message.exit_code == UsageError.exit_code else DflashError
            raise error(f"{self._host}: {message.what}", evidence=message.evidence, hint=message.do)
        raise transport.explain_end(self._host, await self._process.wait(), await self._process.errors)

    def send_beat(self) -> None:
        """Renew the lease of the watched rank."""
        self._process.stdin.write(b"\n")


@asynccontextmanager
async def run_verb(host: str, verb: str, **fields: object) -> AsyncIterator[VerbRun]:
    """Run a verb on `host` while the block runs; `fields` are the parameters of the agent's function for it."""
    # The local agent launches a server itself. ssh gets only OpenSSH's variables; SSH_ASKPASS is not a secret.
    env = build_own_environment() if host == LOCAL else build_helper_environment(OPENSSH)
    async with start_process(transport.build_agent_command(host, verb), env) as process:
        process.stdin.write(msgspec.json.encode(fields) + b"\n")
        yield VerbRun(host, process)


async def ask(
    host: str,
    verb: str,
    kind: type[T],
    timeout: float = 40.0,
    *,
    report: Callable[[Preparing], None] = lambda _: None,
    **fields: object,
) -> T:
    """Return the answer of a verb on `host`; `report` is called with each event of its preparation.

    Raises:
        NeedsProgram: the host has no dflash-tui.
        DflashError: the host was not reached, or the answer was late, an error or of another type.
    """
    async with run_verb(host, verb, **fields) as verb_run:
        try:
            async with asyncio.timeout(timeout):
                while not isinstance(message := await verb_run.read(), VerbAnswer):
                    if isinstance(message, Preparing):
                        report(message)
            return msgspec.json.decode(message.value, type=kind)
        except TimeoutError:
            raise DflashError(f"{host} has not answered for {timeout:.0f} s", hint=f"ssh {host}") from None
        except msgspec.MsgspecError:
            raise DflashError(f"{host} sent an unexpected answer", hint=f"install {__version__} there") from None


class Process(NamedTuple):
    """A process with pipes; `errors` is the end of its stderr, once that has ended."""

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    errors: asyncio.Task[str]
    wait: Callable[[], Awaitable[int]]


@asynccontextmanager
async def start_process(command: Sequence[str], env: Mapping[str, str]) -> AsyncIterator[Process]:
    """Run a command while the block runs; at its end close stdin, and kill the process group two seconds later."""
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, env=env, cwd="/", start_new_session=True,
            limit=_LONGEST_LINE,
        )  # fmt: skip
    except OSError as error:
        raise UsageError(f"{command[0]} could not be started", evidence=str(error), hint="install OpenSSH") from None
    assert process.stdin and process.stdout and process.stderr  # noqa: S101, PT018 - all are PIPE
    errors = asyncio.create_task(_read_end(process.stderr))
    try:
        yield Process(process.stdin, process.stdout, errors, process.wait)
    finally:
        process.stdin.close()
        drained = asyncio.gather(_read_end(process.stdout), errors, process.wait())
        try:
            await asyncio.wait_for(asyncio.shield(drained), _CLOSE_SECONDS)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await drained


async def _read_end(stream: asyncio.StreamReader) -> str:
    tail = b""
    while data := await stream.read(1 << 16):
        tail = (tail + data)[-_ERRORS_KEPT:]
    return clean_end(tail)


async def greet_host(host: str, *, any_release: bool = False) -> Peer:
    """Return a host with its greeting.

    Raises:
        NeedsProgram: it lacks dflash-tui, or our own folder there has another release, which this one may replace.
        UsageError: it is unreachable, or has another release although not `any_release` will do.
    """
    try:
        greeting = await ask(host, "hello", Greeting, HELLO_SECONDS, least=0)
    except UsageError:
        raise
    except DflashError as error:
        raise UsageError(error.what, evidence=error.evidence, hint=error.hint) from None
    what, evidence = f"{host} has another version of dflash-tui", f"there: {greeting.version}; here: {__version__}"
    if greeting.is_own and greeting.version != __version__:
        raise NeedsProgram(host, what, evidence=evidence)
    if greeting.version != __version__ and not any_release:
        raise UsageError(what, evidence=evidence, hint=f"install {__version__} on both")
    return Peer(host, greeting)
