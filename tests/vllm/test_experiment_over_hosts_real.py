"""Real vLLM on one host against two ranks, as an A/B: what an owner of two machines asks."""

import pytest

from dflash_tui.cli.main import main
from dflash_tui.common import paths
from dflash_tui.events import AnswerHeld
from dflash_tui.experiments import store
from dflash_tui.runs import registry, server_process
from tests import DATA
from tests.support.fake_runs import recorded

pytestmark = [pytest.mark.vllm, pytest.mark.by_hand]  # two engines at once: minutes on a busy machine
SETTINGS = {"master-port": "29741", "max-model-len": "2048"}


def test_one_host_against_two(with_engine, capsys):
    """Both arms are measured, the first answer over two ranks is that of one, and nothing is left."""
    words = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    suite = ("--suite", str(DATA / "two-prompts.yaml"), "--yes", "--port", "8743")
    assert main(["ab", "toy", "--peer", "local", "--vary", "hosts=1,2", *suite, *words]) == 0, capsys.readouterr().err
    design = store.find_experiment()
    one, two = store.read_progress(store.experiment_folder(design.id)).boots
    assert [boot.error for boot in (one, two)] == ["", ""]
    assert ([*one.hosts], len(two.hosts)) == ([], 1)
    assert "--tensor-parallel-size" not in one.argv or one.argv[one.argv.index("--tensor-parallel-size") + 1] == "1"
    assert two.argv[two.argv.index("--nnodes") + 1] == "2"
    assert two.hosts[0].env["VLLM_CACHE_ROOT"] == two.env["VLLM_CACHE_ROOT"] == "{own cache}/vllm"
    assert not [*paths.arm_caches_folder().glob("*")]
    runs = {run.id: run for run in registry.list_runs()}
    [first] = recorded(runs[two.run], AnswerHeld)
    assert first.is_like_before is True
    assert not any(server_process.list_processes(run) for run in runs.values())
