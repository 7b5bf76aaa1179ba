"""What a tune varies on a machine, which of it can be planned there, and the names of settings."""

import pytest
from msgspec.structs import replace

from dflash_tui.common import paths
from dflash_tui.common.errors import UsageError
from dflash_tui.experiments import tune_schedule, tuner
from dflash_tui.experiments.builder import ExperimentRequest
from dflash_tui.experiments.design import Arm
from dflash_tui.launch import planner, recipe_trust
from dflash_tui.machine.gpus import GpuProbe
from dflash_tui.planning import patch_file
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import Mode, SetUp
from dflash_tui.planning.request import LaunchChanges, LaunchRequest

DEMO, GEMMA = (
    LaunchRequest(recipe="demo-cpu", port=8500),
    LaunchRequest(recipe="gemma-4-26b-a4b", gpu="h200", vllm="0.33.0", port=8500),
)


def plan(request: LaunchRequest):
    return planner.plan_launch(request, GpuProbe())


def published(request: LaunchRequest) -> Arm:
    return Arm("published", request, plan(request).plan)


def keys(request: LaunchRequest, temperature: float | None = 0.0) -> tuple[list[str], dict[str, str]]:
    planned = plan(request)
    axes, left_out = tune_schedule.list_axes(planned.resolved, planned.plan, temperature=temperature, streams=1)
    return [tune_schedule.list_key(axis) for axis in axes], left_out


def propose(axis: str, request: LaunchRequest, best: Arm | None = None) -> tune_schedule.Proposal:
    planning = tuner.MachineTuner(GpuProbe(), recipe_loader.find_recipe(request.recipe)).plan
    return tune_schedule.propose_candidates(axis, best or published(request), [published(request)], planning)


def test_gpu_has_all_axes_cpu_has_fewer():
    on_gpu, _ = keys(GEMMA)
    on_cpu, left_out = keys(DEMO)
    assert on_gpu[:2] == ["set_up", "mode"]
    assert {"method", "n", "attention-backend", "speculation.attention_backend", "max-num-seqs", "load-format"} <= {
        *on_gpu
    }
    assert on_cpu == ["mode", "n"]
    assert {"max-num-seqs", "load-format"} <= {*left_out}


def test_experimental_patches_are_tried_on_matching_releases():
    """The patch is for some releases; planning says of the others why they do without."""
    tried, left_out = keys(GEMMA)
    assert "patch.triton-split-verify" in tried
    assert {"patch.triton-split-verify-0.24", "patch.triton-non-causal"} <= {*left_out}
    taken = propose("patch.triton-split-verify=on", GEMMA)
    refused = propose("patch.triton-split-verify-0.24=on", GEMMA)
    assert [each.arm.name for each in taken.candidates] == ["patch.triton-split-verify"]
    assert "triton-split-verify" in taken.candidates[0].arm.plan.patches
    assert (refused.candidates, [*refused.left_out]) == ([], ["patch.triton-split-verify-0.24"])


@pytest.mark.parametrize(
    ("vllm", "temperature", "tried", "not_tried"),
    [
        ("0.33.0", 0.0, set(), {"speculation.draft_sample_method", "speculation.rejection_sample_method"}),
        ("0.33.0", 0.7, {"speculation.draft_sample_method", "speculation.rejection_sample_method"}, set()),
        ("0.28.0", 0.7, {"speculation.rejection_sample_method"}, {"speculation.draft_sample_method"}),
        ("0.22.1", 0.7, {"speculation.draft_sample_method"}, {"speculation.rejection_sample_method"}),
    ],
)
def test_sampling_methods_need_temperature_and_matching_release(vllm, temperature, tried, not_tried):
    found, left_out = keys(replace(GEMMA, vllm=vllm), temperature)
    assert tried <= {*found}
    assert not_tried <= {*left_out}
    assert not not_tried & {*found}


def test_unplannable_candidate_is_left_out_with_reason():
    """Graphs mode needs a GPU; eager is what is published; compile is left."""
    proposal = propose("mode=graphs,compile,eager", DEMO)
    assert [each.arm.name for each in proposal.candidates] == ["compile"]
    assert "CUDA graphs" in proposal.left_out["mode=graphs"]


