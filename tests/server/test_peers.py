"""A server over two ranks on this machine, by the agent over a local transport: launched, watched, stopped, ended."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from dflash_tui.cli.main import main
from dflash_tui.events import RankState
from dflash_tui.peers import keeper
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.runs import registry, server_process
from dflash_tui.runs.run import Run
from tests.support import fake_engine
from tests.support.fake_runs import free_port
from tests.support.values import present
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("nothing_left")
OVER_TWO = [fake_engine.RECIPE, "--peer", "local"]


@pytest.fixture
def recipe(tmp_path) -> Path:
    """The demo's recipe, for two GPUs or hosts."""
    path: Path = tmp_path / "two.yaml"
    shipped = recipe_loader.recipe_path("demo-cpu").read_text()
    path.write_text(shipped.replace("flags:\n", "flags:\n  tensor-parallel-size: 2\n", 1))
    return path


def runs_by_rank() -> list[Run]:
    return sorted(registry.list_runs(), key=lambda run: run.plan.rank)


def all_ended(*runs: Run) -> bool:
    return not any(server_process.is_alive(run) or server_process.list_processes(run) for run in runs)


def test_two_ranks_are_launched_shown_and_stopped(recipe, capsys):
    """Rank 1 first; its log is here, too; stop ends both and says so; a free port is of rank 0 alone."""
    fake_engine.make(free_port(19_300), recipe=recipe)
    assert main(["up", *OVER_TWO, "--wait"]) == 0, capsys.readouterr().err
    near, far = runs_by_rank()
    assert (near.plan.rank, far.plan.rank, far.plan.port) == (0, 1, 29501)
    assert far.started_at < near.started_at
    assert [(rank.rank, rank.host, rank.run) for rank in near.far_ranks] == [(1, "local", far.id)]
    assert far.plan.argv[-1] == "--headless"
    copy = near.folder / "rank1.log"
    wait_until(lambda: copy.is_file() and copy.read_bytes() == far.log.read_bytes())
    capsys.readouterr()
    assert main(["ps"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert any("rank 1 on local: running" in row for row in rows)
    [further] = [row for row in rows if "rank 1 of a server" in row]
    assert ("  running  " in further, "29501" in further) == (True, False)
    assert main(["logs", near.id, "--rank", "1"]) == 0
    assert capsys.readouterr().out == "headless rank 127.0.0.1 green\n"
    assert main(["stop"]) == 0
    assert "rank 1 on local: stopped" in capsys.readouterr().err
    assert all_ended(near, far)
    wait_until(lambda: not server_process.is_kept(near))


@pytest.mark.long
def test_ranks_of_killed_keeper_are_stopped(recipe, capsys):
    """What was known of them last is said to be that; `stop` does what the keeper would have done."""
    fake_engine.make(free_port(19_320), recipe=recipe)
    assert main(["up", *OVER_TWO, "--wait"]) == 0, capsys.readouterr().err
    near, far = runs_by_rank()
    kept = present(server_process.read_kept(near))
    os.kill(kept.pid, signal.SIGKILL)
    wait_until(lambda: not server_process.is_kept(near))
    capsys.readouterr()
    assert main(["ps"]) == 0
    said = capsys.readouterr().out
    assert ("has exited" in said, "last known" in said) == (True, True)
    assert main(["stop", near.id]) == 0
    assert "rank 1 on local: stopped" in capsys.readouterr().err
    assert all_ended(near, far)


@pytest.mark.long
def test_dead_rank_ends_server_and_is_named(recipe, capsys):
    """Rank 0 would say that it is healthy until somebody asks it."""
    folder = fake_engine.make(free_port(19_310), recipe=recipe)
    assert main(["up", *OVER_TWO, "--wait"]) == 0
    near, far = runs_by_rank()
    (folder / "rank-dies").touch()
    wait_until(lambda: all_ended(near, far))
    wait_until(lambda: not server_process.is_kept(near))
    [rank] = (server_process.read_kept(near) or pytest.fail("nothing is kept")).ranks
    assert (rank.state, rank.why) == (RankState.ENDED, "it exited")
    assert b"nothing works on rank 1" in (near.folder / "rank1.log").read_bytes()


async def test_expired_lease_ends_rank(launch):
    """As when the host of rank 0 is gone; a renewed one does not."""
    run = launch("deaf")
    lease = run.folder / "lease"
    lease.touch()
    os.utime(lease, (1, 1))
    keeper.renew_lease(run)
    guarding = asyncio.create_task(keeper.guard_lease(run))
    await asyncio.sleep(0)
    assert server_process.is_alive(run)
    os.utime(lease, (1, 1))
    await asyncio.wait_for(guarding, 60)
    assert not server_process.list_processes(run)
    assert "120 s" in keeper.read_lease_end(run)
