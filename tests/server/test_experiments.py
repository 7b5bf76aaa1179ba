"""Experiments driven to their end by the product's own driver, on an engine that is a process and nothing more."""

import asyncio
import errno
import json
import os
import resource
import signal
import subprocess
import sys
from statistics import fmean

import pytest

from dflash_tui.common import paths
from dflash_tui.common.secrets import LEFT_OUT
from dflash_tui.events import FILLER
from dflash_tui.experiments import controller, run_report, runner, store
from dflash_tui.experiments.design import Boot, Design, ExperimentHalted, RequestMeasured
from dflash_tui.machine import processes
from dflash_tui.monitoring import recording
from dflash_tui.runs import (
    registry,
    reservation,
    server_process,
)
from dflash_tui.runs.run import EXPERIMENT_MARK
from tests import DATA
from tests.support import command_line, fake_engine
from tests.support.command_line import Said
from tests.support.driven import find_driver, kill_driver, progress, read_report
from tests.support.fake_runs import free_port
from tests.support.json_lines import check_lines
from tests.support.selection import leave_to_long
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("nothing_left")
SUITE = DATA / "two-prompts.yaml"
QUICK = ("--suite", str(SUITE), "--yes")
FAST, SLOW = ["pace=0.02"], ["pace=0.2"]


@pytest.fixture
def port() -> int:
    return free_port(18_400)


def run(*words: str, code: int = 0) -> Said:
    return command_line.run("ab", *words, code=code)


def begin(*words: str) -> Design:
    """Begin an experiment with n=7 and n=4 and leave it to its driver."""
    done = run(fake_engine.RECIPE, "--vary", "n=7,4", *QUICK, *words, "--detach")
    return store.find_experiment(done.stdout.strip())


def happened(design: Design) -> list[object]:
    return list(store.read_events(store.experiment_folder(design.id)))


def boots(design: Design) -> tuple[Boot, ...]:
    return progress(design).boots


