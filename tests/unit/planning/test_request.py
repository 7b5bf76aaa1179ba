"""What is asked to be launched, as a value: changed, typed out again, and read from the records of earlier releases."""

import msgspec
import pytest
from msgspec.structs import replace

from dflash_tui.common.errors import UsageError
from dflash_tui.planning.plan import Plan, decode_record, upgrade_label, upgrade_plan, upgrade_record
from dflash_tui.planning.recipes.recipe import Mode
from dflash_tui.planning.request import LaunchChanges, LaunchRequest, parse_settings
from tests.support.experiment_factories import a_plan

FULL = LaunchRequest(
    recipe="toy", profile="seed", variant="fp8", mode=Mode.EAGER, port=8123, num_speculative_tokens=0, gpu="0,1",
    vllm="0.26.0", engine="mine", settings={"max-model-len": "99", "env.A": "b c"},
)  # fmt: skip
OPTIONS = {
    "": "toy", "--profile": "seed", "--variant": "fp8", "--mode": "eager", "--port": "8123",
    "--num-speculative-tokens": "0", "--gpu": "0,1", "--vllm": "0.26.0", "--engine": "mine",
    "--set max-model-len": "99", "--set env.A": "b c",
}  # fmt: skip


def test_request_becomes_command_line_options():
    assert LaunchRequest(recipe="toy").to_command() == "dflash-tui up toy"
    assert FULL.to_argv() == [
        "toy", "--profile", "seed", "--variant", "fp8", "--mode", "eager", "--port", "8123",
        "--num-speculative-tokens", "0", "--gpu", "0,1", "--vllm", "0.26.0", "--engine", "mine",
        "--set", "max-model-len=99", "--set", "env.A=b c",
    ]  # fmt: skip


def test_changes_replace_add_and_take_back():
    changes = LaunchChanges(
        port=8200, removed=("mode", "engine"), settings={"env.A": "d", "x": "null"}, removed_settings=("max-model-len",)
    )
    changed = FULL.with_changes(changes)
    assert (changed.port, changed.mode, changed.engine, changed.vllm) == (8200, None, None, "0.26.0")
    assert changed.settings == {"env.A": "d", "x": "null"}
    assert FULL.with_changes(LaunchChanges()) == FULL
    assert (bool(changes), bool(LaunchChanges())) == (True, False)


def test_the_options_of_earlier_releases_are_read():
    """As run.json and experiment.json held them: names of options, with text for values."""
    assert LaunchRequest.from_options(OPTIONS) == FULL
    assert LaunchRequest.from_options({"": "toy"}) == LaunchRequest(recipe="toy")


def test_plan_of_earlier_release_is_upgraded_unchanged():
    """Its fields have other names, and its request is a mapping of options."""
    plan = replace(
        a_plan(), request=FULL, recipe="toy", skipped_patches={"a": "b"}, disabled_patches=("c",), deviations={"d": "e"}
    )
    fields = msgspec.to_builtins(plan)
    for name, before in (("skipped_patches", "unneeded"), ("disabled_patches", "unpatched"), ("deviations", "differs")):
        fields[before] = fields.pop(name)
    fields["asked"] = OPTIONS
    del fields["request"]
    assert msgspec.convert(upgrade_plan(fields), Plan) == plan
    assert msgspec.convert(upgrade_plan(fields | {"asked": {}}), Plan).request is None


def test_repeated_part_of_old_label_is_removed():
    """By hand and by the settings, in any record; what only looks alike stays."""
    label = "random weights, synthetic acceptance length 7.8; synthetic acceptance"
    data = msgspec.json.encode({"plan": {"recipe": "toy", "synthetic": label}})
    read = decode_record(data, msgspec.json.Decoder(dict), upgrade_record)
    assert read["plan"]["synthetic"] == label.partition("; ")[0]
    assert upgrade_label("synthetic acceptance; toys") == "synthetic acceptance; toys"


def test_secrets_are_left_out():
    token = "hf_planted0123456789abcdef"
    request = LaunchRequest(
        recipe="toy", engine=f"/x/{token}", settings={"env.X_TOKEN": "secret", "y": token, "z": "1"}
    )
    without = request.without_secrets()
    assert token not in msgspec.json.encode(without).decode()
    assert (without.settings["env.X_TOKEN"] != "secret", without.settings["z"]) == (True, "1")


def test_settings_are_yaml_except_names_and_variables():
    """1.10 is not 1.1 where it is a name; null takes a key away everywhere."""
    values = parse_settings(
        {"a": "1", "b": "{x: [1]}", "env.C": "1.10", "target.model": "true", "env.D": "null", "e": ""}
    )
    assert values == {"a": 1, "b": {"x": [1]}, "env.C": "1.10", "target.model": "true", "env.D": None, "e": ""}
    with pytest.raises(UsageError, match=r"^--set a: "):
        parse_settings({"a": "{"})
