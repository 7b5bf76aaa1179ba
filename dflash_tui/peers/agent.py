"""The remote side: `dflash-tui agent` reads commands from stdin and writes messages to stdout, until stdin ends.

There is no daemon and no port: every user who can log in may run it. Launched ranks continue without it,
until their lease expires.
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
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec
import psutil
from msgspec.structs import replace

from dflash_tui import __version__
from dflash_tui.common import paths
from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.engines import model_hub
from dflash_tui.events import Preparing
from dflash_tui.launch import planner, preparation
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.launch.preflight import runner
from dflash_tui.machine import network, nvml, processes, system
from dflash_tui.monitoring import sampler
from dflash_tui.peers import cluster_launch, copies, keeper
from dflash_tui.peers.connection import (
    LEASE_SECONDS,
    LONGEST_LINE,
    PROTOCOL,
    Done,
    Greeting,
    HostSide,
    LogChunk,
    RankBeat,
    RankChecked,
    RankLaunched,
    RankOrder,
    RankProgress,
    Refused,
    encode_line,
)
from dflash_tui.peers.copies import CopyManifest, RoomFound
from dflash_tui.peers.far_installer import LINK
from dflash_tui.planning.plan import separate_caches
from dflash_tui.runs import lifecycle, registry, server_process
from dflash_tui.runs.run import EXPERIMENT_MARK, Run

# After this silence the connection is lost, and nothing reads the output.
PATIENCE = 30.0
_BEAT = 1.0
_GPU_SECONDS = 0.5
_LOG_INTERVAL = 0.2
_WORKER = "VLLM::Worker"
LARGEST_CHUNK = 1 << 15
Handler = Callable[..., Coroutine[None, None, msgspec.Struct | None]]
# The name of a folder to remove: neither empty nor a path.
Mark = Annotated[str, msgspec.Meta(pattern=r"^\w[\w.:-]*\Z")]


class Agent:
    """Answer commands, one line at a time; `write` is called with each message and may block."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._tasks = set[asyncio.Task[None]]()
        self._watch_task: asyncio.Task[None] | None = None
        self._watched: Run | None = None

    async def take_line(self, line: bytes) -> None:
        """Run the command of a line; slow commands run while further lines arrive."""
        try:
            command = msgspec.json.decode(line, type=_Command)
        except (msgspec.MsgspecError, ValueError):
            command = _Command()
        try:
            handler, decoder = _COMMANDS[command.do]
            fields = msgspec.structs.asdict(decoder.decode(line))
        except (KeyError, msgspec.MsgspecError, ValueError):
            self._refuse(command.id, UsageError("no such command", hint=f"dflash-tui {__version__}"))
            return
        task = asyncio.create_task(self._answer(command.id, handler, fields))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel running commands; launched ranks continue."""
        for task in (*self._tasks, *((self._watch_task,) if self._watch_task else ())):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer(self, number: int, handler: Handler, fields: dict[str, Any]) -> None:
        try:
            if answer := await handler(self, **fields):
                self._say("hello" if isinstance(answer, Greeting) else "answer", answer, number)
        except DflashError as error:
            self._refuse(number, error)
        except (OSError, RuntimeError, psutil.Error) as error:
            self._refuse(number, DflashError(f"{type(error).__name__}", evidence=str(error)))

    async def greet(self) -> Greeting:
        """Return this side's greeting."""
        memory = system.read_system_memory()
        return Greeting(
            PROTOCOL,
            __version__,
            platform.node(),
            platform.machine(),
            processes.read_boot_id(),
            memory.available,
            memory.total,
            await asyncio.to_thread(network.read_network),
            is_own=_is_own_program(Path(sys.prefix)),
        )

    async def check_rank(self, order: RankOrder) -> RankChecked:
        """Plan the rank on this machine, and run the checks of a launch; nothing is started."""
        planned = await asyncio.to_thread(_plan_rank, order)
        _require_free(planned)
        report = await runner.run_preflight(planned)
        side = await asyncio.to_thread(cluster_launch.describe_side, planned)
        return RankChecked(planned.plan, report.checks, side, planned.memory)

    async def prepare_rank(self, order: RankOrder) -> HostSide:
        """Install the rank's engine, get its models, and do all else that precedes its launch."""
        planned, own_caches = await asyncio.to_thread(_plan_rank, order), _find_arm_caches(order)
        if own_caches and order.cache and order.cache.is_fresh:
            await asyncio.to_thread(shutil.rmtree, own_caches, ignore_errors=True)
        await preparation.prepare_without_launch(planned, self._report)
        return await asyncio.to_thread(cluster_launch.describe_side, planned)

    async def launch_rank(self, order: RankOrder) -> RankLaunched:
        """Launch the rank, and the guard that stops it when its lease expires."""
        planned = await asyncio.to_thread(_plan_rank, order)
        _require_free(planned)
        run = await preparation.prepare_and_launch(planned, self._report)
        keeper.write_lease(run, LEASE_SECONDS)
        keeper.start_guard(run)
        return RankLaunched(run.id)

    async def watch_run(self, run: str, start: int) -> Done:
        """Send the log of a run from byte `start` on, and a beat each second."""
        self._watched = _find_run(run)
        if self._watch_task:
            self._watch_task.cancel()
        self._watch_task = asyncio.create_task(self._tell(self._watched, start))
        keeper.renew_lease(self._watched)
        return Done()

    async def take_beat(self, renews: bool) -> None:
        """Renew the lease of the watched run, if rank 0 is alive."""
        if self._watched and renews:
            keeper.renew_lease(self._watched)

    async def stop_run(self, run: str) -> Done:
        """Stop a run and all its processes."""
        await lifecycle.stop_server(_find_run(run))
        return Done()

    async def stop_marked(self, mark: Mark) -> Done:
        """Stop an experiment's leftover ranks on this host, as after its driver was killed."""
        for run in await asyncio.to_thread(registry.list_runs):
            if run.plan.rank and run.plan.env.get(EXPERIMENT_MARK) == mark and server_process.list_processes(run):
                await lifecycle.stop_server(run)
        return Done()

    async def remove_caches(self, mark: Mark) -> Done:
        """Remove an experiment's compile caches on this host."""
        await asyncio.to_thread(shutil.rmtree, paths.arm_caches_folder() / mark, ignore_errors=True)
        return Done()

    async def find_room(self, manifest: CopyManifest, begins: bool) -> RoomFound:
        """Return how much of a model this host has, and its free space."""
        return await asyncio.to_thread(copies.describe_room, manifest, begins=begins)

    async def finish_copy(self, manifest: CopyManifest) -> Done:
        """Move a model's copied files to where a launch looks for them."""
        await asyncio.to_thread(copies.finish_copy, manifest)
        return Done()

    async def _tell(self, run: Run, position: int) -> None:
        last = -_BEAT
        while True:
            while data := await asyncio.to_thread(_read_log, run, position):
                position += len(data)
                self._say("log", LogChunk(data))
            if time.monotonic() - last >= _BEAT:
                last = time.monotonic()
                self._say("beat", await asyncio.to_thread(_measure_beat, run))
            await asyncio.sleep(_LOG_INTERVAL)

    def _report(self, event: Preparing) -> None:
        self._say("preparing", RankProgress(event))

    def _refuse(self, number: int, error: DflashError) -> None:
        self._say("refused", Refused(error.what, error.evidence, error.hint, error.exit_code), number)

    def _say(self, say: str, said: msgspec.Struct, number: int = 0) -> None:
        self._write(encode_line(say, number, said))


