"""Servers as detached processes with a run folder: launch, list, find, stop.

A server outlives whoever launched it. Its folder holds `run.json` (what was launched, by pid and create time),
`server.log` (all it prints) and `samples.jsonl` (events that the log does not hold).
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
import psutil

from dflash_tui.core import paths
from dflash_tui.core.events import Event, Exited, Launched, Preparing, Stopping, encode
from dflash_tui.core.plan import HOST, Plan
from dflash_tui.errors import DflashError, ServerFailed, UsageError

_RUN_FILE = "run.json"
_DROPPED = frozenset({"VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP"})
# vLLM ends within 5 s when it ends at all; SIGTERM during a stream hung in 7 of 15 tries on 0.32.0.
STOP_GRACE = 15.0
_children: dict[int, subprocess.Popen[bytes]] = {}


class Run(msgspec.Struct, frozen=True):
    """One launched server, as recorded in `run.json`.

    `started_at` is seconds since the epoch, `utc_offset` the seconds that local time was ahead of UTC (the log
    stamps local time), `created` the process's create time: with the pid it names one process for good.
    """

    id: str
    plan: Plan
    pid: int
    created: float
    started_at: float
    utc_offset: float
    engine: str
    patches: tuple[str, ...] = ()
    prepared: tuple[Preparing, ...] = ()

    @property
    def folder(self) -> Path:
        """The run folder."""
        return paths.runs() / self.id

    @property
    def log(self) -> Path:
        """The file that holds all the server printed."""
        return self.folder / "server.log"

    @property
    def samples(self) -> Path:
        """The file of recorded events, one JSON object per line."""
        return self.folder / "samples.jsonl"

    @property
    def url(self) -> str:
        """The server's base URL."""
        return f"http://{HOST}:{self.plan.port}"

    @property
    def launched(self) -> Launched:
        """The event of the launch."""
        plan = self.plan
        return Launched(self.started_at, self.id, plan.recipe, self.pid, plan.port, plan.mode.value, plan.synthetic)


def launch(plan: Plan, *, engine: str, patches: Iterable[str] = (), prepared: Iterable[Preparing] = ()) -> Run:
    """Start the server of `plan` detached, in a session of its own, and return its run.

    `engine` says what vLLM it is, `patches` which patches are in it; both are only recorded.

    Raises:
        ServerFailed: the process could not be started.
    """
    now = time.time()
    identity, folder = _new_folder(plan.recipe, now)
    env = {name: value for name, value in os.environ.items() if name not in _DROPPED} | plan.env
    env |= {
        "PATH": f"{Path(plan.argv[0]).parent}{os.pathsep}{env.get('PATH', os.defpath)}",
        "PYTHONUNBUFFERED": "1",
    }
    with (folder / "server.log").open("wb") as log:
        try:
            # Not asyncio's: it kills the child when its transport is collected.
            process = subprocess.Popen(
                plan.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=folder,
                start_new_session=True,
            )
        except OSError as error:
            raise ServerFailed(f"{plan.argv[0]} could not be started", evidence=str(error)) from None
    _children[process.pid] = process
    run = Run(
        id=identity,
        plan=plan,
        pid=process.pid,
        created=psutil.Process(process.pid).create_time(),
        started_at=now,
        utc_offset=float(time.localtime(now).tm_gmtoff),
        engine=engine,
        patches=tuple(patches),
        prepared=tuple(prepared),
    )
    temporary = folder / f"{_RUN_FILE}.new"
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1))
    temporary.replace(folder / _RUN_FILE)
    return run


def _new_folder(recipe: str, now: float) -> tuple[str, Path]:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    for suffix in ("", *(f"-{n}" for n in range(2, 100))):
        identity = f"{stamp}-{recipe}{suffix}"
        folder = paths.runs() / identity
        try:
            folder.mkdir(parents=True, mode=0o700)
        except FileExistsError:
            continue
        except OSError as error:
            raise DflashError(f"{folder} could not be made", evidence=str(error)) from None
        return identity, folder
    raise DflashError(f"a hundred runs of {recipe} in one second")


def runs() -> list[Run]:
    """Return all recorded runs, oldest first; a folder without a readable `run.json` is left out."""
    found = []
    for path in sorted(paths.runs().glob(f"*/{_RUN_FILE}")):
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=Run))
        except (OSError, msgspec.MsgspecError):
            continue
    return sorted(found, key=lambda run: run.started_at)


