"""The events of a run as frozen structs: the vocabulary of observers, state, screens and `--json`."""

from enum import StrEnum
from itertools import pairwise
from typing import Annotated

import msgspec

from dflash_tui.common.untrusted_json import decode_json

# No server counts further, and sums, differences and quotients of such numbers are still numbers.
MOST = 1e15
MOST_POSITIONS = 64
# Of a histogram; those of vLLM have some 20.
MOST_BUCKETS = 256
# What is read from a file, which anybody may have written, must lie within these.
Amount = Annotated[float, msgspec.Meta(ge=0, le=MOST)]
Whole = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]
# Its reciprocal, the seconds of a token, is such an amount, too.
Speed = Annotated[float, msgspec.Meta(ge=1 / MOST, le=MOST)]
LEAST_STEPS = 1e-6  # less than a millionth of a step was never measured


class Counters(msgspec.Struct, frozen=True, omit_defaults=True):
    """One reading of the server's counters and gauges, summed over engines; None where the server does not report it.

    `steps` counts drafts: one per sequence and verification step; it, `proposed` and `accepted` are None without
    speculation. `finished` counts requests, `decode_seconds` their time from the first token on. `series` changes when
    an engine comes or goes. Defaults of 0 are those of recordings, which leave out defaults.
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
        """Drop a share of the KV cache that is not between 0 and 1."""
        if self.kv_usage is not None and not 0 <= self.kv_usage <= 1:
            msgspec.structs.force_setattr(self, "kv_usage", None)

    def is_of_same_series(self, other: "Counters") -> bool:
        """Whether both add up the counters of the same engines, as far as is known."""
        return self.series is None or other.series is None or self.series == other.series


class Histogram(msgspec.Struct, frozen=True):
    """How many values fell up to each of `bounds` and above the one before; the last count is of what is above all."""

    bounds: Annotated[tuple[Amount, ...], msgspec.Meta(max_length=MOST_BUCKETS)]
    counts: Annotated[tuple[Amount, ...], msgspec.Meta(max_length=MOST_BUCKETS)]
    total: Amount = 0.0

    def __post_init__(self) -> None:
        if len(self.counts) != len(self.bounds) + 1 or any(low >= high for low, high in pairwise(self.bounds)):
            raise ValueError("these counts are no histogram")


class Foreign(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process that is not the server's on one of its GPUs, and the bytes that it uses there, None when unknown."""

    pid: int
    name: str = ""
    memory: Whole | None = None


class GpuLoad(msgspec.Struct, frozen=True, omit_defaults=True):
    """One GPU of a server at work; None where the driver does not say.

    `throttle` is what keeps the clocks down. `foreign` are processes that are not the server's, None where the driver
    does not show the server's own either.
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

    `import` starts at the launch, `ranks` waits for a server's other hosts, `up` is when the log says that it serves.
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
    """What the server answers: nothing yet, 200 on /health, a real generation, or no longer 200."""

    STARTING = "starting"
    HEALTHY = "healthy"
    WARM = "warm"
    UNHEALTHY = "unhealthy"


class Event(msgspec.Struct, frozen=True, tag_field="event"):
    """Something that happened `at` a time (seconds since the epoch).

    Events of `server.log` take it from the log's stamps, so that a replay gives the values that watching gave; the
    others are recorded in `samples.jsonl`.
    """

    at: float


class Preparing(Event, frozen=True, tag="preparing"):
    """A step before the launch moves; `fraction` (0 to 1) is None while unknown, `host` empty on this machine."""

    step: Step
    text: str
    fraction: float | None = None
    done: bool = False
    host: str = ""


class Launched(Event, frozen=True, tag="launched"):
    """The server process exists. `synthetic` says why its figures are not those of a real model.

    `num_speculative_tokens` is 0 without speculation, None when unknown. Of several ranks only rank 0 answers requests.
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
    """The least acceptance length that others published for this set-up; None without one."""


# What an observer has to say itself stands among the lines of the log, as if from this file.
OBSERVER_SOURCE = "dflash-tui"


class LogLine(Event, frozen=True, tag="log", gc=False):
    """One line of the server's log, free of control characters; `source` is the file that logged it."""

    text: str
    level: str = ""
    source: str = ""