class _Command(msgspec.Struct, frozen=True):
    """The envelope of each received line: the command and its number."""

    do: str = ""
    id: int = 0


register_type(_Command)


def _read_fields(handler: Handler) -> msgspec.json.Decoder[Any]:
    """Return the decoder of a command, whose fields are the parameters of its method."""
    types = get_type_hints(handler, include_extras=True)
    return msgspec.json.Decoder(
        msgspec.defstruct(handler.__name__, [item for item in types.items() if item[0] != "return"])
    )


_HANDLERS: dict[str, Handler] = {
    "hello": Agent.greet,
    "check": Agent.check_rank,
    "prepare": Agent.prepare_rank,
    "launch": Agent.launch_rank,
    "watch": Agent.watch_run,
    "beat": Agent.take_beat,
    "stop": Agent.stop_run,
    "stop marked": Agent.stop_marked,
    "remove caches": Agent.remove_caches,
    "room": Agent.find_room,
    "finish copy": Agent.finish_copy,
}
_COMMANDS = {do: (handler, _read_fields(handler)) for do, handler in _HANDLERS.items()}


def _plan_rank(order: RankOrder) -> PlannedLaunch:
    copies = {path: paths.models_folder() / name for path, name in order.folders.items()}
    # A folder at the named path is the user's own, and wins over a copy.
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
    """Return the folder of the compile caches of the order's arm; None to share those of other servers."""
    if not order.mark or order.cache is None:
        return None
    return paths.arm_caches_folder() / order.mark / f"rank{order.rank}" / str(order.cache.arm)


