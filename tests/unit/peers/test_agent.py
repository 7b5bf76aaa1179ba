"""The far side, asked in this process: what it answers, and which lines it refuses."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from dflash_tui import __version__
from dflash_tui.common import paths
from dflash_tui.peers import agent as agents
from dflash_tui.peers import cluster_launch, keeper
from dflash_tui.peers.agent import Agent
from dflash_tui.peers.connection import PROTOCOL, Greeting, LogChunk, RankBeat, RankOrder
from dflash_tui.planning.cluster import Cluster, ClusterHost
from dflash_tui.planning.plan import ArmCache
from dflash_tui.planning.request import LaunchRequest
from tests.support.waiting import wait_until

HELLO = {"do": "hello", "id": 1}
ORDER = RankOrder(
    LaunchRequest(recipe="demo-cpu", settings={"tensor-parallel-size": "2"}, peers=("local",)),
    Cluster((ClusterHost("", "127.0.0.1", "lo"), ClusterHost("local", "127.0.0.1", "lo"))),
    1,
)


def answers(*commands: dict[str, object] | bytes, until: int = 1) -> list[Any]:
    """Return what the agent says to these commands, when it has said that many things besides its greeting."""

    async def talk() -> list[Any]:
        said: list[bytes] = []
        agent = Agent(said.append)
        for command in commands:
            before = len(said)
            await agent.take_line(command if isinstance(command, bytes) else msgspec.json.encode(command))
            await asyncio.sleep(0.005)
            while len(said) == before and not (isinstance(command, dict) and command["do"] == "beat"):
                await asyncio.sleep(0.005)
        while len(said) < until + (HELLO in commands):
            await asyncio.sleep(0.005)
        await agent.close()
        return [msgspec.json.decode(line) for line in said]

    return asyncio.run(asyncio.wait_for(talk(), 60))


def test_agent_greets_with_identity_and_memory():
    [said] = answers(HELLO | {"protocol": PROTOCOL + 1, "version": "9"}, until=0)
    greeting = msgspec.convert(said, Greeting)
    assert (said["say"], said["id"], greeting.protocol, greeting.version) == ("hello", 1, PROTOCOL, __version__)
    assert greeting.memory_total >= greeting.memory_available > 0


@pytest.mark.parametrize(
    "line", [b"hello", b"{", b"[]", b'{"do":"eval","id":7}', b'{"id":7}', b'{"do":"launch","id":7,"order":{}}']
)
def test_what_is_no_command_is_refused(line):
    said = answers(HELLO, line)[1]
    assert (said["say"], said["id"]) == ("refused", 7 if b'"id":7' in line else 0)


@pytest.mark.parametrize("fields", [{"do": "stop"}, {"do": "watch", "start": 0}])
def test_only_runs_of_its_own_are_touched(fields, folders):
    said = answers(HELLO, {"id": 4, "run": "20261123-nobody", **fields})[1]
    assert (said["say"], said["id"], said["exit_code"]) == ("refused", 4, 2)


def test_missing_recipe_is_named_in_answer(folders):
    order = msgspec.structs.replace(ORDER, request=LaunchRequest(recipe="no-such-recipe"))
    said = answers(HELLO, {"do": "check", "id": 5, "order": order})[1]
    assert "no-such-recipe" in said["what"]


def test_what_a_worker_starts_is_no_worker():
    """Between fork and exec it has the name of its parent."""
    words = ["VLLM::Worker_TP1", "-c", "import os, time; os.fork(); time.sleep(600)"]
    both = [subprocess.Popen(words, executable=sys.executable) for _ in range(2)]
    workers = [psutil.Process(each.pid) for each in both]
    try:
        wait_until(lambda: all(worker.children() for worker in workers))
        members = [*workers, *(child for worker in workers for child in worker.children()), psutil.Process()]
        assert [agents._is_worker(member) for member in members] == [True] * 4 + [False]
        assert agents._count_workers(members) == 2
    finally:
        for process in [*(child for worker in workers for child in worker.children()), *workers]:
            process.kill()
        for launched in both:
            launched.wait()


def test_beat_renews_lease_of_watched_run(monkeypatch, tmp_path):
    """And the log comes byte by byte as it is, in pieces that are bounded."""
    log = b"\x1b[31mred\n" * 9000
    file = tmp_path / "server.log"
    file.write_bytes(log)
    renewed: list[object] = []
    watched = type("Watched", (), {"log": file, "id": "r", "folder": tmp_path})()
    monkeypatch.setattr(agents, "_find_run", lambda _: watched)
    monkeypatch.setattr(agents, "_measure_beat", lambda _: RankBeat(True, 2, 1, 0, 5, 6))
    monkeypatch.setattr(keeper, "renew_lease", renewed.append)
    said = answers(HELLO, {"do": "watch", "id": 2, "run": "r", "start": 5}, {"do": "beat", "renews": True}, until=5)
    chunks = [msgspec.convert(each, LogChunk).data for each in said if each["say"] == "log"]
    assert b"".join(chunks) == log[5:]
    assert max(map(len, chunks)) <= agents.LARGEST_CHUNK
    assert renewed == [watched, watched]
    assert any(each["say"] == "beat" for each in said)


def test_arm_caches_are_separate_and_safely_removed(folders):
    """One that was set by hand stays as it is; without an experiment's mark nobody may name a folder."""
    settings = {**ORDER.request.settings, "env.TRITON_CACHE_DIR": "/by/hand"}
    request = msgspec.structs.replace(ORDER.request, settings=settings)
    order = msgspec.structs.replace(ORDER, request=request, mark="20261124-x", cache=ArmCache(3, is_fresh=True))
    own = paths.arm_caches_folder() / "20261124-x" / "rank1" / "3"
    env = agents._plan_rank(order).plan.env
    assert (env["VLLM_CACHE_ROOT"], env["TORCHINDUCTOR_CACHE_DIR"]) == (str(own / "vllm"), str(own / "inductor"))
    assert env["TRITON_CACHE_DIR"] == "/by/hand"
    unmarked = agents._plan_rank(msgspec.structs.replace(order, mark="")).plan.env
    assert not any(str(paths.arm_caches_folder()) in value for value in unmarked.values())
    other = paths.arm_caches_folder() / "20261124-y"
    for folder in (own, other):
        folder.mkdir(parents=True)
    assert answers(HELLO, {"do": "remove caches", "id": 7, "mark": "20261124-x"})[1] == {"say": "answer", "id": 7}
    assert (own.exists(), other.exists()) == (False, True)
    assert answers({"do": "remove caches", "id": 7, "mark": "../20261124-y"})[0]["say"] == "refused"
    assert other.exists()


def test_copied_folder_replaces_named_folder_in_plan(folders, tmp_path):
    """In the command and among the models, on this host alone; what was asked for stays, and so does the setup."""
    named = str(tmp_path / "tune")
    request = msgspec.structs.replace(ORDER.request, recipe="gemma-4-31b", gpu="gb10", variant="gb10-pair")
    request = msgspec.structs.replace(request, settings={"drafter.model": named})
    order = RankOrder(request, ORDER.cluster, 1, {named: "tune-0123456789abcdef"})
    copied = str(paths.models_folder() / "tune-0123456789abcdef")
    planned = agents._plan_rank(order)
    assert planned.plan.drafter == copied
    assert copied in {model.name for model in planned.plan.models}
    assert not any(named in word for word in planned.plan.argv)
    assert any(copied in word for word in planned.plan.argv)
    assert planned.plan.relaunch_request.settings["drafter.model"] == named
    Path(named).mkdir()
    near = agents._plan_rank(order)
    assert near.plan.drafter == named
    assert cluster_launch.describe_side(near).setup == cluster_launch.describe_side(planned).setup
