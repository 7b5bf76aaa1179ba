"""The far side of a server over several hosts: `dflash-tui agent VERB`, run by another dflash-tui over ssh.

stdin has the parameters of the verb's function as a line of JSON, stdout gets events and the answer as lines of JSON.
The work is cancelled when stdin ends. Launched ranks continue, until their lease expires.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import shutil
import stat
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec
import psutil
from msgspec.structs import replace

from dflash_tui import __version__
from dflash_tui.common import paths
from dflash_tui.common.errors import UsageError
from dflash_tui.engines import model_hub
from dflash_tui.events import RankSampled, RankState
from dflash_tui.launch import planner, preparation
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.launch.preflight import runner
from dflash_tui.machine import network, nvml, processes, system
from dflash_tui.monitoring import sampler
from dflash_tui.peers import cluster_launch, copies, keeper, transport
from dflash_tui.peers.connection import Greeting, HostSide, LogChunk, Message, RankChecked, RankOrder, VerbAnswer
from dflash_tui.planning.plan import separate_caches
from dflash_tui.runs import lifecycle, registry, server_process
from dflash_tui.runs.run import EXPERIMENT_MARK, Run
from dflash_tui.vllm_output.log_facts import NetworkReader

# After this silence of a watching caller the connection is lost.
_PATIENCE = 30.0
_MEMORY_SECONDS = 60.0
_INTERVAL = 1.0
_GPU_SECONDS = 0.5
_LOG_INTERVAL = 0.2
_WORKER = "VLLM::Worker"
# The window of a processor load.
_LOAD_SECONDS = 2.0
LARGEST_CHUNK = 1 << 15
# The name of a folder to remove: neither empty nor a path.
Mark = Annotated[str, msgspec.Meta(pattern=r"^\w[\w.:-]*\Z")]


class Caller:
    """The dflash-tui that runs this one."""

    def __init__(self) -> None:
        self.heard = time.monotonic()
        """When it sent its last line."""
        # Unbuffered: a thread that waits in a buffered stdin would abort the interpreter's end.
        self.stdin = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115

    def say(self, message: Message) -> None:
        """Send a message."""
        sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
        sys.stdout.buffer.flush()

    def listen(self, stop: Callable[[], object]) -> None:
        """Read its lines, and call `stop` when it is gone."""
        for _ in self.stdin:
            self.heard = time.monotonic()
        with contextlib.suppress(RuntimeError):  # the work may be done
            stop()


async def hello(least: int) -> Greeting:
    """Return the greeting of this host, once `least` bytes of memory are available, or after a minute."""
    deadline = time.monotonic() + _MEMORY_SECONDS
    while (memory := system.read_system_memory()).available < least and time.monotonic() < deadline:
        await asyncio.sleep(_INTERVAL)
    return Greeting(
        __version__,
        platform.node(),
        platform.machine(),
        processes.read_boot_id(),
        memory.available,
        memory.total,
        await asyncio.to_thread(network.read_network),
        is_own=_is_own_program(Path(sys.prefix)),
    )


async def check(order: RankOrder) -> RankChecked:
    """Plan the rank on this machine, and run the checks of a launch; nothing is started."""
    planned = await asyncio.to_thread(_plan_rank, order)
    _require_free(planned)
    report = await runner.run_preflight(planned)
    side = await asyncio.to_thread(cluster_launch.describe_side, planned)
    return RankChecked(planned.plan, report.checks, side, planned.memory)


async def prepare(caller: Caller, order: RankOrder) -> HostSide:
    """Install the rank's engine, get its models, and do all else that precedes its launch."""
    planned, own_caches = await asyncio.to_thread(_plan_rank, order), _find_arm_caches(order)
    if own_caches and order.cache and order.cache.is_fresh:
        await asyncio.to_thread(shutil.rmtree, own_caches, ignore_errors=True)
    await preparation.prepare_without_launch(planned, caller.say)
    return await asyncio.to_thread(cluster_launch.describe_side, planned)


async def launch(caller: Caller, order: RankOrder) -> str:
    """Launch the rank, and the guard that stops it when its lease expires; return its run."""
    planned = await asyncio.to_thread(_plan_rank, order)
    _require_free(planned)
    run = await preparation.prepare_and_launch(planned, caller.say)
    keeper.start_guard(run)
    return run.id


async def watch(caller: Caller, run: str, start: int) -> None:
    """Send the log of a run from byte `start` on, and its state each second, until the caller is silent.

    Each line of the caller renews the run's lease.
    """
    watched, sampled, renewed = RankWatch(_find_run(run)), 0.0, 0.0
    while time.monotonic() - caller.heard < _PATIENCE:
        if caller.heard > renewed:
            renewed = caller.heard
            keeper.renew_lease(watched.run)
        while data := await asyncio.to_thread(watched.read_log, start):
            start += len(data)
            caller.say(LogChunk(data))
        if time.monotonic() - sampled >= _INTERVAL:
            sampled = time.monotonic()
            caller.say(await asyncio.to_thread(watched.sample))
        await asyncio.sleep(_LOG_INTERVAL)


async def stop(run: str) -> None:
    """Stop a run and all its processes."""
    await lifecycle.stop_server(_find_run(run))


async def stop_marked(mark: Mark) -> None:
    """Stop an experiment's leftover ranks on this host, as after its driver was killed."""
    for run in await asyncio.to_thread(registry.list_runs):
        if run.plan.rank and run.experiment == mark and server_process.list_processes(run):
            await lifecycle.stop_server(run)


