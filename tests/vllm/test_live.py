"""The live figures and alarms on the demo: real `vllm serve`, suspended in parts, heated up, and killed in the end."""

import asyncio
import contextlib
import json
import math
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dflash_tui.common.formatting import format_percent
from dflash_tui.events import Health
from dflash_tui.monitoring import observer
from dflash_tui.run_state import alarms
from dflash_tui.run_state.alarms import find_token_pause
from dflash_tui.run_state.state import RunState
from dflash_tui.runs import registry, server_process
from dflash_tui.runs.run import Run
from dflash_tui.tui.widgets.chart import build_chart_lines
from dflash_tui.tui.widgets.figures import RECENT, build_tiles
from dflash_tui.vllm_output.metrics import Rates
from tests import ROOT
from tests.support.values import present
from tests.support.waiting import until
from tests.tui.panel import failure_of

pytestmark = [pytest.mark.vllm, pytest.mark.long, pytest.mark.chain("hosts"), pytest.mark.timeout(1200)]
COMMAND = [sys.executable, "-m", "dflash_tui"]
PORT = "8746"


def counted(url: str) -> tuple[float, float]:
    """Return proposed and accepted tokens by another reader than the product's."""
    text = httpx.get(f"{url}/metrics", timeout=240).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    names = ("vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total")
    proposed, accepted = (sum(s.value for s in samples if s.name == name) for name in names)
    return proposed, accepted


class Traffic:
    """One request after the other, with pauses of twice its time, at a temperature that may be changed.

    What is watched needs some steps a second; a server that never pauses would take a core from other tests.
    """

    def __init__(self, run: Run) -> None:
        self.run, self.temperature = run, 0.0

    async def flow(self) -> None:
        async with httpx.AsyncClient(base_url=self.run.url, timeout=300) as client:
            while True:
                body = {"model": self.run.plan.served_name, "prompt": "Once upon", "max_tokens": 120,
                        "temperature": self.temperature, "ignore_eos": True}  # fmt: skip
                began = time.monotonic()
                with contextlib.suppress(httpx.HTTPError):
                    await client.post("/v1/completions", json=body)
                await asyncio.sleep(2 * (time.monotonic() - began))


@asynccontextmanager
async def flowing(run: Run) -> AsyncIterator[Traffic]:
    traffic = Traffic(run)
    task = asyncio.create_task(traffic.flow())
    try:
        yield traffic
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_live_figures_and_alarms(with_engine):
    """Acceptance is that of /metrics; heat makes it fall; a suspended engine is an alarm until it goes on.

    Its worker is a process of its own, as with several GPUs, and the last that is seen of it is its death.
    """
    words = ("--port", PORT, "--set", "distributed-executor-backend=mp", "--detach")
    up = subprocess.run([*COMMAND, "up", "toy", *words], check=False, timeout=300)
    assert up.returncode == 0
    [run] = registry.list_runs()
    async with observer.fold_run(run) as (state, _):
        try:
            await until(lambda: state.health is Health.WARM)
            await _acceptance_is_that_of_the_server(run, state)
            await _vllm_s_own_benchmark_agrees(run)
            async with flowing(run) as traffic:
                await _heat_is_seen(traffic, state)
                await _a_suspended_engine_is_an_alarm(run, state)
            await _a_killed_worker_is_the_cause(run, state)
        finally:
            for process in server_process.list_processes(run):
                with contextlib.suppress(psutil.Error):
                    process.resume()


async def _at_rest(run: Run, state: RunState) -> tuple[tuple[float, float], float]:
    """Return the counters of /metrics, and the time of the reading that agrees with them while nothing runs.

    A window with its edges at such readings is exact. One that begins between the last reading of a rest and the first
    of a burst is known to that second only.
    """

    def agree() -> bool:
        last = state.readings[-1].counters if state.readings else None
        return last is not None and not last.running and (last.proposed, last.accepted) == counted(run.url)

    await until(agree)
    totals = counted(run.url)
    return totals, state.readings[-1].at


async def _acceptance_is_that_of_the_server(run: Run, state: RunState) -> None:
    """A window with a bench has what the difference of two /metrics says, to 0.1 %; the tile has ten seconds."""
    before, began = await _at_rest(run, state)
    bench = await asyncio.create_subprocess_exec(
        *COMMAND, "bench", run.id, "--json", "--scale", "0.2", stdout=subprocess.PIPE
    )
    out, _ = await bench.communicate()
    after, now = await _at_rest(run, state)
    expected = (after[1] - before[1]) / (after[0] - before[0])
    found = present(state.readings.window(now - began, now))
    assert found.acceptance == pytest.approx(expected, rel=1e-3)
    shown = {tile.name: tile for row in build_tiles(state, run.plan, 7, now, now - began) for tile in row}
    recent = present(state.readings.window(RECENT, now))
    assert shown["acceptance"].value == format_percent(recent.acceptance, 1)
    measured = json.loads(out.splitlines()[-1])
    assert measured["acceptance"] == pytest.approx(expected, rel=1e-3)
    kinds = {"Q&A", "Code", "JSON", "Math", "LongCode"}
    await until(lambda: {request.kind for request in state.finished.requests} == kinds)
    assert len(state.finished.requests) == 5
    for request in state.finished.requests:
        assert request.acceptance_length is not None
        # A stream whose tokens all came at once has no speed: nobody knows how long they took.
        steps_s = None if request.tok_s is None else request.tok_s / request.acceptance_length
        assert request.steps_s == (None if steps_s is None else pytest.approx(steps_s))
    assert shown["TTFT median/max"].note == "5 requests"
    assert shown["TPOT median/max"].value != "—"
    while not any(request.tok_s for request in state.finished.requests):
        await _send_five_more(run, state)


