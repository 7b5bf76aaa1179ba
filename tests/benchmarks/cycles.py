"""How often the detector of slow cycles is wrong, and after how many requests it names a cycle, on known streams.

    python -m tests.benchmarks.cycles [--runs N]

The tables of docs/numbers.md are made by this; `tests/unit/run_state/test_slow_cycle.py` runs a part of the streams.
"""

from __future__ import annotations

import argparse
import random
import statistics

from tests.support.request_streams import CYCLES, LENGTH, NULLS, count_false_alarms, draw_requests, find_first


def print_false_alarms(runs: int) -> None:
    """Print how many streams without a cycle of the server's have one named at any time."""
    print(f"| no cycle of the server's | false alarms in {runs} streams of {LENGTH} requests |")
    print("| --- | ---: |")
    for stream in NULLS:
        print(f"| {stream.name} | {count_false_alarms(stream, runs)} |", flush=True)


def print_times(runs: int) -> None:
    """Print after how many requests a cycle is named, and how many are named right."""
    print("\n| cycle | named right | after requests: median | at most |")
    print("| --- | ---: | ---: | ---: |")
    for row in CYCLES:
        rng = random.Random(row.stream.name)
        firsts = [first for _ in range(runs) if (first := find_first(draw_requests(rng, row.stream)))]
        right = sum((cycle.period, cycle.slow) == (row.period, row.slow) for _, cycle in firsts)
        counts = [count for count, _ in firsts]
        print(
            f"| {row.stream.name} | {right / runs:.1%} | {statistics.median(counts):.0f} | {max(counts)} |", flush=True
        )


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    runs = parser.parse_args().runs
    print_false_alarms(runs)
    print_times(max(1, runs // 5))


if __name__ == "__main__":
    main()
