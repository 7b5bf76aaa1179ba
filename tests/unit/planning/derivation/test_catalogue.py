"""The catalogue of published pairs: what is in it, what fits, and what of a file of others is believed."""

import json
from typing import Any

import pytest
import yaml

from dflash_tui.common import private_files
from dflash_tui.common.errors import UsageError
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.derivation import catalogue
from dflash_tui.planning.methods import FACTS, DrafterUse, Method
from tests.support.build_catalogue import build_catalogue
from tests.support.values import present

SHIPPED = json.loads(catalogue.SHIPPED.read_bytes())
STUDY = """
about: {written: '2026-11-22'}
sources: {cards: cards, unused: nobody cites it}
targets:
  toy-1b:
    {architecture: Qwen3ForCausalLM, licence: not confirmed, gated: false, context: 40960, kv_gib_at_32k_bf16: 1.5,
     oldest_vllm: <=0.19.1, variants: [{repo: someone/Toy-1B, precision: bf16, size_gb: null, source: cards}]}
pairs:
- {id: toy-1b/mtp, target: toy-1b, method: mtp, drafter: null, n_published: 3, n_most: any, oldest_vllm: <=0.19.1,
   drafter_gated: a user says so, command: vllm serve, fits: [], sources: [cards], unconfirmed: [n],
   figures: [{hardware: 1x gb10, what: tok/s, value: 31.7, source: cards, n: null, date: 2026-08},
             {hardware: 1x gb10, what: tok/s, value: slower, source: forum, note: under load}]}
"""


def test_a_study_becomes_facts_with_their_sources():
    study = yaml.safe_load(STUDY)
    made = catalogue.decode_catalogue(json.dumps(build_catalogue(study)).encode())
    [pair] = made.pairs
    assert (pair.tokens, pair.most_tokens, pair.oldest_vllm, pair.drafter_gated) == (3, None, None, None)
    assert [(figure.values, figure.note) for figure in pair.figures] == [((31.7,), None), ((), "slower; under load")]
    assert (made.sources, pair.unconfirmed) == ({"cards": "cards"}, ("n",))
    target = made.targets["toy-1b"]
    assert (target.kv_gib, target.licence, target.variants[0].size_gb) == (1.5, "", None)


def test_shipped_catalogue_names_source_of_each_figure():
    shipped = catalogue.load_catalogue()
    assert (len(shipped.pairs), len(shipped.targets)) == (80, 47)
    assert all(figure.source and (figure.values or figure.note) for pair in shipped.pairs for figure in pair.figures)
    assert all(pair.sources for pair in shipped.pairs)
    assert not {pair.id for pair in shipped.pairs if pair.drafter and FACTS[pair.method].drafter is DrafterUse.NEVER}


@pytest.mark.parametrize(
    ("pair", "hardware", "repos"),
    [
        ("qwen3.8-27b/dflash2", Hardware.RTX_5090_LAPTOP, []),
        ("qwen3.8-27b/dflash2", Hardware.RTX_5090,
         ["unsloth/Qwen3.8-27B-NVFP4", "RedHatAI/Qwen3.8-27B-INT4", "RedHatAI/Qwen3.8-27B-NVFP4"]),
        ("gpt-oss-120b/dflash", Hardware.GB10, ["openai/gpt-oss-120b"]),
        ("glm-5.3-flash/mtp", Hardware.H200, []),
    ],
)  # fmt: skip
def test_pairs_that_fit_machine(pair, hardware, repos):
    shipped, budget = catalogue.load_catalogue(), present(catalogue.typical_budget(hardware))
    [chosen] = [each for each in shipped.pairs if each.id == pair]
    assert [model.repo for model in catalogue.list_fitting_models(shipped, chosen, budget)] == repos
    best = catalogue.choose_model(shipped, chosen, budget)
    assert best
    assert best.repo == (repos[0] if repos else shipped.targets[chosen.target].variants[0].repo)


@pytest.mark.parametrize(
    ("model", "methods"),
    [
        ("Qwen/Qwen3.8-27B", [Method.DFLASH, Method.MTP, Method.DSPARK, Method.NONE]),
        ("qwen/QWEN3.8-27b-fp8", [Method.DFLASH, Method.MTP, Method.DSPARK, Method.NONE]),
        ("/models/gemma-4-12B-it/", [Method.MTP]),
        ("somebody/Mellum2-12B-A2.5B-Thinking-AWQ", [Method.DFLASH]),
        ("someone/unheard-of", []),
    ],
)
def test_a_model_finds_its_pairs(model, methods):
    assert {pair.method for pair in catalogue.find_pairs(catalogue.load_catalogue(), model)} == set(methods)


def changed(**fields: Any) -> bytes:
    return json.dumps(SHIPPED | fields).encode()


LYING: dict[str, bytes] = {
    "not JSON": b"{",
    "no day": changed(written="tomorrow"),
    "an unknown key": changed(run="rm"),
    "an unknown method": changed(pairs=[SHIPPED["pairs"][0] | {"method": "magic"}]),
    "an id that climbs": changed(pairs=[SHIPPED["pairs"][0] | {"id": "../../x"}]),
    "a pair without a target": changed(pairs=[SHIPPED["pairs"][0] | {"target": "nobody"}]),
    "a folder as drafter": changed(pairs=[SHIPPED["pairs"][0] | {"drafter": "/tmp/x"}]),
    "an option as drafter": changed(pairs=[SHIPPED["pairs"][0] | {"drafter": "--trust"}]),
}


@pytest.mark.parametrize("data", LYING.values(), ids=LYING)
def test_invalid_catalogue_is_refused(data):
    with pytest.raises(UsageError):
        catalogue.decode_catalogue(data)


def test_newer_valid_catalogue_wins():
    own = catalogue.own_catalogue_file()
    private_files.ensure_private_folder(own.parent)
    for data, written in (
        (changed(written="2199-01-01"), "2199-01-01"),
        (changed(written="2020-01-01"), ""),
        (b"x", ""),
    ):
        own.write_bytes(data)
        own.chmod(0o600)
        assert catalogue.load_catalogue().written == (written or SHIPPED["written"])
