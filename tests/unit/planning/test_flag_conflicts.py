"""Values that vLLM refuses together are found in the plan, as each release's own check refuses them."""

import pytest

from dflash_tui.engines import inventory
from dflash_tui.engines.inventory import ServeOptions
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning import plan_builder, serve_flags
from dflash_tui.planning.recipes import recipe_loader, resolution

# Batched tokens, length and sequences, and whether chunked prefill is left on.
TAKEN = [(8192, 8192, 4, False), (8192, 16384, 4, True), (4, 4, 4, False), (None, 16384, 4, False)]
REFUSED = [(8192, 16384, 4, False), (128, 64, 256, True), (8191, 8192, 4, False)]


def find(batched: int | None, length: int, sequences: int, *, chunked: bool, vllm: str = "0.33.0") -> list[str]:
    words = ["--max-model-len", str(length), f"--max_num_seqs={sequences}"]
    words += [] if batched is None else ["--max-num-batched-tokens", str(batched)]
    return serve_flags.find_mistakes(vllm, words + ([] if chunked else ["--no-enable-chunked-prefill"]))


@pytest.mark.parametrize(("batched", "length", "sequences", "chunked"), TAKEN)
def test_matching_pair_passes(batched, length, sequences, chunked):
    assert find(batched, length, sequences, chunked=chunked) == []


@pytest.mark.parametrize(("batched", "length", "sequences", "chunked"), REFUSED)
def test_mismatched_pair_is_named(batched, length, sequences, chunked):
    [problem] = find(batched, length, sequences, chunked=chunked)
    assert f"{batched}" in problem


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
