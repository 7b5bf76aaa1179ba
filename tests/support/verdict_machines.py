"""Machines whose boots spread in a known way, and how verdicts, sweeps and break-evens do on them.

The logarithm of a request is prompt + arm + boot + prompt x arm + noise; an effect adds to the arm and to nothing else,
so that the same boots tell what is found. Everything is drawn from a generator that is seeded by the row's name.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import NamedTuple

from dflash_tui.experiments import variation
from dflash_tui.experiments.analysis import verdict
from dflash_tui.experiments.analysis.report import ExperimentReport, Verdict
from dflash_tui.experiments.analysis.stats import ArmDifference, BootLogs, PromptCell, compare_arms
from tests.support.boot_factories import KINDS, boot, design, modes, plan, request

PROMPTS, BETWEEN_PROMPTS, BETWEEN_REQUESTS = 7, 0.16, 0.025
EFFECTS = (0.05, 0.10)


class Machine(NamedTuple):
    """A row: how many boots both arms have, and how the machine behaves from boot to boot."""

    name: str
    boots: tuple[int, int]
    cv: tuple[float, float]
    kind: str = "normal"
    drift: float = 0.0  # what the machine loses from the first boot to the last
    by_prompt: float = 0.0  # how differently the arms do on each prompt
    lost: bool = False  # whether an arm has fewer boots because some failed


class Rates(NamedTuple):
    """Shares of experiments: verdicts without a difference, intervals that hold, and each of `EFFECTS` found."""

    wrong: float
    held: float
    found: tuple[float, ...]


def draw_states(rng: random.Random, count: int) -> list[float]:
    """Boots that are one speed or another."""
    return [rng.choice((-1.0, 1.0)) for _ in range(count)]


def draw_dependent(rng: random.Random, count: int) -> list[float]:
    """Boots of which each is much like the one before: AR(1) of 0.8."""
    values = [rng.gauss(0, 1)]
    while len(values) < count:
        values.append(0.8 * values[-1] + 0.6 * rng.gauss(0, 1))
    return values


def draw_heavy(rng: random.Random, count: int) -> list[float]:
    """Boots with heavy tails: Student's t with three degrees of freedom, scaled to a variance of 1."""
    return [rng.gauss(0, 1) / math.sqrt(rng.gammavariate(1.5, 2) / 3) / math.sqrt(3) for _ in range(count)]


def draw_outliers(rng: random.Random, count: int) -> list[float]:
    """Boots of which 15 % spread three times as far as the others; together they have a variance of 1."""
    return [rng.gauss(0, 3.0 if rng.random() < 0.15 else 1.0) / math.sqrt(0.85 + 0.15 * 9) for _ in range(count)]


DRAWS: dict[str, Callable[[random.Random, int], list[float]]] = {
    "normal": lambda rng, count: [rng.gauss(0, 1) for _ in range(count)],
    "even": lambda rng, count: [rng.uniform(-1, 1) * math.sqrt(3) for _ in range(count)],
    "states": draw_states,
    "dependent": draw_dependent,
    "heavy": draw_heavy,
    "outliers": draw_outliers,
    "cold": lambda rng, count: [rng.gauss(0, 1) + (5 / 3 if place == 0 else 0.0) for place in range(count)],
}


def draw_experiment(rng: random.Random, machine: Machine) -> list[list[BootLogs]]:
    """Return the boots of both arms of an experiment without a difference, in the order in which A/Bs launch them."""
    order = variation.order_boots(2, max(machine.boots))
    shares = DRAWS[machine.kind](rng, len(order))
    prompts = [rng.gauss(0, BETWEEN_PROMPTS) for _ in range(PROMPTS)]
    treated = [[rng.gauss(0, machine.by_prompt / math.sqrt(2)) for _ in prompts] for _ in range(2)]
    arms: list[list[BootLogs]] = [[], []]
    for place, (arm, share) in enumerate(zip(order, shares, strict=True)):
        own_share = share * machine.cv[arm] - machine.drift * place / (len(order) - 1)
        logs = [
            prompt + own + own_share + rng.gauss(0, BETWEEN_REQUESTS)
            for prompt, own in zip(prompts, treated[arm], strict=True)
        ]
        arms[arm].append(BootLogs({PromptCell(f"p{number}"): [log] for number, log in enumerate(logs)}, place))
    return [
        sorted(rng.sample(arm, count), key=lambda boot: boot.place or 0)
        for arm, count in zip(arms, machine.boots, strict=True)
    ]


def measure_rates(machine: Machine, runs: int) -> Rates:
    """Return how verdicts do on a machine."""
    rng = random.Random(machine.name)
    return _count_rates([compare_arms(draw_experiment(rng, machine), 0, 1) for _ in range(runs)])


def _count_rates(differences: Sequence[ArmDifference | None]) -> Rates:
    known = [apart for apart in differences if apart]
    moved = [[apart._replace(log=apart.log + math.log1p(effect)) for apart in known] for effect in EFFECTS]
    return Rates(
        fmean(apart.is_shown for apart in known),
        fmean(not apart.ratio().excludes_one for apart in known),
        tuple(fmean(apart.is_shown and apart.log > 0 for apart in of_effect) for of_effect in moved),
    )


def each(name: str, boots: Sequence[int], cv: float | tuple[float, float], **how: object) -> list[Machine]:
    """Return a row for each number of boots per arm."""
    cvs = (cv, cv) if isinstance(cv, float) else cv
    return [Machine(f"{name}, {count} boots", (count, count), cvs, **how) for count in boots]  # type: ignore[arg-type]


