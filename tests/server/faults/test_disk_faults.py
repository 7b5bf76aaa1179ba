"""A disk that is full, has no room for another file, or may only be read: nothing is lost, and it is said.

A small file system is mounted for it, which needs root.
"""

import asyncio
import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dflash_tui.common.errors import DflashError
from dflash_tui.events import Health, Sampled
from dflash_tui.monitoring import observer
from dflash_tui.runs import registry, server_process
from tests.support.command_line import dflash
from tests.support.fake_runs import recorded, watching
from tests.support.small_disk import mount_disk
from tests.support.waiting import until


@pytest.fixture
def small(tmp_path, monkeypatch) -> Iterator[Callable[[str], Path]]:
    """Return a function that mounts a small disk with these options and puts our state there."""
    with ExitStack() as mounted:

        def mount(options: str) -> Path:
            folder = mounted.enter_context(mount_disk(tmp_path / "small", options))
            monkeypatch.setenv("XDG_STATE_HOME", str(folder))
            return folder

        yield mount


def fill(folder: Path) -> Path:
    """Write until nothing fits any more."""
    with (folder / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    return folder / "filler"


async def test_a_full_disk_under_a_living_server(launch, small, tmp_path):
    """The server goes on, readings stop, why is said; with room again they go on and no line is torn."""
    disk = small("size=1m")
    run = launch("busy")
    async with watching(run) as state:
        await until(lambda: state.health is Health.WARM and len(state.readings) > 1)
        with (tmp_path / "lines").open("wb") as lines, (tmp_path / "figures").open("wb") as figures:
            attach = [sys.executable, "-m", "dflash_tui", "attach", run.id, "--plain"]
            watcher = subprocess.Popen(attach, stdout=figures, stderr=lines)
        await until(lambda: (tmp_path / "figures").stat().st_size)
        filler = fill(disk)
        await until(lambda: any("figures are not updated" in line.text for line in state.lines))
        assert any("are not updated" in line.text and os.strerror(errno.ENOSPC) in line.text for line in state.lines)
        assert server_process.is_alive(run)
        for words in (("ps",), ("logs", run.id), ("why", run.id), ("runs", "history")):
            done = await asyncio.to_thread(dflash, *words)
            assert (done.returncode, "Traceback" in done.stderr) == (0, False), (words, done.stderr)
        for written in (("report", run.id, "-o", f"{disk}/r.md"), ("export", run.id, "-o", f"{disk}/e.zip")):
            done = await asyncio.to_thread(dflash, *written)
            assert (done.returncode, "Traceback" in done.stderr) == (1, False), (written, done.stderr)
        assert not list(disk.glob("*.zip")) + list(disk.glob(".*.zip*"))
        with pytest.raises(DflashError) as refused:
            launch("deaf")
        assert os.strerror(errno.ENOSPC) in refused.value.evidence
        await until(lambda: "are not updated" in (tmp_path / "lines").read_text())
        known = len(recorded(run, Sampled))
        filler.unlink()
        await until(lambda: len(recorded(run, Sampled)) > known + 2)
        await until(lambda: any("recording again" in line.text for line in state.lines))
        await until(lambda: "recording again" in (tmp_path / "lines").read_text())
        watcher.kill()
        await asyncio.to_thread(watcher.wait)
    assert observer.replay_run(run).status == "warm"
    assert [run.id for run in registry.list_runs()] == [run.id]
    assert registry.list_broken_runs() == {}


async def test_bench_on_full_disk_warns_without_waiting(launch, small):
    """Its figures are right all the same."""
    disk = small("size=1m")
    run = launch()
    async with watching(run) as state:
        await until(lambda: state.health is Health.WARM and len(state.readings) > 1)
    fill(disk)
    done = await asyncio.to_thread(dflash, "bench", run.id, "--json")
    assert done.returncode == 0, done.stderr
    assert os.strerror(errno.ENOSPC) in done.stderr
    assert "not recorded within" not in done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["failed"] == 0


def test_a_disk_without_room_for_another_file(launch, small):
    """All inodes are taken: a launch says so and starts nothing; what is there can be listed and stopped."""
    disk = small("size=1m,nr_inodes=24")
    run = launch("deaf")
    with pytest.raises(OSError, match="No space left"):  # noqa: PT012
        for number in range(50):
            (disk / f"spare{number}").touch()
    with pytest.raises(DflashError, match="could not be created"):
        launch("deaf")
    assert run.id in dflash("ps").stdout
    stopped = dflash("stop", run.id)
    assert (stopped.returncode, "Traceback" in stopped.stderr) == (0, False)
    assert not server_process.is_alive(run)


def test_read_only_state_folder_stops_only_launches(launch, small):
    """Remounted read-only, as a failing disk is: lists, logs and stop work, a launch says why it does not."""
    disk = small("size=1m")
    run = launch("deaf")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=False)
    if os.access(disk, os.W_OK):  # the server's log is open for writing, so that the kernel may refuse
        disk.chmod(0o500)
    for words in (("ps",), ("logs", run.id), ("stop", run.id)):
        done = dflash(*words)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), (words, done.stderr)
    assert not server_process.is_alive(run)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(DflashError, match="could not be created"):
        launch("deaf")
    assert shutil.disk_usage(disk).free > 0
