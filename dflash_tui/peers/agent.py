"""The far side: `dflash-tui agent` reads commands from stdin and writes messages to stdout, until stdin ends.

No daemon and no port: who may run it is who may log in. What it launched goes on without it, unless its lease runs out.
"""

from __future__ import annotations

import asyncio
import os
import platform
import select
import shutil
import signal
import stat
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
from msgspec.structs import replace

from dflash_tui import __version__
from dflash_tui.common import paths
from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.line_buffer import LineBuffer
from dflash_tui.engines import model_hub
from dflash_tui.events import Preparing
from dflash_tui.launch import planner, preparation
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.launch.preflight import runner
from dflash_tui.machine import network, nvml, processes, system
from dflash_tui.machine.processes import find_orphans
from dflash_tui.monitoring import sampler
from dflash_tui.peers import cluster_launch, connection, copies, keeper
from dflash_tui.peers.connection import (
    PROTOCOL,
    AgentMessage,
    AnyCommand,
    AskRoom,
    Beat,
    CheckRank,
    Done,
    Finding,
    FinishCopy,
    Greeting,
    LaunchRank,
    ListOrphans,
    LogChunk,
    OrphanFound,
    OrphansListed,
    PrepareRank,
    RankBeat,
    RankChecked,
    RankLaunched,
    RankOrder,
    RankPrepared,
    RankProgress,
    Refused,
    RemoveCaches,
    RoomFound,
    SayHello,
    StopMarked,
    StopRank,
    WatchRank,
)
from dflash_tui.peers.far_installer import LINK
from dflash_tui.planning.plan import separate_caches
from dflash_tui.runs import lifecycle, registry, server_process
from dflash_tui.runs.run import EXPERIMENT_MARK, Run

# Nothing was heard for so long: the connection is lost, and nobody reads what is written.
PATIENCE = 30.0
_BEAT = 1.0
_GPU_SECONDS = 0.5
_LOG_INTERVAL = 0.2
_WORKER = "VLLM::Worker"


class Agent:
    """Answers commands one line at a time; `write` takes each message as a line, and may wait."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._tasks = set[asyncio.Task[None]]()
        self._watch_task: asyncio.Task[None] | None = None
        self._watched: Run | None = None

    async def take_line(self, line: bytes) -> None:
        """Do what a line asks for; what takes long is done while further lines come."""
        command = connection.decode_command(line)
        if command is None:
            self._refuse(
                connection.read_command_id(line), UsageError("no such command", hint=f"dflash-tui {__version__}")
            )
        elif isinstance(command, Beat):
            if self._watched and command.renews:
                keeper.renew_lease(self._watched)
        else:
            task = asyncio.create_task(self._answer(command))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Give up what is under way; what was launched goes on."""
        for task in (*self._tasks, *((self._watch_task,) if self._watch_task else ())):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer(self, command: AnyCommand) -> None:
        try:
            self._say(await self._do(command))
        except DflashError as error:
            self._refuse(command.id, error)
        except (OSError, RuntimeError, psutil.Error) as error:
            self._refuse(command.id, DflashError(f"{type(error).__name__}", evidence=str(error)))

    async def _do(self, command: AnyCommand) -> AgentMessage:
        answers: dict[type, Callable[[Any], Awaitable[AgentMessage]]] = {
            SayHello: _greet,
            CheckRank: _check_rank,
            PrepareRank: self._prepare,
            LaunchRank: self._launch,
            WatchRank: self._watch,
            StopRank: _stop_rank,
            StopMarked: _stop_marked,
            RemoveCaches: _remove_caches,
            ListOrphans: _list_orphans,
            AskRoom: _find_room,
            FinishCopy: _finish_copy,
        }
        return await answers[type(command)](command)

    async def _prepare(self, command: PrepareRank) -> RankPrepared:
        planned, own_caches = await asyncio.to_thread(_plan_rank, command.order), _find_arm_caches(command.order)
        if own_caches and command.order.cache and command.order.cache.is_fresh:
            await asyncio.to_thread(shutil.rmtree, own_caches, ignore_errors=True)
        await preparation.prepare_without_launch(planned.resolved, planned.plan, self._report)
        return RankPrepared(command.id, await asyncio.to_thread(cluster_launch.describe_side, planned))

    async def _launch(self, command: LaunchRank) -> RankLaunched:
        planned = await asyncio.to_thread(_plan_rank, command.order)
        _require_free(planned)
        run = await preparation.prepare_and_launch(planned.resolved, planned.plan, self._report)
        keeper.write_lease(run, command.lease)
        keeper.start_guard(run)
        return RankLaunched(command.id, run.id, run.pid)

    async def _watch(self, command: WatchRank) -> Done:
        self._watched = _find_run(command.run)
        if self._watch_task:
            self._watch_task.cancel()
        self._watch_task = asyncio.create_task(self._tell(self._watched, command.start))
        keeper.renew_lease(self._watched)
        return Done(command.id)

    async def _tell(self, run: Run, position: int) -> None:
        """Send the log of a run from a byte on, and a beat each second."""
        last = -_BEAT
        while True:
            while data := await asyncio.to_thread(_read_log, run, position):
                position += len(data)
                self._say(LogChunk(0, data))
            if time.monotonic() - last >= _BEAT:
                last = time.monotonic()
                self._say(await asyncio.to_thread(_measure_beat, run))
            await asyncio.sleep(_LOG_INTERVAL)

    def _report(self, event: Preparing) -> None:
        self._say(RankProgress(0, event))

    def _refuse(self, number: int, error: DflashError) -> None:
        self._say(Refused(number, error.what, error.evidence, error.hint, error.exit_code))

    def _say(self, message: AgentMessage) -> None:
        self._write(connection.encode_line(message))