def find(name: str | None = None) -> Run:
    """Return the run that `name` means: an id, the start of one, a recipe's newest; without it the newest alive.

    Raises:
        UsageError: no run fits, or the start of an id fits several.
    """
    known = runs()
    if name is None:
        chosen = [run for run in known if alive(run)] or known
        if not chosen:
            raise UsageError("nothing was launched yet", do="dflash-tui up RECIPE starts a server")
        return chosen[-1]
    if exact := [run for run in known if run.id == name]:
        return exact[0]
    if of_recipe := [run for run in known if run.plan.recipe == name]:
        return ([run for run in of_recipe if alive(run)] or of_recipe)[-1]
    matching = [run for run in known if run.id.startswith(name)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise UsageError(f"'{name}' fits {len(matching)} runs", do=f"name one: {', '.join(r.id for r in matching)}")
    raise UsageError(f"no run called '{name}'", do="dflash-tui ps --all lists the runs")


def alive(run: Run) -> bool:
    """Whether the server process itself runs; a zombie does not, nor another process with its pid."""
    if child := _children.get(run.pid):
        child.poll()
    return _same(run.pid, run.created)


def exit_code(run: Run) -> int | None:
    """Return the exit code of an ended server that this process launched, else None."""
    child = _children.get(run.pid)
    return child.poll() if child else None


def processes(run: Run) -> list[psutil.Process]:
    """Return the live processes of the server's session, the leader first.

    The session is identified by the leader's pid. Once the leader is gone a member counts only if it carries
    the run folder as its working directory, since the pid may have been given to another session since.
    """
    leader_alive = _same(run.pid, run.created)
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) != run.pid or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if process.create_time() < run.created:
                continue
            if leader_alive or process.cwd() == str(run.folder.resolve()):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return sorted(found, key=lambda process: (process.pid != run.pid, process.pid))


def memory(members: Iterable[psutil.Process]) -> int:
    """Return the resident bytes of `members` that still exist."""
    total = 0
    for process in members:
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return total


async def stop(run: Run, grace: float = STOP_GRACE) -> float:
    """End the server and every process of its session; return the seconds that took.

    SIGTERM to the leader, then after `grace` seconds SIGKILL to what is left.

    Raises:
        DflashError: a process of the session survived SIGKILL.
    """
    began = time.monotonic()
    record(run, Stopping(time.time()))
    members = await asyncio.to_thread(processes, run)
    if _same(run.pid, run.created):
        _signal(members, run.pid, signal.SIGTERM)
    deadline = began + grace
    while time.monotonic() < deadline and alive(run):
        await asyncio.sleep(0.1)
    await asyncio.sleep(0 if alive(run) else 0.5)  # the engine core follows its parent by itself
    for _ in range(50):
        left = [p for p in {*members, *await asyncio.to_thread(processes, run)} if _running(p)]
        if not left:
            break
        for process in left:
            _signal([process], process.pid, signal.SIGKILL)
        await asyncio.sleep(0.2)
    else:
        names = ", ".join(str(process.pid) for process in left)
        raise DflashError(f"processes {names} of {run.id} survived SIGKILL", do="they wait in the kernel; see dmesg")
    alive(run)
    record(run, Exited(time.time(), exit_code(run)))
    return time.monotonic() - began


def record(run: Run, event: Event) -> None:
    """Append an event to the run's samples; lines are short enough to be written whole by several processes.

    A full disk, or a folder that is not ours or is gone, costs the sample and nothing else.
    """
    try:
        with run.samples.open("ab", buffering=0) as file:
            file.write(encode(event) + b"\n")
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.ENOENT, errno.EACCES, errno.EROFS}:
            raise


def free_port(wanted: int) -> int:
    """Return `wanted`, or the next port above it on which nothing listens.

    Raises:
        UsageError: none of the next hundred is free.
    """
    for port in range(wanted, min(wanted + 100, 65536)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise UsageError(f"no free port from {wanted} on", do="choose one with --port")


def _same(pid: int, created: float) -> bool:
    try:
        process = psutil.Process(pid)
        return process.create_time() == created and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _running(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _signal(members: Iterable[psutil.Process], pid: int, number: int) -> None:
    """Send the signal to the member with this pid; psutil checks that it is still the same process."""
    for process in members:
        if process.pid == pid:
            try:
                process.send_signal(number)
            except psutil.Error:
                continue
