"""What two of these programs say to each other: one JSON object per line, commands one way, messages the other.

Each side takes the other for a stranger: lines are bounded, texts are cleaned, figures lie within what can be, and a
line that is none of these is dropped, since a login shell may print, too.
"""

from __future__ import annotations

import contextlib
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from dflash_tui.common import untrusted_json
from dflash_tui.events import Preparing
from dflash_tui.machine.network import Network
from dflash_tui.peers.copies.manifest import MOST_FILES, FolderName, Manifest
from dflash_tui.planning.cluster.hosts import Cluster
from dflash_tui.planning.compile_caches import ArmCache
from dflash_tui.planning.field_types import HIGHEST_PORT
from dflash_tui.planning.memory import MemoryEstimate
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.request import Hint, LaunchRequest
from dflash_tui.readings import Amount, GpuLoad, Whole

# Another number is another language: both sides have to be of a release that speaks it.
PROTOCOL = 1
LONGEST_LINE = 1 << 20
LARGEST_CHUNK = 1 << 15
# How long a rank lives on when nobody has renewed its lease; far longer than a lost connection takes to come back.
LEASE_SECONDS = 120.0

T = TypeVar("T")
_Number = Annotated[int, Meta(ge=0, le=1 << 53)]
_Text = Annotated[str, Meta(max_length=4000)]
_Path = Annotated[str, Meta(max_length=4000)]
RunName = Annotated[str, Meta(max_length=200, pattern=r"^\w[\w.:-]*\Z")]
Mark = Annotated[str, Meta(max_length=200, pattern=r"^(?:\w[\w.:-]*)?\Z")]
_Seconds = Annotated[float, Meta(ge=1, le=86_400)]


class RankOrder(msgspec.Struct, frozen=True):
    """What one host is asked to be: a rank of a launch."""

    request: LaunchRequest
    cluster: Cluster
    rank: Annotated[int, Meta(ge=0, le=63)]
    folders: Annotated[dict[_Path, FolderName], Meta(max_length=8)] = {}
    """By the path that the user named, where a copy of that folder lies among the models of the other host."""
    mark: Mark = ""
    """The experiment that the server is a boot of; empty for any other."""
    cache: ArmCache | None = None
    """The compile caches of that boot's arm there; None where it takes those of other servers."""


class AgentCommand(msgspec.Struct, frozen=True, tag_field="do"):
    """Something that is asked of the other side, which answers with the same `id`."""

    id: _Number


class SayHello(AgentCommand, frozen=True, tag="hello"):
    """Who are you? The first command of a connection."""

    protocol: _Number
    version: _Text


class CheckRank(AgentCommand, frozen=True, tag="check"):
    """Would the rank start there? Nothing is started."""

    order: RankOrder


class PrepareRank(AgentCommand, frozen=True, tag="prepare"):
    """Install the engine of the rank, fetch its models, and do what else comes before its launch."""

    order: RankOrder


class LaunchRank(AgentCommand, frozen=True, tag="launch"):
    """Launch the rank; it ends by itself when nobody has renewed its lease for so long."""

    order: RankOrder
    lease: _Seconds = LEASE_SECONDS


class WatchRank(AgentCommand, frozen=True, tag="watch"):
    """Send the log of a run from a byte on, and a beat each second; its lease is renewed by each `beat`."""

    run: RunName
    start: _Number = 0


class StopRank(AgentCommand, frozen=True, tag="stop"):
    """Stop a run and all its processes."""

    run: RunName


class StopMarked(AgentCommand, frozen=True, tag="stop marked"):
    """Stop the ranks that an experiment has left there, as when its driver was killed."""

    mark: RunName


class RemoveCaches(AgentCommand, frozen=True, tag="remove caches"):
    """Remove what an experiment has compiled there."""

    mark: RunName


class ListOrphans(AgentCommand, frozen=True, tag="orphans"):
    """Which engine processes outlived their server there?"""


class AskRoom(AgentCommand, frozen=True, tag="room"):
    """What of a model is there, and how much room is for the rest? Nothing is written."""

    manifest: Manifest


class Beat(AgentCommand, frozen=True, tag="beat"):
    """I am still here, and so is rank 0 where the lease of the watched run is to be renewed."""

    renews: bool = True


class AgentMessage(msgspec.Struct, frozen=True, tag_field="say"):
    """Something that the far side says; an answer has the `id` of its command, an event has 0."""

    id: _Number


class Greeting(AgentMessage, frozen=True, tag="hello"):
    """Who the far side is."""

    protocol: _Number
    version: _Text
    host: _Text
    machine: _Text
    boot: _Text
    clock: Annotated[float, Meta(ge=0, le=4_102_444_800)]
    memory_available: Whole
    memory_total: Whole
    network: Network
    is_own: bool = False
    """Whether the program there lies in our own folder, where another host installed it."""


class Finding(msgspec.Struct, frozen=True):
    """The result of a check on the far side."""

    name: _Text
    level: Annotated[str, Meta(pattern=r"^(?:ok|warn|fail)\Z")]
    finding: _Text
    advice: tuple[_Text | Hint, ...] = ()


