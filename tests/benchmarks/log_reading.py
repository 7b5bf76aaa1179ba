"""How long a large log takes to read: `python -m tests.benchmarks.log_reading [MEGABYTES]`; CPU seconds of one core.

100 MB have to take 3 seconds at most, and the memory may not grow with them.

The log is a recorded start and then what a busy server says, traffic and statistics, or a failing one, tracebacks; as
the server wrote it, as docker compose and Docker's own files wrap it, with colours, and with secrets to be hidden.
Where other work runs, compare with another tree, in turns.
"""

import asyncio
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from dflash_tui.diagnosis.log_source import LogSource
from dflash_tui.diagnosis.posted_log import explain_log
from dflash_tui.monitoring import observer
from dflash_tui.planning.plan_builder import build_plan
from dflash_tui.planning.recipes import recipe_loader, resolution
from dflash_tui.run_state.state import RunState
from dflash_tui.runs.run import Run
from dflash_tui.vllm_output.log_reader import LogReader
from tests.support import recordings

START = recordings.raw("h200-vllm-0.26.0/g26-dflash-compile")
FAILING = recordings.raw("h200-vllm-0.26.0/fail-engine-dead-first-request")


SECRETS = {
    "HF_TOKEN": "hf_" + "abcdefgh" * 4,
    "WANDB_API_KEY": "0123456789abcdef" * 2,
    "OPENAI_API_KEY": "sk-proj-" + "ijklmnop" * 3,
    "AWS_SECRET_ACCESS_KEY": "wJal+rXUt/nFEM" * 3,
}


def wrap_json(line: str) -> str:
    """Return a line of Docker's own file."""
    return json.dumps({"log": f"{line}\n", "stream": "stderr", "time": "2026-11-22T10:00:00Z"}, separators=(",", ":"))


WRAPPINGS: dict[str, Callable[[str], str]] = {
    "compose": lambda line: f"vllm-1  | {line}",
    "colours": lambda line: f"\x1b[36mvllm-1  |\x1b[0m {line}",
    "journalctl": lambda line: f"Nov 22 10:00:00 spark vllm[7]: {line}",
    "Docker's file": wrap_json,
}


def log(megabytes: int, lines: bytes) -> bytes:
    """Return a log of that size that goes on with `lines` after a start."""
    return START + b"\n" + lines * ((megabytes << 20) // len(lines))


def measured(name: str, work: Callable[[], object]) -> None:
    """Run it once and print the CPU seconds."""
    began = time.process_time()
    work()
    print(f"{name:<52} {time.process_time() - began:6.2f} s CPU")


def explain(name: str, file: Path) -> None:
    """Explain a log and print the CPU seconds."""
    source = LogSource(str(file))
    measured(name, lambda: explain_log(source))


def events_of(data: bytes) -> int:
    """Return how many events a log gives, read in the pieces that an observer reads."""
    reader, state, count = LogReader(1e9, 0.0), RunState(), 0
    for start in range(0, len(data), 1 << 20):
        events = reader.feed(data[start : start + (1 << 20)])
        state.apply_all(events)
        count += len(events)
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
    made = build_plan(resolution.resolve_recipe(recipe_loader.find_recipe("demo-cpu")))
    for kind, lines in (("traffic", traffic), ("tracebacks", failing)):
        data = log(megabytes, lines)
        measured(f"{megabytes} MB of {kind}: reader and state", lambda data=data: events_of(data))  # type: ignore[misc]
        with tempfile.TemporaryDirectory() as folder:
            run = Run("bench", made, 2**22 + 1, "gone:1", 1e9, 0.0, "none")
            place = Path(folder) / "bench"
            place.mkdir()
            (place / "server.log").write_bytes(data)
            (place / "run.json").write_bytes(msgspec.json.encode(run))
            explain(f"{megabytes} MB of {kind}: why FILE", place / "server.log")
            for name, wrap in WRAPPINGS.items():
                start, repeated = (
                    "".join(f"{wrap(line)}\n" for line in part.decode().splitlines()) for part in (START, lines)
                )
                (place / "wrapped.log").write_text(start + repeated * ((megabytes << 20) // len(repeated)))
                explain(f"{megabytes} MB of {kind}: why FILE, {name}", place / "wrapped.log")
            os.environ.update(SECRETS)
            explain(f"{megabytes} MB of {kind}: why FILE, with secrets", place / "server.log")
            for name in SECRETS:
                del os.environ[name]
            Run.folder = property(lambda _, place=place: place)  # type: ignore[assignment, misc]
            measured(f"{megabytes} MB of {kind}: attach", lambda run=run: asyncio.run(attached(run)))  # type: ignore[misc]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"peak memory {peak} MB, with the log and its wrapped copy of {megabytes} MB each")


if __name__ == "__main__":
    main()
