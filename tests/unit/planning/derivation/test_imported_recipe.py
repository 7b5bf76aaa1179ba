"""Commands that start vLLM, as people write them, become recipes; what does not fit into one is said."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_tui.common.errors import UsageError
from dflash_tui.planning import serve_flags
from dflash_tui.planning.derivation.imported_recipe import ImportedRecipe, import_recipe
from dflash_tui.planning.methods import Method
from dflash_tui.planning.recipes import recipe_loader, resolution
from dflash_tui.planning.recipes.recipe import Mode, Recipe
from dflash_tui.planning.serve_flags import build_flag
from tests import ROOT

PUBLISHED = yaml.load((ROOT / "tests/data/published.yaml").read_text(), Loader=yaml.CSafeLoader)


def imported(command: str) -> ImportedRecipe:
    return import_recipe([command])


def recipe_of(command: str, tmp_path: Path) -> Recipe:
    made = imported(command)
    path = tmp_path / f"{made.name}.yaml"
    path.write_text(made.text)
    return recipe_loader.load_recipe(path)


@pytest.mark.parametrize("entry", PUBLISHED, ids=lambda entry: entry["name"])
def test_a_published_command_keeps_all_its_flags(entry, tmp_path):
    method, drafter = entry.get("method", "dflash"), entry.get("drafter")
    speculation = {"method": method, "num_speculative_tokens": entry["n"]} | entry.get("speculation", {})
    speculation |= {"model": drafter} if drafter else {}
    flags = {**entry["flags"], "speculative-config": speculation}
    words = [word for name, value in flags.items() for word in build_flag(name, value)]
    env = [f"{name}={value}" for name, value in entry.get("env", {}).items()]
    recipe = recipe_of(shlex.join([*env, "vllm", "serve", entry["target"], *words]), tmp_path)
    kept = {name: value for name, value in entry["flags"].items() if not serve_flags.explain_reserved_flag(name)}
    assert recipe.flags == kept
    assert recipe.env == {name: str(value) for name, value in entry.get("env", {}).items()}
    resolved = resolution.resolve_recipe(recipe)
    assert (resolved.method, resolved.num_speculative_tokens) == (method, entry["n"])
    assert (resolved.target.model, resolved.drafter.model if resolved.drafter else None) == (entry["target"], drafter)
    assert recipe.mode is (Mode.EAGER if entry["flags"].get("enforce-eager") else Mode.COMPILE)


def test_too_deeply_nested_value_stays_text():
    for depth in (14, 15, 400):
        deep = "{" + '"x":{' * (depth - 1) + "}" * depth
        flags = yaml.safe_load(imported(f"vllm serve a/B --hf-overrides '{deep}'").text)["flags"]
        assert isinstance(flags["hf-overrides"], dict) is (depth == 14)


SERVE = "vllm serve a/B --max-num-seqs 8"
SAME = {"max-num-seqs": 8}
WRITTEN: dict[str, dict[str, Any]] = {
    SERVE: SAME,
    "VLLM_X=1 /opt/bin/vllm serve a/B --max-num-seqs=8 | tee log": SAME,
    "vllm serve a/B --trust-remote-code -tp 2 -O3": {"trust-remote-code": True, "tensor-parallel-size": 2,
                                                     "optimization-level": 3},
    "vllm serve a/B --no-enable-prefix-caching --seed -1": {"enable-prefix-caching": False, "seed": -1},
    "vllm serve a/B --x 007 --y 0.80 --z 1e3": {"x": "007", "y": "0.80", "z": "1e3"},
    "vllm serve a/B --cudagraph-capture-sizes 1 2 4": {"cudagraph-capture-sizes": ["1", "2", "4"]},
    """vllm serve a/B --limit-mm-per-prompt '{"image": 0}' -cc.mode 3""":
        {"limit-mm-per-prompt": {"image": 0}, "compilation-config.mode": 3},
    "vllm serve a/B \\\n  --max-num-seqs 8  # a comment": SAME,
}  # fmt: skip


@pytest.mark.parametrize(("command", "flags"), WRITTEN.items(), ids=map(str, range(len(WRITTEN))))
def test_command_is_read_in_every_notation(command, flags, tmp_path):
    recipe = recipe_of(command, tmp_path)
    assert recipe.target.model == "a/B"
    assert recipe.flags == flags
    assert (recipe.method, recipe.num_speculative_tokens, recipe.drafter) == (Method.NONE, 0, None)


@pytest.mark.parametrize(
    ("words", "method", "tokens", "drafter"),
    [
        ("""-sc '{"method": "mtp", "num_speculative_tokens": 3}'""", Method.MTP, 3, None),
        ("""-sc '{"method": "qwen3_5_mtp", "num_speculative_tokens": 2}'""", Method.MTP, 2, None),
        ("""-sc '{"method": "mtp"}'""", Method.MTP, 1, None),
        ("""-sc '{"model": "z/X-DFlash", "num_speculative_tokens": 7}'""", Method.DFLASH, 7, "z/X-DFlash"),
        ("--spec-model z/small --spec-tokens 4", Method.DRAFT_MODEL, 4, "z/small"),
        ("--speculative-config.method ngram --speculative-config.num_speculative_tokens 5", Method.NGRAM, 5, None),
    ],
)
def test_speculation_becomes_method_drafter_and_drafts(words, method, tokens, drafter, tmp_path):
    recipe = recipe_of(f"vllm serve a/B {words}", tmp_path)
    assert (recipe.method, recipe.num_speculative_tokens) == (method, tokens)
    assert (recipe.drafter.model if recipe.drafter else None) == drafter
    assert not recipe.flags


def test_import_reports_omissions_and_keeps_no_secret():
    key, token = "sk-0123456789abcdefghij", "hf_0123456789abcdefghijABCDEFGHIJ"
    made = imported(
        f"HF_TOKEN={token} WANDB_API_KEY={key} vllm serve a/B extra --api-key {key} "
        f"--host 0.0.0.0 --uds /tmp/x --served-model-name one two"
        """ -sc '{"method": "medusa", "num_speculative_tokens": 3}'"""
    )
    left = [each.what for each in made.left_out]
    assert [each.split()[0] for each in left] == [
        "extra", "--served-model-name", "--host", "--speculative-config", "env", "env", "--api-key", "--uds",
    ]  # fmt: skip
    assert key not in made.text
    assert token not in made.text
    assert not any(secret in f"{each.what}{each.why}" for each in made.left_out for secret in (key, token))


REFUSED = {
    "no vLLM": "rm -rf /",
    "quotes": "vllm serve 'a/B",
    "no model": "vllm serve --max-num-seqs 8",
    "a variable": "vllm serve $MODEL",
    "no drafts": """vllm serve a/B -sc '{"method": "dflash", "model": "z/X"}'""",
}


@pytest.mark.parametrize("command", REFUSED.values(), ids=REFUSED)
def test_command_unfit_for_recipe_is_refused(command):
    with pytest.raises(UsageError):
        imported(command)
