"""The types of an experiment: its design with several arms of one recipe, and what each boot measured.

The folder of an experiment holds `experiment.json` (the `Design`), `events.jsonl` (one `Happened` per line),
`answers.jsonl` if answers are kept (one `KeptAnswer` per line) and, at the end, `report.json`. The unit of measurement
is the boot, not the request: launches of the same server differ, and that is no effect of the arm.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from dflash_tui.benchmark.load import MeasuredWindow
from dflash_tui.benchmark.prompts import MOST_ROUNDS, MOST_SCALE, MOST_SEED, MOST_TEMPERATURE, TokenVariety
from dflash_tui.benchmark.server import ServerFacts
from dflash_tui.benchmark.sse import Answer, ArrivalMark
from dflash_tui.events import YEAR_2100, Amount, Event, RequestDone, Whole
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.request import LaunchRequest

_Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Scale = Annotated[float, Meta(gt=0, le=MOST_SCALE)]
Temperature = Annotated[float, Meta(ge=0, le=MOST_TEMPERATURE)]


class RunningServer(msgspec.Struct, frozen=True):
    """A server that already runs, measured by its address. It is never stopped or signalled."""

    url: str
    model: str
    facts: ServerFacts
    is_here: bool = False
    """Whether it runs on this machine."""


class Arm(msgspec.Struct, frozen=True):
    """One value of what is varied."""

    name: str
    request: LaunchRequest
    """The launch request, with a port so that all arms use the same one."""
    plan: Plan
    """Its launch; that of a running server has no command, and is otherwise what the server reports."""
    server: RunningServer | None = None
    """The running server that is measured; None if each boot launches one."""

    @property
    def placed_request(self) -> LaunchRequest:
        """The launch request on the hosts of the plan."""
        return replace(self.request, cluster=self.plan.cluster)


class Tuning(msgspec.Struct, frozen=True):
    """The settings of a tune, whose arms and boots grow by rounds until the budget is spent."""

    budget: Amount
    """The seconds that all boots together may take."""
    axes: tuple[str, ...]
    """The axes, varied one after the other, each as `KEY=VALUE,VALUE`."""
    save_as: str
    left_out: dict[str, str] = {}


class BootOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of every boot, named as those of `ab`, and kept in the design."""

    rounds: Annotated[int, Meta(ge=1, le=MOST_ROUNDS)] = 1
    """Answers per prompt and number of streams in a boot (more if needed to keep the streams busy)."""
    seed: Annotated[int, Meta(ge=0, le=MOST_SEED)] = 0
    """The seed of the prompt order; also sent with each request."""
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    concurrency: Annotated[tuple[_Count, ...], Meta(min_length=1)] = (1,)
    """The numbers of concurrent requests, measured one after the other."""
    own_cache: bool = True
    """Whether each arm has its own compile cache, empty at its first boot."""
    checks_output: bool = False
    """Whether only the answers are compared; the server then returns token ids."""
    measures_start: bool = False
    """Whether the time to ready is judged; only warm-up requests are sent."""
    cold: bool = False
    """Whether the caches of an arm are emptied before every boot, not only before the first."""
    key_env: str | None = None
    """The variable with the API key of the servers at a URL."""
    model: str | None = None
    """The model to ask of the servers at a URL, where one has several."""
    by_kind: bool = False
    """Whether a boot sends one kind of prompt after the other, so that each has a load of its own."""


