"""A tune on a real vLLM: a setting that is known to be the best is planted among decoys."""

import json
import subprocess
import sys

import pytest

from dflash_tui.experiments import store
from dflash_tui.experiments.analysis.report import Verdict
from dflash_tui.experiments.design import CONFIRM
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.runs import registry, server_process
from tests import DATA
from tests.support.fake_runs import free_port

TUNE = (sys.executable, "-m", "dflash_tui", "tune", "toy")
# The toy drafter bets right at temperature 0, so a step of seven drafts yields eight tokens, and one of one draft two.
# What vLLM logs changes nothing.
PLANTED = ("--vary", "n=1,7", "--vary", "env.VLLM_LOGGING_LEVEL=WARNING", "--vary", "mode=graphs")
# Of two processors others may keep both busy, when a boot takes three minutes instead of one.
BUDGET = 45 * 60


@pytest.mark.vllm
@pytest.mark.by_hand
@pytest.mark.alone
@pytest.mark.timeout(5400)
@pytest.mark.usefixtures("with_engine", "demo_engine", "nothing_left")
def test_a_planted_best_among_decoys_is_found_and_becomes_a_recipe():
    """From one drafted token: seven are found, by boots after the choice, and the recipe that is written plans them."""
    words = ("--num-speculative-tokens", "1", "--port", str(free_port(18_800)), "--budget", f"{BUDGET}s")
    suite = ("--suite", str(DATA / "two-prompts.yaml"), "--scale", "1", "--rounds", "2", "--json", "--trust")
    done = subprocess.run([*TUNE, *words, *suite, *PLANTED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    tune = json.loads(done.stdout.splitlines()[-1])["report"]["tune"]
    progress = store.read_progress(store.experiment_folder(store.find_experiment().id))
    assert progress.design.arms[tune["best"]].plan.num_speculative_tokens == 7
    assert progress.rounds[-1].key == CONFIRM
    assert "mode=graphs" in tune["left_out"]
    assert tune["comparison"]["tok_s"]["ratio"] > 1.2, tune["comparison"]
    assert not any(server_process.list_processes(run) for run in registry.list_runs())
    # Others may keep the processors busy, which widens the interval: then nothing is claimed, and nothing kept.
    if tune["confirmed"] and tune["comparison"]["word"] == Verdict.FASTER and tune["answers"] != "no":
        assert recipe_loader.find_recipe("toy-tuned").num_speculative_tokens == 7
    else:
        assert any(each["what"].startswith("other processes ") for each in tune["comparison"]["confounds"])
