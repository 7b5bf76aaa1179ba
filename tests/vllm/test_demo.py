"""The demo recipe end to end: real `vllm serve` on this CPU, by the product's own commands."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dflash_tui.events import Phase
from dflash_tui.monitoring import observer
from dflash_tui.runs import lifecycle, registry, server_process
from dflash_tui.runs.run import Run
from tests.support.command_line import dflash
from tests.support.waiting import wait_until

pytestmark = pytest.mark.vllm
COMMAND = [sys.executable, "-m", "dflash_tui"]
PHASES = ["import", "resolve", "engine", "weights", "drafter", "kv cache", "api", "up"]
PORT = "8731"


def counter(text: str, name: str) -> float:
    """Read a counter from a /metrics body without the product's own parser."""
    return sum(s.value for f in text_string_to_metric_families(text) for s in f.samples if s.name == f"vllm:{name}")


def json_lines(text: str) -> list[dict[str, Any]]:
    checked = subprocess.run(
        [sys.executable, "-m", "json.tool", "--json-lines"], input=text, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    return [json.loads(line) for line in text.splitlines()]


def test_launch_measure_attach_stop(with_engine):
    """One command launches and watches; a bench moves its figures; who attaches sees the same; stop leaves nothing."""
    words = ["--recipe", "toy", "--port", PORT, "--json", "--every", "1"]
    # In a session of its own, as from a terminal or over SSH.
    with subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, text=True, start_new_session=True) as up:
        lines = _until(up, lambda event: event.get("health") == "warm")
        before = httpx.get(f"{registry.list_runs()[0].url}/metrics", timeout=120).text
        bench = dflash("bench", "--json", "--scale", "0.4")
        assert bench.returncode == 0, bench.stderr
        measured = json_lines(bench.stdout)[-1]
        lines += _until(up, lambda event: event["event"] == "figures" and event["acceptance"] is not None)
        lines += _until(up, lambda event: event["event"] == "figures" and event["tok_s"] == 0)
        up.send_signal(signal.SIGHUP)  # the connection is lost
        assert up.stdout is not None
        lines += up.stdout.readlines()  # communicate() would begin behind what was read ahead, in the middle of a line
        up.wait(240)
    assert up.returncode == -signal.SIGHUP
    events = json_lines("".join(lines))
    assert [e["phase"] for e in events if e["event"] == "phase"] == PHASES
    figures = [e for e in events if e["event"] == "figures"]
    assert any(e["tok_s"] and e["acceptance"] for e in figures)
    for event in figures:
        assert event["acceptance"] is None or 0 <= event["acceptance"] <= 1
        assert event["synthetic"]

    [run] = registry.list_runs()
    assert server_process.is_alive(run)
    _figures_are_those_of_the_server(run, before, events, measured)
    _the_patch_works(measured)
    _everybody_sees_the_same(run, events)
    _ctrl_c_leaves_the_server(run)
    _nobody_else_is_served(run)

    members = server_process.list_processes(run)
    assert len(members) >= 2
    stop = dflash("stop")
    assert stop.returncode == 0, stop.stderr
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in members)
    assert "no server is running" in dflash("ps").stderr
    assert observer.replay_run(run).status == "stopped"


