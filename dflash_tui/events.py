"""The events of a run as frozen structs, and their JSON: the vocabulary of observers, state, screens and `--json`.

Every event carries `at`, seconds since the epoch. Events from `server.log` take it from the log's own
stamps, so that a replay gives the same values as watching did; the others are recorded in `samples.jsonl`.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import pairwise
from typing import Annotated

import msgspec

from dflash_tui.common import untrusted_json

# No server counts further, and sums, differences and quotients of such numbers are still numbers.
MOST = 1e15
MOST_POSITIONS = 64
# Of a histogram; those of vLLM have some 20.
MOST_BUCKETS = 256
# What is read from a file, which anybody may have written, must lie within these.
Amount = Annotated[float, msgspec.Meta(ge=0, le=MOST)]
Whole = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]


class Step(StrEnum):
    """The steps of preparing a launch, in order."""

    INSTALL = "install"
    CHECK = "check"
    MODELS = "models"
    PATCHES = "patches"


class Phase(StrEnum):
    """The phases of a start, in the usual order; compiling, profiling and warming up may alternate.

    A phase lasts until the next one starts. `import` starts at the launch, `up` is when the log says that the server
    serves, which is no proof that it can generate. `unattributed` is time of which the log does not say what it was.
    """

    IMPORT = "import"
    RESOLVE = "resolve"
    ENGINE = "engine"
    WEIGHTS = "weights"
    DRAFTER = "drafter"
    COMPILE = "compile"
    PROFILE = "profile"
    KV_CACHE = "kv cache"
    AUTOTUNE = "autotune"
    GRAPHS = "graphs"
    JIT = "jit"
    API = "api"
    UP = "up"
    UNATTRIBUTED = "unattributed"


class Health(StrEnum):
    """What the server answers: nothing yet, 200 on /health, a real generation, or no longer 200."""

    STARTING = "starting"
    HEALTHY = "healthy"
    WARM = "warm"
    UNHEALTHY = "unhealthy"


class Counters(msgspec.Struct, frozen=True, omit_defaults=True):
    """One reading of the server's counters and gauges, summed over engines.

    The three speculation counters are None when the server does not speculate, `per_position` is then empty.
    `steps` counts drafts: one per sequence and verification step. `finished` counts requests, `finished_tokens` what
    they generated and `decode_seconds` how long that took from their first token on. The prefix cache is asked for
    `prefix_queries` tokens and has `prefix_hits` of them.
    """

    generated: Amount
    prompt: Amount = 0.0
    steps: Amount | None = None
    proposed: Amount | None = None
    accepted: Amount | None = None
    per_position: Annotated[tuple[Amount, ...], msgspec.Meta(max_length=MOST_POSITIONS)] = ()
    running: Whole = 0
    waiting: Whole = 0
    kv_usage: Amount | None = None
    preemptions: Amount = 0.0
    prefix_queries: Amount = 0.0
    prefix_hits: Amount = 0.0
    finished: Amount = 0.0
    finished_tokens: Amount = 0.0
    decode_seconds: Amount = 0.0


class Histogram(msgspec.Struct, frozen=True):
    """How many values fell up to each of `bounds` and above the one before; the last count is of what is above all.

    Raises:
        ValueError: the bounds do not rise, or there is not one count more than there are bounds.
    """

    bounds: Annotated[tuple[Amount, ...], msgspec.Meta(max_length=MOST_BUCKETS)]
    counts: Annotated[tuple[Amount, ...], msgspec.Meta(max_length=MOST_BUCKETS)]
    total: Amount = 0.0

    def __post_init__(self) -> None:
        if len(self.counts) != len(self.bounds) + 1 or any(low >= high for low, high in pairwise(self.bounds)):
            raise ValueError("these counts are no histogram")


class GpuLoad(msgspec.Struct, frozen=True, omit_defaults=True):
    """One GPU of a server at work: watts, MHz, degrees Celsius, bytes; None where the driver does not say.

    `throttle` is what keeps the clocks down. `foreign` are processes that are not the server's, None when the driver
    shows none of the server's own, so that nobody can tell whose they are.
    """

    index: int
    power_w: Amount | None = None
    power_limit_w: Amount | None = None
    clock_mhz: Whole | None = None
    clock_max_mhz: Whole | None = None
    temperature_c: Annotated[int, msgspec.Meta(ge=-300, le=10_000)] | None = None
    utilisation: Amount | None = None
    memory_used: Whole | None = None
    memory_total: Whole | None = None
    throttle: tuple[str, ...] | None = None
    foreign: tuple[Foreign, ...] | None = None


class Foreign(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process that is not the server's on one of its GPUs, and the bytes that it uses there, None when unknown."""

    pid: int
    name: str = ""
    memory: Whole | None = None