class HostSide(msgspec.Struct, frozen=True):
    """What has to be the same on all hosts; empty texts are not known yet, as before anything is installed."""

    vllm: _Text
    """Distribution and release of vLLM, and the Python that runs it."""
    patches: _Text
    """The patches that the plan has, and a digest of their texts."""
    setup: _Text
    """A digest of flags, drafts, variables and mode."""
    target: _Text
    """A digest of the target's files, or the commit of its repository."""
    drafter: _Text
    """The same of the drafter."""


class RankChecked(AgentMessage, frozen=True, tag="checked"):
    """What the checks of a rank found, the plan of it there, and what it is made of."""

    plan: Plan
    findings: Annotated[tuple[Finding, ...], Meta(max_length=200)]
    side: HostSide
    memory: MemoryEstimate | None = None
    """The memory that the rank needs on a GPU there; None on the CPU."""


class RankPrepared(AgentMessage, frozen=True, tag="prepared"):
    """Engine and models are there; what they are made of."""

    side: HostSide


class RankLaunched(AgentMessage, frozen=True, tag="launched"):
    """The rank was launched, as this run of the far side."""

    run: RunName
    pid: _Number


class Done(AgentMessage, frozen=True, tag="done"):
    """It is done."""


class Refused(AgentMessage, frozen=True, tag="refused"):
    """It cannot be done: what happened, the evidence, what to do, as any error of ours."""

    what: _Text
    evidence: _Text = ""
    hint: _Text = ""
    exit_code: Annotated[int, Meta(ge=1, le=7)] = 1


class OrphanFound(msgspec.Struct, frozen=True):
    """An engine process of the far side that outlived its server."""

    pid: _Number
    name: _Text
    resident: Whole
    port: Annotated[int, Meta(ge=0, le=HIGHEST_PORT)] | None = None


class OrphansListed(AgentMessage, frozen=True, tag="orphans"):
    """The orphans of the far side."""

    orphans: Annotated[tuple[OrphanFound, ...], Meta(max_length=1000)]


class RoomFound(AgentMessage, frozen=True, tag="room"):
    """What is there of a model; also the answer to what is to be copied, whose bytes may come then."""

    offsets: Annotated[tuple[Whole | None, ...], Meta(max_length=MOST_FILES)]
    """The byte that each file goes on from; None for one that is not needed."""
    free: Whole
    """The free bytes of the disk."""
    is_done: bool
    """Whether nothing is left to do."""


class RankProgress(AgentMessage, frozen=True, tag="preparing"):
    """A step of the preparation moves."""

    event: Preparing


class LogChunk(AgentMessage, frozen=True, tag="log"):
    """Further bytes of the watched run's log."""

    data: Annotated[bytes, Meta(max_length=LARGEST_CHUNK)]


class RankBeat(AgentMessage, frozen=True, tag="beat"):
    """How the watched run is, once a second."""

    is_alive: bool
    processes: _Number
    workers: _Number
    """How many of them are vLLM's workers: their launcher takes up to 18 s to end after one of them died."""
    suspended: _Number
    resident: Whole
    memory_available: Whole
    why: _Text = ""
    """Why it was ended by itself, such as its lease; empty otherwise."""
    memory_total: Whole | None = None
    gpus: Annotated[tuple[GpuLoad, ...], Meta(max_length=64)] = ()
    worked: Amount | None = None
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

_commands: msgspec.json.Decoder[AnyCommand] = msgspec.json.Decoder(AnyCommand)
_manifests: msgspec.json.Decoder[Manifest] = msgspec.json.Decoder(Manifest)
_messages: msgspec.json.Decoder[AnyMessage] = msgspec.json.Decoder(AnyMessage)
_chunks: msgspec.json.Decoder[LogChunk] = msgspec.json.Decoder(LogChunk)
_encoder = msgspec.json.Encoder()


def encode_line(message: AgentCommand | AgentMessage | Manifest) -> bytes:
    """Return a command, message or manifest as one line, with its end."""
    return _encoder.encode(message) + b"\n"


def decode_command(line: bytes) -> AnyCommand | None:
    """Return the command of a line, without what acts on a terminal; None for what is none."""
    return _decode(line, _commands)


def decode_manifest(line: bytes) -> Manifest | None:
    """Return what a line says is to be copied, without what acts on a terminal; None for what says nothing of it."""
    return _decode(line, _manifests)


def decode_message(line: bytes) -> AnyMessage | None:
    """Return the message of a line, without what acts on a terminal; None for what is none.

    The bytes of a log are those of the far file, of which whoever reads them leaves secrets out.
    """
    with contextlib.suppress(msgspec.MsgspecError, ValueError):
        if len(line) <= LONGEST_LINE:
            return _chunks.decode(line)
    return _decode(line, _messages)


def _decode(line: bytes, decoder: msgspec.json.Decoder[T]) -> T | None:
    if len(line) > LONGEST_LINE or not line.lstrip().startswith(b"{"):
        return None
    try:
        return untrusted_json.decode_untrusted(line, decoder, one_line=True)
    except (msgspec.MsgspecError, ValueError):
        return None


def read_command_id(line: bytes) -> int:
    """Return the id of a line that is not a command of ours, so that it can be refused; 0 where it has none."""
    try:
        fields: Any = msgspec.json.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return 0
    number = fields.get("id") if isinstance(fields, dict) else 0
    return number if type(number) is int and 0 <= number <= 1 << 53 else 0
