"""Values that a release refuses are found by the table that is shipped, for each release of the table of releases."""

import json

import pytest
import requests
from msgspec.structs import replace

from dflash_tui.common.errors import UsageError
from dflash_tui.engines import cli_flags
from dflash_tui.engines.inventory import ServeOptions
from dflash_tui.planning import plan_builder, releases
from dflash_tui.planning.advice import release_flags, release_values
from dflash_tui.planning.advice.recipe_mistakes import find_recipe_mistakes
from dflash_tui.planning.recipes import recipe_loader, resolution
from dflash_tui.planning.recipes.recipe import RecipePart
from tests.support import vllm_flag_values


def test_each_release_of_the_table_has_its_values():
    for version in releases.load_releases():
        values = release_values.list_values(version)
        assert len(values) > 100
        assert {"max-num-seqs", "dtype", "enable-prefix-caching", "tool-call-parser"} <= values.keys()
        assert values.keys() <= release_flags.list_flags(version)
    assert release_values.list_values("0.9.0") == {}


@pytest.mark.parametrize(
    "words",
    [
        ["--max-num-seqs", "8"],
        ["--max_num_seqs=8"],
        ["--max-model-len", "16k"],
        ["--max-model-len=-1"],
        ["--max-model-len", "auto"],
        ["--max-num-batched-tokens", "25.6k"],
        ["--gpu-memory-utilization", "0.9"],
        ["--dtype", "bfloat16"],
        ["--kv-cache-dtype", "fp8"],
        ["--enable-prefix-caching"],
        ["--no-enable-prefix-caching"],
        ["--quantization", "anything"],  # plug-ins may bring others
        ["--compilation-config", "{}"],
        ["--speculative-config.method", "mtp"],
        ["--tool-call-parser", "mine", "--tool-parser-plugin", "/a.py"],
        ["--max-num-seqs", "8", "--enforce-eager", "--dtype", "auto"],
    ],
)
def test_what_a_release_takes_passes(words):
    assert release_values.find_mistakes("0.33.0", words) == []


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--max-num-seqs", "abc"], "from 1"),
        (["--max-num-seqs", "0"], "from 1"),
        (["--max-num-seqs", "8.5"], "from 1"),
        (["--max-num-seqs"], "from 1"),
        (["--max-num-se", "8"], "--max-num-seqs,"),  # vLLM takes it for the whole one, which is counted with here
        (["--max_model-le=100"], "--max-model-len,"),
        (["--speculative-conf.method", "x"], "--speculative-config.method,"),
        (["--max-model-len=-5"], "16k"),
        (["--max-model-len", "16q"], "16k"),
        (["--max-model-len", "1.5K"], "16k"),  # no decimals with binary suffixes
        (["--gpu-memory-utilization", "7"], "up to 1"),
        (["--video-pruning-rate", "1"], "below 1"),
        (["--block-size", "0"], "above 0"),
        (["--dtype", "bfloat17"], "bfloat16"),
        (["--kv-cache-dtype", "fp9"], "fp8"),
        (["--tool-call-parser", "gemma5"], "gemma4"),
        (["--enable-prefix-caching", "maybe"], "true or false"),
        (["--max-modl-len", "abc"], "max-model-len"),
    ],
)
def test_what_a_release_refuses_is_named_with_what_it_takes(words, wanted):
    [problem] = release_values.find_mistakes("0.33.0", words)
    assert wanted in problem
    assert release_values.find_mistakes("0.99.0", words) == []


def test_a_value_of_a_later_release_is_refused_by_an_earlier_one():
    assert release_values.find_mistakes("0.33.0", ["--tool-call-parser", "gemma4"]) == []
    assert release_values.find_mistakes("0.20.2", ["--jit-monitor-mode", "warn"])


def test_a_wrong_setting_is_named():
    release_values.check_settings("0.33.0", {"max-num-seqs": ["--max-num-seqs", "8"]})
    plugin = {"tool-parser-plugin": ["--tool-parser-plugin", "/a.py"], "tool-call-parser": ["--tool-call-parser", "my"]}
    release_values.check_settings("0.33.0", plugin)
    with pytest.raises(UsageError, match="--set max-num-seqs"):
        release_values.check_settings("0.33.0", {"max-num-seqs": ["--max-num-seqs", "abc"]})


def test_of_thousands_of_wrong_values_ten_are_told(snapshot):
    """Of a command line, of a recipe over its variants, and of an engine that was asked, keys included."""
    words = [word for number in range(5_000) for word in ("--max-num-seqs", f"x{number}")]
    mistakes = release_values.find_mistakes("0.33.0", words)
    assert len(mistakes) == 11
    assert all("--max-num-seqs x" in mistake for mistake in mistakes[:-1])
    recipe = recipe_loader.find_recipe("gemma-4-31b")
    wrong = {f"v{number}": RecipePart(flags={"max-num-seqs": f"x{number}"}) for number in range(100)}
    told = find_recipe_mistakes(replace(recipe, variants=wrong))
    assert len(told) == 31
    keys = json.dumps({f"k{number}": 1 for number in range(5_000)})
    plan = plan_builder.build_plan(resolution.resolve_recipe(recipe))
    options = ServeOptions({"--max-num-seqs": None, "--speculative-config": None}, ("method",))
    argv = (*plan.argv[:3], *words, "--speculative-config", keys)
    problems = cli_flags.find_flag_mistakes(replace(plan, argv=argv), options)
    assert len(problems) == 22
    assert "\n".join([mistakes[-1], told[-1], problems[10], problems[-1]]) == snapshot


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("parts", "flags", "most"), [(9_000, 0, 4_000), (50, 5_000, 20)])
def test_of_too_many_combinations_the_first_are_checked(parts, flags, most):
    """And how many there are is a mistake, so that nobody takes the recipe for one that is right."""
    recipe = recipe_loader.find_recipe("demo-cpu")
    same = {f"p{number}": RecipePart() for number in range(parts)}
    many = {f"x{number}": 1 for number in range(flags)}
    huge = replace(recipe, methods={}, profiles=same, variants=same, flags={**recipe.flags, **many})
    last = find_recipe_mistakes(huge)[-1]
    assert last.startswith(f"{parts * (parts + 1):,} combinations")
    assert most // 2 < int(last.split()[-3].replace(",", "")) <= most


def test_the_shipped_recipes_would_start_by_their_releases():
    """In each class, profile, variant and method, or a launch would be refused before its engine is installed."""
    recipes, _ = recipe_loader.load_all_recipes()
    assert {name: found for name, recipe in recipes.items() if (found := find_recipe_mistakes(recipe))} == {}


def test_numbers_are_checked_for_an_installed_engine_too():
    """Its own parser tells choices, and not which flags take numbers."""
    recipe = recipe_loader.find_recipe("gemma-4-31b")
    setup = resolution.resolve_recipe(recipe, settings={"max-num-seqs": "abc"})
    plan = plan_builder.build_plan(setup)
    flags: dict[str, tuple[str, ...] | None] = {word: None for word in plan.argv if word.startswith("--")}
    keys = ("method", "model", "num_speculative_tokens")
    [problem] = cli_flags.find_flag_mistakes(plan, ServeOptions(flags, keys))
    assert "--max-num-seqs" in problem


@pytest.mark.index
@pytest.mark.long
@pytest.mark.parametrize("version", ["0.20.2", "0.33.0"])
def test_the_table_is_what_the_wheel_says(version):
    try:
        read = vllm_flag_values.read_values(version)
    except requests.RequestException as error:
        pytest.skip(f"the package index cannot be reached: {type(error).__name__}")
    assert read == release_values.list_values(version)
