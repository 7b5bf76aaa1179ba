"""Servers as detached processes with a run folder: launch, list, find, stop.

A server outlives whoever launched it. Its folder holds `run.json` (what was launched, by pid and create time),
`server.log` (all it prints) and `samples.jsonl` (events that the log does not hold).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path

import msgspec
import psutil

from dflash_tui.core import log_file, outside, paths, private, processes, system
from dflash_tui.core.events import YEAR_2100, Event, Exited, Launched, Preparing, Stopping, encode
from dflash_tui.core.held import Held
from dflash_tui.core.plan import HOST, Plan
from dflash_tui.errors import DflashError, ServerFailed, UsageError, starved

# Where vLLM itself looks for the key that requests must have.
KEY_VARIABLE = "VLLM_API_KEY"
_RUN_FILE = "run.json"
# Fields that a later release adds are passed over; what it records otherwise gets another version.
_VERSION = 1
_RUN_LIMIT = 1 << 20
# vLLM ends within 5 s when it ends at all; SIGTERM during a stream hung in 7 of 15 tries on 0.32.0.
STOP_GRACE = 15.0
_SHORTEST_KEY = 16
_LAST_THREADS = 5.0
_UNREADABLE = (OSError, msgspec.MsgspecError)
_children: dict[int, subprocess.Popen[bytes]] = {}


class Run(msgspec.Struct, frozen=True):
    """One launched server, as recorded in `run.json`.

    `started_at` is seconds since the epoch, `utc_offset` the seconds that local time was ahead of UTC (the log
    stamps local time), `born` the identity of the process: with the pid it names one process for good. `forced` is
    why a failed check was overruled, `version` how the file is to be read. `restarted_from` is the run that died
    before this one was launched in its place, empty for any other.
    """

    id: str
    plan: Plan
    pid: int
    born: str
    started_at: float
    utc_offset: float
    engine: str
    patches: tuple[str, ...] = ()
    prepared: tuple[Preparing, ...] = ()
    forced: str = ""
    restarted_from: str = ""
    version: int = _VERSION

    @property
    def folder(self) -> Path:
        """The run folder."""
        return paths.runs() / self.id

    @property
    def log(self) -> Path:
        """The file that holds all the server printed, by the name that it has now."""
        return log_file.find(self.folder, self.pid)

    @property
    def samples(self) -> Path:
        """The file of recorded events, one JSON object per line."""
        return self.folder / "samples.jsonl"

    @property
    def url(self) -> str:
        """The server's base URL."""
        at = ip_address(self.plan.host)
        reached = ("::1" if at.version == 6 else HOST) if at.is_unspecified else self.plan.host
        return f"http://{f'[{reached}]' if at.version == 6 else reached}:{self.plan.port}"

    @property
    def key(self) -> str:
        """The key that an open server asks for, from our environment: it is recorded nowhere; else empty."""
        return os.environ.get(KEY_VARIABLE, "").strip() if self.plan.is_open else ""

    @property
    def launched(self) -> Launched:
        """The event of the launch."""
        plan = self.plan
        return Launched(
            at=self.started_at,
            run=self.id,
            recipe=plan.recipe,
            pid=self.pid,
            port=plan.port,
            mode=plan.mode.value,
            synthetic=plan.synthetic,
            num_speculative_tokens=plan.num_speculative_tokens,
        )


_decoder: msgspec.json.Decoder[Run] = msgspec.json.Decoder(Run)


