"""Tunes driven to their end by the product's own driver, on an engine that is a process and nothing more."""

import json
import os

import pytest

from dflash_tui.common import paths
from dflash_tui.experiments import controller, runner, store
from dflash_tui.experiments.design import CONFIRM, Design
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.runs import registry, server_process
from tests import DATA
from tests.support import command_line, fake_engine
from tests.support.command_line import Said
from tests.support.driven import kill_driver, progress
from tests.support.fake_runs import free_port
from tests.support.json_lines import check_lines
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("nothing_left")
QUICK = ("--suite", str(DATA / "two-prompts.yaml"), "--scale", "0.5", "--yes")
AXES = ("--vary", "n=7,4,2", "--vary", "mode=graphs")
# Seconds for each answer's tokens: four drafted tokens are planted as the best.
FAST, SLOW, SLOWER = ["pace=0.05"], ["pace=0.2"], ["pace=0.4"]
WORDS = {7: SLOW, 4: FAST, 2: SLOWER}


@pytest.fixture
def port() -> int:
    return free_port(18_600)


def run(*words: str, code: int = 0) -> Said:
    return command_line.run("tune", *words, code=code)


def begin(*words: str) -> Design:
    done = run(fake_engine.RECIPE, *QUICK, *AXES, "--budget", "10m", *words, "--detach")
    return store.find_experiment(done.stdout.strip())


@pytest.mark.long
def test_tune_finds_confirms_and_keeps_best_setting(port):
    """Four tokens among seven and two: the recipe launches it, the report says by how much, and what was not tried.

    A candidate that does not start is dropped with its cause.
    """
    folder = fake_engine.make(port, WORDS | {2: ["broken"]})
    done = run(fake_engine.RECIPE, *QUICK, *AXES, "--budget", "10m", "--json")
    check_lines("tune", done.stdout.splitlines())
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    events = [line["event"] for line in lines]
    assert (events[0], events[-2:]) == ("experiment", ["finished", "ab report"])
    rounds = [line for line in lines if line["event"] == "round began"]
    assert (rounds[0]["key"], rounds[-1]["key"]) == ("n", CONFIRM)
    now = progress(store.find_experiment())
    tune = lines[-1]["report"]["tune"]
    best = now.design.arms[tune["best"]]
    assert best.plan.num_speculative_tokens == 4
    assert tune["confirmed"]
    assert tune["comparison"]["tok_s"]["low"] > 1.5
    assert "CUDA graphs" in tune["left_out"]["mode=graphs"]
    assert tune["answers"] == "unknown"
    assert [*tune["dropped"]] == ["n=2"]
    assert "nothing works today" in tune["dropped"]["n=2"]
    assert fake_engine.launches(folder) == len(now.boots)
    recipe = recipe_loader.find_recipe("fake-tuned")
    assert str(paths.user_recipes_folder() / "fake-tuned.yaml") == tune["recipe"]
    assert recipe.num_speculative_tokens == 4
    assert command_line.planned("fake-tuned").plan.mode == best.plan.mode
    assert not any(server_process.list_processes(each) for each in registry.list_runs())
    assert "4" in run("attach").stdout


@pytest.mark.long
def test_killed_tune_keeps_best_setting_and_resumes(port):
    """Boots that are over stay, what was left running is ended, and rounds go on from what happened."""
    fake_engine.make(port, WORDS)
    design = begin()
    wait_until(lambda: len(progress(design).boots) >= 3 and progress(design).current is not None)
    kill_driver(design)
    before = progress(design)
    assert before.status == "interrupted"
    kept = run("keep", "--name", "so-far").stdout.strip()
    assert recipe_loader.find_recipe("so-far").num_speculative_tokens == 4
    run("keep", "--name", "so-far", "--overwrite")
    assert [path.name for path in paths.user_recipes_folder().glob("so-far*")] == [os.path.basename(kept)]  # noqa: PTH119
    run("resume", design.id)
    after = progress(design)
    assert after.finished
    assert after.boots[: len(before.boots)] == before.boots
    assert after.rounds[: len(before.rounds)] == before.rounds
    assert not runner.find_leftover_servers(design)


def test_stopped_tune_reports_best_and_resume_command(port):
    fake_engine.make(port, WORDS)
    design = begin()
    wait_until(lambda: len(progress(design).boots) >= 2)
    run("stop")
    assert progress(design).status == "halted"
    told = run("attach", code=1)
    assert "tried in" in told.stderr
    assert f"dflash-tui tune resume {design.id}" in told.stderr


@pytest.mark.long
def test_short_tune_budget_names_needed_time(port):
    """The first tune ends after its only boot; the second knows what a boot takes."""
    fake_engine.make(port, WORDS)
    run(fake_engine.RECIPE, *QUICK, *AXES, "--budget", "1s")
    assert len(progress(store.find_experiment()).boots) == 1
    assert "--budget" in run("attach").stdout
    told = run(fake_engine.RECIPE, *QUICK, *AXES, "--budget", "1s", code=2).stderr
    assert "--budget" in told
    assert len(store.list_experiments()) == 1


def test_running_tune_refuses_second_tune_and_ab(port):
    """As for an A/B: whatever disturbs the measurement is named before anything starts."""
    fake_engine.make(port, WORDS)
    design = begin()
    assert design.id in run(fake_engine.RECIPE, *QUICK, *AXES, code=2).stderr
    controller.stop_driver(design)
    assert len(store.list_experiments()) == 1
