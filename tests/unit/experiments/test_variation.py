"""What `--vary` says, as arms and as the order of their boots."""

import pytest

from dflash_tui.common.errors import UsageError
from dflash_tui.experiments import variation
from dflash_tui.planning.recipes.recipe import Mode
from dflash_tui.planning.request import LaunchChanges as Changes


def setting(name: str, value: str) -> Changes:
    return Changes(settings={name: value})


@pytest.mark.parametrize(
    ("words", "arms"),
    [
        ("mode=eager,compile", {"eager": Changes(mode=Mode.EAGER), "compile": Changes(mode=Mode.COMPILE)}),
        ("mode=eager, compile", {"eager": Changes(mode=Mode.EAGER), "compile": Changes(mode=Mode.COMPILE)}),
        ("vllm=0.26.0,0.32.0", {"0.26.0": Changes(vllm="0.26.0"), "0.32.0": Changes(vllm="0.32.0")}),
        ("variant=none,fp8", {"none": Changes(removed=("variant",)), "fp8": Changes(variant="fp8")}),
        ("env.A=1,0", {"1": setting("env.A", "1"), "0": setting("env.A", "0")}),
        ("patch.x=on,off", {"on": setting("patches.x", "true"), "off": setting("patches.x", "false")}),
        (
            "spec=on,off",
            {
                "on": Changes(removed=("num_speculative_tokens",), removed_settings=("n",)),
                "off": Changes(num_speculative_tokens=0, removed_settings=("n",)),
            },
        ),
        (
            'compilation-config={"level": 3, "x": [1, 2]},{"level": 0}',
            {
                '{"level": 3, "x": [1, 2]}': setting("compilation-config", '{"level": 3, "x": [1, 2]}'),
                '{"level": 0}': setting("compilation-config", '{"level": 0}'),
            },
        ),
        ('env.LIST="a,b",c', {"a,b": setting("env.LIST", "a,b"), "c": setting("env.LIST", "c")}),
        ("async-scheduling=true,false", {v: setting("async-scheduling", v) for v in ("true", "false")}),
    ],
)
def test_values_become_arms(words, arms):
    """Every key leads to what it changes of the launch; JSON and quoted values may hold commas."""
    assert variation.parse_variation(words).arms == arms


def test_a_value_given_twice_makes_two_arms():
    """That is how a launch is compared with itself."""
    assert list(variation.parse_variation("mode=eager,eager,eager").arms) == ["eager", "eager (2)", "eager (3)"]


def test_a_sweep_keeps_its_order():
    """The numbers are the arms' names."""
    assert list(variation.parse_variation("n=0,4,15").arms) == ["0", "4", "15"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("mode", "KEY=VALUE"),
        ("=a,b", "KEY=VALUE"),
        ("mode=eager", "at least two values"),
        ("mode=", "at least two values"),
        ("mode=eager,slow", "eager, graphs or compile"),
        ("profile=stock,--json", "not a name"),
        ("n=4,many", "whole numbers"),
        ("n=4,65", "whole numbers"),
        ("spec=yes,no", "on or off"),
        ("patch.x=1,0", "on or off"),
        ("x={a,b", "separated by commas"),
        ("x=a],[b", "separated by commas"),
        ("x=a,,b", "separated by commas"),
        ("x='',b", "empty"),
        ("port=1,2", "same for all arms"),
        ("enable-prefix-caching=true,false", "made unique so that no cache answers"),
        ("--no_enable_prefix_caching=true,false", "has no effect here"),
        ("prefix-caching-hash-algo=sha256,xxhash", "has no effect here"),
    ],
)
def test_invalid_variation_is_reported(words, said):
    """A mistake is told before anything begins."""
    with pytest.raises(UsageError, match=said):
        variation.parse_variation(words)


def test_repeated_prompts_allow_varying_prefix_cache():
    varied = variation.parse_variation("no-enable-prefix-caching=true,false", repeated=True)
    assert list(varied.arms) == ["true", "false"]


def test_the_order_is_mirrored():
    """A B, or A B B A; a sweep goes forward and backward."""
    assert variation.order_boots(2, 1) == (0, 1)
    assert variation.order_boots(2, 2) == (0, 1, 1, 0)
    assert variation.order_boots(3, 3) == (0, 1, 2, 2, 1, 0, 0, 1, 2)