def launch(
    plan: Plan,
    *,
    engine: str,
    patches: Iterable[str] = (),
    prepared: Iterable[Preparing] = (),
    forced: str = "",
    restarted_from: str = "",
) -> Run:
    """Start the server of `plan` detached, in a session of its own, and return its run.

    `engine` says what vLLM it is, `patches` which patches are in it, `forced` why a check was overruled,
    `restarted_from` which run it follows: recorded only.

    Raises:
        ServerFailed: the process could not be started.
        UsageError: it would be open to other machines without a key.
    """
    key = needed_key(plan)
    now = time.time()
    name, folder = _new_folder(plan.recipe, now)
    # The phases are read from the log, so its level must be the one that has them.
    env = processes.clean_environment() | {"VLLM_LOGGING_LEVEL": "INFO", "VLLM_CONFIGURE_LOGGING": "1"} | plan.env
    env |= {"PATH": f"{Path(plan.argv[0]).parent}{os.pathsep}{env.get('PATH', os.defpath)}", "PYTHONUNBUFFERED": "1"}
    env |= {KEY_VARIABLE: key} if key else {}
    try:
        # Appended to, so that a log which somebody cuts goes on at its start, not behind a hole.
        with open(folder / log_file.NAME, "ab", opener=private.opener) as log:
            held = Held(plan.argv, env, folder, log)
    except OSError as error:
        raise _not_started(plan, folder, error) from None
    process = held.process
    _children[process.pid] = process
    run = Run(
        id=name,
        plan=plan,
        pid=process.pid,
        born=processes.identity(process.pid),
        started_at=now,
        utc_offset=float(time.localtime(now).tm_gmtoff),
        engine=engine,
        patches=tuple(patches),
        prepared=tuple(prepared),
        forced=forced,
        restarted_from=restarted_from,
    )
    try:
        private.replace(folder / _RUN_FILE, msgspec.json.format(msgspec.json.encode(run), indent=1))
    except OSError as error:
        # Nobody could find or stop a server without its record.
        held.close()
        process.wait()
        raise DflashError(f"{folder} cannot be written, so nothing was launched", evidence=str(error)) from None
    try:
        held.go()
    except OSError as error:
        raise _not_started(plan, folder, error) from None
    return run


def _not_started(plan: Plan, folder: Path, error: OSError) -> ServerFailed:
    shutil.rmtree(folder, ignore_errors=True)
    refused = starved(error)
    do = refused.do if refused else ""
    return ServerFailed(f"{plan.argv[0]} could not be started", evidence=str(error), do=do)


def needed_key(plan: Plan) -> str:
    """Return the key that the server of `plan` will ask for; empty for one that only this machine reaches.

    Raises:
        UsageError: it would be open to others without one.
    """
    key = os.environ.get(KEY_VARIABLE, "").strip() if plan.is_open else ""
    if plan.is_open and not (len(key) >= _SHORTEST_KEY and key.isascii() and key.isprintable()):
        what = f"a server on {plan.host} needs a key, or everybody who reaches this machine could use it"
        do = f"export {KEY_VARIABLE} with {_SHORTEST_KEY} characters or more, such as `openssl rand -hex 24` gives"
        raise UsageError(what, do=do)
    return key


def _new_folder(recipe: str, now: float) -> tuple[str, Path]:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    for suffix in ("", *(f"-{n}" for n in range(2, 100))):
        identity = f"{stamp}-{recipe}{suffix}"
        folder = paths.runs() / identity
        try:
            private.make(folder)
        except FileExistsError:
            continue
        except OSError as error:
            raise DflashError(f"{folder} could not be made", evidence=str(error)) from None
        if why := private.distrusted(paths.runs()):
            folder.rmdir()
            raise DflashError(f"{paths.runs()} {why}, so nothing is launched", do=private.how_to_trust(paths.runs()))
        return identity, folder
    raise DflashError(f"a hundred runs of {recipe} in one second")


def runs() -> list[Run]:
    """Return all recorded runs, oldest first; `damaged` names the folders that tell nothing."""
    found = [run for path in paths.runs().glob(f"*/{_RUN_FILE}") if (run := _load(path))]
    return sorted(found, key=lambda run: run.started_at)


def damaged() -> dict[Path, str]:
    """Return the run files that cannot be used and what each is said to be; a server may live behind one."""
    return {path: _flaw(path) for path in sorted(paths.runs().glob(f"*/{_RUN_FILE}")) if _load(path) is None}


class _Version(msgspec.Struct):
    version: int = _VERSION


_versions: msgspec.json.Decoder[_Version] = msgspec.json.Decoder(_Version)


def _flaw(path: Path) -> str:
    try:
        newer = outside.decode(_read(path), _versions).version > _VERSION
    except _UNREADABLE:
        newer = False
    return "was written by a newer dflash-tui" if newer else "cannot be read"


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_RUN_LIMIT)


