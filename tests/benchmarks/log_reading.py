"""How long a large log takes to read: `python -m tests.benchmarks.log_reading [MEGABYTES]`; CPU seconds of one core.

The log is a recorded start and then what a busy server says, traffic and statistics, or a failing one, tracebacks.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from dflash_tui.monitoring import observer
from dflash_tui.planning import plan, recipe_loader, resolution
from dflash_tui.run_state.state import RunState
from dflash_tui.runs.run import Run
from dflash_tui.vllm_output.log_reader import LogReader
from tests.support import recordings

START = recordings.raw("h200-vllm-0.26.0/g26-dflash-compile")
FAILING = recordings.raw("h200-vllm-0.26.0/fail-engine-dead-first-request")


def log(megabytes: int, lines: bytes) -> bytes:
    """Return a log of that size that goes on with `lines` after a start."""
    return START + b"\n" + lines * ((megabytes << 20) // len(lines))


def measured(name: str, work: Callable[[], object]) -> None:
    """Run it once and print the CPU seconds."""
    began = time.process_time()
    work()
    print(f"{name:<44} {time.process_time() - began:6.2f} s CPU")


def events_of(data: bytes) -> int:
    """Return how many events a log gives, read in the pieces that an observer reads."""
    reader, state, count = LogReader(1e9, 0.0), RunState(), 0
    for start in range(0, len(data), 1 << 20):
        for event in reader.feed(data[start : start + (1 << 20)]):
            state.apply(event)
            count += 1
    return count


async def attached(run: Run) -> RunState:
    """Return the state that an observer has when it has read all."""
    state = RunState()
    async with observer.observe_run(run) as events:
        async for event in events:
            state.apply(event)
    return state


def main() -> None:
    """Print a line per kind of log and way to read it."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    traffic = START.split(b"Application startup complete.\n")[1].split(b"[shutdown]")[0].rsplit(b"\n", 1)[0] + b"\n"
    failing = FAILING[FAILING.index(b"EngineCore encountered a fatal error") :].split(b"\n", 1)[1] + b"\n"
    made = plan.build_plan(resolution.resolve_recipe(recipe_loader.find_recipe("demo-cpu")))
    for kind, lines in (("traffic", traffic), ("tracebacks", failing)):
        data = log(megabytes, lines)
        measured(f"{megabytes} MB of {kind}: reader and state", lambda data=data: events_of(data))  # type: ignore[misc]
        with tempfile.TemporaryDirectory() as folder:
            run = Run("bench", made, 2**22 + 1, "gone:1", 1e9, 0.0, "none")
            place = Path(folder) / "bench"
            place.mkdir()
            (place / "server.log").write_bytes(data)
            (place / "run.json").write_bytes(msgspec.json.encode(run))
            Run.folder = property(lambda _, place=place: place)  # type: ignore[assignment, misc]
            measured(f"{megabytes} MB of {kind}: attach", lambda run=run: asyncio.run(attached(run)))  # type: ignore[misc]


if __name__ == "__main__":
    main()
