"""The events of a run, as frozen structs; used by observers, the run state, screens and `--json`."""

from enum import StrEnum
from itertools import pairwise
from typing import Annotated

import msgspec

from dflash_tui.common.untrusted_json import decode_json

# Upper bound of every amount: larger than any real counter, and sums and quotients of such numbers stay finite.
MOST = 1e15
MOST_POSITIONS = 64
# vLLM's histograms have about 20 buckets.
MOST_BUCKETS = 256
# Bounds of values read from files, which are not trusted.
Amount = Annotated[float, msgspec.Meta(ge=0, le=MOST)]
Whole = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]
# The lower bound keeps its reciprocal, the seconds per token, within `Amount`.
Speed = Annotated[float, msgspec.Meta(ge=1 / MOST, le=MOST)]
LEAST_STEPS = 1e-6  # a smaller number of steps is a rounding error


class Counters(msgspec.Struct, frozen=True, omit_defaults=True):
    """One reading of the server's counters and gauges, summed over engines; None where the server does not report it.

    `steps` counts drafts: one per sequence and verification step. `steps`, `proposed` and `accepted` are None without
    speculation. `finished` counts requests, `decode_seconds` sums their time after the first token. `series` changes
    when an engine comes or goes. Recordings omit fields that equal their default.
    """

    generated: Amount
    prompt: Amount | None = 0.0
    steps: Amount | None = None
    proposed: Amount | None = None
    accepted: Amount | None = None
    per_position: Annotated[tuple[Amount | None, ...], msgspec.Meta(max_length=MOST_POSITIONS)] = ()
    running: Whole | None = 0
    waiting: Whole | None = 0
    kv_usage: float | None = None
    preemptions: Amount | None = 0.0
    prefix_queries: Amount = 0.0
    prefix_hits: Amount = 0.0
    finished: Amount = 0.0
    finished_tokens: Amount = 0.0
    decode_seconds: Amount = 0.0
    finished_prompt_tokens: Amount | None = None
    series: Whole | None = None

    def __post_init__(self) -> None:
        if self.kv_usage is not None and not 0 <= self.kv_usage <= 1:
            msgspec.structs.force_setattr(self, "kv_usage", None)

    def is_of_same_series(self, other: "Counters") -> bool:
        """Whether both readings sum the counters of the same engines; True where either `series` is unknown."""
        return self.series is None or other.series is None or self.series == other.series


class Histogram(msgspec.Struct, frozen=True):
    """Counts of values per bucket: above the previous bound, up to its own; the last bucket is above all `bounds`."""

    bounds: Annotated[tuple[Amount, ...], msgspec.Meta(max_length=MOST_BUCKETS)]
    counts: Annotated[tuple[Amount, ...], msgspec.Meta(max_length=MOST_BUCKETS)]
    total: Amount = 0.0

    def __post_init__(self) -> None:
        if len(self.counts) != len(self.bounds) + 1 or any(low >= high for low, high in pairwise(self.bounds)):
            raise ValueError("these counts are no histogram")


class Foreign(msgspec.Struct, frozen=True, omit_defaults=True):
    """Another program's process on one of the server's GPUs; `memory` is in bytes, None when unknown."""

    pid: int
    name: str = ""
    memory: Whole | None = None


class GpuLoad(msgspec.Struct, frozen=True, omit_defaults=True):
    """The load of one of the server's GPUs; None where the driver does not report a value.

    `throttle` lists the driver's reasons for low clocks. `foreign` lists other programs' processes, or is None where
    the driver does not list the server's own processes either.
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


class Step(StrEnum):
    """The steps of preparing a launch, in order."""

    INSTALL = "install"
    CHECK = "check"
    MODELS = "models"
    PATCHES = "patches"
    INSPECT = "inspect"


class Phase(StrEnum):
    """The phases of a start, in the usual order; each lasts until the next one starts.

    `import` starts at the launch, `ranks` waits for the server's other hosts, `up` starts when the log says so.
    """

    IMPORT = "import"
    RESOLVE = "resolve"
    ENGINE = "engine"
    RANKS = "ranks"
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
    """The server's state: no answer yet, 200 on /health, answers generations, or /health fails after it was 200."""

    STARTING = "starting"
    HEALTHY = "healthy"
    WARM = "warm"
    UNHEALTHY = "unhealthy"


