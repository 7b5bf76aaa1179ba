"""Flags that a release lacks, by the names that are shipped, and values that vLLM refuses together."""

import pytest

from dflash_tui.common.errors import UsageError
from dflash_tui.engines import inventory
from dflash_tui.engines.inventory import ServeOptions
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning import plan_builder, serve_flags
from dflash_tui.planning.recipes import recipe_loader, resolution
from dflash_tui.planning.recipes.resolution import find_recipe_mistakes
from tests.support import vllm_flags, wheels


def test_every_listed_release_has_its_flags():
    for version in vllm_flags.list_listed():
        assert len(serve_flags.list_flags(version)) > 200
    assert serve_flags.list_flags("0.9.0") == frozenset()


@pytest.mark.parametrize(
    "name",
    [
        "max-model-len",
        "max_model_len",
        "no-enable-prefix-caching",
        "compilation-config.cudagraph_mode",
        "max-model",  # a beginning, as vLLM's parser completes it
    ],
)
def test_valid_flags_pass(name):
    assert not any("no flag" in mistake for mistake in serve_flags.find_mistakes("0.33.0", [f"--{name}"]))


@pytest.mark.parametrize(
    ("vllm", "name", "nearest"),
    [
        ("0.33.0", "max-modl-len", "max-model-len"),
        ("0.33.0", "gpu-memory-utilisation", "gpu-memory-utilization"),
        ("0.26.0", "watchdog-config", ""),  # of a later release
        ("0.33.0", "calculate-kv-scales", ""),  # of an earlier one
    ],
)
def test_flag_missing_in_release_suggests_nearest(vllm, name, nearest):
    [problem] = serve_flags.find_mistakes(vllm, [f"--{name}"])
    assert f"no flag --{name}" in problem
    assert f"did you mean --{nearest}?" in problem or not nearest
    assert serve_flags.find_mistakes("0.99.0", [f"--{name}"]) == []  # which is not in the table


@pytest.mark.parametrize(
    ("flag", "whole"),
    [
        ("--max-num-se", "--max-num-seqs,"),
        ("--max_model-le=100", "--max-model-len,"),
        ("--speculative-conf.method", "--speculative-config.method,"),
    ],
)
def test_abbreviated_flag_is_named_in_full(flag, whole):
    [problem] = serve_flags.find_mistakes("0.33.0", [flag, "8"])
    assert whole in problem


def test_setting_unknown_to_release_is_refused():
    serve_flags.check_settings("0.33.0", {"max-num-seqs": ["--max-num-seqs", "abc"]})  # vLLM judges the value
    with pytest.raises(UsageError, match=r"--set max-num-sqs: .* did you mean --max-num-seqs"):
        serve_flags.check_settings("0.33.0", {"max-num-sqs": ["--max-num-sqs", "8"]})


def test_shipped_recipes_pass_flag_check_of_release():
    """In each class, profile, variant and method, or a launch would be refused before its engine is installed."""
    recipes, _ = recipe_loader.load_all_recipes()
    assert {name: found for name, recipe in recipes.items() if (found := find_recipe_mistakes(recipe))} == {}


@pytest.mark.index
def test_table_matches_published_wheels():
    with wheels.skip_if_unreachable():
        assert serve_flags.FILE.read_text(encoding="utf-8") == vllm_flags.render_table(vllm_flags.read_all_flags())


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
