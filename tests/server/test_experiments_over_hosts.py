"""Experiments whose boots are servers over two hosts, by the agent over a local transport, with stand-in engines."""

import json
from pathlib import Path

import pytest

from dflash_tui.common import paths
from dflash_tui.experiments import runner, store
from dflash_tui.experiments.design import Design
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.runs import registry, server_process
from dflash_tui.runs.run import EXPERIMENT_MARK, Run
from tests import DATA
from tests.support import command_line, fake_engine
from tests.support.command_line import Said
from tests.support.driven import kill_driver, progress
from tests.support.fake_runs import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("nothing_left")
QUICK = ("--suite", str(DATA / "two-prompts.yaml"), "--yes")
BOTH = ("--peer", "local")
# What keeps an experiment from its end while it is stopped in a stage.
KEPT = {"rank 1": "hangs", "starting": "hangs", "warm-up": "pace=1"}


@pytest.fixture
def engine(tmp_path) -> Path:
    """The stand-in engine with the demo's recipe for two GPUs or hosts."""
    shipped = recipe_loader.recipe_path("demo-cpu").read_text()
    path: Path = tmp_path / "two.yaml"
    path.write_text(shipped.replace("flags:\n", "flags:\n  tensor-parallel-size: 2\n", 1))
    return fake_engine.make(free_port(19_400), recipe=path)


def run(*words: str, code: int = 0) -> Said:
    return command_line.run("ab", *words, code=code)


def living() -> list[Run]:
    return [each for each in registry.list_runs() if server_process.list_processes(each)]


def test_each_boot_spans_both_hosts(engine):
    """Launched and stopped as `up --peer` does it; the far rank's command and state are in the report's boots."""
    said = run(fake_engine.RECIPE, "--vary", "n=7,4", *QUICK, *BOTH).stderr
    design = store.find_experiment()
    a, b = progress(design).boots
    assert [boot.error for boot in (a, b)] == ["", ""], said
    assert fake_engine.launches(engine) == 2
    assert living() == []
    for boot in (a, b):
        [host] = boot.hosts
        assert (host.host, host.address, host.argv[-1]) == ("local", "127.0.0.1", "--headless")
        assert EXPERIMENT_MARK not in host.env
        assert host.env["VLLM_CACHE_ROOT"] == "{own cache}/vllm"
        assert boot.after
        assert [*boot.after.hosts] == ["rank 1 on local"]
        assert not boot.after.foreign
    assert "--peer local" in design.command
    assert design.own_cache


def begin() -> Design:
    done = run(fake_engine.RECIPE, "--vary", "n=7,4", *QUICK, *BOTH, "--detach")
    return store.find_experiment(done.stdout.strip())


def begin_kept(engine: Path, stage: str) -> Design:
    """Begin an experiment that is slow, or hangs, from a stage on; it is in that stage."""
    kept = [KEPT[stage]]
    (engine / "words.json").write_text(json.dumps({"tokens": {"7": kept, "4": kept}, "launches": {}}))
    design = begin()
    wait_until(lambda: has_reached(design, stage))
    return design


def has_reached(design: Design, stage: str) -> bool:
    if stage == "rank 1":
        return any(each.plan.rank == 1 for each in registry.list_runs())
    now = progress(design).current
    return bool(now and now.stage == stage)


@pytest.mark.long
@pytest.mark.parametrize("stage", ["rank 1", "warm-up"])
def test_a_driver_that_is_killed_is_resumed(engine, stage):
    """What it left on both hosts is ended first, also a rank whose rank 0 was not launched yet."""
    design = begin()
    wait_until(lambda: has_reached(design, stage))
    kill_driver(design)
    assert all(each.plan.env.get(EXPERIMENT_MARK) == design.id for each in living())
    run("resume", design.id)
    now = progress(design)
    assert now.finished
    assert [(each.number, each.arm, each.attempt, each.error) for each in now.boots] == [(0, 0, 1, ""), (1, 1, 1, "")]
    assert living() == []
    assert runner.find_leftover_servers(design) == []


@pytest.mark.long
@pytest.mark.parametrize("stage", ["rank 1", "starting", "warm-up"])
def test_stopping_leaves_nothing_on_either_host(engine, stage):
    design = begin_kept(engine, stage)
    run("stop", design.id)
    assert living() == []
    assert progress(design).status == "halted"


@pytest.mark.long
def test_a_rank_that_dies_fails_its_boot(engine):
    """Both attempts; the report says that no boot measured anything, and nothing is left."""
    (engine / "rank-dies").touch()
    (engine / "words.json").write_text(json.dumps({"tokens": {"7": ["slow=8"], "4": ["slow=8"]}, "launches": {}}))
    run(fake_engine.RECIPE, "--vary", "n=7,4", *QUICK, *BOTH, code=6)
    boots = progress(store.find_experiment()).boots
    assert len(boots) == 2
    assert all(boot.error for boot in boots)
    assert living() == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        (("--measure", "start"), "empty empty full full"),
        (("--measure", "start", "--cold"), "empty empty"),
    ],
)
def test_each_arm_has_own_caches_on_peer(engine, options, kinds):
    """They are empty at its first boot, or at each where that is asked for, and gone in the end."""
    run(fake_engine.RECIPE, "--vary", "n=7,4", *options, *QUICK, *BOTH)
    design = store.find_experiment()
    lines = [line.partition(" ") for line in (engine / "rank-caches").read_text().splitlines()]
    assert " ".join(kind for kind, _, _ in lines) == kinds
    folder = paths.arm_caches_folder() / design.id
    arms = [design.order[place] for place in range(len(lines))]
    assert [cache for _, _, cache in lines] == [str(folder / "rank1" / str(arm) / "vllm") for arm in arms]
    assert {*arms} == {0, 1}
    assert not folder.exists()
    assert [boot.error for boot in progress(design).boots] == [""] * len(lines)


@pytest.mark.long
def test_caches_are_shared_with_keep_cache(engine):
    run(fake_engine.RECIPE, "--vary", "n=7,4", "--keep-cache", *QUICK, *BOTH)
    caches = {line.partition(" ")[2] for line in (engine / "rank-caches").read_text().splitlines()}
    assert len(caches) == 1
    assert str(paths.arm_caches_folder()) not in caches.pop()


@pytest.mark.long
def test_removed_unfinished_experiment_leaves_no_caches(engine):
    design = begin_kept(engine, "warm-up")
    run("stop", design.id)
    folder = paths.arm_caches_folder() / design.id
    assert folder.is_dir()
    run("remove", design.id)
    assert not folder.exists()


def test_unreachable_peer_is_named_before_start(engine):
    error = run(fake_engine.RECIPE, *QUICK, "--peer", "host.invalid", "--json", code=2).stdout
    assert "host.invalid" in json.loads(error.splitlines()[-1])["what"]
    assert store.list_experiments() == []
