"""An A/B as values: one recipe in several arms, and what each boot of an arm measured.

The folder of an experiment holds `experiment.json` (the `Design`), `events.jsonl` (what happened, one `Happened` per
line) and, at the end, `report.json`. The boot is the unit of measurement, not the request: what differs from one
launch of the same server to the next is no effect of an arm.
"""

from __future__ import annotations

import msgspec

from dflash_tui.events import Amount, Event, RequestDone, Whole
from dflash_tui.planning.plan import Plan


class Arm(msgspec.Struct, frozen=True):
    """One value of what is varied. `options` are those of `up` that launch it, as `core.again` has them."""

    name: str
    options: dict[str, str]
    plan: Plan


class Design(msgspec.Struct, frozen=True):
    """What an experiment is going to do; nothing of it changes once it has begun.

    `vary` is what is varied (`mode`, `spec`, `n`, `env.NAME`, `patch.NAME` …), `order` the arm of each boot, `suite`
    the prompts with `digest` as their SHA-256. Every boot answers each prompt `rounds` times for each number of streams
    in `concurrency`, more often where a suite would not keep them busy (`Suite.rounds`), in the order that `seed`
    shuffles, with answers of `scale` times their usual length. `own_cache` tells that each arm has a compile cache of
    its own, empty at its first boot. `command` is the line for a shell that begins it once more, empty where none does.
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
    command: str = ""

    @property
    def honest(self) -> bool:
        """Whether every arm is launched at least twice, so that the spread between boots is known."""
        return all(self.order.count(arm) >= 2 for arm in range(len(self.arms)))


class Conditions(msgspec.Struct, frozen=True, omit_defaults=True):
    """The machine at one moment of a boot; None or empty where nobody says.

    `power` is `mains`, `battery` or empty, `power_w` and `power_limit_w` those of all `cards` together, `throttle` what
    keeps the GPU's clocks down, `foreign` the processes of others on the GPUs (pid and name), `available` the bytes of
    memory that the machine has left, `load` the load of a minute.
    """

    at: float
    power: str = ""
    clock_mhz: Whole | None = None
    temperature_c: int | None = None
    power_w: Amount | None = None
    power_limit_w: Amount | None = None
    cards: Whole = 1
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


class RequestMeasured(Event, frozen=True, tag="measured"):
    """One request of a boot came back; `stage` is `cold`, `warm-up` or `round`."""

    number: int
    stage: str
    request: RequestDone


class BootEnded(Event, frozen=True, tag="boot ended"):
    """A boot is over and its memory is back."""

    boot: Boot


class ExperimentHalted(Event, frozen=True, tag="halted"):
    """The driver ended before the experiment did: `why` says on whose behalf or for what reason."""

    why: str


class ExperimentFinished(Event, frozen=True, tag="finished"):
    """All boots are over."""


Happened = BootBegan | RequestMeasured | BootEnded | ExperimentHalted | ExperimentFinished