def test_method_with_missing_drafter_is_left_out():
    """It would be fetched on the budget; one that needs no other model is tried."""
    proposal = propose("method=eagle3,none", GEMMA)
    assert [each.arm.name for each in proposal.candidates] == ["method=none"]
    assert [*proposal.left_out] == ["method=eagle3"]


def test_unshipped_patch_needs_trust_before_trial(monkeypatch, tmp_path):
    """The driver can ask nobody, and a name says nothing of what a patch does."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = paths.user_patches_folder()
    folder.mkdir(parents=True)
    shipped = paths.bundled_folder("patches") / "triton-split-verify.yaml"
    (folder / "mine.yaml").write_text(shipped.read_text())
    refused = propose("patch.mine=on", GEMMA)
    assert (refused.candidates, [*refused.left_out]) == ([], ["patch.mine=on"])
    recipe_trust.trust_contents(patch_file.load_patch("mine"))
    assert [each.arm.name for each in propose("patch.mine=on", GEMMA).candidates] == ["patch.mine"]


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        (LaunchChanges(), "published"),
        (LaunchChanges(mode=Mode.GRAPHS, num_speculative_tokens=11), "graphs n=11"),
        (LaunchChanges(settings={"patches.x": "true", "max-num-seqs": "4"}), "patch.x max-num-seqs=4"),
    ],
)
def test_setting_is_named_by_its_changes(changes, name):
    assert tune_schedule.name_setting(DEMO, DEMO.with_changes(changes)) == name


def test_tune_begins_with_published_setting_alone():
    design, _ = tuner.build_tune(ExperimentRequest(DEMO), budget=600.0, axes=("n=7,3", "mode=eager,compile"))
    assert ([arm.name for arm in design.arms], design.order, design.attempts) == (["published"], (0,), 1)
    assert design.tuning
    assert (design.tuning.budget, design.tuning.save_as) == (600.0, "demo-cpu-tuned")
    assert design.temperature == 0


@pytest.mark.parametrize(
    "asked",
    [
        {"axes": ("port=1,2",)},
        {"axes": ("n=3", "n=4")},
        {"axes": ("n",)},
        {"name": "../x"},
        {"axes": ("env.HF_TOKEN=hf_" + 20 * "x",)},
    ],
)
def test_untunable_request_is_refused_before_start(asked):
    with pytest.raises(UsageError):
        tuner.build_tune(ExperimentRequest(DEMO), **asked)


COMPARED = replace(GEMMA, vllm="0.26.0")


def test_fast_set_up_is_tried_first():
    design, _ = tuner.build_tune(ExperimentRequest(COMPARED), budget=3600.0)
    assert design.tuning
    assert (design.arms[0].plan.set_up, design.tuning.axes[0]) == (SetUp.PUBLISHED, "set_up=fast")
    [fast] = propose("set_up=fast", replace(COMPARED, set_up=SetUp.PUBLISHED)).candidates
    assert (fast.arm.name, fast.arm.plan.set_up) == ("fast", SetUp.FAST)
    assert fast.arm.plan.argv == plan(COMPARED).plan.argv


@pytest.mark.parametrize(
    ("axes", "tried"),
    [(("n=7,3",), ("set_up=fast", "n=7,3")), (("n=7,3", "set_up=fast"), ("n=7,3", "set_up=fast"))],
)
def test_own_axes_keep_the_fast_set_up(axes, tried):
    """The default of this launch: without it a tune could end slower than the default."""
    design, _ = tuner.build_tune(ExperimentRequest(COMPARED), budget=3600.0, axes=axes)
    assert design.tuning
    assert (design.arms[0].plan.set_up, design.tuning.axes) == (SetUp.PUBLISHED, tried)


def test_candidate_without_fast_set_up_is_published():
    """Nothing is verified without drafts."""
    request = replace(COMPARED, set_up=SetUp.FAST)
    best = Arm("fast", request, plan(request).plan)
    found = propose("n=7,0", replace(COMPARED, set_up=SetUp.PUBLISHED), best)
    named = [(each.arm.name, each.arm.plan.set_up) for each in found.candidates]
    assert named == [("n=7 fast", SetUp.FAST), ("n=0", SetUp.PUBLISHED)]
