"""Flags that are misspelt are found by the names that are shipped, for each release of the table."""

import pytest

from dflash_tui.planning import releases
from dflash_tui.planning.advice import release_flags
from dflash_tui.planning.powers import harmless_options
from dflash_tui.planning.recipes.settings import list_flag_settings


def test_each_release_of_the_table_has_its_names():
    for version in releases.load_releases():
        flags = release_flags.list_flags(version)
        assert len(flags) > 200
        assert harmless_options.list_harmless_flags(version) <= flags
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
    assert release_flags.explain_unknown_flag("0.33.0", name) == ""


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
    problem = release_flags.explain_unknown_flag(vllm, name)
    assert problem
    assert f"did you mean {nearest}?" in problem or not nearest
    assert (
        release_flags.explain_unknown_flag("0.99.0", name) == ""
    )  # of a release that is not in the table nothing is known


def test_what_is_set_beside_flags_is_none():
    """Nor is taking a flag away, whether or not it was there."""
    others = ("env.A", "speculation.b", "patches.c", "start.d", "restart.times", "target.model", "n", "host", "hosts")
    assert list_flag_settings(dict.fromkeys(others, 1) | {"max_modl_len": 1, "gone": None}) == ["max_modl_len"]
