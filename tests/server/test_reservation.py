"""Ports and GPUs that are reserved: while a launch is prepared, while its server starts, and no longer."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from dflash_tui.cli.main import main
from dflash_tui.common import paths
from dflash_tui.common.errors import UsageError
from dflash_tui.launch import session
from dflash_tui.launch.planner import plan_launch_here
from dflash_tui.machine import processes
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.request import LaunchRequest
from dflash_tui.runs import lifecycle, registry, reservation, server_process
from dflash_tui.runs.reservation import Reservation
from tests import ROOT
from tests.support import fake_nvml
from tests.support.fake_runs import free_port, made
from tests.support.waiting import until, wait_until

RECIPE = "gemma-4-26b-a4b"
# Plans on the machine's GPUs, reserves, launches the stand-in there, and waits at its stdin where that is asked for.
LAUNCH = f"""
import asyncio, json, sys
from msgspec.structs import replace
from dflash_tui.common.errors import DflashError
from dflash_tui.launch import planner, session
from dflash_tui.planning.request import LaunchRequest
from dflash_tui.runs import lifecycle
from tests.support.fake_runs import FAKE
async def main():
    planned = planner.plan_launch_here(LaunchRequest(recipe={RECIPE!r}, gpu=sys.argv[2] or None))
    moved = []
    async with session.reserve_launch(planned._replace(forced=sys.argv[3]), moved.append) as admitted:
        plan = admitted.plan
        print(json.dumps([plan.port, plan.gpus, moved]), flush=True)
        if "hold" in sys.argv:
            sys.stdin.read()
        words = [] if "listens" in sys.argv else ["deaf"]
        argv = (sys.executable, str(FAKE), str(plan.port), *words)
        lifecycle.launch_server(replace(plan, argv=argv), engine="fake")
try:
    asyncio.run(main())
except DflashError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""


@pytest.fixture
def on_gpus(stand_in_nvml, nothing_left):
    """Return a function that begins a launch on a machine of the stand-in driver's, as a process of its own."""
    begun: list[subprocess.Popen[str]] = []

    def begin(machine: str, *words: str, gpu: str = "", forced: str = "") -> subprocess.Popen[str]:
        environ = fake_nvml.environment(stand_in_nvml, machine, PYTHONPATH=str(ROOT))
        command = [sys.executable, "-c", LAUNCH, "", gpu, forced, *words]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        begun.append(subprocess.Popen(command, env=environ, text=True, **pipes))  # type: ignore[call-overload]
        return begun[-1]

    yield begin
    for each in begun:
        each.kill()
        each.communicate()


def result(launch: subprocess.Popen[str]) -> tuple[int, list[str], str]:
    """Return the exit code, the GPUs that it took, and its stderr."""
    out, err = launch.communicate(timeout=240)
    return launch.returncode, json.loads(out)[1] if out else [], err


def test_two_launches_take_one_gpu_each(on_gpus):
    """Neither has any memory there when the other plans."""
    results = [result(each) for each in [on_gpus("two-h200") for _ in range(2)]]
    assert [code for code, _, _ in results] == [0, 0], results
    (_, [one], _), (_, [other], _) = results
    assert one != other
    runs = [run for run in registry.list_runs() if server_process.is_alive(run)]
    assert sorted(gpu for run in runs for gpu in run.plan.gpus) == sorted([one, other])


def test_second_launch_on_reserved_gpu_is_refused(on_gpus, stand_in_nvml):
    """At once, not by vLLM's memory error; also where a plan names it, and by the checks; `--force` overrules that."""
    results = [result(each) for each in [on_gpus("h100") for _ in range(2)]]
    assert sorted(code for code, _, _ in results) == [0, 4], results
    (run,) = registry.list_runs()
    ((_, _, refusal),) = [each for each in results if each[0]]
    assert run.id in refusal or f"launch of {RECIPE} (pid " in refusal
    code, _, refusal = result(on_gpus("h100", gpu="0"))
    assert (code, f"{run.id} (pid {run.pid}) is starting" in refusal) == (4, True)
    checked = fake_nvml.dflash(stand_in_nvml, "h100", "doctor", RECIPE, "--json")
    failed = [check for line in checked.stdout.splitlines() if (check := json.loads(line))["level"] == "fail"]
    assert any(check["name"] == "GPU 0" and run.id in check["found"] for check in failed)
    code, _, _ = result(on_gpus("h100", forced="I know both are small"))
    assert code == 0


