"""Startup optimizations on the real engine of the CPU demo: `python -m tools.benchmarks.starts fork --pairs 6`.

`fork` and `modelinfos` start the demo with and without the measure, in pairs of changing order, and print the seconds
until it is ready and the processor time of all its processes, with intervals. The caches are filled before `fork`, and
empty at each start of `modelinfos`. `ends --starts 30` starts it with fork, and ends it while it answers: by SIGTERM,
by stopping it, and by `kill -9` of the front end; then nothing may be left, or what has the port has to be named.

vLLM's CPU platform spawns unless the demo's patch `cpu-fork` is applied, as it is here.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, median, stdev
from typing import NamedTuple

import httpx
import msgspec
import psutil
from msgspec.structs import replace

from dflash_tui.engines import inventory, model_inspection
from dflash_tui.engines.patching import patched_engine
from dflash_tui.experiments.analysis.stats import LEVEL, student_t_quantile
from dflash_tui.launch import planner
from dflash_tui.machine.gpus import GpuProbe
from dflash_tui.machine.processes import find_orphans
from dflash_tui.monitoring import observer
from dflash_tui.planning import patch_file
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.request import LaunchRequest
from dflash_tui.runs import lifecycle, server_process
from dflash_tui.runs.run import Run

_LONGEST, _FREED = 600.0, 10.0


class Start(NamedTuple):
    """One start: seconds until it was ready, processor seconds of all its processes, and both of what came before."""

    ready: float
    processor: float
    before: float = 0.0
    processor_before: float = 0.0


def make_plan(method: str, port: int, root: Path) -> Plan:
    """Return the demo's plan, whose engine process starts by `method`, with a cache root and its patches."""
    plan = planner.plan_launch(LaunchRequest(recipe="demo-cpu", port=port), GpuProbe()).plan
    engine = inventory.find_any_engine(Path(plan.unpatched_folder))
    assert engine
    patches = [patch_file.load_patch(name) for name in plan.patches]
    patched_engine.make_patched_engine(engine, Path(plan.engine_folder), patches, plan.hardware)
    return replace(plan, env=plan.env | {"VLLM_WORKER_MULTIPROC_METHOD": method, "VLLM_CACHE_ROOT": str(root)})


async def start_and_stop(plan: Plan, *, inspected: bool = False) -> Start:
    """Start once until it is ready, and stop it; `inspected` has the models inspected before."""
    before = processor_before = 0.0
    if inspected:
        engine = inventory.find_any_engine(Path(plan.engine_folder))
        assert engine
        began, used = time.monotonic(), _used_by_children()
        names = model_inspection.list_uninspected(plan, engine)
        await asyncio.to_thread(model_inspection.inspect_models, plan, engine, names)
        before, processor_before = time.monotonic() - began, _used_by_children() - used
    run = lifecycle.launch_server(plan, engine="vllm-cpu")
    try:
        ready = await wait_until_ready(run)
        return Start(ready, _processor_seconds(run), before, processor_before)
    finally:
        await lifecycle.stop_server(run)


async def wait_until_ready(run: Run) -> float:
    """Return the seconds from the launch until the first answer."""
    deadline = time.monotonic() + _LONGEST
    async with observer.fold_run(run) as (state, _):
        while state.time_to_ready is None:
            if state.exit or time.monotonic() > deadline:
                raise RuntimeError(f"{run.id} did not come up: {state.exit}")
            await asyncio.sleep(0.05)
        return state.time_to_ready


def _processor_seconds(run: Run) -> float:
    total = 0.0
    for process in server_process.list_processes(run):
        with contextlib.suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])  # with children that it has waited for
    return total


def _used_by_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def measure_pairs(measure: str, pairs: int, port: int, folder: Path) -> None:
    """Start with and without a measure in turns, and print each start and what they come to."""
    ratios: dict[str, list[float]] = {"ready": [], "processor": [], "ready with what came before": []}
    ratios["processor with what came before"] = []
    if measure == "fork":
        await start_and_stop(make_plan("fork", port, folder / "root"))  # fills the caches
    for pair in range(pairs):
        starts: dict[bool, Start] = {}
        for taken in (True, False) if pair % 2 == 0 else (False, True):
            root = folder / "root" if measure == "fork" else folder / f"root-{pair}-{taken}"
            plan = make_plan("fork" if measure != "fork" or taken else "spawn", port, root)
            starts[taken] = await start_and_stop(plan, inspected=measure == "modelinfos" and taken)
            print(msgspec.json.encode({"pair": pair, "on": taken, **starts[taken]._asdict()}).decode(), flush=True)
        on, off = starts[True], starts[False]
        ratios["ready"].append(on.ready / off.ready)
        ratios["processor"].append(on.processor / off.processor)
        ratios["ready with what came before"].append((on.ready + on.before) / off.ready)
        ratios["processor with what came before"].append((on.processor + on.processor_before) / off.processor)
        for name, values in ratios.items():
            print(f"  {name}: {format_interval(values)}", flush=True)


