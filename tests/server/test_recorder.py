"""Launching, recording, watching and stopping, on a process that behaves as badly as a server can."""

import asyncio
import json
import math
import signal
import subprocess
import sys
import time
from itertools import pairwise
from typing import Any

import httpx
import psutil
import pytest
from msgspec.structs import replace

from dflash_tui.benchmark import (
    client,
    suites,
)
from dflash_tui.benchmark.server import Server
from dflash_tui.cli.commands import up
from dflash_tui.common import bounded_http, private_files
from dflash_tui.common.errors import DflashError
from dflash_tui.diagnosis import postmortem
from dflash_tui.diagnosis.cause import diagnose_run
from dflash_tui.events import (
    GREEDY_WARM_UP,
    LONG_WARM_UP,
    PROBE,
    WARM_UP,
    Activity,
    Exited,
    Health,
    HealthChanged,
    RequestDone,
    Sampled,
)
from dflash_tui.machine import processes
from dflash_tui.monitoring import observer, recorder, sampler
from dflash_tui.run_state.alarms import Alarm, find_alarms
from dflash_tui.runs import lifecycle, server_process
from tests.support.fake_runs import free_port, made, recorded, watching
from tests.support.json_lines import check_lines
from tests.support.values import present
from tests.support.waiting import until, wait_until


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Look ten times a second, which on a busy machine still comes to more than one."""
    monkeypatch.setattr(recorder, "SAMPLE_INTERVAL", 0.1)


async def test_warm_server_is_measured_from_burst_start(launch):
    """Healthy, then warm by a real request; after an idle time a burst is not smeared over it."""
    run = launch()
    async with watching(run) as state:
        await until(lambda: state.health is Health.WARM)
        await asyncio.sleep(3)
        run.record(await client.send_first_request(Server(run.url, "x")))
        await until(lambda: len(state.requests) == 2 and state.readings[-1].counters.steps == 4)  # 8 tokens each
    changes = [(b.at - a.at, (b.counters.steps or 0) - (a.counters.steps or 0)) for a, b in pairwise(state.readings)]
    assert all(seconds < 2.5 for seconds, steps in changes if steps)
    assert [change.health for change in recorded(run, HealthChanged)] == [Health.HEALTHY, Health.WARM]


@pytest.mark.parametrize(("misses", "unhealthy"), [(1, False), (2, True)])
async def test_one_missed_poll_is_no_failure(launch, monkeypatch, misses, unhealthy):
    """A server that compiles for its first request may be late once."""
    fetch, asked = bounded_http.fetch_bounded, list[str]()

    async def miss(http: httpx.AsyncClient, url: str, name: str = "") -> bytes:
        asked.append(url)
        if url == "/health" and 2 < asked.count(url) <= 2 + misses:
            raise httpx.ReadTimeout("late")
        return await fetch(http, url, name)

    monkeypatch.setattr(bounded_http, "fetch_bounded", miss)
    run = launch()
    async with watching(run) as state:
        await until(lambda: state.health is Health.WARM and asked.count("/health") > 2 + misses)
    assert (Health.UNHEALTHY in [change.health for change in recorded(run, HealthChanged)]) is unhealthy


async def test_process_activity_is_recorded_until_warm(launch, monkeypatch):
    """CPU and disk of a start tell work from a stall; afterwards nobody needs them."""
    monkeypatch.setattr(sampler, "_ACTIVITY_INTERVAL", 0.2)
    run = launch("slow=2")
    async with watching(run) as state:
        await until(lambda: state.health is Health.WARM)
        await asyncio.sleep(1)
    activities, changes = recorded(run, Activity), recorded(run, HealthChanged)
    assert len(activities) >= 2
    assert activities[-1].cpu >= activities[0].cpu >= 0
    assert activities[-1].cpu > 0
    assert all(activity.at <= changes[-1].at for activity in activities)


async def test_a_server_that_cannot_generate_is_unhealthy(launch):
    """/health answers 200, the first request fails: the state says so and quotes the answer, made harmless."""
    run = launch("refuse")
    async with watching(run) as state:
        await until(lambda: state.health is Health.UNHEALTHY)
        await asyncio.sleep(1)
        assert state.health is Health.UNHEALTHY
        found = present(diagnose_run(state))
        assert "HTTP 400" in found.evidence[-1]
        assert "\x1b" not in found.evidence[-1]


async def test_server_with_stolen_port_raises_alarm(launch, monkeypatch, capsys):
    """Ours can never listen there: after some patience that is said, with who has the port and a free one."""
    monkeypatch.setattr(recorder, "PORT_CONFLICT_DELAY", 1.0)
    monkeypatch.setattr(up, "_UNHEALTHY_GRACE_SECONDS", 0.5)
    first = launch()
    await until(lambda: processes.is_listening_on(server_process.list_processes(first), first.plan.port))
    ours = launch("deaf", port=first.plan.port)
    told = ""

    def is_told() -> bool:
        nonlocal told
        told += capsys.readouterr().err
        return bool(told)

    async with watching(ours) as state:
        telling = asyncio.create_task(up._report_unhealthy(ours, state))
        await until(is_told)
        telling.cancel()
    assert (state.health, len(state.readings)) == (Health.UNHEALTHY, 0)
    assert f"{first.plan.port} is held by python" in told
    assert f"(pid {first.pid})" in told
    assert f" --port {lifecycle.find_free_port(first.plan.port)}" in told
    assert f"dflash-tui stop {ours.id}" in told
    found = present(diagnose_run(state))
    assert (found.kind, found.cause in told) == ("port_in_use", True)


def test_cleaned_up_killed_server_stays_failed(launch):
    """Who stops the rest of a killed server did not stop the server: it stays failed."""
    run = launch("stubborn")
    wait_until(lambda: len(server_process.list_processes(run)) >= 2)
    server_process.list_processes(run)[0].kill()
    while server_process.is_alive(run):
        time.sleep(0.05)
    found = present(postmortem.build_postmortem(run, observer.replay_run(run)))
    assert found.leftovers.startswith("1 process ")
    asyncio.run(lifecycle.stop_server(run, grace=0.1))
    assert server_process.list_processes(run) == []
    assert observer.replay_run(run).status == "failed"


async def test_two_observers_share_readings_and_one_records(launch):
    """Only one of them records; both know everything, and the other takes over when the first leaves."""
    run = launch()
    async with watching(run) as second:
        async with watching(run) as first:
            await until(lambda: first.health is Health.WARM and second.health is Health.WARM)
            assert len(recorded(run, RequestDone)) == 1
            await until(lambda: min(len(first.readings), len(second.readings)) >= 2)
            assert list(first.readings)[:2] == list(second.readings)[:2]
        before = len(recorded(run, Sampled))
        await client.send_first_request(Server(run.url, "x"))
        await until(lambda: len(recorded(run, Sampled)) > before)


async def test_a_suspended_recorder_loses_its_place(launch):
    """Ctrl-Z in one terminal does not blind the others."""
    run = launch()
    command = [sys.executable, "-m", "dflash_tui", "attach", run.id, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        while json.loads(line := other.stdout.readline()).get("health") != "warm":
            check_lines("attach", [line])
        other.send_signal(signal.SIGSTOP)
        async with watching(run) as state:
            await client.send_first_request(Server(run.url, "x"))
            await until(lambda: bool(state.readings) and state.readings[-1].counters.steps == 4)  # 8 tokens each
        other.kill()


async def test_every_observer_sees_killed_servers_exit_code(launch):
    """Who launched it knows the code and records it; who comes later reads it."""
    run = launch()
    async with watching(run) as state:
        await until(lambda: state.health is Health.WARM)
        psutil.Process(run.pid).kill()
        await until(lambda: state.exit is not None)
    assert state.exit
    assert state.exit.code == -signal.SIGKILL
    found = present(diagnose_run(state))
    assert (found.kind, found.evidence) == ("killed", found.evidence[:1])
    assert "exit code -9, SIGKILL" in found.what
    assert observer.replay_run(run).exit == state.exit
    assert len(recorded(run, Exited)) == 1


def test_launch_without_record_is_refused(launch, monkeypatch):
    """With a full disk there would be a server that nobody can find or stop."""
    before = set(psutil.pids())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(private_files, "write_private_file", full)
    with pytest.raises(DflashError, match="nothing was launched"):
        launch()
    children = [p for p in psutil.Process().children(recursive=True) if p.pid not in before]
    assert not any(processes.is_running(child) for child in children)


def test_process_identity_differs_after_pid_reuse(launch):
    """The identity holds for a life, is empty for a zombie, and does not depend on the time of day."""
    run = launch("deaf")
    assert server_process.is_alive(run)
    assert not server_process.is_alive(replace(run, born=run.born + "1"))
    assert not server_process.is_alive(replace(run, born=""))
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    wait_until(lambda: not processes.read_process_identity(child.pid))
    assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE
    child.wait()


def test_bench_records_counters_of_unwatched_server(launch):
    """After `up --detach` nobody records; a bench does, from the server's first request to the last reading."""
    run = launch()
    wait_until(lambda: processes.is_listening_on(server_process.list_processes(run), run.plan.port))
    command = [sys.executable, "-m", "dflash_tui", "bench", run.id, "--json", "--scale", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    check_lines("bench", done.stdout.splitlines())
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["event"] for event in events] == ["request"] * 5 + ["measured"]
    assert recorded(run, RequestDone)[0].kind == "warm-up"
    assert all((request.steps, request.accepted) == (10.0, 30.0) for request in recorded(run, RequestDone)[1:])
    assert recorded(run, Sampled)[-1].counters.steps == 52
    state = observer.replay_run(run)
    # 40 tokens of which the first is the prompt's, in ten steps: the last one's cut is none of them.
    assert [(r.kind, r.acceptance_length) for r in state.finished.requests] == [
        (prompt.kind, 3.9) for prompt, _ in client.order_requests(suites.load_suite("quick"))
    ]


