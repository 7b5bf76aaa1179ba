"""Watching without a screen, of runs whose server is gone."""

import argparse
import asyncio

import msgspec
import pytest

from dflash_tui.cli import console
from dflash_tui.cli.commands import up
from dflash_tui.common.errors import ServerFailed
from dflash_tui.run_state.state import RunState
from dflash_tui.runs.run import Run
from tests.tui.conftest import a_run

LINES = 20_000


@pytest.fixture
def run(folders) -> Run:
    """An ended run with a log of some megabytes."""
    made = a_run(pid=1, born="boot:0")
    made.folder.mkdir(parents=True)
    (made.folder / "run.json").write_bytes(msgspec.json.encode(made))
    line = "(APIServer pid=7) INFO 11-21 01:25:00 [loggers.py:310] Engine 000: Avg generation throughput: 40.0 tokens/s"
    made.log.write_text("".join(f"{line}, {number}\n" for number in range(LINES)))
    return made


async def _watch(run: Run, *, as_json: bool) -> None:
    console.use_json(as_json)
    args = argparse.Namespace(json=as_json, every=60, detach=False, foreground=False)
    await up._watch(args, run, RunState())


async def test_long_log_is_written_in_batches(run, monkeypatch, capfd):
    """What is read at once is written at once; each event is written, once and in order."""
    real, hops = asyncio.to_thread, []

    async def counted(function, *args):
        hops.append(function)
        return await real(function, *args)

    monkeypatch.setattr(asyncio, "to_thread", counted)
    with pytest.raises(ServerFailed):
        await _watch(run, as_json=True)
    assert len(hops) < LINES / 50
    written = [line for line in capfd.readouterr().out.splitlines() if '"event":"log"' in line]
    numbers = [int(msgspec.json.decode(line)["text"].rpartition(" ")[2]) for line in written]
    assert numbers == list(range(LINES))


async def test_error_while_explaining_bad_answer_is_raised(run, monkeypatch):
    """An error of the one that tells why a server answers badly ends the watching as any other."""

    async def for_ever(*_):
        await asyncio.sleep(600)

    async def broken(*_, **__):
        raise BrokenPipeError

    monkeypatch.setattr(up, "_follow", for_ever)
    monkeypatch.setattr(up, "_report_unhealthy", broken)
    with pytest.raises(BrokenPipeError):
        await asyncio.wait_for(_watch(run, as_json=False), 5)