def test_listening_server_releases_gpu_reservation(on_gpus):
    """From then on its memory shows, and whether another server fits is arithmetic."""
    assert result(on_gpus("h100", "listens"))[0] == 0
    (run,) = registry.list_runs()
    wait_until(lambda: not server_process.is_starting(run))
    assert server_process.is_alive(run)
    assert result(on_gpus("h100"))[0] == 0


def test_killed_launch_reserves_nothing(on_gpus):
    """While it prepares, others are refused; killed, it reserves nothing, and what it left is cleared away."""
    first = on_gpus("h100", "hold")
    assert first.stdout is not None
    first.stdout.readline()
    (held,) = reservation.list_reservations()
    assert (held.pid, held.owner) == (first.pid, f"launch of {RECIPE}")
    code, _, refusal = result(on_gpus("h100"))
    assert (code, held.holder in refusal) == (4, True)
    first.kill()
    first.wait()
    assert reservation.list_reservations() == []
    assert result(on_gpus("h100"))[0] == 0
    assert list_files() == []


def list_files() -> list[Path]:
    return list(paths.reservations_folder().glob("*.json"))


def record(port: int, pid: int, born: str) -> Path:
    """Leave the reservation of a port by some process."""
    folder = paths.reservations_folder()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{pid}-1.json"
    path.write_bytes(msgspec.json.encode(Reservation("launch of x", (made(port),), pid, born)))
    return path


def test_ps_names_what_is_no_server_yet(capsys):
    """A first launch installs for minutes; that no server runs would be half of the truth."""
    assert main(["ps"]) == 0
    assert "no server is running" in capsys.readouterr().err
    parent = os.getppid()
    record(8123, parent, processes.read_process_identity(parent))
    assert main(["ps"]) == 0
    shown = capsys.readouterr()
    assert (shown.out, "no server is running" in shown.err) == ("", False)
    assert f"launch of x (pid {parent})" in shown.err
    assert "8123" in shown.err
    assert main(["ps", "--json"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("words", "instead"), [([], "a launch will use"), (["--port", "8127"], "is free: --port")])
def test_plan_names_owner_of_its_port(capsys, words, instead):
    parent = os.getppid()
    for port in (8127, recipe_loader.find_recipe("demo-cpu").port):
        record(port, parent, processes.read_process_identity(parent)).rename(
            paths.reservations_folder() / f"1-{port}.json"
        )
    assert main(["plan", "demo-cpu", *words]) == 0
    shown = capsys.readouterr()
    assert f"launch of x (pid {parent})" in shown.err
    assert instead in shown.err


def test_experiment_keeps_port_between_boots():
    """Who launches beside it gets another one; a second experiment on it is refused by name, and then it is free."""
    plan = made(free_port(18_960))
    with session.reserve_experiment("A/B one", [plan, plan]):
        (path,) = list_files()
        assert lifecycle.find_free_port(plan.port) == plan.port  # for its own boots
        code = "import sys; from dflash_tui.runs import lifecycle as l; port = int(sys.argv[1])\n"
        command = [sys.executable, "-c", f"{code}print(l.find_free_port(port), l.port_owner(port))", str(plan.port)]
        seen = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
        assert seen.strip() == f"{plan.port + 1} the A/B one (pid {os.getpid()})"
    assert not path.exists()
    record(plan.port, os.getppid(), processes.read_process_identity(os.getppid()))
    with pytest.raises(UsageError, match="launch of x"), session.reserve_experiment("A/B two", [plan]):
        pass


async def test_a_launch_that_is_cancelled_reserves_nothing(monkeypatch):
    """Also where that happens in the moment in which it reserves."""
    planned = plan_launch_here(LaunchRequest(recipe="demo-cpu", port=free_port(18_970)))
    entered, go_on, write = asyncio.Event(), threading.Event(), reservation.write_reservation
    loop = asyncio.get_running_loop()

    def write_late(owner: str, *plans: Plan) -> Path:
        loop.call_soon_threadsafe(entered.set)
        go_on.wait()
        return write(owner, *plans)

    async def reserve() -> None:
        async with session.reserve_launch(planned, print):
            await asyncio.sleep(600)

    reserving = asyncio.create_task(reserve())
    await until(lambda: len(list_files()) == 1)
    reserving.cancel()
    await asyncio.gather(reserving, return_exceptions=True)
    assert list_files() == []
    monkeypatch.setattr(reservation, "write_reservation", write_late)
    reserving = asyncio.create_task(reserve())
    await entered.wait()
    reserving.cancel()
    await asyncio.gather(reserving, return_exceptions=True)
    go_on.set()
    await until(lambda: not reservation._own_files and list_files() == [])