class PhaseStarted(Event, frozen=True, tag="phase"):
    """The server entered a phase, for the first time or again."""

    phase: Phase


class Progressed(Event, frozen=True, tag="progress"):
    """How far the running phase is, e.g. of checkpoint shards; `what` a bar counts, and the `seconds` that it runs."""

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
    """The engine is ready: profiling, KV cache and warm-up took `seconds`, `compilation` of them compiling."""

    seconds: float
    compilation: float | None = None


class SpeculationLogged(Event, frozen=True, tag="speculation"):
    """What the log says of ten seconds of speculation; `acceptance_length` counts the bonus token."""

    acceptance_length: float | None
    accepted: Whole
    drafted: Whole
    per_position: tuple[float, ...] = ()


class LoadLogged(Event, frozen=True, tag="load", gc=False):
    """What the log says of the requests at one time; `kv_usage` is a share (0 to 1) of the KV cache."""

    running: Whole
    waiting: Whole
    kv_usage: float | None = None


class Noted(Event, frozen=True, tag="fact"):
    """A fact that the server logs about itself, e.g. `attention` FLASH_ATTN."""

    name: str
    text: str


class Compiled(Event, frozen=True, tag="compiled"):
    """A step of torch.compile for a `part` of the model, in vLLM's word.

    `step` is `dynamo`, `inductor`, `loaded` (from the cache), `again` (that failed), `saved` or `total`.
    """

    part: str
    step: str
    seconds: float | None = None


class Problem(Event, frozen=True, tag="problem"):
    """An error that may explain a failure; `kind` names the known failure.

    A message of several lines is repeated with each line that is added. `frames` are the last lines of its traceback
    that say where, the innermost last.
    """

    text: str
    kind: str = ""
    process: str = ""
    frames: tuple[str, ...] = ()


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
    """Bytes of memory that the server uses, of `total`; `source` says how it was measured.

    `swapped` is what of the server is in swap. Where it takes memory of the machine (CPU, unified), `available` is what
    is left, `cached` the page cache, and `stalled` the share of ten seconds in which all programs waited for memory.
    """

    used: Whole
    total: Whole
    source: str
    available: Whole | None = None
    swapped: Whole = 0
    cached: Whole | None = None
    stalled: Amount | None = None


class GpusSampled(Event, frozen=True, tag="gpus"):
    """The GPUs of the server at work."""

    gpus: tuple[GpuLoad, ...]


class ProcessorsSampled(Event, frozen=True, tag="processors", omit_defaults=True):
    """How many processors a server without a GPU keeps `busy`, of `total` that it may use, and `others` do."""

    busy: Amount
    total: Whole
    threads: Whole
    others: Amount | None = None


class Suspended(Event, frozen=True, tag="suspended"):
    """Which processes of the server are stopped by a signal, as by SIGSTOP; empty once none is any more."""

    pids: tuple[int, ...]


class RankState(StrEnum):
    """What is known of a rank on another host."""

    RUNNING = "running"
    SUSPENDED = "suspended"
    LOST = "lost"
    ENDED = "ended"
    STOPPED = "stopped"
    LEFT = "left"


class RankSampled(Event, frozen=True, tag="rank", omit_defaults=True):
    """How a rank on another host is, as its keeper knows."""

    rank: Annotated[int, msgspec.Meta(ge=1, le=63)]
    host: str
    state: RankState
    since: Amount
    why: str = ""
    resident: Whole = 0
    """Bytes that its processes use; `available` and `total` are those of the host."""
    available: Whole | None = None
    total: Whole | None = None
    gpus: Annotated[tuple[GpuLoad, ...], msgspec.Meta(max_length=64)] = ()
    busy: Amount | None = None
    """How many processors it keeps busy, where it has no GPU."""
    network: str = ""
    """What NCCL says there that it talks over, `IB` (RoCE, too) or `Socket`; empty before it says so."""


class Activity(Event, frozen=True, tag="activity"):
    """Sums since the launch, recorded while it starts: seconds of all cores, bytes from and to disks, bytes of log."""

    cpu: Amount
    disk: Whole
    log: Whole