def _load(path: Path) -> Run | None:
    if private.distrusted(path.parent):  # its pid would be signalled
        return None
    try:
        run = outside.decode(_read(path), _decoder)
    except _UNREADABLE:
        return None
    possible = 1 < run.pid < 1 << 31 and 0 < run.plan.port < 1 << 16 and 0 <= run.started_at < YEAR_2100
    return run if run.id == path.parent.name and possible and run.version <= _VERSION else None


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
    folder = paths.runs() / name
    if folder.parent == paths.runs() and (why := private.distrusted(folder)):
        raise UsageError(f"{folder} {why}, so it is not believed", do=private.how_to_trust(folder))
    raise UsageError(f"no run called '{name}'", do="dflash-tui ps --all lists the runs")


def alive(run: Run) -> bool:
    """Whether the server process itself runs; a zombie does not, nor another process with its pid."""
    if child := _children.get(run.pid):
        child.poll()
    return bool(run.born) and processes.identity(run.pid) == run.born


def exit_code(run: Run) -> int | None:
    """Return the exit code of an ended server that this process launched, else None.

    The first thread of a process may be gone before the others; the code is there when all are, at most 5 s later.
    """
    child = _children.get(run.pid)
    try:
        return child.wait(0 if alive(run) else _LAST_THREADS) if child else None
    except subprocess.TimeoutExpired:
        return None


def members(run: Run) -> list[psutil.Process]:
    """Return the live processes of the server's session, the leader first."""
    return processes.session(run.pid, run.born, run.folder)


async def stop(run: Run, grace: float = STOP_GRACE) -> float:
    """End the server and every process of its session; return the seconds that took.

    SIGTERM to the leader, then after `grace` seconds SIGKILL to what is left.

    Raises:
        DflashError: a process of the session survived SIGKILL.
    """
    began, lived = time.monotonic(), alive(run)
    if lived:  # who ends what a dead server left did not end the server
        record(run, Stopping(time.time()))
    known = await asyncio.to_thread(members, run)
    for process in known:
        if process.pid == run.pid:
            processes.send(process, signal.SIGTERM)
    deadline = began + grace
    while time.monotonic() < deadline and alive(run):
        await asyncio.sleep(0.1)
    await asyncio.sleep(0 if alive(run) else 0.5)  # the engine core follows its parent by itself
    for _ in range(50):
        left = [p for p in {*known, *await asyncio.to_thread(members, run)} if processes.running(p)]
        if not left:
            break
        for process in left:
            processes.send(process, signal.SIGKILL)
        await asyncio.sleep(0.2)
    else:
        names = ", ".join(str(process.pid) for process in left)
        raise DflashError(f"processes {names} of {run.id} survived SIGKILL", do="they wait in the kernel; see dmesg")
    alive(run)
    if lived:
        record(run, Exited(time.time(), exit_code(run)))
    return time.monotonic() - began


def record(run: Run, event: Event) -> None:
    """Append an event to the run's samples; lines are short enough to be written whole by several processes.

    A disk that is full or broken, or a folder that is not ours or is gone, costs the sample and nothing else.
    """
    line = encode(event) + b"\n"
    with (
        contextlib.suppress(OSError),
        open(run.samples, "ab", buffering=0, opener=private.opener) as file,
    ):
        if (written := file.write(line)) is not None and written < len(line):
            file.write(b"\n")  # the disk is full: the next line, once there is room, must not begin in this one


def free_port(wanted: int) -> int:
    """Return `wanted`, or the next port above it that nothing holds and no living server of ours waits for.

    Raises:
        UsageError: none of the next hundred is free.
    """
    # A starting vLLM has bound its port, but does not listen yet; that cannot be told from a port just left.
    ours = {run.plan.port for run in runs() if alive(run)}
    for port in range(wanted, min(wanted + 100, 65536)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            if port not in ours:
                return port
    raise UsageError(f"no free port from {wanted} on", do="choose one with --port")


def holder(port: int) -> str:
    """Return who has `port`, in words: a living server of ours, which may not listen there yet, or another program."""
    ours = (f"{run.id} (pid {run.pid})" for run in runs() if run.plan.port == port and alive(run))
    return next(ours, "") or system.holder_of(port) or "another program"
