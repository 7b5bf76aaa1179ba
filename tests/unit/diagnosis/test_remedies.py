"""What may help after a failure: the numbers that vLLM printed, as options of `up` that give the plan they say."""

import shlex

import pytest

from dflash_tui.diagnosis import postmortem, remedies
from dflash_tui.diagnosis.cause import Diagnosis, diagnose_run
from dflash_tui.events import Exited
from dflash_tui.machine import nvml
from dflash_tui.machine.gpus import GpuProbe
from dflash_tui.planning import serve_flags
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.request import LaunchChanges as Changes
from dflash_tui.planning.request import LaunchRequest
from tests.support import command_line
from tests.support.states import LAUNCHED, fold, read_log
from tests.support.values import present
from tests.unit.diagnosis.test_cause import CPU, GPU, of


@pytest.fixture(autouse=True)
def no_gpu(folders, monkeypatch):
    monkeypatch.setattr(nvml, "probe_gpus", GpuProbe)


@pytest.fixture
def flags_unknown(monkeypatch):
    """Let a plan take any flag, as that of a release does whose flags are not shipped."""
    monkeypatch.setattr(serve_flags, "list_flags", lambda _vllm: frozenset())


def planned(*words: str) -> Plan:
    return command_line.planned(*words).plan


def after(text: str, plan: Plan, port: int | None = None) -> list[remedies.Remedy]:
    """Return what helps a server of `plan` that ended with this line."""
    return list(remedies.propose_remedies(diagnose(text, plan), plan, port))


def diagnose(text: str, plan: Plan) -> Diagnosis:
    """Return why a server of `plan` failed that ended with this line."""
    state = fold(LAUNCHED, *read_log(f"{text}\n"), Exited(9.0, 1))
    return present(diagnose_run(state, recipe_loader.find_recipe(plan.recipe).failures))


def recorded(name: str, plan: Plan, code: int = 1, port: int | None = None) -> list[remedies.Remedy]:
    return list(remedies.propose_remedies(present(diagnose_run(of(name, code))), plan, port))


def setting(name: str, value: str) -> Changes:
    return Changes(settings={name: value})


DEMO = ("demo-cpu",)
# What was launched, what failed, and by hand what the first remedy changes.
RECORDED = [
    (DEMO, f"{CPU}/fail_mem_util", setting("gpu-memory-utilization", "0.91")),
    (DEMO, f"{CPU}/fail_max_model_len_kv", setting("max-model-len", "8064")),
    (DEMO, f"{CPU}/fail_max_model_len_config", setting("max-model-len", "32768")),
    (DEMO, f"{CPU}/fail_port_in_use", Changes(port=8123)),
    ((*DEMO, "--set", "no-such-flag=1"), f"{CPU}/fail_flag", Changes(removed_settings=("no-such-flag",))),
    ((*DEMO, "--set", "target.model=/tmp"), f"{CPU}/fail_model_path", Changes(removed_settings=("target.model",))),
    (DEMO, f"{CPU}/fail_model_hub_offline", setting("env.HF_HUB_OFFLINE", "null")),
    (DEMO, f"{CPU}/fail_dflash_bad_target_layers", Changes(num_speculative_tokens=0)),
    (DEMO, f"{CPU}/kill9_core_idle", Changes()),
    (("gemma-4-26b-a4b", "--gpu", "h200", "--published"), f"{GPU}/fail-illegal-memory-access",
     setting("speculation.attention_backend", "TRITON_ATTN")),
]  # fmt: skip


@pytest.mark.usefixtures("flags_unknown")
@pytest.mark.parametrize(("words", "name", "changes"), RECORDED)
def test_the_first_remedy_of_a_recorded_failure(words, name, changes):
    """The number is the one that the recorded server printed."""
    assert recorded(name, planned(*words), port=8123)[0].changes == changes


