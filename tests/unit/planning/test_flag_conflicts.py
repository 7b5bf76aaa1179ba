"""Values that vLLM refuses together are found in the plan, as each release's own check refuses them."""

import ast
import types

import pytest
import requests

from dflash_tui.engines import inventory
from dflash_tui.engines.inventory import ServeOptions
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning import plan_builder, serve_flags
from dflash_tui.planning.recipes import recipe_loader, resolution
from tests.support import wheels

SCHEDULER = "config/scheduler.py"
# Batched tokens, length and sequences, and whether chunked prefill is left on.
TAKEN = [(8192, 8192, 4, False), (8192, 16384, 4, True), (4, 4, 4, False), (None, 16384, 4, False)]
REFUSED = [(8192, 16384, 4, False), (128, 64, 256, True), (8191, 8192, 4, False)]


def find(batched: int | None, length: int, sequences: int, *, chunked: bool, vllm: str = "0.33.0") -> list[str]:
    words = ["--max-model-len", str(length), f"--max_num_seqs={sequences}"]
    words += [] if batched is None else ["--max-num-batched-tokens", str(batched)]
    return serve_flags.find_mistakes(vllm, words + ([] if chunked else ["--no-enable-chunked-prefill"]))


@pytest.mark.parametrize(("batched", "length", "sequences", "chunked"), TAKEN)
def test_what_goes_together_passes(batched, length, sequences, chunked):
    assert find(batched, length, sequences, chunked=chunked) == []


@pytest.mark.parametrize(("batched", "length", "sequences", "chunked"), REFUSED)
def test_what_does_not_go_together_is_named(batched, length, sequences, chunked):
    [problem] = find(batched, length, sequences, chunked=chunked)
    assert f"{batched}" in problem


def test_unknown_model_length_refuses_nothing():
    words = ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "8k", "--max-model-len"]
    assert serve_flags.find_mistakes("0.33.0", [*words, "auto"]) == []
    assert serve_flags.find_mistakes("0.33.0", [*words, "8000"]) == []
    assert serve_flags.find_mistakes("0.33.0", [*words, "8K"])


def test_published_failing_laptop_attempt_is_refused():
    """It was published that it refuses to start; an installed engine's parser does not know."""
    recipe = recipe_loader.find_recipe("gemma-4-26b-a4b")
    setup = resolution.resolve_recipe(recipe, Hardware.RTX_5090_LAPTOP, settings={"enable-chunked-prefill": False})
    plan = plan_builder.build_plan(setup)
    [problem] = serve_flags.find_mistakes(plan.vllm, plan.argv[3:])
    assert "16384" in problem
    flags: dict[str, tuple[str, ...] | None] = {word: None for word in plan.argv if word.startswith("--")}
    options = ServeOptions(flags, ("method", "model", "num_speculative_tokens", "attention_backend"))
    assert inventory.find_flag_mistakes(plan, options) == [problem]


@pytest.mark.index
@pytest.mark.long
def test_each_release_refuses_the_same():
    known = filter(serve_flags.list_flags, recipe_loader.load_releases())
    wanted = {("vllm", version): [SCHEDULER] for version in known}
    try:
        texts = wheels.read_all(wanted)
    except requests.RequestException as error:
        pytest.skip(f"the package index cannot be reached: {type(error).__name__}")
    for (_, version), files in texts.items():
        check = _load_check(files[SCHEDULER] or "")
        for case in (*TAKEN, *REFUSED):
            batched, length, sequences, chunked = case
            if batched is not None:
                found = find(batched, length, sequences, chunked=chunked, vllm=version)
                assert _is_refused(check, batched, length, sequences, chunked) == bool(found), (version, case)


def _load_check(source: str) -> types.FunctionType:
    """Return the method of the release's scheduler configuration that holds these values against each other."""
    [method] = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == "verify_max_model_len"
    ]
    method.decorator_list, method.returns = [], None
    names: dict[str, types.FunctionType] = {}
    exec(compile(ast.Module([method], []), SCHEDULER, "exec"), {"logger": types.SimpleNamespace(warning=print)}, names)
    return names["verify_max_model_len"]


def _is_refused(check: types.FunctionType, batched: int, length: int, sequences: int, chunked: bool) -> bool:
    config = types.SimpleNamespace(
        max_num_batched_tokens=batched,
        max_num_seqs=sequences,
        enable_chunked_prefill=chunked,
        max_num_active_seqs=None,
        long_prefill_token_threshold=0,
        max_num_partial_prefills=1,
        max_long_partial_prefills=1,
    )
    try:
        check(config, length)
    except ValueError:
        return True
    return False
