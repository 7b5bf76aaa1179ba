"""Files of a run that are cut, replaced, endless or no text, and records that nobody can use."""

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest
from msgspec.structs import replace

from dflash_tui.benchmark import client
from dflash_tui.benchmark.prompts import Prompt, Sampling
from dflash_tui.benchmark.server import Server
from dflash_tui.events import Health, Sampled
from dflash_tui.experiments import store
from dflash_tui.machine import processes
from dflash_tui.monitoring import observer, recording
from dflash_tui.run_state.state import RunState
from dflash_tui.runs import lifecycle, registry, server_process
from dflash_tui.runs.run import VERSION, Run
from tests.support.command_line import dflash
from tests.support.experiment_factories import a_design
from tests.support.fake_runs import made, recorded, watching
from tests.support.waiting import until

MIB = 1 << 20
UP = b"INFO:     Application startup complete.\n"


def ended(log: bytes = UP, name: str = "20261122-010203-demo-cpu") -> Run:
    """Leave the folder of a run that has ended, with this log."""
    run = Run(name, made(8000), 4_000_000, "boot:1", time.time() - 60, 0.0, "fake")
    run.folder.mkdir(parents=True)
    (run.folder / "run.json").write_bytes(msgspec.json.encode(run))
    run.log.write_bytes(log)
    run.samples.write_bytes(b"")
    return run


async def test_changed_log_file_is_read_on(launch):
    """One server: its log is truncated, as by copytruncate, then another file in its place, then deleted."""
    run = launch("log")
    async with watching(run) as state:
        await until(lambda: state.health is Health.WARM and state.line_count >= 2)
        os.truncate(run.log, 0)
        await until(lambda: run.log.stat().st_size == 0 or state.line_count > 2)
        with run.log.open("ab") as log:
            log.write(b"after the cut\n")
        await until(lambda: state.lines[-1].text == "after the cut")
        other = run.log.with_name("other")
        other.write_bytes(b"in its place, longer than what was there before\n")
        other.replace(run.log)
        await until(lambda: state.lines[-1].text.startswith("in its place"))
        run.log.unlink()
        before = len(recorded(run, Sampled))
        await until(lambda: len(recorded(run, Sampled)) > before)
        assert state.health is Health.WARM
    assert b"\0" not in run.samples.read_bytes()
    done = dflash("logs", run.id)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "the log of" in done.stderr


async def test_renamed_log_is_read_under_new_name(launch):
    """The server goes on writing into it: who watches, comes later, or asks after the end reads each line once."""
    run = launch("log")
    async with watching(run) as state:
        await until(lambda: state.health is Health.WARM)
        log = run.log
        log.rename(renamed := log.with_name("server.log.1"))
        log.touch()
        before = state.line_count
        await client.send_prompt(Server(run.url, "x"), Prompt("late", "after the rename", 8), Sampling())
        await until(lambda: "after the rename" in state.lines[-1].text)
        assert state.line_count == before + 1
        assert observer.replay_run(run).line_count == state.line_count
        assert dflash("logs", run.id).stdout.count("after the rename") == 1
        os.kill(run.pid, signal.SIGKILL)
        await until(lambda: state.exit is not None)
        assert state.line_count == before + 1
    assert run.log == renamed
    assert observer.replay_run(run).line_count == state.line_count
    played = RunState()
    for event in recording.open_recording(run).events():
        played.apply(event)
    assert played.line_count == state.line_count


def test_gigabyte_log_is_read_at_its_ends(snapshot):
    """Sparse, so zeros in the middle: the start and the end are known in a moment, and what is left out is said."""
    run = ended()
    with run.log.open("r+b") as log:
        log.truncate(1 << 30)
        log.seek(0, 2)
        log.write(b"\nthe last words\n")
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    state = observer.replay_run(run)
    assert state.up_at is not None
    assert state.lines[-1].text == "the last words"
    assert [line.text for line in state.lines if "1008 MiB" in line.text] == snapshot
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB
    assert time.process_time() - began < 30  # 15 MB/s would be more than a minute


