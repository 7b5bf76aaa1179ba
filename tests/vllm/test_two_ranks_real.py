"""Real vLLM over two ranks of this machine, by the agent: tensor parallelism of the demo pair, with its drafter."""

import pytest

from dflash_tui.cli.main import main
from dflash_tui.machine import processes
from dflash_tui.runs import registry, server_process
from tests.support.process_search import find_processes
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.by_hand]  # two engines at once: minutes on a busy machine
SETTINGS = {"tensor-parallel-size": "2", "master-port": "29731"}


def test_two_ranks_answer_and_a_killed_worker_ends_both(with_engine, capsys):
    """Rank 0 would say for ever that it is healthy; the cause is in the other log."""
    words = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    assert main(["up", "toy", "--peer", "local", "--port", "8733", *words, "--wait"]) == 0, capsys.readouterr().err
    near, far = sorted(registry.list_runs(), key=lambda run: run.plan.rank)
    assert b"rank 1 in world size 2" in (near.folder / "rank1.log").read_bytes()
    [worker] = find_processes("VLLM::Worker", server_process.list_processes(far))
    processes.send_signal(worker, 9)
    wait_until(lambda: not any(server_process.list_processes(run) for run in (near, far)))
    capsys.readouterr()
    main(["why", near.id])
    told = capsys.readouterr()
    assert "on local: a worker" in told.out + told.err
