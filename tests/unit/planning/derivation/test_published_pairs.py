"""Every pair of the catalogue, derived from configs at the public shapes, comes to what was published of it."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.version import Version

from dflash_tui.launch.preflight.pair import check_pair
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning import serve_flags
from dflash_tui.planning.derivation import catalogue
from dflash_tui.planning.derivation.catalogue import CataloguePair
from dflash_tui.planning.derivation.checkpoint import read_checkpoint
from dflash_tui.planning.derivation.pair import DerivedPair, derive_pair, name_recipe, write_recipe_text
from dflash_tui.planning.methods import Method
from dflash_tui.planning.plan_builder import build_plan
from dflash_tui.planning.recipes import recipe_loader, resolution

Config = dict[str, Any]
CONFIGS = Path(__file__).parents[3] / "data/pairs.yaml"
PAIRS = {pair.id: pair for pair in catalogue.load_catalogue().pairs}
FEWER = "fewer than the block holds were published, as the faster choice on that machine"
DEEPER = "the commands of this model run its one layer more often than the 3 times of the others; no config says so"
CARD = "the card of the model begins with this release; its architecture is in earlier ones"
# What no config tells: pair -> what differs from what was published -> why.
EXCEPTIONS: dict[str, dict[str, str]] = {
    "qwen3.5-27b/mtp": {"tokens": "one draft was published before 3 became usual for this family"},
    "qwen3.5-35b-a3b/mtp": {"tokens": "one draft was published before 3 became usual for this family"},
    "qwen3.5-122b-a10b/dflash": {"tokens": FEWER},
    "gemma-4-31b/dflash-redhat": {
        "release": "the published set-up begins with 0.24.0; no rule asks for more than 0.23"
    },
    "gemma-4-26b-a4b/eagle3": {
        "release": "the published recipe begins with 0.25.0; its drafter is in earlier releases"
    },
    "nemotron-3.5-lightning/dspark": {"tokens": FEWER, "release": CARD},
    "nemotron-3.5-lightning/dflash": {"tokens": FEWER, "release": CARD},
    "nemotron-3.5-lightning/mtp": {"release": CARD},
    "nemotron-3-super/mtp": {"release": CARD},
    "nemotron-3-super/dflash": {"release": CARD},
    "nemotron-3-ultra/dflash": {"release": CARD},
    "laguna-xs.2/dflash": {"release": "published on 0.22.0, whose prefix cache corrupts what a DFlash drafter reads"},
    "laguna-s-2.1/dflash": {"tokens": FEWER},
    "gpt-oss-120b/eagle3": {"tokens": "the card asks for 7; its config says nothing"},
    "glm-5.3-flash/mtp": {"tokens": DEEPER},
    "glm-5.2/mtp": {"tokens": DEEPER},
}


@cache
def read_configs() -> dict[str, dict[str, Config]]:
    """Return the shapes of targets and drafters."""
    configs: dict[str, dict[str, Config]] = yaml.load(CONFIGS.read_text(), Loader=yaml.CSafeLoader)
    return configs


def build_drafter(shape: Config, hidden: int) -> Config:
    """Return a config.json from the short form of the file."""
    slide, full = shape["layers"]
    body = {"hidden_size": shape.get("hidden_size", hidden), "num_hidden_layers": slide + full, "sliding_window": 2048,
            "layer_types": ["sliding_attention"] * slide + ["full_attention"] * full}  # fmt: skip
    own = {"mask_token_id": 4, "target_layer_ids": shape.get("reads", [1])}
    own |= {"use_swa": True} if "use_swa" in shape else {}
    more = {name: shape[name] for name in ("model_type", "draft_vocab_size") if name in shape}
    if kind := shape.get("speculators"):
        asks = {"proposal_methods": [{"speculative_tokens": shape["asks"]}]}
        ids = {"mask_token_id": 4, "aux_hidden_state_layer_ids": shape.get("reads", [1])}
        return (
            {"speculators_model_type": kind, "transformer_layer_config": body, "speculators_config": asks} | ids | more
        )
    block = {"block_size": shape["block"]} if "block" in shape else {}
    return {"architectures": [shape.get("architecture", "")], "dflash_config": own} | body | block | more


def derive_published(pair: CataloguePair) -> DerivedPair:
    """Return what is derived from the configs of a pair."""
    configs, target = read_configs(), catalogue.load_catalogue().targets[pair.target]
    shape = configs["targets"][pair.target]
    served = read_checkpoint(
        target.variants[0].repo.replace(" ", "/"), {"architectures": [target.architecture], **shape}
    )
    drafter = None
    if pair.drafter:
        config = build_drafter(configs["drafters"][pair.id], shape["hidden_size"])
        drafter = read_checkpoint(pair.drafter.replace(" ", "/"), config)
    return derive_pair(served, drafter, Method.NONE if pair.method is Method.NONE else None)


@pytest.mark.parametrize("pair", PAIRS.values(), ids=lambda pair: pair.id)
def test_published_pairs_are_derived_except_known_exceptions(pair, tmp_path):
    derived = derive_published(pair)
    oldest = str(derived.oldest_vllm) if derived.oldest_vllm else None
    differs = {"method"} if derived.method is not pair.method else set()
    differs |= {"tokens"} if pair.tokens is not None and derived.tokens != pair.tokens else set()
    differs |= {"release"} if oldest != pair.oldest_vllm else set()
    assert all(fact.rule for fact in derived.facts)
    assert differs == set(EXCEPTIONS.get(pair.id, {})), (derived.method, derived.tokens, oldest)

    path = tmp_path / f"{name_recipe(derived)}.yaml"
    path.write_text(write_recipe_text(derived))
    resolved = resolution.resolve_recipe(recipe_loader.load_recipe(path))
    assert (resolved.method, resolved.num_speculative_tokens) == (pair.method, derived.tokens)
    least = next(each for each in recipe_loader.load_releases() if not oldest or Version(each) >= Version(oldest))
    for release in {least, resolved.engine.vllm}:  # the flags of both were read from their wheels
        for hardware in (Hardware.GB10, Hardware.RTX_5090, Hardware.H100):
            launched = resolution.resolve_recipe(
                recipe_loader.load_recipe(path), hardware, engine=recipe_loader.engine_for_release(release)
            )
            plan = build_plan(launched)
            assert serve_flags.find_mistakes(release, plan.argv[3:]) == []
            assert [check for check in check_pair(launched, plan) if check.name != "attention"] == []