MACHINES = [
    *(row for cv in (0.01, 0.02, 0.025, 0.03, 0.05, 0.08) for row in each(f"CV {cv:.1%}", (2, 3, 4, 8), cv)),
    *each("arms of 8 % and 0.6 %", (2, 3, 4, 8), (0.08, 0.006)),
    *each("arms of 4 % and 1 %", (2, 3, 4, 8), (0.04, 0.01)),
    Machine("arms of 6 % and 1 %, 2 and 4 boots", (2, 4), (0.06, 0.01), lost=True),
    Machine("arms of 6 % and 1 %, 3 and 4 boots", (3, 4), (0.06, 0.01), lost=True),
    Machine("arms of 1 % and 6 %, 3 and 4 boots", (3, 4), (0.01, 0.06), lost=True),
    Machine("CV 3 %, 2 and 4 boots", (2, 4), (0.03, 0.03), lost=True),
    Machine("CV 3 %, 4 and 8 boots", (4, 8), (0.03, 0.03), lost=True),
    *each("two speeds, ±3 %", (2, 3, 4, 8), 0.03, kind="states"),
    *each("evenly within ±5 %", (2, 3, 4, 8), 0.05 / math.sqrt(3), kind="even"),
    *each("heavy tails, CV 3 %", (2, 3, 4, 8), 0.03, kind="heavy"),
    *each("15 % outliers, CV 3 %", (2, 3, 4, 8), 0.03, kind="outliers"),
    *each("drift of 10 %, CV 2 %", (2, 3, 4, 8), 0.02, drift=0.1),
    *each("drift of 4 %, CV 2 %", (2, 3, 4, 8), 0.02, drift=0.04),
    *each("a cold card at first, CV 3 %", (2, 3, 4, 8), 0.03, kind="cold"),
    *each("AR(1) of 0.8, CV 3 %", (2, 3, 4, 8), 0.03, kind="dependent"),
    *each("prompt by arm 5 %, CV 2 %", (2, 3, 4, 8), 0.02, by_prompt=0.05),
]


class SweepMachine(NamedTuple):
    """A sweep over numbers: boots per arm, the spread of each arm's boots, and how fast each arm really is."""

    name: str
    boots: int
    cv: tuple[float, ...]
    kind: str = "normal"
    speeds: tuple[float, ...] = ()


def draw_sweep(rng: random.Random, machine: SweepMachine) -> ExperimentReport:
    """Return the report of a sweep over the number of drafted tokens."""
    names = [str(2 * place + 2) for place in range(len(machine.cv))]
    plans = {name: plan(num_speculative_tokens=int(name)) for name in names}
    of = design("n", plans, variation.order_boots(len(names), machine.boots))
    shares = DRAWS[machine.kind](rng, len(of.order))
    prompts = [rng.gauss(0, BETWEEN_PROMPTS) for _ in KINDS]
    measured = []
    for number, (arm, share) in enumerate(zip(of.order, shares, strict=True)):
        log = share * machine.cv[arm] + math.log(machine.speeds[arm] if machine.speeds else 1.0)
        speeds = [10 * math.exp(log + prompt + rng.gauss(0, BETWEEN_REQUESTS)) for prompt in prompts]
        measured.append(boot(of, number, [request(kind, speed) for kind, speed in zip(KINDS, speeds, strict=True)]))
    return verdict.build_report(of, measured)


def list_words(report: ExperimentReport) -> list[tuple[int, int]]:
    """Return what a report calls different, as pairs of the faster arm and the slower one."""
    words = [(one.b, one.a) for one in report.comparisons if one.word is Verdict.FASTER]
    words += [(one.a, one.b) for one in report.comparisons if one.word is Verdict.SLOWER]
    if report.sweep and report.sweep.best is not None:
        words += [(report.sweep.best, point.arm) for point in report.sweep.points if not point.like_best]
    return words


PEAK = (0.80, 0.90, 1.0, 1.0, 0.90)
SWEEPS = [
    SweepMachine(f"{arms} arms, {what}, {boots} boots", boots, cv[:arms], kind)
    for arms in (3, 5, 9)
    for what, cv, kind in (
        ("CV 2 %", (0.02,) * 9, "normal"),
        ("one of 8 % among 1 %", (0.01, 0.08, *(0.01,) * 7), "normal"),
        ("two speeds, ±3 %", (0.03,) * 9, "states"),
    )
    for boots in (2, 3, 4)
] + [
    SweepMachine(f"the best 2 of 5 arms, CV 2 %, {boots} boots", boots, (0.02,) * 5, speeds=PEAK) for boots in (2, 3, 4)
]


class BreakEvenRates(NamedTuple):
    """The share of intervals that hold, and the medians of their ends as shares of the truth."""

    held: float
    low: float
    high: float


def measure_break_even(cv: float, boots: int, runs: int) -> BreakEvenRates:
    """Return how intervals do where starts vary so; the arm that starts 100 s later is 1.5 times as fast."""
    rng, held = random.Random(f"{cv} {boots}"), 0
    lows, highs = [], []
    of = modes(variation.order_boots(2, boots))
    truth = 100 / (1 / 30 - 1 / 45)
    for _ in range(runs):
        measured = []
        for number, arm in enumerate(of.order):
            speed = (15.0 if arm else 10.0) * math.exp(rng.gauss(0, 0.02))
            asked = [request(kind, speed * math.exp(rng.gauss(0, BETWEEN_REQUESTS))) for kind in KINDS]
            ready = (160.0 if arm else 60.0) * math.exp(rng.gauss(0, cv))
            measured.append(boot(of, number, asked, ready=ready))
        (one,) = verdict.judge_arms(of, measured)
        (even,) = one.break_even
        lows.append((even.low or 0.0) / truth)
        highs.append((even.high or math.inf) / truth)
        held += lows[-1] <= 1 <= highs[-1]
    return BreakEvenRates(held / runs, median(lows), median(highs))
