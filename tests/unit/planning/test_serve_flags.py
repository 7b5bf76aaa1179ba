"""Flags that are misspelt are found by the names that are shipped, for each release of the table."""

import pytest

from dflash_tui.common.errors import UsageError
from dflash_tui.planning import serve_flags
from dflash_tui.planning.recipes import recipe_loader
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
