"""An A/B as values: one recipe in several arms, what each boot of an arm measured, and what follows from that.

The folder of an experiment holds `experiment.json` (the `Design`), `events.jsonl` (what happened, one `Happened` per
line) and, at the end, `report.json`. The boot is the unit of measurement, not the request: what differs from one
launch of the same server to the next is no effect of an arm.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from dflash_tui.core.events import Amount, Event, RequestDone, Whole
from dflash_tui.core.plan import Plan

LEVEL = 0.95


class Arm(msgspec.Struct, frozen=True):
    """One value of what is varied. `options` are those of `up` that launch it, as `core.again` has them."""

    name: str
    options: dict[str, str]
    plan: Plan


class Design(msgspec.Struct, frozen=True):
    """What an experiment is going to do; nothing of it changes once it has begun.

    `vary` is what is varied (`mode`, `spec`, `n`, `env.NAME`, `patch.NAME` …), `order` the arm of each boot, `suite`
    the prompts with `digest` as their SHA-256. Every boot answers each prompt `rounds` times, in the order that `seed`
    shuffles, with answers of `scale` times their usual length. `own_cache` tells that each arm has a compile cache of
    its own, empty at its first boot.
    """

    id: str
    made_at: float
    version: str
    recipe: str
    vary: str
    arms: tuple[Arm, ...]
    order: tuple[int, ...]
    suite: str
    digest: str
    rounds: int = 1
    scale: float = 1.0
    seed: int = 0
    temperature: float | None = 0.0
    concurrency: tuple[int, ...] = (1,)
    own_cache: bool = True
    synthetic: str = ""

    @property
    def honest(self) -> bool:
        """Whether every arm is launched at least twice, so that the spread between boots is known."""
        return all(self.order.count(arm) >= 2 for arm in range(len(self.arms)))


class Conditions(msgspec.Struct, frozen=True, omit_defaults=True):
    """The machine at one moment of a boot; None or empty where nobody says.

    `power` is `mains`, `battery` or empty, `throttle` what keeps the GPU's clocks down, `foreign` the processes of
    others on the GPUs (pid and name), `available` the bytes of memory that the machine has left, `load` the load of a
    minute.
    """

    at: float
    power: str = ""
    clock_mhz: Whole | None = None
    temperature_c: int | None = None
    power_w: Amount | None = None
    power_limit_w: Amount | None = None
    throttle: tuple[str, ...] | None = None
    foreign: tuple[str, ...] | None = None
    available: Whole | None = None
    load: Amount | None = None


class Boot(msgspec.Struct, frozen=True, omit_defaults=True):
    """One launch of an arm and all it measured; `error` says why it measured nothing, or is empty.

    Seconds: `up` from the launch to where the server serves, `ready` to its first answer, `took` from the launch until
    its memory was back. `cache` is what the start found (see `Startup.cache`), `cold_request` the first real
    request, which is measured alone. `requests` are those that count; warm-ups are not among them. `generated` tokens,
    `preemptions`, `prefix_queries` and `prefix_hits` are what the counters grew by while they ran, `others` how many
    processors what is neither ours nor the server's kept busy meanwhile. `patches` maps each patch in the engine to the
    SHA-256 of what it made, `versions` packages to versions, `argv` and `env` are what was launched; `inherited` is
    what the environment had beside that for a server to heed, None where nobody recorded it.
    """

    number: int
    arm: int
    run: str
    attempt: int = 1
    began: float = 0.0
    cache: str = ""
    up: Amount | None = None
    ready: Amount | None = None
    took: Amount | None = None
    phases: dict[str, float] = {}
    cold_request: RequestDone | None = None
    requests: tuple[RequestDone, ...] = ()
    generated: Amount | None = None
    preemptions: Amount = 0.0
    prefix_queries: Amount = 0.0
    prefix_hits: Amount = 0.0
    others: Amount | None = None
    before: Conditions | None = None
    after: Conditions | None = None
    engine: str = ""
    gpus: tuple[str, ...] = ()
    driver: str = ""
    argv: tuple[str, ...] = ()
    env: dict[str, str] = {}
    inherited: dict[str, str] | None = None
    patches: dict[str, str] = {}
    versions: dict[str, str] = {}
    error: str = ""


class BootBegan(Event, frozen=True, tag="boot began"):
    """A boot was launched as `run`."""

    number: int
    arm: int
    run: str
    attempt: int = 1


class Measured(Event, frozen=True, tag="measured"):
    """One request of a boot came back; `stage` is `cold`, `warm-up` or `round`."""

    number: int
    stage: str
    request: RequestDone


class BootEnded(Event, frozen=True, tag="boot ended"):
    """A boot is over and its memory is back."""

    boot: Boot


class Halted(Event, frozen=True, tag="halted"):
    """The driver ended before the experiment did: `why` says on whose behalf or for what reason."""

    why: str


class Finished(Event, frozen=True, tag="finished"):
    """All boots are over."""


Happened = BootBegan | Measured | BootEnded | Halted | Finished


class Word(StrEnum):
    """What may be said of an arm against the one it is compared with."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference shown"
    REFUSED = "refused"