async def test_suspended_and_resumed_server_is_noticed(launch):
    """SIGSTOP is no failure, but nothing comes any more: the alarm says which process it is and how it goes on."""
    run = launch()
    async with watching(run) as state:
        await until(lambda: state.health is Health.WARM)
        assert find_alarms(state, time.time()) == []
        psutil.Process(run.pid).suspend()

        def list_hangs() -> list[Alarm]:  # an answer that it was about to give may be missed, too
            return [alarm for alarm in find_alarms(state, time.time()) if alarm.kind == "hang"]

        await until(lambda: state.suspended and list_hangs())
        assert str(run.pid) in list_hangs()[0].hint
        psutil.Process(run.pid).resume()
        await until(lambda: find_alarms(state, time.time()) == [])


async def test_failed_probe_of_idle_server_raises_alarm(launch, monkeypatch, snapshot):
    """One token after a rest; a server that answers /health but not the probe hangs."""
    monkeypatch.setenv("DFLASH_TUI_PROBE", "1")
    monkeypatch.setattr(recorder, "_MIN_IDLE_SECONDS", 1.0)
    monkeypatch.setattr(recorder, "PROBE_TIMEOUT", 1.0)
    run = launch("sleepy")
    async with watching(run) as state:
        await until(lambda: any(done.kind == PROBE for done in state.requests))
        [alarm] = find_alarms(state, time.time())
        assert (alarm.kind, alarm.what) == ("hang", snapshot)
        assert "no complete answer within" in alarm.evidence
        assert not state.finished.requests