def test_both_arms_are_booted_measured_and_reported(port, monkeypatch):
    """A quick A/B: each boot's cold request alone, warm-ups that do not count, all prompts, and no server left."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("HF_TOKEN", "hf_" + 20 * "x")
    folder = fake_engine.make(port, {7: FAST, 4: SLOW})
    done = run(fake_engine.RECIPE, "--vary", "n=7,4", *QUICK, "--json")
    check_lines("ab", done.stdout.splitlines())
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["event"] for line in lines if line["event"] != "measured"] == [
        "experiment", "boot began", "boot ended", "boot began", "boot ended", "finished", "ab report",
    ]  # fmt: skip
    stages = [line["stage"] for line in lines if line["event"] == "measured" and line["number"] == 1]
    assert stages[0] == "cold"
    assert stages == sorted(stages, key=["cold", "warm-up", "round"].index)
    design = store.find_experiment()
    a, b = boots(design)
    due = progress(design).due
    assert [len(boot.requests) for boot in (a, b)] == [due, due]
    assert a.cold_request
    assert (a.ready or 0) > 0
    assert a.before
    assert a.after
    assert not any(request.error for boot in (a, b) for request in boot.requests)
    speeds = [fmean(request.decode_tok_s or 0 for request in boot.requests) for boot in (a, b)]
    assert speeds[0] > speeds[1]
    assert fake_engine.launches(folder) == 2
    assert not any(server_process.list_processes(each) for each in registry.list_runs())
    _is_told_without_our_own_folders(design)
    of_runs = [run_report.build_run_report(recording.find_recording(boot.run))[0].requests for boot in (a, b)]
    assert of_runs == [a.requests, b.requests]
    assert json.loads(run("list", "--json").stdout)["boots_done"] == 2
    assert "finished" in run("list").stdout
    run("remove", design.id)
    assert not store.list_experiments()
    assert len(registry.list_runs()) == 2


def _is_told_without_our_own_folders(design: Design) -> None:
    """The arms differ in what is varied and in nothing else, although each has a compile cache of its own."""
    a, b = boots(design)
    assert a.env == b.env
    assert a.env["VLLM_CACHE_ROOT"] == "{own cache}/vllm"
    assert len(set(a.argv) ^ set(b.argv)) == 2
    assert a.versions["python"]
    assert a.inherited
    assert (a.inherited["OMP_NUM_THREADS"], a.inherited["HF_TOKEN"]) == ("2", LEFT_OUT)
    assert a.generated
    assert a.others is None or a.others >= 0
    runs = {each.id: each for each in registry.list_runs()}
    caches = {runs[boot.run].plan.env["VLLM_CACHE_ROOT"] for boot in (a, b)}
    assert len(caches) == 2
    assert all(cache.startswith(str(store.experiment_folder(design.id))) for cache in caches)
    assert not (store.experiment_folder(design.id) / "cache").exists()


@pytest.mark.long
def test_starts_are_judged_by_their_seconds(port):
    """The first boot of an arm fills its caches and does not count; nothing is sent but what makes a server ready."""
    fake_engine.make(port, {4: ["slow=1.5"]})
    said = run(fake_engine.RECIPE, "--vary", "n=4,7", "--measure", "start", "--boots", "2", "--yes").stdout
    design = store.find_experiment()
    measured = boots(design)
    assert [boot.start for boot in measured] == ["filling", "filling", "measured", "measured", "measured", "measured"]
    assert not any(boot.requests for boot in measured)
    assert [event for event in happened(design) if isinstance(event, RequestMeasured)] == []
    report = read_report(design)
    [one] = report.comparisons
    assert (one.measure, one.boots) == ("time to ready", (2, 2))
    assert one.ratio
    assert one.ratio.ratio > 1
    assert "PHASE" in said


def test_failed_boot_is_tried_once_more(port):
    """One ends at once, one dies while it is measured; the failed attempts stay in the record, with why."""
    fake_engine.make(port, launches={0: ["broken"], 2: ["dies=5"]})
    design = begin()
    wait_until(lambda: progress(design).finished)
    found = progress(design)
    assert [(boot.number, boot.attempt, boot.error) for boot in found.boots] == [(0, 2, ""), (1, 2, "")]
    assert [(boot.number, boot.attempt) for boot in found.tries] == [(0, 1), (1, 1)]
    assert all(boot.error for boot in found.tries)
    report = read_report(design)
    assert len(report.boots) == 4


def test_refused_prompt_ends_experiment_at_first_boot(port, tmp_path):
    """What a server takes for wrong once it takes for wrong in every boot: its sentence is the last word."""
    sentence = "This model's maximum context length is 2048 tokens."
    (tmp_path / "says").write_text(sentence)
    folder = fake_engine.make(port, {tokens: [f"says={tmp_path / 'says'}"] for tokens in (7, 4)})
    said = run(fake_engine.RECIPE, "--vary", "n=7,4", *QUICK, code=1).stderr
    design = store.find_experiment()
    asked = [event.stage for event in happened(design) if isinstance(event, RequestMeasured)]
    assert f'HTTP 400: {{"error": {{"message": "{sentence}' in said
    assert "7: the server rejected" in said
    assert (asked, fake_engine.launches(folder)) == (["cold"], 1)
    _has_halted(design)


def test_arm_that_never_starts_sets_exit_code(port):
    """The other arm is measured all the same; the command says which one never came up."""
    fake_engine.make(port, {4: ["broken"]})
    done = run(fake_engine.RECIPE, "--vary", "n=7,4", *QUICK, code=6)
    assert "4 did not start" in done.stderr
    assert [bool(boot.error) for boot in boots(store.find_experiment())] == [False, True]


def test_resumed_experiment_keeps_finished_boots(port):
    """Finished boots stay as they are, the interrupted one begins anew, and what it left running is ended."""
    fake_engine.make(port, launches={2: ["holds=7"]})
    design = begin("--honest")
    wait_until(lambda: (now := progress(design).current) and now.number == 2 and now.stage == "round")
    before = boots(design)
    kill_driver(design)
    left = runner.find_leftover_servers(design)
    assert len(left) == 1
    assert progress(design).status == "interrupted"
    done = run("resume", design.id)
    assert not any(server_process.list_processes(each) for each in left)
    found = progress(design)
    assert found.finished
    assert found.boots[:2] == before
    assert [(boot.number, boot.arm, boot.attempt) for boot in found.boots] == [
        (n, arm, 1) for n, arm in enumerate((0, 1, 1, 0))
    ]
    assert {len(boot.requests) for boot in found.boots} == {found.due}
    assert "boot 3 of 4" in done.stderr
    report = read_report(design)
    assert report.boots == found.boots


# The next request after the one that shows the stage is never answered: it does not pass meanwhile.
_HELD = {"cold": {0: ["holds=4"]}, "warm-up": {0: ["holds=5"]}}


def _has_reached(design: Design, stage: str) -> bool:
    now = progress(design)
    match stage:
        case "reserved":
            return bool(reservation.list_reservations())
        case "launched":
            return bool(registry.list_runs())
        case "between boots":
            return len(now.boots) == 1
        case _:
            return bool(now.current and now.current.stage == stage)


@pytest.mark.parametrize("stage", leave_to_long(["reserved", "launched", "cold", "warm-up", "between boots"], but=[]))
def test_driver_killed_in_any_stage_resumes(port, stage):
    """Its server is ended, its port is free for the next one, and each boot is measured once and whole."""
    fake_engine.make(port, {7: FAST, 4: SLOW}, _HELD.get(stage))
    design = begin()
    wait_until(lambda: _has_reached(design, stage))
    before = boots(design)
    kill_driver(design)
    assert reservation.list_reservations() == []
    run("resume", design.id)
    now = progress(design)
    assert now.finished
    assert now.boots[: len(before)] == before
    assert [(each.number, each.arm, each.attempt, each.error) for each in now.boots] == [(0, 0, 1, ""), (1, 1, 1, "")]
    assert {len(each.requests) for each in now.boots} == {now.due}
    runs = {each.id: each for each in registry.list_runs()}
    assert {runs[each.run].plan.port for each in now.boots} == {design.arms[0].plan.port}
    assert not any(server_process.list_processes(each) for each in runs.values())
    assert list(paths.reservations_folder().glob("*.json")) == []


def test_a_second_driver_is_refused(port):
    """Whether it is asked for or launched by hand; the first one goes on."""
    fake_engine.make(port, launches={0: ["slow=0.3"]})
    design = begin()
    folder = store.experiment_folder(design.id)
    driver = find_driver(design)
    os.kill(driver.pid, signal.SIGSTOP)  # it would be over before a busy machine has started four commands
    try:
        assert "already running" in run("resume", design.id, code=2).stderr
        other = subprocess.run(
            [sys.executable, "-m", "dflash_tui.experiments", design.id], capture_output=True, text=True, check=False
        )
        assert other.returncode == 2
        assert "already running" in other.stdout
        assert store.find_driver(folder) == driver
        assert "is running" in run(fake_engine.RECIPE, *QUICK, code=2).stderr
        assert "is running" in run("remove", design.id, code=2).stderr
    finally:
        os.kill(driver.pid, signal.SIGCONT)
    wait_until(lambda: progress(design).finished and not store.find_driver(folder))
    assert "is over" in run("resume", design.id, code=2).stderr


def test_boots_are_added_to_finished_experiment(port):
    """The mirrored order goes on, what was measured stays, and the new report says how often its boots were judged."""
    fake_engine.make(port)
    design = begin("--boots", "1")
    driver = find_driver(design)
    os.kill(driver.pid, signal.SIGSTOP)
    assert "is not over" in run("extend", design.id, code=2).stderr
    os.kill(driver.pid, signal.SIGCONT)
    wait_until(lambda: progress(design).finished and not store.find_driver(store.experiment_folder(design.id)))
    before = progress(design).boots
    first = read_report(design)
    run("extend", design.id, "--boots", "1")
    now = progress(design)
    assert now.finished
    assert now.design.order == (0, 1, 1, 0)
    assert now.boots[:2] == before
    assert len(now.boots) == 4
    report = read_report(design)
    assert report.design.looks == 2
    levels = [one.test.level for each in (first, report) for one in each.comparisons if one.test]
    assert levels == pytest.approx([0.95, 0.975])


def test_interrupt_or_lost_connection_ends_only_watching(port):
    """The experiment goes on without anybody, and somebody else can follow it to its end."""
    fake_engine.make(port, launches={0: ["slow=0.3"]})
    words = [sys.executable, "-m", "dflash_tui", "ab", fake_engine.RECIPE, "--vary", "n=7,4", *QUICK]
    with subprocess.Popen(
        words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    ) as watching:
        wait_until(lambda: store.list_experiments() and progress(store.find_experiment()).current)
        design = store.find_experiment()
        driver = find_driver(design)
        os.kill(driver.pid, signal.SIGSTOP)  # it would be over before a busy machine has ended the watching
        watching.send_signal(signal.SIGINT)
        _, said = watching.communicate(timeout=240)
        assert watching.returncode == 130
    assert f"dflash-tui ab attach {design.id}" in said
    assert store.find_driver(store.experiment_folder(design.id)) == driver
    os.kill(driver.pid, signal.SIGHUP)
    os.kill(driver.pid, signal.SIGCONT)
    assert "CACHED START" in run("attach", design.id).stdout
    assert progress(design).finished


def test_stopped_driver_ends_its_server(port):
    """It says so, no process is left, and it can be resumed; Ctrl-C on the driver itself asks for the same."""
    fake_engine.make(port, launches={0: ["sleepy"]})
    design = begin()
    wait_until(lambda: progress(design).current)  # the second request is never answered
    driver = find_driver(design)
    os.kill(driver.pid, signal.SIGSTOP)  # which it takes, too
    assert "dflash-tui ab resume" in run("stop", design.id).stderr
    _has_halted(design)
    controller.launch_driver(design)
    wait_until(lambda: progress(design).status == "running" and progress(design).current)
    driver = find_driver(design)
    os.kill(driver.pid, signal.SIGINT)
    wait_until(lambda: processes.read_process_identity(driver.pid) != driver.born)
    _has_halted(design)
    assert "dflash-tui ab resume" in run("attach", design.id, code=1).stderr


def _has_halted(design: Design) -> None:
    assert isinstance(happened(design)[-1], ExperimentHalted)
    assert progress(design).status == "halted"
    assert not any(server_process.list_processes(each) for each in registry.list_runs())


def test_unrecorded_server_of_killed_driver_is_ended(port, tmp_path):
    """It carries the experiment's mark, in a run folder without a record; whatever carries another is not touched."""
    fake_engine.make(port)
    design, _ = command_line.experiment(fake_engine.RECIPE, "--vary", "n=7,4", *QUICK)
    marks = [os.environ | {EXPERIMENT_MARK: mark} for mark in (design.id, "another")]
    ours, other = (subprocess.Popen(["sleep", "60"], env=env, cwd=tmp_path) for env in marks)
    try:
        asyncio.run(runner.stop_leftover_servers(design))
        assert ours.wait(5) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_full_disk_halts_it_resumably(port):
    """Nothing is measured that cannot be written down; the server ends, and with room again it goes on."""
    fake_engine.make(port)
    design = begin()
    folder = store.experiment_folder(design.id)
    wait_until(lambda: isinstance(happened(design)[-1] if happened(design) else None, RequestMeasured))
    full = folder / store.EVENTS
    driver = find_driver(design)
    most = full.stat().st_size
    resource.prlimit(driver.pid, resource.RLIMIT_FSIZE, (most, most))  # the driver's alone, as if the disk were full
    wait_until(lambda: not store.find_driver(folder))
    assert not any(server_process.list_processes(each) for each in registry.list_runs())
    assert os.strerror(errno.EFBIG) in (folder / "driver.log").read_text()
    run("resume", design.id)
    assert progress(design).finished