SAID = [
    ("gemma-4-26b-a4b", "RuntimeError: Cannot re-initialize CUDA in forked subprocess", setting("start.fork", "false")),
    ("gemma-4-31b", "ValueError: Selected backend X is not valid. Reason: ['non-causal attention not supported']",
     Changes(profile="seed")),
    ("gemma-4-26b-a4b", "ValueError: Free memory on device cuda:0 (100.0/140.0 GiB) on startup is less than desired "
     "GPU memory utilization (0.9, 126.0 GiB). Decrease GPU memory utilization",
     setting("gpu-memory-utilization", "0.7")),
    ("gemma-4-26b-a4b", "OSError: You are trying to access a gated repo.", Changes()),
    ("gemma-4-26b-a4b", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
     setting("max-num-batched-tokens", "16384")),
    ("qwen3.5-27b", "RuntimeError: CUDA error: device-side assert triggered",
     setting("speculation.attention_backend", "TRITON_ATTN")),
    ("qwen3.5-27b", "TimeoutError: Timed out waiting for engine core processes to start. Waited 600s",
     setting("env.VLLM_ENGINE_READY_TIMEOUT_S", "3600")),
    ("gemma-4-26b-a4b", "Value error, max_num_scheduled_tokens is set to -1792, which does not allow any tokens",
     setting("max-num-batched-tokens", "65536")),
    ("qwen3.5-27b", "TimeoutError: RPC call to sample_tokens timed out.",
     setting("env.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "600")),
]  # fmt: skip


@pytest.mark.parametrize(("recipe", "text", "changes"), SAID)
def test_the_first_remedy_on_a_gpu(recipe, text, changes):
    """Where the recipe itself knows what helps, that comes first."""
    assert after(text, planned(recipe, "--gpu", "h200"))[0].changes == changes


TOO_FEW = (
    "ValueError: VllmConfig does not have enough slots to schedule a token and support the speculative decoding "
    "settings. Got max_num_batched_tokens=1 and scheduled_token_delta=7."
)


def test_changed_options_are_undone_first():
    changed = ("--set", "max-num-batched-tokens=1", "--num-speculative-tokens", "3", "--profile", "stock")
    [first, *_] = after(TOO_FEW, planned("gemma-4-26b-a4b", "--gpu", "h200", *changed))
    assert first.words == "without what you changed: num-speculative-tokens, max-num-batched-tokens"
    assert first.changes == Changes(removed=("num_speculative_tokens",), removed_settings=("max-num-batched-tokens",))


def test_a_failure_of_the_machine_undoes_nothing():
    plan = planned("demo-cpu", "--set", "seed=1")
    assert recorded(f"{CPU}/fail_port_in_use", plan, port=8123)[0].changes == Changes(port=8123)


def test_link_in_message_is_no_hub_failure():
    text = "ValueError: Something new. For further information visit https://errors.pydantic.dev/2.13/v/value_error"
    found = diagnose(text, planned("demo-cpu"))
    assert "hub" not in f"{found.what} {found.advice}"


def test_token_is_requested_outside_the_command():
    """HF_TOKEN belongs into the environment."""
    [first, *_] = after("OSError: You are trying to access a gated repo.", planned("gemma-4-26b-a4b", "--gpu", "h200"))
    assert first.needs == "HF_TOKEN"


def test_choices_by_hand_are_taken_back():
    """Another release, and a patch that was left out, are what is suspected first."""
    plan = planned("qwen3-coder-next", "--gpu", "gb10", "--vllm", "0.23.0", "--set", "patches.qwen3-next-eagle3=false")
    changes = [helps.changes for helps in after("RuntimeError: Model does not support EAGLE3 interface", plan)]
    assert Changes(removed=("vllm",)) in changes
    assert Changes(removed_settings=("patches.qwen3-next-eagle3",)) in changes
    assert Changes(vllm="0.24.0", removed=("engine",)) in changes


@pytest.mark.usefixtures("flags_unknown")
@pytest.mark.parametrize(("words", "name", "changes"), RECORDED)
def test_offered_choice_can_be_launched(words, name, changes):
    """The command line is one that the parser takes, and it gives the changed plan."""
    plan = planned(*words)
    for helps in recorded(name, plan, port=8123):
        line = shlex.split(plan.relaunch_request.with_changes(helps.changes).to_command())
        assert line[:2] == ["dflash-tui", "up"]
        made = planned(*line[2:])
        assert (made.argv == plan.argv and made.env == plan.env) is (not helps.changes), line


def test_recipe_file_is_named_by_absolute_path(tmp_path, monkeypatch):
    """The command works from anywhere."""
    path = tmp_path / "mine.yaml"
    path.write_text(recipe_loader.recipe_path("demo-cpu").read_text())
    monkeypatch.chdir(tmp_path)
    assert planned("./mine.yaml").relaunch_request.to_argv()[0] == str(path)


def test_postmortem_works_after_recipe_is_gone(folders):
    """Why it failed is told all the same."""
    from tests.tui.conftest import a_run

    run = a_run(recipe="gone", request=LaunchRequest(recipe="/nowhere/gone.yaml"))
    found = present(postmortem.build_postmortem(run, of(f"{CPU}/fail_mem_util", 1)))
    assert found.commands[0] == "dflash-tui up /nowhere/gone.yaml --set gpu-memory-utilization=0.91"