class Event(msgspec.Struct, frozen=True, tag_field="event"):
    """Something that happened `at` a time (seconds since the epoch)."""

    at: float


class Preparing(Event, frozen=True, tag="preparing"):
    """A step before the launch moves; `fraction` (0 to 1) is None while it is unknown."""

    step: Step
    text: str
    fraction: float | None = None
    done: bool = False


class Launched(Event, frozen=True, tag="launched"):
    """The server process exists. `synthetic` says why its figures are not those of a real model, or is empty.

    `num_speculative_tokens` is what was asked for: 0 without speculation, None when that is not known.
    """

    run: str
    recipe: str
    pid: int
    port: int
    mode: str
    synthetic: str = ""
    num_speculative_tokens: int | None = None


class LogLine(Event, frozen=True, tag="log", gc=False):
    """One line of the server's log, free of control characters; `source` is the file that logged it."""

    text: str
    level: str = ""
    source: str = ""


class PhaseStarted(Event, frozen=True, tag="phase"):
    """The server entered a phase, for the first time or again."""

    phase: Phase


class Progressed(Event, frozen=True, tag="progress"):
    """The running phase says how far it is, e.g. checkpoint shards or graph sizes.

    `what` is what a bar counts when a phase has several, `seconds` how long the bar runs, None before its first step.
    """

    phase: Phase
    done: int
    total: int
    what: str = ""
    seconds: float | None = None


class Stated(Event, frozen=True, tag="stated"):
    """A figure that the log states, e.g. `torch_compile` 49.99 s."""

    name: str
    value: float
    unit: str


class Noted(Event, frozen=True, tag="fact"):
    """A fact that the server logs about itself, e.g. `attention` FLASH_ATTN."""

    name: str
    text: str


class Compiled(Event, frozen=True, tag="compiled"):
    """A step of torch.compile, which took `seconds` or does not say so (None).

    `part` is the part of the model in vLLM's own word (empty when it gives none), `step` is `dynamo`, `inductor`,
    `loaded` (from the cache), `again` (the cache could not be loaded), `saved` or `total`.
    """

    part: str
    step: str
    seconds: float | None = None


class Problem(Event, frozen=True, tag="problem"):
    """A line that may explain a failure; `kind` names the known failure or is empty."""

    text: str
    kind: str = ""


class HealthChanged(Event, frozen=True, tag="health"):
    """The server answers differently than before; `detail` quotes the answer when it is a bad one."""

    health: Health
    detail: str = ""


class Sampled(Event, frozen=True, tag="counters"):
    """One reading of /metrics."""

    counters: Counters


class LatenciesSampled(Event, frozen=True, tag="latencies"):
    """The server's own histograms since its start: seconds to the first token, and seconds per token after it."""

    ttft: Histogram | None = None
    tpot: Histogram | None = None


class MemorySampled(Event, frozen=True, tag="memory", omit_defaults=True):
    """Memory in bytes that the server uses; `source` says how it was measured, `total` is the capacity.

    `available` is what the machine has left where the server takes its memory from the machine (CPU, unified).
    """

    used: Whole
    total: Whole
    source: str
    available: Whole | None = None


class GpusSampled(Event, frozen=True, tag="gpus"):
    """The GPUs of the server at work."""

    gpus: tuple[GpuLoad, ...]


class Suspended(Event, frozen=True, tag="suspended"):
    """Which processes of the server are stopped by a signal, as by SIGSTOP; empty once none is any more."""

    pids: tuple[int, ...]


class ClockSet(Event, frozen=True, tag="clock set"):
    """Somebody set the clock of the machine, by so many seconds in all since the launch.

    `starting` is whether the server had not answered yet: then nobody knows how long its start took.
    """

    by: Annotated[float, msgspec.Meta(ge=-1e10, le=1e10)]
    starting: bool


