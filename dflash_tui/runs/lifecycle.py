"""Launch and stop servers as detached processes, each with a run folder; a server outlives its launcher."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import socket
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from dflash_tui.common import paths, private_files
from dflash_tui.common.errors import DflashError, ServerFailed, UsageError, explain_resource_limit, suggest_write_fix
from dflash_tui.common.formatting import pluralize
from dflash_tui.events import Exited, Preparing, Stopping
from dflash_tui.machine import process_environment, processes
from dflash_tui.machine.processes import find_orphans
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.resolution import HOST
from dflash_tui.runs import registry, reservation, server_process
from dflash_tui.runs.detached_process import GatedProcess
from dflash_tui.runs.registry import RUN_FILE
from dflash_tui.runs.run import KEY_VARIABLE, LOG_NAME, FarRank, Run

# vLLM exits within 5 s of SIGTERM if it exits at all; SIGTERM during a stream hung in 7 of 15 tries on 0.32.0.
STOP_GRACE = 15.0
_MIN_KEY_LENGTH = 16
# Rounds of 0.2 s in which processes end after SIGKILL. Python's resource tracker gets it after half of them: it removes
# hundreds of megabytes of shared memory, which would otherwise stay until a reboot.
_KILL_ROUNDS = 100


def launch_server(
    plan: Plan,
    *,
    engine: str,
    patches: Iterable[str] = (),
    prepared: Iterable[Preparing] = (),
    forced: str = "",
    restarted_from: str = "",
    far_ranks: Iterable[FarRank] = (),
    models: Mapping[str, str] = {},
) -> Run:
    """Start the server of `plan` detached, in its own session, and return its run, which records the other arguments.

    Raises:
        ServerFailed: the process could not be started.
        UsageError: the server would be reachable from other machines without a key.
    """
    env = _server_environment(plan)
    now = time.time()
    name, folder = _create_run_folder(plan.recipe, now)
    _make_cache_folder(plan)
    try:
        # Opened for appending, so that a truncated log continues at its start, not after a gap.
        with open(folder / LOG_NAME, "ab", opener=private_files.open_private) as log:
            gated = GatedProcess(plan.argv, env, folder, log)
    except OSError as error:
        raise _start_failure(plan, folder, error) from None
    process = gated.process
    server_process.adopt_child(process)
    run = Run(
        id=name,
        plan=plan,
        pid=process.pid,
        born=processes.read_process_identity(process.pid),
        started_at=now,
        utc_offset=float(time.localtime(now).tm_gmtoff),
        engine=engine,
        patches=tuple(patches),
        prepared=tuple(prepared),
        forced=forced,
        restarted_from=restarted_from,
        far_ranks=tuple(far_ranks),
        models=dict(models),
    )
    _record_and_release(run, folder, gated)
    return run


def _server_environment(plan: Plan) -> dict[str, str]:
    key = required_api_key(plan)
    # Phases are read from the log, which has them at level INFO.
    log_level = {"VLLM_LOGGING_LEVEL": "INFO", "VLLM_CONFIGURE_LOGGING": "1"}
    env = process_environment.build_server_environment() | log_level | plan.env
    env |= {"PATH": f"{Path(plan.argv[0]).parent}{os.pathsep}{env.get('PATH', os.defpath)}", "PYTHONUNBUFFERED": "1"}
    return env | ({KEY_VARIABLE: key} if key else {})


def _record_and_release(run: Run, folder: Path, gated: GatedProcess) -> None:
    """Write `run.json`, then let the server start: without a record it could not be found or stopped."""
    try:
        private_files.replace_private_file(folder / RUN_FILE, msgspec.json.format(msgspec.json.encode(run), indent=1))
    except OSError as error:
        gated.close()
        gated.process.wait()
        raise reservation.build_unwritable_error(folder, error) from None
    try:
        gated.release()
    except OSError as error:
        raise _start_failure(run.plan, folder, error) from None


def _start_failure(plan: Plan, folder: Path, error: OSError) -> ServerFailed:
    shutil.rmtree(folder, ignore_errors=True)
    limit = explain_resource_limit(error)
    hint = limit.hint if limit else ""
    return ServerFailed(f"{plan.argv[0]} could not be started", evidence=str(error), hint=hint)


def required_api_key(plan: Plan) -> str:
    """Return the API key of a server open to other machines, else empty; raise UsageError if it is invalid."""
    key = os.environ.get(KEY_VARIABLE, "").strip() if plan.is_open else ""
    if plan.is_open and not (len(key) >= _MIN_KEY_LENGTH and key.isascii() and key.isprintable()):
        what = f"other machines can reach a server on {plan.host}"
        has = f"{len(key)} characters" if len(key) < _MIN_KEY_LENGTH else "characters that are not printable ASCII"
        what += f", so it needs an API key{f'; that of {KEY_VARIABLE} has {has}' if key else ''}"
        hint = f"export {KEY_VARIABLE} with at least {_MIN_KEY_LENGTH} characters, as from `openssl rand -hex 24`"
        raise UsageError(what, hint=hint)
    return key


def _make_cache_folder(plan: Plan) -> None:
    """Make our cache folder private if the server would otherwise create it with other permissions."""
    folder = paths.cache_folder()
    if any(Path(value).is_relative_to(folder) for value in plan.env.values()):
        with contextlib.suppress(OSError):  # the server reports what it lacks
            private_files.ensure_private_folder(folder)


def _create_run_folder(recipe: str, now: float) -> tuple[str, Path]:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    for suffix in ("", *(f"-{n}" for n in range(2, 100))):
        identity = f"{stamp}-{recipe}{suffix}"
        folder = paths.runs_folder() / identity
        try:
            private_files.make_private_folder(folder)
        except FileExistsError:
            continue
        except OSError as error:
            what = f"{folder} could not be created"
            raise DflashError(what, evidence=str(error), hint=suggest_write_fix(error)) from None
        return identity, folder
    raise DflashError(f"a hundred runs of {recipe} in one second")


async def stop_server(run: Run, grace: float = STOP_GRACE, *, by_request: bool = True) -> float:
    """Stop the server and every process of its session; return how many seconds it took.

    The leader gets SIGTERM. After `grace` seconds the rest get SIGKILL, Python's resource tracker 10 s later: it mostly
    ends by itself. Without `by_request` the run counts as failed, not as stopped.

    Raises:
        DflashError: a process of the session survived SIGKILL.
    """
    began, was_alive = time.monotonic(), server_process.is_alive(run)
    if was_alive and by_request:  # stopping the leftovers of a failed server is not stopping the server
        run.record(Stopping(time.time()))
    members = await asyncio.to_thread(server_process.list_processes, run)
    for process in members:
        if process.pid == run.pid:
            processes.send_signal(process, signal.SIGTERM)
    deadline = began + grace
    while time.monotonic() < deadline and server_process.is_alive(run):
        await asyncio.sleep(0.1)
    await asyncio.sleep(0 if server_process.is_alive(run) else 0.5)  # the engine core exits by itself after its parent
    for round_number in range(_KILL_ROUNDS):
        remaining = [
            p
            for p in {*members, *await asyncio.to_thread(server_process.list_processes, run)}
            if processes.is_running(p)
        ]
        if not remaining:
            break
        for process in remaining:
            if round_number >= _KILL_ROUNDS // 2 or not processes.is_resource_tracker(process):
                processes.send_signal(process, signal.SIGKILL)
        await asyncio.sleep(0.2)
    else:
        names = ", ".join(str(process.pid) for process in remaining)
        raise DflashError(
            f"processes {names} of {run.id} survived SIGKILL", hint="they are blocked in the kernel; see dmesg"
        )
    server_process.is_alive(run)
    if was_alive:
        run.record(Exited(time.time(), server_process.read_exit_code(run)))
    return time.monotonic() - began


def find_free_port(wanted: int) -> int:
    """Return the first of a hundred ports from `wanted` on that is neither in use nor reserved."""
    # A starting vLLM has bound its port but does not listen yet, which looks like a port that was just released.
    # Reservations are read first: one ends when its run is recorded, so reading runs first could miss both.
    ours = {plan.port for claim in reservation.list_reservations() for plan in claim.plans}
    ours |= {run.plan.port for run in registry.list_living_runs()}
    for port in range(wanted, min(wanted + 100, 65536)):
        if port not in ours and not _is_port_taken(port):
            return port
    raise UsageError(f"no free port from {wanted} on", hint="choose one with --port")


def _is_port_taken(port: int) -> bool:
    """Whether another program uses `port`, over IPv4 or, if the machine has it, IPv6."""
    for family, address in ((socket.AF_INET, HOST), (socket.AF_INET6, "::1")):
        try:
            with socket.socket(family) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((address, port))
        except OSError as error:
            if family == socket.AF_INET or error.errno == errno.EADDRINUSE:
                return True
    return False


def port_owner(port: int) -> str:
    """Return the owner of `port` as text: a server of ours or its leftovers, a launch, or another program."""
    reserved = [  # read before the runs, as in `find_free_port`
        claim.holder for claim in reservation.list_reservations() if any(plan.port == port for plan in claim.plans)
    ]
    ours = [
        f"{run.id} (pid {run.pid})"
        for run in registry.list_runs()
        if run.plan.port == port and server_process.is_alive(run)
    ]
    owner, listener = next(iter([*ours, *reserved]), ""), processes.find_port_listener(port)
    return owner or _describe_leftover(port, someone_listens=bool(listener)) or listener or "another program"


def describe_passed_ports(wanted: int, free: int) -> str:
    """Return the owner of `wanted` and the taken ports after it: `8000 is held by A, and 2 more ports are taken`.

    An A/B also holds its port between its boots, when nothing listens on it.
    """
    more = free - wanted - 1
    taken = f", and {pluralize(more, 'more port')} {'is' if more == 1 else 'are'} taken" if more > 0 else ""
    return f"{wanted} is held by {port_owner(wanted)}{taken}"


def _describe_leftover(port: int, *, someone_listens: bool) -> str:
    """Return the orphaned engine that holds the port of its killed server, and how to stop it; empty without one.

    A forked engine inherits its server's socket, even if the server never listened on it.
    """
    for orphan in find_orphans():
        if someone_listens and orphan.port != port:
            continue
        for run in registry.list_runs():
            if run.plan.port == port and orphan.pid in {process.pid for process in server_process.list_processes(run)}:
                who = f"{orphan.name} of {run.id} (pid {orphan.pid}), whose server is gone"
                return f"{who}; `dflash-tui stop --orphans {orphan.pid}` stops it"
    return ""