def _require_free(planned: PlannedLaunch) -> None:
    for run in registry.list_runs():
        if run.plan.rank and server_process.is_alive(run) and run.plan.disturbs(planned.plan):
            what = f"this host is rank {run.plan.rank} of another server already, {run.id}"
            raise UsageError(what, hint=f"on it: dflash-tui stop {run.id}")


def _find_run(name: str) -> Run:
    run = next((run for run in registry.list_runs() if run.id == name), None)
    if run is None:
        raise UsageError(f"no run called '{name}'")
    return run


def _is_own_program(environment: Path) -> bool:
    home = paths.resolve_links(paths.data_folder())
    return environment.name.startswith(f"{LINK}-") and paths.resolve_links(environment.parent) == home


def _read_log(run: Run, position: int) -> bytes:
    try:
        with run.log.open("rb") as file:
            file.seek(position)
            return file.read(LARGEST_CHUNK)
    except OSError:
        return b""


def _measure_beat(run: Run) -> RankBeat:
    members = server_process.list_processes(run)
    record, memory = keeper.read_lease(run), system.read_system_memory()
    cards = () if run.plan.on_cpu else nvml.read_gpus(_GPU_SECONDS) or ()
    return RankBeat(
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
    """Count the vLLM workers in `members`; a worker's children keep its name until they run another program."""
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
    """Raise UsageError if stdin is neither pipe nor socket, as when a person runs it."""
    kind = os.fstat(sys.stdin.fileno()).st_mode
    if not stat.S_ISFIFO(kind) and not stat.S_ISSOCK(kind):
        raise UsageError("the agent is run by another dflash-tui, over ssh", hint="dflash-tui up RECIPE --peer HOST")


async def serve_stdin() -> None:
    """Serve commands from stdin on stdout until stdin ends or stays silent for `PATIENCE`."""
    loop, output = asyncio.get_running_loop(), os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # other prints are not messages
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    reader = asyncio.StreamReader(limit=LONGEST_LINE)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    def write(line: bytes) -> None:
        while line:
            try:
                line = line[os.write(output, line) :]
            except BlockingIOError:  # sshd's stdin and stdout may be one socket, which asyncio does not wait for
                select.select([], [output], [], PATIENCE)

    agent = Agent(write)
    try:
        while line := await asyncio.wait_for(reader.readline(), PATIENCE):
            if line.strip():
                await agent.take_line(line)
    except (TimeoutError, BrokenPipeError):
        pass
    finally:
        await agent.close()