def _plan_rank(order: RankOrder) -> PlannedLaunch:
    copies = {path: paths.models_folder() / name for path, name in order.folders.items()}
    # One that is there by the path that was named is the user's own.
    folders = {
        path: str(copy) for path, copy in copies.items() if copy.is_dir() or not model_hub.find_local_folder(path)
    }
    planned = planner.plan_launch_here(order.request, cluster=order.cluster, rank=order.rank, folders=folders)
    if not order.mark:
        return planned
    own_caches = _find_arm_caches(order)
    plan = separate_caches(planned.plan, order.request.settings, own_caches) if own_caches else planned.plan
    return planned._replace(plan=replace(plan, env={**plan.env, EXPERIMENT_MARK: order.mark}))


def _find_arm_caches(order: RankOrder) -> Path | None:
    """Return the folder of the compile caches that the order's arm has for itself here; None for those of all."""
    if not order.mark or order.cache is None:
        return None
    return paths.arm_caches_folder() / order.mark / f"rank{order.rank}" / str(order.cache.arm)


async def _check_rank(command: CheckRank) -> RankChecked:
    """Plan the rank on this machine, and run the checks of a launch."""
    planned = await asyncio.to_thread(_plan_rank, command.order)
    _require_free(planned)
    report = await runner.run_preflight(planned.resolved, planned.plan)
    findings = tuple(Finding(check.name, check.level.value, check.finding, check.advice) for check in report.checks)
    side = await asyncio.to_thread(cluster_launch.describe_side, planned)
    return RankChecked(command.id, planned.plan, findings, side, planned.memory)


def _require_free(planned: PlannedLaunch) -> None:
    """Raise when this machine is a rank of another server already.

    Raises:
        UsageError: with the run.
    """
    for run in registry.list_runs():
        if run.plan.rank and server_process.is_alive(run) and run.plan.disturbs(planned.plan):
            what = f"this host is rank {run.plan.rank} of another server already, {run.id}"
            raise UsageError(what, hint=f"on it: dflash-tui stop {run.id}")


def _find_run(name: str) -> Run:
    """Return the run of this very id.

    Raises:
        UsageError: there is none.
    """
    run = next((run for run in registry.list_runs() if run.id == name), None)
    if run is None:
        raise UsageError(f"no run called '{name}'")
    return run


async def _greet(command: SayHello) -> Greeting:
    memory = system.read_system_memory()
    return Greeting(
        command.id,
        PROTOCOL,
        __version__,
        platform.node(),
        platform.machine(),
        processes.read_boot_id(),
        time.time(),
        memory.available,
        memory.total,
        await asyncio.to_thread(network.read_network),
        is_own=_is_own_program(Path(sys.prefix)),
    )