class Event(msgspec.Struct, frozen=True, tag_field="event"):
    """Something that happened `at` a time (seconds since the epoch).

    Events of `server.log` use the log's timestamps, so that a replay gives the same values as watching; the others are
    recorded in `samples.jsonl`.
    """

    at: float


class Preparing(Event, frozen=True, tag="preparing"):
    """Progress of a preparation step; `fraction` (0 to 1) is None while unknown, `host` is empty on this machine."""

    step: Step
    text: str
    fraction: float | None = None
    done: bool = False
    host: str = ""


class Launched(Event, frozen=True, tag="launched"):
    """The server process was started; `synthetic` says why its figures are not those of a real model.

    `num_speculative_tokens` is 0 without speculation, None when unknown. Of several ranks only rank 0 serves HTTP.
    """

    run: str
    recipe: str
    pid: int
    port: int
    mode: str
    synthetic: str = ""
    num_speculative_tokens: int | None = None
    method: str = ""
    roce: str = ""
    """The RoCE devices that NCCL was to use."""
    rank: int = 0
    hardware: str = ""
    published_length: float | None = None
    """The lowest published acceptance length for this set-up; None without one."""


# The `source` of log lines that the observer itself adds.
OBSERVER_SOURCE = "dflash-tui"


class LogLine(Event, frozen=True, tag="log", gc=False):
    """One line of the server's log, without control characters; `source` is the source file that logged it."""

    text: str
    level: str = ""
    source: str = ""


class PhaseStarted(Event, frozen=True, tag="phase"):
    """The server entered a phase, for the first time or again."""

    phase: Phase


class Progressed(Event, frozen=True, tag="progress"):
    """A progress bar of the running phase: `what` it counts, such as checkpoint shards, and its `seconds` so far."""

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


class EngineInitialized(Event, frozen=True, tag="initialized"):
    """The engine is ready: profiling, KV cache and warm-up took `seconds`, of which `compilation` was compiling."""

    seconds: float
    compilation: float | None = None


class SpeculationLogged(Event, frozen=True, tag="speculation"):
    """The log's line about ten seconds of speculation; `acceptance_length` includes the bonus token."""

    acceptance_length: float | None
    accepted: Whole
    drafted: Whole
    per_position: tuple[float, ...] = ()


class LoadLogged(Event, frozen=True, tag="load", gc=False):
    """The log's line about running and waiting requests; `kv_usage` is a share (0 to 1) of the KV cache."""

    running: Whole
    waiting: Whole
    kv_usage: float | None = None


class Noted(Event, frozen=True, tag="fact"):
    """A fact that the server logs about itself, e.g. `attention` FLASH_ATTN."""

    name: str
    text: str


class Compiled(Event, frozen=True, tag="compiled"):
    """A step of torch.compile for a `part` of the model, as vLLM names it.

    `step` is `dynamo`, `inductor`, `loaded` (from the cache), `again` (loading failed), `saved` or `total`.
    """

    part: str
    step: str
    seconds: float | None = None


class Problem(Event, frozen=True, tag="problem"):
    """An error that may explain a failure; `kind` names the known failure.

    A message of several lines is reported again with each added line. `frames` are the last file lines of its
    traceback, the innermost last.
    """

    text: str
    kind: str = ""
    process: str = ""
    frames: tuple[str, ...] = ()


class HealthChanged(Event, frozen=True, tag="health"):
    """The server's health changed; `detail` quotes a bad answer."""

    health: Health
    detail: str = ""


class Sampled(Event, frozen=True, tag="counters"):
    """One reading of /metrics."""

    counters: Counters


class LatenciesSampled(Event, frozen=True, tag="latencies"):
    """The server's own histograms since its start, in seconds."""

    ttft: Histogram | None = None
    tpot: Histogram | None = None