class Design(BootOptions, frozen=True):
    """The design of an experiment; only rounds of a tune and extensions change it."""

    id: str
    made_at: float
    version: str
    recipe: str
    vary: str
    """The key of what is varied, such as `mode` or `env.NAME`."""
    arms: tuple[Arm, ...]
    """The arms; each is compared with the first."""
    order: tuple[int, ...]
    """The arm of each boot, in launch order."""
    suite: str
    """The suite of prompts, by name or path; empty if two runs are compared."""
    digest: str
    """The SHA-256 of the suite."""
    scale: Scale = 1.0
    """The factor on the usual length of the answers."""
    temperature: Temperature | None = 0.0
    """The sampling temperature; None is the model's own."""
    synthetic: str = ""
    """Why the figures say nothing about a real model; empty if they are real."""
    command: str = ""
    levels: bool = False
    """Whether the prompts are levels of one factor, such as context length, and not a sample."""
    repeats: bool = False
    """Whether the same texts are sent again, so that the prefix cache is used."""
    keep_answers: bool = False
    fixed: bool = True
    """Whether answers continue past the model's own end (`ignore_eos`)."""
    tuning: Tuning | None = None
    looks: _Count = 1
    """How often its boots are judged: once, plus once per extension."""

    @property
    def launched(self) -> tuple[Arm, ...]:
        """The arms whose servers the experiment launches itself."""
        return tuple(arm for arm in self.arms if arm.server is None)

    @property
    def other_hosts(self) -> tuple[str, ...]:
        """The hosts of its servers besides this one."""
        return tuple(dict.fromkeys(host for arm in self.arms for host in arm.request.peers))

    @property
    def servers(self) -> tuple[RunningServer, ...]:
        """The running servers that are arms."""
        return tuple(arm.server for arm in self.arms if arm.server)

    @property
    def command_word(self) -> str:
        """The command that begins and resumes it."""
        return "tune" if self.tuning else "ab"

    @property
    def attempts(self) -> int:
        """The attempts per boot; a tune drops a candidate at its first failure to save its budget."""
        return 1 if self.tuning else 2

    @property
    def honest(self) -> bool:
        """Whether every arm is launched at least twice, so that the spread between its boots is known."""
        return not self.servers and all(self.order.count(arm) >= 2 for arm in range(len(self.arms)))