def _until(process: subprocess.Popen[str], true: Callable[[dict[str, Any]], bool]) -> list[str]:
    """Read JSON lines until one holds."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if true(json.loads(line)):
            return lines
    raise AssertionError("".join(lines[-20:]))


def _figures_are_those_of_the_server(
    run: Run, before: str, events: list[dict[str, Any]], measured: dict[str, Any]
) -> None:
    """AL without what the last steps cut off, acceptance = accepted / proposed: from /metrics by other means."""
    names = ("num_drafts_total", "num_accepted_tokens_total", "num_draft_tokens_total")
    after = httpx.get(f"{run.url}/metrics", timeout=120).text
    totals = [counter(after, f"spec_decode_{name}") for name in names]
    last = [e for e in events if e["event"] == "counters"][-1]["counters"]
    assert [last["steps"], last["accepted"], last["proposed"]] == totals
    steps, accepted, proposed = (
        total - counter(before, f"spec_decode_{name}") for total, name in zip(totals, names, strict=True)
    )
    assert measured["steps"] == steps
    tokens = counter(after, "generation_tokens_total") - counter(before, "generation_tokens_total")
    emitted = (tokens - measured["requests"]) / steps
    assert measured["acceptance_length"] == pytest.approx(min(emitted, 1 + accepted / steps))
    assert measured["acceptance"] == pytest.approx(accepted / proposed)
    assert measured["failed"] == 0


def _the_patch_works(measured: dict[str, Any]) -> None:
    """Without cpu-expand-kernel every position after the first is rejected at temperature 0.7 (AL about 1.5)."""
    assert measured["acceptance_length"] > 3
    assert measured["per_position"][3] > 0.2


def _everybody_sees_the_same(run: Run, events: list[dict[str, Any]]) -> None:
    """Who attaches later gets the same phases at the same times as who watched, and so does `ps`."""
    seen = []
    with subprocess.Popen([*COMMAND, "attach", "--json"], stdout=subprocess.PIPE, text=True) as attach:
        assert attach.stdout is not None
        for line in attach.stdout:
            event = json.loads(line)
            seen.append(event)
            if event["event"] == "health" and event["health"] == "warm":
                attach.send_signal(signal.SIGINT)
    assert attach.returncode == 130
    assert [e for e in seen if e["event"] == "phase"] == [e for e in events if e["event"] == "phase"]
    listed = [line for line in json_lines(dflash("ps", "--json").stdout) if "run" in line]
    assert [(row["run"], row["status"]) for row in listed] == [(run.id, "warm")]
    assert listed[0]["memory_bytes"] > 1e9
    log = dflash("logs", run.id).stdout
    assert "Application startup complete." in log
    assert "\x1b" not in log


def _nobody_else_is_served(run: Run) -> None:
    """All its processes listen on this machine only, and a page of another origin may send it nothing."""
    listening = [
        socket.laddr.ip
        for process in server_process.list_processes(run)
        for socket in process.net_connections("tcp")
        if socket.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert set(listening) <= {"127.0.0.1", "::1"}
    asking = {"Origin": "http://elsewhere.invalid", "Access-Control-Request-Method": "POST"}
    answer = httpx.options(f"{run.url}/v1/chat/completions", headers=asking, timeout=120)
    assert answer.status_code >= 400
    assert "access-control-allow-origin" not in answer.headers


def _ctrl_c_leaves_the_server(run: Run) -> None:
    """Ctrl-C ends the watching, says how to come back, and does not reach the server."""
    watcher = subprocess.Popen(
        [*COMMAND, "attach", "--plain", "--every", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert watcher.stdout is not None
    assert watcher.stdout.readline().split()[:3] == ["time", "tok/s", "accept"]
    while (figures := watcher.stdout.readline().split())[-1] == "—":  # nothing is read yet
        pass
    assert figures[-2:] == ["0", "0"]  # running and waiting
    os.killpg(watcher.pid, signal.SIGINT)
    _, told = watcher.communicate(timeout=240)
    assert watcher.returncode == 130
    assert f"dflash-tui attach {run.id}" in told
    assert f"dflash-tui stop {run.id}" in told
    assert server_process.is_alive(run)
    assert httpx.get(f"{run.url}/health", timeout=120).status_code == 200


@pytest.mark.long
def test_killed_server_is_noticed_and_orphans_stopped(with_engine):
    """SIGKILL to the leader ends the watching with exit code 6; `stop` then ends what is left of its session."""
    up = subprocess.Popen([*COMMAND, "up", "toy", "--port", PORT], stderr=subprocess.PIPE, text=True)
    assert up.stderr is not None
    while "launched" not in up.stderr.readline():
        assert up.poll() is None
    up.send_signal(signal.SIGINT)  # by who launched it, while it starts
    assert "the server keeps running" in up.communicate(timeout=240)[1]
    assert up.returncode == 130
    [run] = registry.list_runs()
    assert server_process.is_alive(run)
    watcher = subprocess.Popen([*COMMAND, "attach", "--plain"], stderr=subprocess.PIPE, text=True)
    wait_until(lambda: Phase.WEIGHTS in observer.replay_run(run).phases)
    members = server_process.list_processes(run)
    assert len(members) >= 2
    members[0].kill()
    _, told = watcher.communicate(timeout=240)
    assert watcher.returncode == 6, told
    assert "killed" in told
    asyncio.run(lifecycle.stop_server(run))
    assert server_process.list_processes(run) == []
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in members)
