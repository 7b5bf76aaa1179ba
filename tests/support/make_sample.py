"""Makes the shipped sample from a recording of a real H200: `python -m tests.support.make_sample FOLDER`.

FOLDER holds `server.log` (`<seconds since launch> <raw line>`), `trace.jsonl` (memory and /metrics twice a second) and
`summary.json` (the command, and what its client measured). Nothing is invented: what the recording lacks is left out.
"""

import calendar
import itertools
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from dflash_tui.common import paths
from dflash_tui.events import (
    WARM_UP,
    Counters,
    Event,
    Exited,
    Health,
    HealthChanged,
    MemorySampled,
    RequestDone,
    Sampled,
    Stopping,
    encode,
)
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipe import Mode
from dflash_tui.runs.run import Run
from tests.support import scrapes

_TIMED = re.compile(r"^ *(\d+\.\d+) ?(.*)$")
_STAMP = re.compile(r"(?:INFO|WARNING) (\d\d-\d\d \d\d:\d\d:\d\d) \[")
# What the recorder asked twice a second; servers that we launch are told not to log it.
_ASKED = re.compile(r'"GET /(?:health|metrics) HTTP/1\.1" 200')
_YEAR = 2026


def timed(log: str) -> Iterator[tuple[float | None, str]]:
    for line in log.split("\n"):
        match = _TIMED.match(line)
        yield (float(match[1]), match[2]) if match else (None, line)


def launched_at(log: str) -> float:
    """Return the launch by the stamps: they are cut to seconds, so none says more than that it was not earlier."""
    return max(
        calendar.timegm(time.strptime(f"{_YEAR}-{stamp[1]}", "%Y-%m-%d %H:%M:%S")) - at
        for at, line in timed(log)
        if at is not None and (stamp := _STAMP.search(line))
    )


def samples(folder: Path, log: str, summary: dict[str, Any], start: float) -> list[Event]:
    events: list[Event] = [HealthChanged(start + summary["ready_s"], Health.HEALTHY)]
    last = 0.0
    for line in (folder / "trace.jsonl").read_text().splitlines():
        row = json.loads(line)
        last = row["t"]
        events.append(MemorySampled(start + last, row["mem"]["used"], row["mem"]["total"], "GPU, all"))
        text = "\n".join(f"{name} {value}" for name, value in (row.get("m") or {}).items())
        if counters := scrapes.parse_counters(text):
            events.append(Sampled(start + last, counters))
    # The access log names a streamed request when its answer begins, which is at once.
    begun = [at for at, line in timed(log) if at is not None and '"POST /v1/chat/completions HTTP/1.1" 200' in line]
    prompt = events_prompt(events) // len(summary["requests"])
    drafts = drafted([event.counters for event in events if isinstance(event, Sampled)], summary["requests"])
    for place, (at, done) in enumerate(zip(begun, summary["requests"], strict=True)):
        end = start + at + done["total_s"]
        kind, tokens = "random" if place else WARM_UP, done["completion_tokens"]
        request = (kind, tokens, prompt, done["ttft"], done["total_s"], done["decode_tok_s"], "length")
        steps, accepted = drafts[place]
        events.append(RequestDone(end, *request, steps=steps, accepted=accepted))
        if not place:
            events.append(HealthChanged(end, Health.WARM))
    stopped = start + last
    events += [Stopping(stopped), Exited(stopped + summary["stop_s"], summary["rc"])]
    return sorted(events, key=lambda event: event.at)


def drafted(readings: list[Counters], requests: list[dict[str, Any]]) -> list[tuple[float | None, float | None]]:
    """Return steps and accepted drafts of each request, sent one after the other; None where no reading tells.

    A reading parts two requests when all tokens of the first are counted and at most one of the next: a prompt's own
    token comes from no draft, and the first draft brings at least another one.
    """
    ends = itertools.accumulate((done["completion_tokens"] for done in requests), initial=0)
    at = [next((now for now in readings if 0 <= now.generated - end <= 1), Counters(0)) for end in ends]

    def grown(before: float | None, after: float | None) -> float | None:
        return None if before is None or after is None else after - before

    return [
        (grown(before.steps, after.steps), grown(before.accepted, after.accepted))
        for before, after in itertools.pairwise(at)
    ]


def events_prompt(events: list[Event]) -> int:
    """Return all prompt tokens that the server counted."""
    return int(max(event.counters.prompt for event in events if isinstance(event, Sampled)))


def run_of(summary: dict[str, Any], start: float) -> Run:
    argv = summary["cmd"]
    option = {name: value for name, value in itertools.pairwise(argv) if name.startswith("--")}
    speculation = json.loads(option["--speculative-config"])
    length = speculation["synthetic_acceptance_length"]
    plan = Plan(
        recipe="gemma-4-26b-a4b",
        title="Gemma-4-26B-A4B shape with a DFlash drafter, on one H200",
        synthetic=f"random weights, synthetic acceptance length {length}",
        mode=Mode.EAGER if "--enforce-eager" in argv else Mode.COMPILE,
        target=argv[2],
        drafter=speculation["model"],
        num_speculative_tokens=speculation["num_speculative_tokens"],
        served_name=argv[2],
        port=int(option["--port"]),
        engine_folder="",
        argv=tuple(argv),
        env={},
        patches=(),
        vllm="0.26.0",
        hardware=Hardware.H200,
    )
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(start))
    return Run(f"{stamp}-h200-{plan.recipe}", plan, 662, "", round(start, 3), 0.0, "vllm 0.26.0")


def main() -> None:
    """Write run.json, server.log and samples.jsonl of the sample."""
    folder, out = Path(sys.argv[1]), paths.sample_folder()
    log = (folder / "server.log").read_text(encoding="utf-8")
    summary = json.loads((folder / "summary.json").read_text())
    start = launched_at(log)
    run = run_of(summary, start)
    (out / "run.json").write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n")
    lines = [line for _, line in timed(log) if not _ASKED.search(line)]
    (out / "server.log").write_text("\n".join(lines), encoding="utf-8")
    recorded = samples(folder, log, summary, run.started_at)
    rounded = [msgspec.structs.replace(event, at=round(event.at, 3)) for event in recorded]
    (out / "samples.jsonl").write_bytes(b"".join(encode(event) + b"\n" for event in rounded))
    print(f"{run.id}: {sum(path.stat().st_size for path in out.iterdir())} bytes")


if __name__ == "__main__":
    main()