@pytest.mark.parametrize(("value", "after"), [("0", math.inf), ("-3", math.inf), ("3600", 3600.0), ("x", 600.0)])
def test_probing_can_be_turned_off(monkeypatch, value, after):
    monkeypatch.setenv("DFLASH_TUI_PROBE", value)
    assert recorder.idle_seconds_before_probe() == after


LONG = [30, 100, 300]


@pytest.mark.parametrize(
    ("on_cpu", "context", "long"),
    [(True, None, []), (False, None, LONG), (False, 599, LONG[:2])],
)
async def test_warm_up_requests_before_ready(launch, monkeypatch, on_cpu, context, long):
    """With the measure, and before `warm`: a greedy request, on a GPU longer ones that fit, and one as clients send."""
    bodies: list[dict[str, Any]] = []
    send = client._send

    async def watched(http, server, body, *more):
        bodies.append(body)
        return await send(http, server, body, *more)

    monkeypatch.setattr(client, "_send", watched)
    plan = replace(made(free_port(18_260)), start=("warm-up",), on_cpu=on_cpu)
    plan = replace(plan, argv=(*plan.argv, f"--max-model-len={context}")) if context else plan
    run = lifecycle.launch_server(plan, engine="fake")
    try:
        async with watching(run) as state:
            await until(lambda: state.health is Health.WARM)
    finally:
        await lifecycle.stop_server(run, grace=0.1)
    assert [body.get("temperature") for body in bodies] == [0.0, *(0.0 for _ in long), None]
    prompts = [body["messages"][0]["content"].split() for body in bodies[1:-1]]
    assert [len(words) - 2 for words in prompts] == long
    assert len({words[0] for words in prompts}) == len(long)  # none begins as another, which a cache would have
    requests = recorded(run, RequestDone)
    assert [done.kind for done in requests] == [GREEDY_WARM_UP, *(LONG_WARM_UP for _ in long), WARM_UP]
    assert state.time_to_ready is not None
    assert state.time_to_up is not None
    assert state.time_to_ready == pytest.approx(state.time_to_up + sum(done.total for done in requests), abs=1e-4)