class Conditions(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of the machine at one moment of a boot; None or empty if it cannot be read."""

    at: float
    power: str = ""
    """`mains`, `battery` or empty."""
    clock_mhz: Whole | None = None
    temperature_c: int | None = None
    power_w: Amount | None = None
    """The power draw of all `cards` together."""
    power_limit_w: Amount | None = None
    """The sum of the power limits of all `cards`."""
    cards: Whole = 1
    throttle: tuple[str, ...] | None = None
    foreign: tuple[str, ...] | None = None
    """Other processes on the GPUs, by name and pid, and our servers other than this one."""
    available: Whole | None = None
    load: Amount | None = None
    hosts: dict[str, Conditions] = {}


class HostFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Another host of a boot, and the launch of the rank there."""

    host: str
    name: str = ""
    machine: str = ""
    memory: Whole = 0
    address: str = ""
    interface: str = ""
    devices: tuple[str, ...] = ()
    """Its RoCE devices; empty if the link uses sockets only."""
    network: str = ""
    """The transport that NCCL logged there: `IB` (also for RoCE) or `Socket`; empty if it logged none."""
    hardware: str = ""
    vllm: str = ""
    """The distribution and release of vLLM there, and its Python."""
    patches: str = ""
    """The patches there, and a digest of their texts."""
    argv: tuple[str, ...] = ()
    env: dict[str, str] = {}


class AnswerCheck(msgspec.Struct, frozen=True, omit_defaults=True):
    """The check of an answer with speculation by a server without it, and that server's rounding."""

    kind: str
    streams: Whole
    round: Whole
    tokens: Whole = 0
    """The number of scored tokens of the answer."""
    parted: Whole | None = None
    """The first token, from 1, that differs from the answer without speculation; None if none does."""
    ends_early: bool = False
    """Whether one of the two answers is the beginning of the other."""
    loses_words: bool = False
    """Whether the tokens are the same and the streamed words or tool calls are not."""
    gap: Amount = 0.0
    """The largest gap: the log-probability of a token below that of the likeliest token at its position."""
    place: Whole = 0
    """The token with the largest gap, from 1."""
    rounding: Amount = 0.0
    """The largest shift of a token's lead over its runner-up between decoding and prefill."""
    positions: Whole = 0
    """The number of tokens at which the rounding was measured."""
    error: str = ""


class Boot(msgspec.Struct, frozen=True, omit_defaults=True):
    """One launch of an arm and its measurements. Seconds count from the launch."""

    number: int
    arm: int
    run: str
    """The id of the run, or `turn-N` of a running server; empty if none was launched."""
    attempt: int = 1
    began: Annotated[float, Meta(ge=0, lt=YEAR_2100)] = 0.0
    prepared: Amount | None = None
    """Seconds of checks, patches and models before the launch."""
    cache: str = ""
    """The state of the compile cache at the start (see `Startup.cache`), or empty."""
    up: Amount | None = None
    """Seconds until the server listened."""
    ready: Amount | None = None
    """Seconds until its first answer."""
    took: Amount | None = None
    """Seconds until it was stopped and its memory was free again."""
    phases: dict[str, float] = {}
    cold_request: RequestDone | None = None
    requests: tuple[RequestDone, ...] = ()
    windows: tuple[MeasuredWindow, ...] = ()
    """One window per number of streams; empty in boots of earlier releases."""
    generated: Amount | None = None
    """The increase of the server's counter of generated tokens during the measured requests."""
    preemptions: Amount = 0.0
    prefix_queries: Amount = 0.0
    prefix_hits: Amount = 0.0
    others: Amount | None = None
    """The CPU cores kept busy meanwhile by processes other than the server and the driver process."""
    before: Conditions | None = None
    after: Conditions | None = None
    engine: str = ""
    gpus: tuple[str, ...] = ()
    driver: str = ""
    argv: tuple[str, ...] = ()
    env: dict[str, str] = {}
    sampler: str = ""
    """The sampler of its answers; empty if not recorded."""
    token_variety: TokenVariety = TokenVariety.UNCHECKED
    inherited: dict[str, str] | None = None
    """Other environment variables that vLLM reads; None if not recorded."""
    patches: dict[str, str] = {}
    """The SHA-256 of the patched files, by name of the patch."""
    versions: dict[str, str] = {}
    inspected: Amount = 0.0
    """Seconds spent before the launch on inspecting models, otherwise part of the start."""
    start: str = ""
    """`measured` if the start is judged, `filling` if it only fills the caches for one, else empty."""
    hosts: tuple[HostFacts, ...] = ()
    checks: tuple[AnswerCheck, ...] = ()
    """Checks of the answers with speculation, by a boot without it; empty unless answers are verified."""
    process: str = ""
    """The identity of a running server's process, if known: its turns between two starts are one boot."""
    doubt: str = ""
    """Why its first answer casts doubt on the weights (unlike an earlier one, or noise); else empty."""
    error: str = ""


class KeptAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a measured request of a boot."""

    run: str
    kind: str
    streams: Whole
    round: Whole
    answer: Answer
    arrivals: tuple[ArrivalMark, ...] = ()
    """The arrival times of its tokens; empty if the server did not count them, and in earlier releases."""


class BootBegan(Event, frozen=True, tag="boot began"):
    """A boot was launched as `run`."""

    number: int
    arm: int
    run: str
    attempt: int = 1


class RequestMeasured(Event, frozen=True, tag="measured"):
    """A request of a boot was answered; `stage` is `cold`, `warm-up` or `round`."""

    number: int
    stage: str
    request: RequestDone


class BootEnded(Event, frozen=True, tag="boot ended"):
    """A boot was measured and stopped, and its memory is free again."""

    boot: Boot


class RoundBegan(Event, frozen=True, tag="round began"):
    """A tune continues with another round: new arms join the field, and boots are added to the order."""

    key: str
    """The key of its axis, such as `mode`; `CONFIRM` in the last rounds."""
    field: tuple[int, ...]
    """The competing arms; the first is the best of the round before."""
    order: tuple[int, ...] = ()
    arms: tuple[Arm, ...] = ()
    left_out: dict[str, str] = msgspec.field(default_factory=dict)


PUBLISHED = "published"
"""The name of a tune's first arm, and the key of a round that boots it again."""
CONFIRM = "confirm"
"""The key of a tune's last rounds."""


class ExperimentExtended(Event, frozen=True, tag="extended"):
    """A finished A/B continues: boots are added to the order."""

    order: tuple[int, ...]


class ExperimentHalted(Event, frozen=True, tag="halted"):
    """The driver process ended early, for the reason in `why`; the experiment can be resumed."""

    why: str
    step: str = ""
    """What the user has to do first, such as starting a server again; empty if nothing."""


class ExperimentFinished(Event, frozen=True, tag="finished"):
    """All boots have ended and the report is written."""


Happened = (
    BootBegan | RequestMeasured | BootEnded | RoundBegan | ExperimentExtended | ExperimentHalted | ExperimentFinished
)