def _is_own_program(environment: Path) -> bool:
    """Whether an environment is one that `far_installer` made."""
    home = paths.resolve_links(paths.data_folder())
    return environment.name.startswith(f"{LINK}-") and paths.resolve_links(environment.parent) == home


async def _stop_rank(command: StopRank) -> Done:
    await lifecycle.stop_server(_find_run(command.run))
    return Done(command.id)


async def _find_room(command: AskRoom) -> RoomFound:
    return await asyncio.to_thread(copies.describe_room, command.id, command.manifest, begins=command.begins)


async def _finish_copy(command: FinishCopy) -> Done:
    await asyncio.to_thread(copies.finish_copy, command.manifest)
    return Done(command.id)


async def _stop_marked(command: StopMarked) -> Done:
    for run in await asyncio.to_thread(registry.list_runs):
        if run.plan.rank and run.plan.env.get(EXPERIMENT_MARK) == command.mark and server_process.list_processes(run):
            await lifecycle.stop_server(run)
    return Done(command.id)


async def _remove_caches(command: RemoveCaches) -> Done:
    await asyncio.to_thread(shutil.rmtree, paths.arm_caches_folder() / command.mark, ignore_errors=True)
    return Done(command.id)


async def _list_orphans(command: ListOrphans) -> OrphansListed:
    orphans = await asyncio.to_thread(find_orphans)
    return OrphansListed(
        command.id,
        tuple(OrphanFound(orphan.pid, orphan.name, orphan.resident, orphan.port) for orphan in orphans),
    )


def _read_log(run: Run, position: int) -> bytes:
    try:
        with run.log.open("rb") as file:
            file.seek(position)
            return file.read(connection.LARGEST_CHUNK)
    except OSError:
        return b""


def _measure_beat(run: Run) -> RankBeat:
    members = server_process.list_processes(run)
    record, memory = keeper.read_lease(run), system.read_system_memory()
    cards = () if run.plan.on_cpu else nvml.read_gpus(_GPU_SECONDS) or ()
    return RankBeat(
        0,
        is_alive=server_process.is_alive(run),
        processes=len(members),
        workers=_count_workers(members),
        suspended=sum(map(processes.is_suspended, members)),
        resident=processes.measure_resident_memory(members),
        memory_available=memory.available,
        why=record.ended if record else "",
        memory_total=memory.total,
        gpus=sampler.read_gpu_loads(cards, {process.pid for process in members}, run.plan.gpus),
        worked=None if cards else sampler.measure_processor_use(members).seconds,
    )


def _count_workers(members: Sequence[psutil.Process]) -> int:
    """Return how many of `members` are workers of vLLM; what one starts has its name until it runs another program."""
    parents = {process.pid: _read_parent(process) for process in members if _is_worker(process)}
    return sum(parent not in parents for parent in parents.values())


def _is_worker(process: psutil.Process) -> bool:
    try:
        return bool(process.cmdline()) and process.cmdline()[0].startswith(_WORKER)
    except psutil.Error:
        return False


def _read_parent(process: psutil.Process) -> int:
    try:
        return int(process.ppid())
    except psutil.Error:
        return 0


def require_caller() -> None:
    """Raise when stdin is no pipe or socket, as when a person calls it.

    Raises:
        UsageError: nobody is at the other end of stdin.
    """
    kind = os.fstat(sys.stdin.fileno()).st_mode
    if not stat.S_ISFIFO(kind) and not stat.S_ISSOCK(kind):
        raise UsageError("the agent is run by another dflash-tui, over ssh", hint="dflash-tui up RECIPE --peer HOST")


async def serve_stdin() -> None:
    """Serve commands of stdin on stdout until it ends, or nothing comes for long."""
    loop, output = asyncio.get_running_loop(), os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what anything else prints is no message
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    def write(line: bytes) -> None:
        while line:
            try:
                line = line[os.write(output, line) :]
            except BlockingIOError:  # sshd's stdin and stdout may be one socket, which asyncio does not wait for
                select.select([], [output], [], PATIENCE)

    agent, buffer = Agent(write), LineBuffer(connection.LONGEST_LINE)
    try:
        while data := await asyncio.wait_for(reader.read(1 << 16), PATIENCE):
            for line in buffer.feed(data):
                if line.strip():
                    await agent.take_line(line)
    except (TimeoutError, BrokenPipeError):
        pass
    finally:
        await agent.close()