class MemorySampled(Event, frozen=True, tag="memory", omit_defaults=True):
    """Bytes of memory that the server uses, of `total`; `source` says how it was measured.

    `swapped` is the server's memory in swap. On a CPU or with unified memory, `available` is the machine's free memory,
    `cached` its page cache, and `stalled` the share of ten seconds in which all programs waited for memory.
    """

    used: Whole
    total: Whole
    source: str
    available: Whole | None = None
    swapped: Whole = 0
    cached: Whole | None = None
    stalled: Amount | None = None


class GpusSampled(Event, frozen=True, tag="gpus"):
    """A sample of all GPUs of the server."""

    gpus: tuple[GpuLoad, ...]


class ProcessorsSampled(Event, frozen=True, tag="processors", omit_defaults=True):
    """Processors kept `busy` by a server without a GPU and by `others`, of `total` that the server may use."""

    busy: Amount
    total: Whole
    threads: Whole
    others: Amount | None = None


class Suspended(Event, frozen=True, tag="suspended"):
    """The server's processes that a signal such as SIGSTOP has stopped; empty once all run again."""

    pids: tuple[int, ...]


class RankState(StrEnum):
    """The state of a rank on another host."""

    RUNNING = "running"
    SUSPENDED = "suspended"
    LOST = "lost"
    ENDED = "ended"
    STOPPED = "stopped"
    LEFT = "left"


class RankSampled(Event, frozen=True, tag="rank", omit_defaults=True):
    """The state of a rank on another host, as its keeper reports it."""

    rank: Annotated[int, msgspec.Meta(ge=1, le=63)]
    host: str
    state: RankState
    since: Amount
    why: str = ""
    resident: Whole = 0
    """Bytes used by its processes; `available` and `total` are the host's."""
    available: Whole | None = None
    total: Whole | None = None
    gpus: Annotated[tuple[GpuLoad, ...], msgspec.Meta(max_length=64)] = ()
    busy: Amount | None = None
    """The number of busy processors, of a rank without a GPU."""
    network: str = ""
    """The network that NCCL logged on that host, `IB` (RoCE, too) or `Socket`; empty until then."""


class Activity(Event, frozen=True, tag="activity"):
    """Sums since the launch, recorded during the start: CPU seconds of all cores, bytes of disk I/O, bytes of log."""

    cpu: Amount
    disk: Whole
    log: Whole


class RequestDone(Event, frozen=True, tag="request"):
    """One measured request; `kind` is its kind of prompt, `finish` and `error` say how it ended or was refused."""

    kind: str
    tokens: Whole = 0
    prompt_tokens: Whole = 0
    ttft: Amount | None = None
    """Seconds to the first token."""
    total: Amount = 0.0
    decode_tok_s: Speed | None = None
    """Tokens after the first arrival / (t_last - t_first); None when all arrived at once."""
    finish: str = ""
    error: str = ""
    steps: Amount | None = None
    """Growth of the server's counter of drafts during the request, other clients' included; then of accepted tokens."""
    accepted: Amount | None = None
    chunk_p50: Amount | None = None
    """Median seconds between two chunks, each of one or more tokens; then the 95th percentile."""
    chunk_p95: Amount | None = None
    streams: Whole = 1
    """Concurrent requests; 0 where they arrived at a `rate`."""
    rate: Amount = 0.0
    """The intended requests per second."""
    round: Whole = 0
    """The index of this request among those with the same prompt."""
    digests: tuple[str, ...] = ()
    """SHA-256 of the answer, last; older releases put those of its beginnings before it."""
    status: Whole | None = None
    """The HTTP status of a refusal."""
    sampling: str = ""
    cached: Amount | None = None
    """Prompt tokens that the prefix cache answered, by the server's counters; None with several streams."""
    calls: Whole = 0
    """Tool calls of the answer, and those that do not parse: no offered function, no JSON, or an argument missing.

    An answer that was cut at its limit has none that does not parse.
    """
    broken_calls: Whole = 0

    @property
    def acceptance_length(self) -> float | None:
        """Answered tokens per verification step, bonus token included; None without the counters of its steps."""
        return measure_acceptance_length(self.steps, self.accepted, self.tokens)

    @property
    def steps_s(self) -> float | None:
        """Verification steps per second while decoding: tok/s = steps/s x AL, for each stream."""
        length = self.acceptance_length
        return None if length is None or self.decode_tok_s is None else self.decode_tok_s / length


