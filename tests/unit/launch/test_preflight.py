"""The checks before a launch by the command line, on machines that a stand-in driver plays, with a hub of our own."""

import asyncio
import os
import re
import signal
import socket
from collections.abc import Callable

import msgspec
import psutil
import pytest

from dflash_tui.cli.json_lines import CheckLine
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.launch.preflight import runner
from dflash_tui.launch.preflight.check import CheckLevel
from dflash_tui.machine import nvml
from dflash_tui.planning.plan_builder import build_plan
from tests.support import fake_nvml
from tests.support.plans import resolve

RECIPE = "gemma-4-26b-a4b"
MACHINES = ("gb10", "laptop", "desktop", "h100", "two-h200", "old", "no-gpu")
# A GB10 has the memory of its machine, which is that of the test's.
MODEST = ("--set", "gpu-memory-utilization=0.5", "--set", "max-model-len=8192")
Doctor = Callable[..., list[CheckLine]]


@pytest.fixture
def doctor(stand_in_nvml) -> Doctor:
    """Return a function that runs `doctor` on a machine and returns its checks."""

    def run(machine: str, *words: str, **env: str) -> list[CheckLine]:
        done = fake_nvml.dflash(stand_in_nvml, machine, "doctor", "--json", *words, **env)
        checks = [msgspec.json.decode(line, type=CheckLine) for line in done.stdout.splitlines()]
        failed = [check for check in checks if check.level is CheckLevel.FAIL]
        assert done.returncode == (4 if failed else 0), done.stderr
        assert all(check.finding and (check.fix or check.level is not CheckLevel.FAIL) for check in checks)
        assert "Traceback" not in done.stderr
        return checks

    return run


def failed(checks: list[CheckLine]) -> dict[str, CheckLine]:
    return {check.name: check for check in checks if check.level is CheckLevel.FAIL}


def named(checks: list[CheckLine], name: str) -> CheckLine:
    (found,) = [check for check in checks if check.name == name]
    return found


def settings(check: CheckLine) -> list[str]:
    """Return what a fix tells to set, as words of a command line."""
    found = re.findall(r"--set \S+=[\w.]+", check.fix)
    assert found, check.fix
    return [word for part in found for word in part.split()]


@pytest.mark.parametrize("machine", MACHINES)
def test_machine_without_recipe_fails_no_check(doctor, machine):
    """Without a recipe nothing is asked of it; warnings say what is worth knowing."""
    checks = doctor(machine)
    assert failed(checks) == {}
    names = {check.name for check in checks}
    assert {"orphans", "memory", "C compiler"} <= names
    assert ("GPU 0" in names) is (machine != "no-gpu")


def test_a_gpu_that_is_lost_fails(doctor, snapshot):
    checks = doctor("lost")
    assert set(failed(checks)) == {"GPU 1"}
    assert named(checks, "GPU 1").finding == snapshot
    assert named(checks, "GPU 0").level is CheckLevel.OK


@pytest.mark.parametrize("machine", ["gb10", "desktop", "two-h200"])
def test_nothing_fails_where_everything_is_there(doctor, gemma_hub, machine):
    """A GPU with room, a driver that is new enough, models that the hub gives: it may launch."""
    checks = doctor(machine, RECIPE, *(MODEST if machine == "gb10" else ()))
    assert failed(checks) == {}
    names = {check.name for check in checks}
    assert {"engine", "target", "drafter", "disk", "port", "recipe", "driver"} <= names
    assert "unified memory" in names if machine == "gb10" else "GPU memory" in names
    # The second one, which is free.
    assert ("GPU 1" in names) is (machine == "two-h200")
    assert {asked.path.split("/resolve/")[0] for asked in gemma_hub.asked if asked.method == "HEAD"} <= set(
        gemma_hub.repos
    )
    assert len(gemma_hub.asked) == 4


def test_an_old_driver_and_a_used_gpu(doctor, gemma_hub):
    """The H100 has a driver of CUDA 12 and 39 GiB in use: two reasons, each with its way out."""
    checks = doctor("h100", RECIPE, STAND_IN_PID=str(os.getpid()))
    assert set(failed(checks)) == {"driver", "GPU memory"}
    assert "570.172.08" in named(checks, "driver").finding
    assert "nvidia-driver-580-open" in named(checks, "driver").fix
    shared = named(checks, "GPU 0 is shared")
    assert f"{psutil.Process().name()} (pid {os.getpid()}) 39.0 GiB" in shared.finding
    assert set(failed(doctor("h100", RECIPE, *settings(named(checks, "GPU memory"))))) == {"driver"}


def test_without_a_gpu_a_recipe_fails(doctor, gemma_hub):
    for machine, why in (("no-gpu", "shows none"), ("failing", "not loaded; `sudo modprobe nvidia`")):
        gpu = named(doctor(machine, RECIPE), "GPU")
        assert gpu.level is CheckLevel.FAIL
        assert why in gpu.finding
        assert "demo-cpu" in gpu.fix


def test_more_gpus_than_there_are(doctor, gemma_hub, snapshot):
    checks = doctor("two-h200", RECIPE, "--set", "tensor-parallel-size=4")
    assert failed(checks)["GPU"].finding == snapshot
    assert settings(failed(checks)["GPU"]) == ["--set", "tensor-parallel-size=2"]


@pytest.mark.parametrize(
    ("refusal", "token", "words"),
    [
        ("anonymous", "", "create a token"),
        ("terms", "hf_of_the_test", "accept the terms"),
        ("bad token", "hf_of_the_test", "valid one"),
        ("missing", "", "check the spelling"),
        ("broken", "", "check the network"),
    ],
)
def test_models_that_the_hub_does_not_give(doctor, gemma_hub, refusal, token, words):
    gemma_hub.refusal = refusal
    checks = doctor("two-h200", RECIPE, **({"HF_TOKEN": token} if token else {}))
    assert set(failed(checks)) - {"disk"} == {"target", "drafter"}  # the disk has room for the recipe's sizes or not
    target = failed(checks)["target"]
    assert words in target.fix
    assert gemma_hub.url in target.fix or refusal in {"bad token", "missing", "broken"}


def test_a_port_that_somebody_holds(doctor, gemma_hub):
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        found = named(doctor("two-h200", RECIPE, "--port", str(port)), "port")
        assert found.level is CheckLevel.WARN
        assert f"held by {psutil.Process().name()} (pid {os.getpid()})" in found.finding
        proposed = found.fix.split()[-1]
        assert named(doctor("two-h200", RECIPE, "--port", proposed), "port").level is CheckLevel.OK


def test_an_orphan_is_shown_with_its_memory(doctor, tree):
    server, engine = tree("VLLM::EngineCore")
    os.kill(server, signal.SIGKILL)
    os.waitpid(server, 0)
    found = [check for check in doctor("no-gpu") if check.name == "orphans"]
    (ours,) = [check for check in found if check.fix.endswith(f"dflash-tui stop --orphans {engine}")]
    assert ours.level is CheckLevel.WARN
    assert f"VLLM::EngineCore (pid {engine})" in ours.finding
    assert "0.1 GiB" in ours.finding


def test_the_demo_asks_nothing_of_a_gpu(monkeypatch, snapshot):
    """Neither the driver nor the hub: its launch waits for nothing that it does not need."""
    monkeypatch.setattr(nvml, "probe_gpus", None)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    made = resolve("demo-cpu")
    report = asyncio.run(runner.run_preflight(PlannedLaunch(made, build_plan(made))))
    assert report.failed == ()
    assert next(check for check in report.checks if check.name == "GPU").finding == snapshot