def test_boot_keeps_several_requests_under_way(port):
    """The ninth of nine requests is alone but for others, which are in no figure and no client's of somebody else."""
    fake_engine.make(port, {7: ["pace=0.2"], 4: ["pace=0.2"]})
    design = begin("--concurrency", "4")
    wait_until(lambda: progress(design).finished)
    for boot in boots(design):
        (window,) = boot.windows
        assert (boot.error, len(boot.requests), {request.streams for request in boot.requests}) == ("", 9, {4})
        assert window.under_way > 3.5
        assert FILLER not in {request.kind for request in boot.requests}
        assert any(run.id == boot.run and f'"{FILLER}"' in run.samples.read_text() for run in registry.list_runs())
    report = read_report(design)
    (comparison,) = report.comparisons
    assert {one.streams for one in comparison.further} == {4}


def test_running_server_is_stopped_only_after_preparation(port, monkeypatch):
    """It is stopped only on request: before that, and when the preparation fails, it is named and left alone."""
    fake_engine.make(port)
    words = (fake_engine.RECIPE, "--vary", "n=7,4", *QUICK)
    up = [sys.executable, "-m", "dflash_tui", "up", fake_engine.RECIPE, "--detach"]
    other = subprocess.run(up, check=True, capture_output=True, text=True).stdout.strip()
    said = run(*words, code=2).stderr
    assert other in said
    assert "--stop-running" in said
    with monkeypatch.context() as patched:
        fake_engine.lose_models(patched)
        assert "building target and drafter" in run(*words, "--stop-running", code=3).stderr
    assert server_process.is_alive(registry.find_run(other))
    assert not store.list_experiments()
    fake_engine.restore_models()
    run(*words, "--stop-running")
    assert not server_process.is_alive(registry.find_run(other))
