"""The values of an experiment: one recipe in several arms, and what each boot of an arm measured.

The folder of an experiment holds `experiment.json` (the `Design`), `events.jsonl` (what happened, one `Happened` per
line), `answers.jsonl` where answers are kept (one `KeptAnswer` per line) and, at the end, `report.json`. The boot is
the unit of measurement, not the request: what differs from one launch of the same server to the next is no effect of
an arm.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from dflash_tui.benchmark.load import MeasuredWindow
from dflash_tui.benchmark.prompts import MOST_ROUNDS, MOST_SCALE, MOST_SEED, MOST_TEMPERATURE
from dflash_tui.benchmark.sse import Answer, ArrivalMark
from dflash_tui.events import YEAR_2100, Amount, Event, RequestDone, Whole
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.request import LaunchRequest

_Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Scale = Annotated[float, Meta(gt=0, le=MOST_SCALE)]
Temperature = Annotated[float, Meta(ge=0, le=MOST_TEMPERATURE)]


class Arm(msgspec.Struct, frozen=True):
    """One value of what is varied."""

    name: str
    request: LaunchRequest
    """It names the port, so that all arms have the same."""
    plan: Plan


class Tuning(msgspec.Struct, frozen=True):
    """What makes an experiment a tune: its arms and boots grow by rounds, as long as the budget lasts."""

    budget: Amount
    """Seconds that all boots together may take."""
    axes: tuple[str, ...]
    """What is varied, one after the other, each as `KEY=VALUE,VALUE`."""
    save_as: str
    left_out: dict[str, str] = {}


class BootOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What every boot does, as `ab` takes it by options of the same names, and as the design keeps it."""

    rounds: Annotated[int, Meta(ge=1, le=MOST_ROUNDS)] = 1
    """How often a boot answers each prompt for each number of streams (more where few would not keep them busy)."""
    seed: Annotated[int, Meta(ge=0, le=MOST_SEED)] = 0
    """What the order of the prompts is shuffled by; sent with each request, too."""
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    concurrency: Annotated[tuple[_Count, ...], Meta(min_length=1)] = (1,)
    """The numbers of requests under way at a time, one after the other."""
    own_cache: bool = True
    """Whether each arm has a compile cache of its own, empty at its first boot."""
    checks_output: bool = False
    """Whether all that is asked is if the arms answer alike; the server names the tokens of its answers then."""
    measures_start: bool = False
    """Whether the seconds until a server is ready are judged: nothing is sent but what makes it ready."""
    cold: bool = False
    """Whether the caches of its arm are emptied before every boot, not only before the first."""


class Design(BootOptions, frozen=True):
    """What an experiment is going to do; nothing of it changes once it has begun, but a tune adds rounds."""

    id: str
    made_at: float
    version: str
    recipe: str
    vary: str
    """The key of what is varied, such as `mode` or `env.NAME`."""
    arms: tuple[Arm, ...]
    """Each is compared with the first."""
    order: tuple[int, ...]
    """The arm of each boot, as they are launched."""
    suite: str
    """The suite of prompts, by name or path; empty where two runs are set side by side."""
    digest: str
    """The SHA-256 of the suite."""
    scale: Scale = 1.0
    """How many times their usual length the answers have."""
    temperature: Temperature | None = 0.0
    """None is the model's own."""
    synthetic: str = ""
    """Why the figures say nothing about a real model, or empty."""
    command: str = ""
    levels: bool = False
    """Whether the prompts are levels of one thing, such as the length of context, and no sample of what is asked."""
    repeats: bool = False
    """Whether a prefix cache answers, as the same texts are sent again."""
    keep_answers: bool = False
    fixed: bool = True
    """Whether answers go on past the model's own end (`ignore_eos`)."""
    tuning: Tuning | None = None
    looks: _Count = 1
    """How often its boots are judged: once, and once more for each time that boots were added after a report."""

    @property
    def command_word(self) -> str:
        """The command that begins and continues it."""
        return "tune" if self.tuning else "ab"

    @property
    def attempts(self) -> int:
        """How often a boot that fails is tried: a tune drops its candidate at once, and spends its budget on others."""
        return 1 if self.tuning else 2

    @property
    def honest(self) -> bool:
        """Whether every arm is launched at least twice, so that the spread between its boots is known."""
        return all(self.order.count(arm) >= 2 for arm in range(len(self.arms)))


class Conditions(msgspec.Struct, frozen=True, omit_defaults=True):
    """The machine at one moment of a boot; None or empty where it cannot be read."""

    at: float
    power: str = ""
    """`mains`, `battery` or empty."""
    clock_mhz: Whole | None = None
    temperature_c: int | None = None
    power_w: Amount | None = None
    """What all `cards` draw together."""
    power_limit_w: Amount | None = None
    """The sum of the power limits of all `cards`."""
    cards: Whole = 1
    throttle: tuple[str, ...] | None = None
    foreign: tuple[str, ...] | None = None
    """Processes of others on the GPUs, by name and pid, and servers of ours beside this one."""
    available: Whole | None = None
    load: Amount | None = None
    hosts: dict[str, Conditions] = {}


class HostFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Another host of a boot, and what the rank there was launched with."""

    host: str
    name: str = ""
    machine: str = ""
    memory: Whole = 0
    address: str = ""
    interface: str = ""
    devices: tuple[str, ...] = ()
    """Its RoCE devices; none where the link is sockets only."""
    network: str = ""
    """What NCCL said there that it talks over, `IB` (RoCE, too) or `Socket`; empty where it did not say."""
    hardware: str = ""
    vllm: str = ""
    """Distribution and release of vLLM there, and its Python."""
    patches: str = ""
    """The patches there, and a digest of their texts."""
    argv: tuple[str, ...] = ()
    env: dict[str, str] = {}


class AnswerCheck(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a server without speculation says of an answer that one with speculation gave, and of its own rounding."""

    kind: str
    streams: Whole
    round: Whole
    tokens: Whole = 0
    """How many of the answer were scored."""
    parted: Whole | None = None
    """The first token that is not that of the answer without speculation, from 1; None where all are."""
    ends_early: bool = False
    """Whether one of the two answers is the beginning of the other."""
    gap: Amount = 0.0
    """The largest gap of a token: its log-probability below that of the likeliest token at its position."""
    place: Whole = 0
    """The token of the largest gap, from 1."""
    rounding: Amount = 0.0
    """By how much the lead of a token over its runner-up moves at most, decoded against read at once."""
    positions: Whole = 0
    """At how many tokens that was measured."""
    error: str = ""


class Boot(msgspec.Struct, frozen=True, omit_defaults=True):
    """One launch of an arm and all it measured. Seconds count from the launch."""

    number: int
    arm: int
    run: str
    """Empty when none was launched."""
    attempt: int = 1
    began: Annotated[float, Meta(ge=0, lt=YEAR_2100)] = 0.0
    prepared: Amount | None = None
    """Seconds that checks, patches and models took before the launch."""
    cache: str = ""
    """What the start found in the compile cache: `cold`, `cached` and the like (see `Startup.cache`), or empty."""
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
    """For each number of streams; none in boots of earlier releases."""
    generated: Amount | None = None
    """By how many tokens the server's counter grew while they ran."""
    preemptions: Amount = 0.0
    prefix_queries: Amount = 0.0
    prefix_hits: Amount = 0.0
    others: Amount | None = None
    """How many processors were kept busy meanwhile by what is neither the server nor the driver."""
    before: Conditions | None = None
    after: Conditions | None = None
    engine: str = ""
    gpus: tuple[str, ...] = ()
    driver: str = ""
    argv: tuple[str, ...] = ()
    env: dict[str, str] = {}
    sampler: str = ""
    """What sampled the tokens of its answers; empty where it was not recorded."""
    inherited: dict[str, str] | None = None
    """The variables of the environment that vLLM reads, besides these; None where they were not recorded."""
    patches: dict[str, str] = {}
    """By name the SHA-256 of the files that the patch made."""
    versions: dict[str, str] = {}
    inspected: Amount = 0.0
    """Seconds of preparing it that went into inspecting its models, which a server else does itself."""
    start: str = ""
    """Of a boot whose start is judged `measured`, of one that only fills the caches for it `filling`, else empty."""
    hosts: tuple[HostFacts, ...] = ()
    checks: tuple[AnswerCheck, ...] = ()
    """Of a boot without speculation, what it says of the answers with speculation; empty where that is not asked."""
    doubt: str = ""
    """What its first answer says against its weights: it differs from an earlier one, or is noise; else empty."""
    error: str = ""


class KeptAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a measured request of a boot."""

    run: str
    kind: str
    streams: Whole
    round: Whole
    answer: Answer
    arrivals: tuple[ArrivalMark, ...] = ()
    """When its tokens came; none where the server did not count, and in experiments of earlier releases."""


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
    """A tune goes on with another round: these arms join the field, and these boots are added to the order."""

    key: str
    """What is varied in it, such as `mode`; `CONFIRM` in the last ones."""
    field: tuple[int, ...]
    """The arms that compete; the first is the best of the round before."""
    order: tuple[int, ...] = ()
    arms: tuple[Arm, ...] = ()
    left_out: dict[str, str] = msgspec.field(default_factory=dict)


PUBLISHED = "published"
"""The name of the arm that a tune begins with, and the key of a round that boots it once more."""
CONFIRM = "confirm"
"""The key of a tune's last rounds."""


class ExperimentExtended(Event, frozen=True, tag="extended"):
    """An A/B that was over goes on: these boots are added to the order."""

    order: tuple[int, ...]


class ExperimentHalted(Event, frozen=True, tag="halted"):
    """The driver ended before the experiment did, for the reason in `why`; it can be resumed."""

    why: str


class ExperimentFinished(Event, frozen=True, tag="finished"):
    """All boots are over and the report is written."""


Happened = (
    BootBegan | RequestMeasured | BootEnded | RoundBegan | ExperimentExtended | ExperimentHalted | ExperimentFinished
)