def test_endless_log_line_takes_little_memory():
    """In the log and in the samples; what comes after them is read."""
    run = ended(UP)
    for path, end in ((run.log, b"\nafter it\n"), (run.samples, b'\n{"event":"health","at":5,"health":"warm"}\n')):
        with path.open("ab") as file:
            for _ in range(100 if path == run.samples else 30):  # beyond 32 MiB the middle is left out
                file.write(b"x" * MIB)
            file.write(end)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    state = observer.replay_run(run)
    assert state.lines[-1].text == "after it"
    assert state.health is Health.WARM
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB
    command = f"ulimit -v 1500000; {sys.executable} -m dflash_tui logs {run.id} | tail -c 9"
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=False)
    assert (done.stdout, done.stderr) == (b"after it\n", b"")


RECORDS: dict[str, Callable[[bytes], bytes]] = {
    "half": lambda text: text[: len(text) // 2],
    "folder": lambda text: text.replace(b"20261122", b"20261121"),
}


@pytest.mark.parametrize("harm", [*RECORDS, "newer"])
def test_unusable_run_record_is_named(harm, snapshot):
    """`ps` goes on with the other runs; nothing is signalled by such a record."""
    good, bad = ended(name="20261122-000000-good"), ended()
    path = bad.folder / "run.json"
    text = path.read_bytes()
    newer = text.replace(b'"version":%d' % VERSION, b'"version":%d' % (VERSION + 1))
    path.write_bytes(RECORDS[harm](text) if harm != "newer" else newer)
    assert path.read_bytes() != text
    assert [run.id for run in registry.list_runs()] == [good.id]
    assert registry.list_broken_runs() == {bad.id: snapshot}


def test_newer_record_with_extra_fields_is_used():
    """What we do not know of is passed over, and the run is listed; `ps` names the damaged one beside it."""
    run, bad = ended(name="20261122-000000-more"), ended()
    text = (run.folder / "run.json").read_bytes()
    (run.folder / "run.json").write_bytes(text[:-1] + b',"invented":{"later":[1,2]}}')
    (bad.folder / "run.json").write_bytes(b'{"id":')
    done = dflash("ps", "--all")
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    assert run.id in done.stdout
    assert f"{bad.folder}: its run.json cannot be read" in done.stderr


@contextlib.contextmanager
def ending(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill a process when the block is over, however that ends."""
    try:
        yield
    finally:
        process.kill()


def test_record_with_reused_pid_signals_no_process():
    """Also where the other process leads a session of its own and works in the run's folder, as a shell may."""
    run = ended()
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(command, start_new_session=True, cwd=run.folder) as foreign, ending(foreign):
        boot, _, ticks = processes.read_process_identity(foreign.pid).partition(":")
        reused = replace(run, pid=foreign.pid, born=f"{boot}:{int(ticks) - 100}")
        (run.folder / "run.json").write_bytes(msgspec.json.encode(reused))
        assert not server_process.is_alive(reused)
        assert not server_process.is_starting(reused)
        assert server_process.list_processes(reused) == []
        assert run.id not in dflash("ps").stdout
        assert run.id not in lifecycle.port_owner(reused.plan.port)
        done = dflash("stop", run.id)
        assert (done.returncode, "has already ended" in done.stderr) == (0, True)
        assert foreign.poll() is None


def test_ab_stop_spares_process_with_reused_pid():
    """`ab stop` signals the process that it knows by pid and start, and no other."""
    folder = store.create_experiment(a_design())
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as foreign, ending(foreign):
        boot, _, ticks = processes.read_process_identity(foreign.pid).partition(":")
        store.write_json(folder / "driver.json", store.Driver(foreign.pid, f"{boot}:{int(ticks) - 100}"))
        assert store.find_driver(folder) is None
        assert dflash("ab", "stop", folder.name).returncode in {0, 2}
        assert foreign.poll() is None


async def test_deleted_run_folder_does_not_break_observer(launch):
    """Nothing is raised, the server serves on; the lists know no server without its record, and are whole."""
    run = launch("busy")
    async with watching(run) as state:
        await until(lambda: state.health is Health.WARM and len(state.readings) > 1)
        shutil.rmtree(run.folder)
        await asyncio.sleep(4)  # a round of everything that is asked and written
        assert server_process.is_alive(run)
        assert (state.exit, state.health) == (None, Health.WARM)
        assert not run.folder.exists()
    assert registry.list_runs() == []
    assert registry.list_broken_runs() == {}
    assert (await client.send_first_request(Server(run.url, "x"))).error == ""