class RequestDone(Event, frozen=True, tag="request"):
    """One measured request: the kind of its prompt, its tokens and seconds, and why the server ended or refused it."""

    kind: str
    tokens: Whole = 0
    prompt_tokens: Whole = 0
    ttft: Amount | None = None
    """Seconds to the first token."""
    total: Amount = 0.0
    decode_tok_s: Speed | None = None
    """Tokens after those of the first arrival / (t_last - t_first); None when all arrived at once."""
    finish: str = ""
    error: str = ""
    steps: Amount | None = None
    """The growth of the server's counters of drafts and of accepted tokens meanwhile, with those of other clients."""
    accepted: Amount | None = None
    chunk_p50: Amount | None = None
    """Median of the seconds between two chunks, which may hold several tokens; then their 95th percentile."""
    chunk_p95: Amount | None = None
    streams: Whole = 1
    """How many requests were under way at a time; 0 where they came by a rate."""
    rate: Amount = 0.0
    """The requests per second that were to arrive."""
    round: Whole = 0
    """Which of the requests with the same prompt it is."""
    digests: tuple[str, ...] = ()
    """The SHA-256 of the answer, which comes last where earlier releases recorded those of its beginnings."""
    status: Whole | None = None
    """The HTTP status of a refusal."""
    sampling: str = ""

    @property
    def acceptance_length(self) -> float | None:
        """The tokens of its answer per verification step, the bonus token counted; None without its steps."""
        return measure_acceptance_length(self.steps, self.accepted, self.tokens)

    @property
    def steps_s(self) -> float | None:
        """Verification steps per second while decoding: tok/s = steps/s x AL, which holds for each stream."""
        length = self.acceptance_length
        return None if length is None or self.decode_tok_s is None else self.decode_tok_s / length


class AnswerHeld(Event, frozen=True, tag="first answer", omit_defaults=True):
    """The first greedy answer of a server over several hosts, beside the one that these models gave before.

    Without one before `is_like_before` is None, and `noise` may say what shows rubbish.
    """

    text: str
    is_like_before: bool | None = None
    before: str = ""
    run: str = ""
    """The run that answered `before`."""
    noise: str = ""
    record: str = ""
    """The file that holds what it was held against."""


class Stopping(Event, frozen=True, tag="stopping"):
    """The server was asked to stop; an exit after this is no failure."""


class Exited(Event, frozen=True, tag="exited"):
    """The server process is gone: `code` is None when another process launched it, `lost` means by a reboot."""

    code: int | None
    lost: bool = False


class Autopsy(Event, frozen=True, tag="autopsy"):
    """The kernel's lines about a server that exited, and how many processes it killed for lack of memory meanwhile."""

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

# Requests of the recorder are no measurements.
WARM_UP, GREEDY_WARM_UP, LONG_WARM_UP, PROBE, FILLER = "warm-up", "greedy warm-up", "long warm-up", "probe", "filler"
OURS = frozenset({WARM_UP, GREEDY_WARM_UP, LONG_WARM_UP, PROBE, FILLER})
# How a filler ended that was not waited for; vLLM counts no such request as finished.
BROKEN_OFF = "abort"
_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Recorded] = msgspec.json.Decoder(Recorded)
YEAR_2100 = 4_102_444_800.0


def measure_acceptance_length(
    steps: float | None, accepted: float | None, tokens: float, requests: int = 1
) -> float | None:
    """Return the tokens that a verification step adds to an answer; None where steps are not known.

    vLLM counts each draft that it accepts, also those that the last step accepts beyond the end of the answer. So
    1 + accepted / steps is too much by what was cut there: 5 % for answers of 64 tokens, n=15 (vllm-project/vllm#56101;
    #56137 counts what is emitted). An answer begins with a token of the prefill, and each step adds its accepted drafts
    and one more, so that

        cut = requests + steps + accepted - tokens,  acceptance length = 1 + (accepted - cut) / steps

    which is (tokens - requests) / steps. A cut below zero (steps without a draft are not counted) or above what the
    last steps hold (other clients') is not known and counts as none, as without `tokens`, those of all `requests`.
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
    """Return the event of a line of `samples.jsonl`, or None for what is none: half-written, older, impossible."""
    try:
        event = decode_json(line, _decoder)
    except msgspec.MsgspecError:
        return None
    return event if 0 <= event.at < YEAR_2100 else None
