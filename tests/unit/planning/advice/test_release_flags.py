"""Flags that are misspelt are found by the names that are shipped, for each release of the table."""

import pytest
from msgspec.structs import replace

from dflash_tui.common.formatting import suggest_nearest
from dflash_tui.engines import cli_flags
from dflash_tui.engines.inventory import ServeOptions
from dflash_tui.planning import plan_builder, releases
from dflash_tui.planning.advice import release_flags, release_values
from dflash_tui.planning.recipes import recipe_loader, resolution
from dflash_tui.planning.recipes.settings import list_flag_settings


def test_each_release_of_the_table_has_its_names():
    for version in releases.load_releases():
        flags = release_flags.list_flags(version)
        assert len(flags) > 200
    assert release_flags.list_flags("0.9.0") == frozenset()


@pytest.mark.parametrize(
    "name",
    [
        "max-model-len",
        "max_model_len",
        "no-enable-prefix-caching",
        "compilation-config.cudagraph_mode",
        "max-model",  # a beginning, as vLLM's parser completes it
        "",
    ],
)
def test_what_vllm_takes_passes(name):
    assert not release_flags.is_unknown_flag("0.33.0", name)


@pytest.mark.parametrize(
    ("vllm", "name", "nearest"),
    [
        ("0.33.0", "max-modl-len", "max-model-len"),
        ("0.33.0", "gpu-memory-utilisation", "gpu-memory-utilization"),
        ("0.26.0", "watchdog-config", ""),  # of a later release
        ("0.33.0", "calculate-kv-scales", ""),  # of an earlier one
    ],
)
def test_a_flag_that_a_release_does_not_have_is_named_with_the_nearest(vllm, name, nearest):
    assert release_flags.is_unknown_flag(vllm, name)
    [problem] = release_values.find_mistakes(vllm, [f"--{name}"])
    assert f"no flag --{name}" in problem
    assert f"did you mean {nearest}?" in problem or not nearest
    assert not release_flags.is_unknown_flag("0.99.0", name)  # of a release that is not in the table nothing is known


def test_of_thousands_of_unknown_flags_ten_are_explained(monkeypatch, snapshot):
    """To look for the nearest of each took seconds, and the sentence had tens of thousands of words."""
    searched: list[str] = []

    def search(word, *rest):
        searched.append(word)
        return suggest_nearest(word, *rest)

    monkeypatch.setattr(release_flags, "suggest_nearest", search)
    names = [f"--max-modl-len{number}" for number in range(20_000)]
    mistakes = release_values.find_mistakes("0.33.0", ["--max-num-seqs", "abc", *names])
    assert (len(mistakes), searched) == (12, [name.removeprefix("--") for name in names[:10]])
    assert "\n".join(mistakes) == snapshot


def test_an_installed_engine_explains_ten_of_thousands_too(snapshot):
    plan = plan_builder.build_plan(resolution.resolve_recipe(recipe_loader.find_recipe("gemma-4-31b")))
    known: dict[str, tuple[str, ...] | None] = {word: None for word in plan.argv if word.startswith("--")}
    words = (f"--max-modl-len{number}" for number in range(20_000))
    options = ServeOptions({**known, "--max-model-len": None}, ("method", "model", "num_speculative_tokens"))
    mistakes = cli_flags.find_flag_mistakes(replace(plan, argv=(*plan.argv, *words)), options)
    assert len(mistakes) == 11
    assert "\n".join(mistakes) == snapshot


def test_what_is_set_beside_flags_is_none():
    """Nor is taking a flag away, whether or not it was there."""
    others = ("env.A", "speculation.b", "patches.c", "start.d", "restart.times", "target.model", "n", "host", "hosts")
    assert list_flag_settings(dict.fromkeys(others, 1) | {"max_modl_len": 1, "gone": None}) == ["max_modl_len"]