class AnswerHeld(Event, frozen=True, tag="first answer", omit_defaults=True):
    """The first greedy answer of a server over several hosts, compared with the recorded one of these models.

    `is_like_before` is None without a recorded answer; `noise` says why the text looks like noise.
    """

    text: str
    is_like_before: bool | None = None
    before: str = ""
    run: str = ""
    """The run that gave the answer `before`."""
    noise: str = ""
    record: str = ""
    """The file with the recorded answer."""


class Stopping(Event, frozen=True, tag="stopping"):
    """The server was asked to stop, so that its exit is not a failure."""


class Exited(Event, frozen=True, tag="exited"):
    """The server process has exited; `code` is None if another process launched it, `lost` means ended by a reboot."""

    code: int | None
    lost: bool = False


class Autopsy(Event, frozen=True, tag="autopsy"):
    """The kernel's log lines about a server that exited, and the number of processes it killed for lack of memory."""

    kernel: tuple[str, ...] = ()
    kills: int | None = None


Recorded = (
    Sampled | LatenciesSampled | MemorySampled | Activity | GpusSampled | ProcessorsSampled | Suspended | RankSampled
    | HealthChanged | RequestDone | AnswerHeld | Stopping | Exited | Autopsy
)  # fmt: skip
AnyEvent = (
    Preparing | Launched | LogLine | PhaseStarted | Progressed | Stated | EngineInitialized | SpeculationLogged
    | LoadLogged | Noted | Compiled | Problem | Recorded
)  # fmt: skip

# Kinds of the recorder's own requests, which are not measured.
WARM_UP, GREEDY_WARM_UP, LONG_WARM_UP, PROBE, FILLER = "warm-up", "greedy warm-up", "long warm-up", "probe", "filler"
OURS = frozenset({WARM_UP, GREEDY_WARM_UP, LONG_WARM_UP, PROBE, FILLER})
# The `finish` of a filler that was cancelled; vLLM does not count such requests as finished.
BROKEN_OFF = "abort"
_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Recorded] = msgspec.json.Decoder(Recorded)
YEAR_2100 = 4_102_444_800.0


def measure_acceptance_length(
    steps: float | None, accepted: float | None, tokens: float, requests: int = 1
) -> float | None:
    """Return the tokens that a verification step adds to an answer; None where steps are not known.

    vLLM counts every accepted draft, including those beyond the end of the answer. So 1 + accepted / steps is too high:
    by 5 % for answers of 64 tokens, n=15 (vllm-project/vllm#56101; #56137 counts emitted tokens). An answer begins with
    a token of the prefill, and each step adds its accepted drafts and one more token:

    cut = requests + steps + accepted - tokens,  acceptance length = 1 + (accepted - cut) / steps

    which is (tokens - requests) / steps. The cut counts as 0 if it is negative (steps without a draft are not counted),
    larger than the last steps can hold (other clients' drafts), or if `tokens`, the sum over `requests`, is not known.
    """
    if steps is None or accepted is None or steps < LEAST_STEPS:
        return None
    cut = requests + steps + accepted - tokens
    believed = tokens > requests and 0 < cut <= min(accepted, requests * MOST_POSITIONS)
    return 1 + (accepted - (cut if believed else 0.0)) / steps


def encode(event: Event) -> bytes:
    """Return the event as one line of JSON, without the line end."""
    return _encoder.encode(event)


def decode_recorded(line: bytes) -> Recorded | None:
    """Return the event in a line of `samples.jsonl`; None if the line is incomplete, outdated or out of range."""
    try:
        event = decode_json(line, _decoder)
    except msgspec.MsgspecError:
        return None
    return event if 0 <= event.at < YEAR_2100 else None