def format_interval(ratios: list[float]) -> str:
    """Return the geometric mean of paired ratios with its interval (Student's t on logarithms), and the median."""
    logs = [math.log(ratio) for ratio in ratios]
    if len(logs) < 2:
        return f"{ratios[0]:.2f} (n=1)"
    reach = student_t_quantile((1 + LEVEL) / 2, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    low, middle, high = (math.exp(fmean(logs) + side * reach) for side in (-1, 0, 1))
    return f"{middle:.2f} ({low:.2f} to {high:.2f}), median {median(ratios):.2f}, n={len(ratios)}"


async def end_many(starts: int, port: int, folder: Path) -> None:
    """Start with fork, end each one while it answers, and print what is left."""
    counts = {"SIGTERM": 0, "stop": 0, "SIGKILL": 0}
    for number in range(starts):
        way = list(counts)[number % 3]
        run = lifecycle.launch_server(make_plan("fork", port, folder / "root"), engine="vllm-cpu")
        ready = await wait_until_ready(run)
        asking = asyncio.create_task(_ask(run))
        await asyncio.sleep(0.5)
        began = time.monotonic()
        result = await _end(run, way)
        with contextlib.suppress(Exception):
            await asking
        assert not server_process.list_processes(run), "a process is left"
        freed = time.monotonic()  # the threads of a process that was killed end one after the other
        while lifecycle.find_free_port(port) != port:
            assert time.monotonic() - freed < _FREED, f"the port is taken by {lifecycle.port_owner(port)}"
            await asyncio.sleep(0.05)
        counts[way] += 1
        print(f"{number + 1:3} {way:8} ready {ready:6.1f} s, {result} in {time.monotonic() - began:.1f} s", flush=True)
    print(f"{starts} starts with fork came up and ended as they should: {counts}", flush=True)


async def _end(run: Run, way: str) -> str:
    """End a server; return what was left of it, which has to have been named where it had the port."""
    if way == "stop":
        await lifecycle.stop_server(run)
        return "nothing left"
    engines = [each.pid for each in server_process.list_processes(run) if each.pid != run.pid]
    os.kill(run.pid, signal.SIGTERM if way == "SIGTERM" else signal.SIGKILL)
    deadline = time.monotonic() + 30
    while server_process.list_processes(run) and time.monotonic() < deadline:
        if way == "SIGKILL" and not server_process.is_alive(run) and find_orphans():
            break
        await asyncio.sleep(0.1)
    if not server_process.list_processes(run):
        return "nothing left"
    if way == "SIGTERM":  # vLLM 0.32.0 may hang so, with spawn as well: stopping it does not
        await lifecycle.stop_server(run)
        return "hung after SIGTERM, stopped"
    owner = lifecycle.port_owner(run.plan.port)
    assert any(f"pid {pid}" in owner for pid in engines), owner
    await lifecycle.stop_server(run)
    return f"left and named: {owner.partition(';')[0]}; stopped"


async def _ask(run: Run) -> None:
    body = {"model": run.plan.served_name, "messages": [{"role": "user", "content": "Count."}], "max_tokens": 3000}
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        url = f"{run.url}/v1/chat/completions"
        async with client.stream("POST", url, json=body | {"stream": True, "ignore_eos": True}) as response:
            async for _ in response.aiter_bytes():
                pass


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("fork", "modelinfos", "ends"))
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--starts", type=int, default=30)
    parser.add_argument("--port", type=int, default=8151)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="dflash-starts-"))
    try:
        if args.what == "ends":
            asyncio.run(end_many(args.starts, args.port, folder))
        else:
            asyncio.run(measure_pairs(args.what, args.pairs, args.port, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