async def _send_five_more(run: Run, state: RunState) -> None:
    """Send the prompts again: on a busy machine each of five short streams may have come at once."""
    count = len(state.finished.requests) + 5
    bench = await asyncio.create_subprocess_exec(*COMMAND, "bench", run.id, stdout=subprocess.DEVNULL)
    assert await bench.wait() == 0
    await until(lambda: len(state.finished.requests) == count)


async def _vllm_s_own_benchmark_agrees(run: Run) -> None:
    """`vllm bench serve` with the same five prompts: as many tokens, and acceptance within half a point.

    The two run one after the other on cores that others use, too, so their speeds say nothing here.
    """
    words = ["tools/bench_beside_vllm.py", run.id, "--scale", "0.1", "--temperature", "0.7"]
    bench = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=subprocess.PIPE, cwd=ROOT)
    out, _ = await bench.communicate()
    [turn] = map(json.loads, out.splitlines())
    ours, theirs = turn["ours"], turn["theirs"]
    print(f"ours {ours['tok_s']:.1f} tok/s, vllm bench serve {theirs['tok_s']:.1f}")
    assert (ours["requests"], ours["failed"], theirs["n"], theirs["failed"]) == (5, 0, 5, 0)
    assert ours["acceptance"] == pytest.approx(theirs["acceptance"], abs=0.005)
    # Theirs counts what the last step of an answer cuts off, ours does not.
    assert 1 + 7 * ours["acceptance"] == pytest.approx(theirs["acceptance_length"], abs=0.05)
    assert ours["acceptance_length"] <= theirs["acceptance_length"] + 0.05
    [file] = run.folder.glob("vllm-bench-*.json")
    assert ours["tokens"] == json.loads(file.read_text())["total_output_tokens"]  # of chunks there are fewer


async def _heat_is_seen(traffic: Traffic, state: RunState) -> None:
    """A higher temperature lowers the line of the chart, the bar of a position, and in the end raises an alarm."""
    begun = time.time()

    def cold_so_far() -> Rates | None:
        return state.readings.window(min(15, time.time() - begun), time.time())

    await until(lambda: time.time() - begun > 15 and (found := cold_so_far()) and found.steps > 50)
    cold = cold_so_far()
    traffic.temperature = 1.6
    with pytest.MonkeyPatch.context() as sooner:
        sooner.setattr(alarms, "_RECENT_SECONDS", 20.0)
        await until(lambda: any(alarm.kind == "acceptance" for alarm in alarms.find_alarms(state, time.time())))
    await until(lambda: (found := state.readings.window(15, time.time())) and found.steps > 50)
    now = time.time()
    hot = state.readings.window(15, now)
    assert cold is not None
    assert hot is not None
    assert (hot.acceptance or 0) < 0.5 * (cold.acceptance or 0)
    assert (hot.per_position[1] or 0) < 0.5 * (cold.per_position[1] or 0)
    line = build_chart_lines(state, now, 120, 60)["acceptance"][0][0].values
    known = [value for value in line if not math.isnan(value)]
    assert statistics.fmean(known[-5:]) < 0.5 * max(known)
    traffic.temperature = 0.0


async def _new_reading(state: RunState) -> None:
    now = time.time()
    await until(lambda: state.readings[-1].at > now)


async def _suspend_with_a_request_running(core: psutil.Process, state: RunState) -> float:
    """Suspend the engine while its last figures tell of a running request, and return when."""
    while True:
        await until(lambda: bool(state.readings[-1].counters.running))
        core.send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        await _new_reading(state)
        if state.readings[-1].counters.running:
            return stopped
        core.send_signal(signal.SIGCONT)


async def _a_suspended_engine_is_an_alarm(run: Run, state: RunState) -> None:
    """At once by the state of the process, then also by its silence; and gone when it goes on."""
    core = next(process for process in server_process.list_processes(run) if "EngineCore" in process.name())
    stopped = await _suspend_with_a_request_running(core, state)
    await until(lambda: any(a.kind == "hang" for a in alarms.find_alarms(state, time.time())))
    at_once = time.monotonic() - stopped
    with pytest.MonkeyPatch.context() as sooner:
        sooner.setattr(alarms, "HANG_SECONDS", 15.0)
        await until(lambda: alarms._check_token_flow(state, time.time()) is not None)
        print(f"alarm after {at_once:.1f} s by the process, {time.monotonic() - stopped:.1f} s by its silence")
        pause = present(find_token_pause(state, time.time()))
        silent = present(alarms._check_token_flow(state, pause.since + 20.5))
    assert re.search(r"^1 request running, .* 20 s$", silent.evidence)
    core.send_signal(signal.SIGCONT)
    await until(lambda: not any(a.kind == "hang" for a in alarms.find_alarms(state, time.time())))


async def _a_killed_worker_is_the_cause(run: Run, state: RunState) -> None:
    """Neither the engine that follows it nor the exit code of 0: `why` and the panel name the worker."""
    [worker] = [process for process in server_process.list_processes(run) if "Worker" in process.name()]
    worker.kill()
    await until(lambda: state.exit is not None)
    told = subprocess.run([*COMMAND, "why", run.id, "--json"], capture_output=True, check=True, timeout=240)
    said = json.loads(told.stdout)["diagnosis"]
    assert (said["kind"], "Worker proc" in said["evidence"][0]) == ("worker_died", True)
    await until(lambda: not server_process.list_processes(run))
    found, seen, _ = await failure_of(run)
    assert found.diagnosis.kind == "worker_died"
    assert any(f"a worker process {ended}" in seen for ended in ("crashed", "exited")), seen