class Ratio(msgspec.Struct, frozen=True):
    """How many times as much arm b has as arm a, with the interval that holds the truth at `LEVEL`."""

    ratio: float
    low: float
    high: float

    @property
    def excludes_one(self) -> bool:
        """Whether the interval lies on one side of 1."""
        return self.low > 1 or self.high < 1


class PromptRatio(msgspec.Struct, frozen=True):
    """One prompt: the medians of both arms in the judged measure, their ratio, and how many requests there were.

    `streams` requests were under way at a time.
    """

    kind: str
    a: float
    b: float
    ratio: Ratio
    n: int
    streams: int = 1


class Confound(msgspec.Struct, frozen=True):
    """Something besides the arms that may have made the difference; with `refuses` there is no verdict."""

    what: str
    evidence: str
    refuses: bool


class StartUp(msgspec.Struct, frozen=True):
    """Seconds from launch to first answer of both arms, apart for cold and cached starts; None where none was seen.

    `first_request` is what the first real request took.
    """

    cold: tuple[float | None, float | None] = (None, None)
    cached: tuple[float | None, float | None] = (None, None)
    first_request: tuple[float | None, float | None] = (None, None)


class BreakEven(msgspec.Struct, frozen=True):
    """When the arm that starts later has made up for it: after so many tokens or requests of the suite's mean length.

    `tokens` None: never, as it is not shown to be faster. `low` and `high` bound the tokens by the interval of the
    speed; `high` None is without end, and `low` None says that no speed within the interval makes up for it. `by` is
    the arm that has to make up; `seconds` is what it is behind when both have answered their first request, in cold
    starts where `cold`, as the mean of so many `starts` of both arms says.
    """

    by: int
    seconds: float
    cold: bool
    tokens: float | None = None
    requests: float | None = None
    low: float | None = None
    high: float | None = None
    starts: tuple[int, int] = (0, 0)


class Comparison(msgspec.Struct, frozen=True):
    """Arm `b` against arm `a`, judged on `measure` (`steps/s` or `tok/s`).

    `suggestive` marks a verdict from one boot per arm. `steps_s`, `tok_s` and `al` are the three ratios, None where
    there is no speculation. `cause` says which of `steps/s` and `AL` makes a difference in tok/s, or `both`, or is
    empty. `cv` is the larger coefficient of variation between an arm's boots (within the boot if there is one each,
    None when nothing was repeated), `detectable` the smallest relative difference that four of five such experiments
    show, `agreement` the share of answers at temperature 0 that begin alike, None when that was not asked.
    """

    a: int
    b: int
    measure: str
    word: Word
    suggestive: bool
    ratio: Ratio | None = None
    steps_s: Ratio | None = None
    tok_s: Ratio | None = None
    al: Ratio | None = None
    cause: str = ""
    cv: float | None = None
    detectable: float | None = None
    prompts: tuple[PromptRatio, ...] = ()
    confounds: tuple[Confound, ...] = ()
    start: StartUp = StartUp()
    break_even: tuple[BreakEven, ...] = ()
    agreement: float | None = None
    boots: tuple[int, int] = (0, 0)


class SweepPoint(msgspec.Struct, frozen=True):
    """One value of a sweep: its geometric mean over the prompts, and whether it is told apart from the best.

    `low` and `high` are the interval of its ratio to the best times the best's speed; the best has none of its own.
    """

    arm: int
    tok_s: float
    low: float
    high: float
    al: float | None
    like_best: bool


class Sweep(msgspec.Struct, frozen=True):
    """A sweep over numbers: its points in order, the arms of the plateau, and the one that is recommended.

    The plateau is what is not told apart from the fastest, `best`; of it the smallest number is `recommended`, None
    when something refuses a verdict. `to_best` is how many times as fast the best is as that.
    """

    points: tuple[SweepPoint, ...]
    plateau: tuple[int, ...]
    recommended: int | None
    best: int | None = None
    to_best: Ratio | None = None


class AbReport(msgspec.Struct, frozen=True):
    """All of an experiment: enough for somebody else to repeat it and to judge it anew."""

    design: Design
    boots: tuple[Boot, ...]
    comparisons: tuple[Comparison, ...]
    sweep: Sweep | None = None
    complete: bool = True
