"""The far side: its verbs in this process, and what `dflash-tui agent` prints over pipes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from msgspec.structs import replace

from dflash_tui import __version__
from dflash_tui.common import paths
from dflash_tui.events import RankState
from dflash_tui.peers import agent, cluster_launch
from dflash_tui.peers.agent import RankWatch
from dflash_tui.peers.connection import Greeting, RankOrder
from dflash_tui.planning.cluster import Cluster, ClusterHost
from dflash_tui.planning.plan import ArmCache
from dflash_tui.planning.request import LaunchRequest
from dflash_tui.runs.run import Run
from tests.support.fake_runs import made
from tests.support.waiting import wait_until

ORDER = RankOrder(
    LaunchRequest(recipe="demo-cpu", settings={"tensor-parallel-size": "2"}, peers=("local",)),
    Cluster((ClusterHost("", "127.0.0.1", "lo"), ClusterHost("local", "127.0.0.1", "lo"))),
    1,
)


def encode_order(order: RankOrder) -> str:
    return msgspec.json.encode({"order": order}).decode()


def call(verb: str, line: str) -> tuple[int, dict[str, Any]]:
    """Run a verb with a line on stdin; return its exit code and its last message."""
    command = [sys.executable, "-m", "dflash_tui", "agent", verb]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(line + "\n")
        process.stdin.flush()
        said = process.stdout.read()
    return process.returncode, json.loads(said.splitlines()[-1])


def test_agent_greets_with_identity_and_memory():
    code, said = call("hello", '{"least": 0}')
    greeting = msgspec.convert(said["value"], Greeting)
    assert (code, said["event"], greeting.version) == (0, "answer", __version__)
    assert greeting.memory_total >= greeting.memory_available > 0


@pytest.mark.parametrize(
    ("verb", "line", "word"),
    [
        ("eval", "{}", "no such command"),
        ("launch", '{"order": {}}', "no such command"),
        ("remove_caches", '{"mark": "../x"}', "no such command"),
        ("stop", '{"run": "20261123-unknown"}', "no run called"),
        (
            "check",
            json.dumps({"order": msgspec.to_builtins(replace(ORDER, request=LaunchRequest(recipe="lost")))}),
            "lost",
        ),
    ],
)
def test_wrong_request_is_answered_with_error(verb, line, word, folders):
    code, said = call(verb, line)
    assert (code, said["event"], word in said["what"]) == (2, "error", True)


def test_child_of_worker_is_no_worker():
    """Between fork and exec it has the name of its parent."""
    words = ["VLLM::Worker_TP1", "-c", "import os, time; os.fork(); time.sleep(600)"]
    both = [subprocess.Popen(words, executable=sys.executable) for _ in range(2)]
    workers = [psutil.Process(each.pid) for each in both]
    try:
        wait_until(lambda: all(worker.children() for worker in workers))
        members = [*workers, *(child for worker in workers for child in worker.children()), psutil.Process()]
        assert agent.count_workers(members) == 2
    finally:
        for process in [*(child for worker in workers for child in worker.children()), *workers]:
            process.kill()
        for launched in both:
            launched.wait()


@pytest.fixture
def watched(folders) -> RankWatch:
    run = Run("r", made(8100), 1, "", 0.0, 0.0, "fake")
    run.folder.mkdir(parents=True)
    return RankWatch(run)


@pytest.mark.parametrize(
    ("samples", "state"),
    [
        ([(1, 0, True)], RankState.RUNNING),
        ([(1, 0, True), (1, 0, False)], RankState.ENDED),
        ([(1, 0, True), *[(0, 0, True)] * 2], RankState.ENDED),  # its launcher takes seconds to follow
        ([(1, 0, True), (0, 0, True), (1, 0, True)], RankState.RUNNING),  # it changed its name meanwhile
        ([(0, 0, True)], RankState.RUNNING),  # it has none yet
        ([(1, 0, True), (1, 2, True)], RankState.SUSPENDED),
        ([(1, 2, True), (1, 0, True)], RankState.RUNNING),
    ],
)
def test_state_follows_from_processes(watched, samples, state):
    for workers, suspended, is_alive in samples:
        last, _ = watched.judge(workers, suspended, is_alive=is_alive)
    assert last is state


def test_expired_lease_is_named_as_cause(watched):
    (watched.run.folder / "lease").write_text("its lease was not renewed for 120 s")
    assert "lease" in watched.judge(1, 0, is_alive=False)[1]


def test_how_many_processors_a_rank_keeps_busy(watched):
    """Over two seconds at least; what ended takes its time with it."""
    points = [(0.0, 10.0), (1.0, 11.0), (2.0, 12.0), (5.0, 12.3), (7.5, 4.0), (10.0, 9.0)]
    assert [watched.measure_load(*point) for point in points] == [None, None, 1.0, 0.1, None, 2.0]


def test_log_comes_in_bounded_chunks(watched):
    """Byte by byte as it is; the network that NCCL reports is read from it."""
    log = b"a:1:1 [0] NCCL INFO Using network Socket\n" + b"\x1b[31mred\n" * 9000
    watched.run.log.write_bytes(log)
    chunks, position = [], 0
    while data := watched.read_log(position):
        chunks.append(data)
        position += len(data)
    assert (b"".join(chunks), max(map(len, chunks))) == (log, agent.LARGEST_CHUNK)
    assert watched._network.network == "Socket"


def test_arm_caches_are_separate_and_removed(folders):
    """One that was set by hand stays as it is; without an experiment's mark they are shared."""
    settings = {**ORDER.request.settings, "env.TRITON_CACHE_DIR": "/by/hand"}
    request = replace(ORDER.request, settings=settings)
    order = replace(ORDER, request=request, mark="20261124-x", cache=ArmCache(3, is_fresh=True))
    own = paths.arm_caches_folder() / "20261124-x" / "rank1" / "3"
    env = agent._plan_rank(order).plan.env
    assert (env["VLLM_CACHE_ROOT"], env["TORCHINDUCTOR_CACHE_DIR"]) == (str(own / "vllm"), str(own / "inductor"))
    assert env["TRITON_CACHE_DIR"] == "/by/hand"
    unmarked = agent._plan_rank(replace(order, mark="")).plan.env
    assert not any(str(paths.arm_caches_folder()) in value for value in unmarked.values())
    other = paths.arm_caches_folder() / "20261124-y"
    for folder in (own, other):
        folder.mkdir(parents=True)
    agent.remove_caches("20261124-x")
    assert (own.exists(), other.exists()) == (False, True)


def test_copied_folder_replaces_named_folder_in_plan(folders, tmp_path):
    """In the command and among the models, on this host alone; what was asked for stays, and so does the setup."""
    named = str(tmp_path / "tune")
    request = replace(ORDER.request, recipe="gemma-4-31b", gpu="gb10", variant="gb10-pair")
    request = replace(request, settings={"drafter.model": named})
    order = RankOrder(request, ORDER.cluster, 1, {named: "tune-0123456789abcdef"})
    copied = str(paths.models_folder() / "tune-0123456789abcdef")
    planned = agent._plan_rank(order)
    assert planned.plan.drafter == copied
    assert copied in {model.name for model in planned.plan.models}
    assert not any(named in word for word in planned.plan.argv)
    assert any(copied in word for word in planned.plan.argv)
    assert planned.plan.relaunch_request.settings["drafter.model"] == named
    Path(named).mkdir()
    near = agent._plan_rank(order)
    assert near.plan.drafter == named
    assert cluster_launch.describe_side(near).setup == cluster_launch.describe_side(planned).setup
