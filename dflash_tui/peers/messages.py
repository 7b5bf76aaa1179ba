"""What two of these programs say to each other: one JSON object per line, commands one way, messages the other.

A line that is none of these is dropped, since a login shell may print, too.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from dflash_tui.common.untrusted_json import register_type
from dflash_tui.events import GpuLoad, Preparing
from dflash_tui.machine.network import Network
from dflash_tui.planning.cluster.hosts import Cluster
from dflash_tui.planning.compile_caches import ArmCache
from dflash_tui.planning.memory import MemoryEstimate
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.request import Hint, LaunchRequest

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