def remove_caches(mark: Mark) -> None:
    """Remove an experiment's compile caches on this host."""
    shutil.rmtree(paths.arm_caches_folder() / mark, ignore_errors=True)


_VERBS: dict[str, Callable[..., Any]] = {
    **{verb.__name__: verb for verb in (hello, check, prepare, launch, watch, stop, stop_marked, remove_caches)},
    "find_room": copies.describe_rooms,
    "finish_copy": copies.finish_copy,
}


def answer_caller(name: str) -> None:
    """Run a verb for the caller at stdin and stdout.

    Raises:
        UsageError: stdin is neither pipe nor socket, as when a person runs it, or there is no such verb.
        DflashError: the verb failed.
    """
    kind = os.fstat(sys.stdin.fileno()).st_mode
    if not stat.S_ISFIFO(kind) and not stat.S_ISSOCK(kind):
        raise UsageError("the agent is run by another dflash-tui, over ssh", hint="dflash-tui up RECIPE --peer HOST")
    caller = Caller()
    try:
        verb = _VERBS[name]
        types = get_type_hints(verb, include_extras=True)
        given = [(parameter, type_) for parameter, type_ in types.items() if parameter not in {"caller", "return"}]
        read = msgspec.json.decode(caller.stdin.readline(), type=msgspec.defstruct("Parameters", given))
    except (KeyError, msgspec.MsgspecError, ValueError):
        raise UsageError("no such command", hint=f"install {__version__} on both") from None
    parameters = msgspec.structs.asdict(read) | ({"caller": caller} if "caller" in types else {})
    run = verb if asyncio.iscoroutinefunction(verb) else partial(asyncio.to_thread, verb)
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_answer(caller, run(**parameters)))


async def _answer(caller: Caller, work: Coroutine[None, None, object]) -> None:
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
    listen = partial(caller.listen, lambda: loop.call_soon_threadsafe(task.cancel))
    threading.Thread(target=listen, daemon=True).start()
    caller.say(VerbAnswer(msgspec.Raw(msgspec.json.encode(await task))))


def _plan_rank(order: RankOrder) -> PlannedLaunch:
    copies = {path: paths.models_folder() / name for path, name in order.folders.items()}
    # A folder at the named path is the user's own, and wins over a copy.
    folders = {
        path: str(copy) for path, copy in copies.items() if copy.is_dir() or not model_hub.find_local_folder(path)
    }
    request = replace(order.request, cluster=order.cluster)
    planned = planner.plan_launch_here(request, rank=order.rank, folders=folders)
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
    return environment.name.startswith(f"{transport.LINK}-") and paths.resolve_links(environment.parent) == home


class RankWatch:
    """A rank that another host watches: its log and its state."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._network = NetworkReader()
        self._most_workers = self._last_workers = 0
        self._busy: float | None = None
        self._before: tuple[float, float] | None = None

    def read_log(self, position: int) -> bytes:
        """Return the next bytes of the log."""
        try:
            with self.run.log.open("rb") as file:
                file.seek(position)
                data = file.read(LARGEST_CHUNK)
        except OSError:
            return b""
        self._network.feed(data)
        return data

    def sample(self) -> RankSampled:
        """Return the rank's state now; the caller knows its host, and since when it is in this state."""
        members, memory = server_process.list_processes(self.run), system.read_system_memory()
        cards = () if self.run.plan.on_cpu else nvml.probe_gpus(_GPU_SECONDS).gpus
        if not cards:
            self.measure_load(time.monotonic(), sampler.measure_processor_use(members).seconds)
        state, why = self.judge(
            count_workers(members), sum(map(processes.is_suspended, members)), server_process.is_alive(self.run)
        )
        return RankSampled(
            at=time.time(),
            rank=self.run.plan.rank,
            host="",
            state=state,
            since=0.0,
            why=why,
            resident=processes.measure_resident_memory(members),
            available=memory.available,
            total=memory.total,
            gpus=sampler.read_gpu_loads(cards, {process.pid for process in members}, self.run.plan.gpus),
            busy=self._busy,
            network=self._network.network,
        )

    def judge(self, workers: int, suspended: int, is_alive: bool) -> tuple[RankState, str]:
        """Return the rank's state and why; after a worker dies, its launcher takes up to 18 s to end."""
        self._most_workers, last = max(self._most_workers, workers), self._last_workers
        self._last_workers = workers
        # A worker that changes its name is missing for one sample; a dead one is missing in the next, too.
        if not is_alive:
            return RankState.ENDED, keeper.read_lease_end(self.run) or "it exited"
        if max(workers, last) < self._most_workers:
            return RankState.ENDED, "one of its workers exited"
        if suspended:
            return RankState.SUSPENDED, f"{suspended} of its processes were stopped by a signal"
        return RankState.RUNNING, ""

    def measure_load(self, at: float, worked: float) -> float | None:
        """Return the number of busy processors over the last seconds, from the CPU seconds of its processes."""
        before = self._before
        if before is None or worked < before[1]:  # a process ended, and its CPU seconds are gone
            self._before, self._busy = (at, worked), None
        elif at - before[0] >= _LOAD_SECONDS:
            self._before, self._busy = (at, worked), round((worked - before[1]) / (at - before[0]), 2)
        return self._busy


def count_workers(members: Sequence[psutil.Process]) -> int:
    """Count the vLLM workers in `members`; a worker's children keep its name until they run another program."""
    workers = {}
    for process in members:
        with contextlib.suppress(psutil.Error, IndexError):
            if process.cmdline()[0].startswith(_WORKER):
                workers[process.pid] = process.ppid()
    return sum(parent not in workers for parent in workers.values())