class Activity(Event, frozen=True, tag="activity"):
    """What the server's processes have done until now, recorded while it starts; sums since the launch.

    `cpu` are seconds of all cores, `disk` bytes read from and written to disks, `log` the bytes of its log.
    """

    cpu: Amount
    disk: Whole
    log: Whole


_LEAST_STEPS = 1e-6  # less than a millionth of a step was never measured


class RequestDone(Event, frozen=True, tag="request"):
    """One measured request: the kind of its prompt, its tokens and seconds, and why the server ended or refused it."""

    kind: str
    tokens: Whole = 0
    prompt_tokens: Whole = 0
    ttft: Amount | None = None
    """Seconds to the first token."""
    total: Amount = 0.0
    decode_tok_s: Amount | None = None
    """(N - 1) / (t_last - t_first) with N from `usage`; None when one chunk had it all, or all were read at once."""
    finish: str = ""
    error: str = ""
    steps: Amount | None = None
    """What the server's counter of drafts grew by meanwhile: this request's steps when nobody else sends any."""
    accepted: Amount | None = None
    """What the server's counter of accepted tokens grew by meanwhile."""
    chunk_p50: Amount | None = None
    """Median of the seconds between two chunks, which may hold several tokens."""
    chunk_p95: Amount | None = None
    """95th percentile of the same."""
    streams: Whole = 1
    """How many requests were under way at a time."""
    round: Whole = 0
    """Which of the requests with the same prompt it is."""
    digests: tuple[str, ...] = ()
    """SHA-256 of the answer's first 40 and 200 characters and of all of it, to compare answers without keeping any."""
    status: Whole | None = None
    """The HTTP status of a refusal; None without one."""

    @property
    def acceptance_length(self) -> float | None:
        """1 + accepted / steps, the bonus token counted; None when its steps are not known."""
        if self.steps is None or self.accepted is None or self.steps < _LEAST_STEPS:
            return None
        return 1 + self.accepted / self.steps

    @property
    def steps_s(self) -> float | None:
        """Verification steps per second while decoding: tok/s = steps/s x AL, which holds for each stream."""
        length = self.acceptance_length
        return None if length is None or self.decode_tok_s is None else self.decode_tok_s / length


class Stopping(Event, frozen=True, tag="stopping"):
    """Somebody asked the server to stop; an exit after this is no failure."""


class Exited(Event, frozen=True, tag="exited"):
    """The server process is gone. `code` is None when another process launched it.

    `lost` means that the machine was rebooted while it ran.
    """

    code: int | None
    lost: bool = False


class Autopsy(Event, frozen=True, tag="autopsy"):
    """The system's messages about a server that exited.

    `kernel` are the kernel's lines about the server's processes and GPUs, `kills` is how many processes it killed
    because it was out of memory while the server was watched, None when that is unknown.
    """

    kernel: tuple[str, ...] = ()
    kills: int | None = None


Recorded = (
    Sampled
    | LatenciesSampled
    | MemorySampled
    | Activity
    | GpusSampled
    | Suspended
    | ClockSet
    | HealthChanged
    | RequestDone
    | Stopping
    | Exited
    | Autopsy
)
AnyEvent = Preparing | Launched | LogLine | PhaseStarted | Progressed | Stated | Noted | Compiled | Problem | Recorded

# Requests of the recorder are no measurements: one shows that a server can generate, the other that it still can.
WARM_UP, PROBE = "warm-up", "probe"
OURS = frozenset({WARM_UP, PROBE})

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Recorded] = msgspec.json.Decoder(Recorded)
YEAR_2100 = 4_102_444_800.0


def encode(event: Event) -> bytes:
    """Return the event as one line of JSON, without the line end."""
    return _encoder.encode(event)


def decode_recorded(line: bytes) -> Recorded | None:
    """Return the event of a line of `samples.jsonl`, or None for what is none: half-written, older, impossible."""
    try:
        event = untrusted_json.decode_untrusted(line, _decoder, one_line=True)
    except msgspec.MsgspecError:
        return None
    return event if 0 <= event.at < YEAR_2100 else None
