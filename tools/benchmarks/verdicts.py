"""How often verdicts of an A/B are wrong, what they find, and whether intervals hold, against truths that are known.

    python -m tools.benchmarks.verdicts rates | sweeps | break-even [--runs N]

The tables of docs/numbers.md are made by this; `tests/unit/experiments/test_simulation.py` runs a part of the rows.
"""

from __future__ import annotations

import argparse
import math
import random

from tests.support.verdict_machines import (
    EFFECTS,
    MACHINES,
    SWEEPS,
    draw_sweep,
    list_words,
    measure_break_even,
    measure_rates,
)


def print_rates(runs: int) -> None:
    """Print the rates of all machines as a table."""
    print(
        f"| boots of the machine | false verdicts | intervals hold | {' | '.join(f'+{e:.0%} found' for e in EFFECTS)} |"
    )
    print("| --- | ---: | ---: | ---: | ---: |")
    for machine in MACHINES:
        rates = measure_rates(machine, runs)
        cells = [f"{rates.wrong:.1%}", f"{rates.held:.1%}", *(f"{share:.0%}" for share in rates.found)]
        print(f"| {machine.name} | {' | '.join(cells)} |", flush=True)


def print_sweeps(runs: int) -> None:
    """Print how many sweeps have any wrong word, and which share of the pairs that differ and are told is found."""
    print("| sweep | any wrong word | slower arms called slower than the best | recommended within 3 % of the best |")
    print("| --- | ---: | ---: | ---: |")
    for machine in SWEEPS:
        rng, wrong, found, told, near = random.Random(machine.name), 0, 0, 0, 0
        speeds = machine.speeds or (1.0,) * len(machine.cv)
        for _ in range(runs):
            report = draw_sweep(rng, machine)
            wrong += any(speeds[faster] <= speeds[slower] for faster, slower in list_words(report))
            assert report.sweep is not None
            near += speeds[report.sweep.recommended or 0] >= max(speeds) * 0.97
            points = [point for point in report.sweep.points if speeds[point.arm] < max(speeds)]
            told += len(points)
            found += sum(not point.like_best for point in points)
        print(
            f"| {machine.name} | {wrong / runs:.1%} | {f'{found / told:.0%}' if told else ''} | {near / runs:.0%} |",
            flush=True,
        )


def print_break_evens(runs: int) -> None:
    """Print how often the interval of a break-even holds the truth."""
    print("| starts vary by | boots per arm | interval holds | median of its ends as a share of the truth |")
    print("| ---: | ---: | ---: | ---: |")
    for cv in (0.03, 0.05, 0.10):
        for count in (2, 4, 8):
            rates = measure_break_even(cv, count, runs)
            print(f"| {cv:.0%} | {count} | {rates.held:.1%} | {rates.low:.2f} to {rates.high:.2f} |", flush=True)


TABLES = {"rates": print_rates, "sweeps": print_sweeps, "break-even": print_break_evens}


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=TABLES)
    parser.add_argument("--runs", type=int, default=1000)
    asked = parser.parse_args()
    print(f"mean of {asked.runs} runs, Monte-Carlo error of a 5 % row ±{2 * math.sqrt(0.05 * 0.95 / asked.runs):.1%}\n")
    TABLES[asked.what](asked.runs)


if __name__ == "__main__":
    main()
