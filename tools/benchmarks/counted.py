"""10,000 requests to the real CPU server under observation: `python -m tools.benchmarks.counted [N]`.

Needs the demo engine. What the answers say, what the server has counted and what an observer's state holds must be the
same, to the last token; the recorder's file, read again, too.
"""

import asyncio
import subprocess
import sys
import time

import httpx
from prometheus_client.parser import text_string_to_metric_families

from dflash_tui.events import Counters, Health
from dflash_tui.monitoring import observer, recording
from dflash_tui.run_state.state import RunState
from dflash_tui.runs import lifecycle, registry
from dflash_tui.runs.run import Run
from tools.benchmarks.terminal import COMMAND

STREAMS = 16
TOKENS = 4
SERVER = {
    "requests": "vllm:request_success_total",
    "generated": "vllm:generation_tokens_total",
    "prompt": "vllm:prompt_tokens_total",
    "accepted": "vllm:spec_decode_num_accepted_tokens_total",
    "proposed": "vllm:spec_decode_num_draft_tokens_total",
    "steps": "vllm:spec_decode_num_drafts_total",
}


def by_server(url: str) -> dict[str, float]:
    """Return its counters by another reader than the product's."""
    text = httpx.get(f"{url}/metrics", timeout=30).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {name: sum(s.value for s in samples if s.name == metric) for name, metric in SERVER.items()}


def by_state(read: Counters) -> dict[str, float]:
    return {
        "requests": read.finished, "generated": read.generated, "prompt": read.prompt or 0,
        "accepted": read.accepted or 0, "proposed": read.proposed or 0, "steps": read.steps or 0,
    }  # fmt: skip


async def send(run: Run, count: int) -> tuple[int, int]:
    """Send so many short requests; return the prompt's and the completion's tokens as the answers state them."""
    numbers, prompt, completion = iter(range(count)), 0, 0

    async def stream(client: httpx.AsyncClient) -> None:
        nonlocal prompt, completion
        for number in numbers:
            body = {"model": run.plan.served_name, "prompt": f"Once upon a time {number}", "max_tokens": TOKENS}
            answer = await client.post("/v1/completions", json=body | {"ignore_eos": True})
            usage = answer.raise_for_status().json()["usage"]
            prompt, completion = prompt + usage["prompt_tokens"], completion + usage["completion_tokens"]

    async with httpx.AsyncClient(base_url=run.url, timeout=300) as client, asyncio.TaskGroup() as tasks:
        for _ in range(STREAMS):
            tasks.create_task(stream(client))
    return prompt, completion


async def counted(run: Run, count: int) -> bool:
    async with observer.fold_run(run) as (state, _):
        while state.health is not Health.WARM:
            await asyncio.sleep(0.5)
        await asyncio.sleep(3)
        before, began = by_server(run.url), time.monotonic()
        prompt, completion = await send(run, count)
        print(f"{count} requests in {time.monotonic() - began:.0f} s")
        await asyncio.sleep(5)  # the next reading
        after, seen = by_server(run.url), by_state(state.readings[-1].counters)
    again = RunState()
    for event in recording.open_recording(run).events():
        again.apply(event)
    replayed = by_state(again.readings[-1].counters)
    answers = {"requests": count, "generated": completion, "prompt": prompt}
    print(f"{'':<10} {'answers':>10} {'server':>10} {'panel':>10} {'record':>10}")
    same = True
    for name, now in after.items():
        grown, told = now - before[name], answers.get(name)
        same &= now == seen[name] == replayed[name] and told in {None, grown}
        row = (grown, seen[name] - before[name], replayed[name] - before[name])
        print(f"{name:<10} {'' if told is None else told:>10} " + " ".join(f"{value:>10.0f}" for value in row))
    return same


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    subprocess.run(
        [*COMMAND, "up", "demo-cpu", "--port", str(lifecycle.find_free_port(18_700)), "--detach"], check=True
    )
    run = registry.list_runs()[-1]
    try:
        same = asyncio.run(counted(run, count))
    finally:
        subprocess.run([*COMMAND, "stop", run.id], check=True)
    if not same:
        raise SystemExit("they differ")
    print("the same, to the last token")


if __name__ == "__main__":
    main()
