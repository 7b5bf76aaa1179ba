"""Drafters in the hub's model tree: which are found, what is asked for, and what a hostile or silent hub can do."""

import asyncio
import json
import os
from collections.abc import Iterator

import pytest

from dflash_tui.engines.hub import client, model_tree
from dflash_tui.engines.hub.client import HubAccessError
from dflash_tui.engines.hub.model_tree import TreeDrafter
from dflash_tui.planning.methods import Method
from tests.support import hub_server
from tests.support.hub_server import Hub

TOKEN = "hf_secret_of_the_test"
TREE = "base_model:owner/big"


def config(architecture: str, **more: object) -> dict[str, bytes]:
    return {"config.json": json.dumps({"architectures": [architecture]} | more).encode(), "model.safetensors": b"w"}


@pytest.fixture
def hub(monkeypatch, tmp_path) -> Iterator[Hub]:
    """A hub with a model, two drafters of it and what else a tree has."""
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING", "TRANSFORMERS_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with hub_server.running() as served:
        served.repos = {
            "owner/big": config("Qwen3_5ForConditionalGeneration"),
            "owner/big-int4": config("Qwen3_5ForConditionalGeneration"),
            "z/big-DFlash": config("DFlash2DraftModel"),
            "z/plain": config("", speculators_model_type="eagle3"),
            "z/my-assistant": config("Qwen3_5ForConditionalGeneration"),
            "z/big-finetune": config("DFlashDraftModel"),
            "z/big-DFlash-GGUF": config("DFlashDraftModel"),
        }
        served.tags = {name: [TREE] for name in served.repos if name.startswith("z/")}
        served.tags["z/plain"] = [TREE, "speculators"]
        served.tags["owner/big-int4"] = [TREE, "base_model:quantized:owner/big"]
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        yield served


def find(model: str = "owner/big") -> list[TreeDrafter]:
    return asyncio.run(model_tree.find_tree_drafters(model))


FOUND = [TreeDrafter("z/big-DFlash", Method.DFLASH, "0.28.0"), TreeDrafter("z/plain", Method.EAGLE3)]


@pytest.mark.parametrize("model", ["owner/big", "owner/big-int4"])
def test_the_drafters_of_a_model_and_of_what_it_was_made_from(hub, model):
    """An assistant that serves, a finetune and a GGUF are none."""
    assert find(model) == FOUND


def test_nothing_but_listings_and_configurations_is_read(hub, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    find()
    paths = {asked.path for asked in hub.asked}
    configs = {f"z/{name}/resolve/main/config.json" for name in ("big-DFlash", "plain", "my-assistant")}
    assert paths == {"api/models/owner/big", "api/models"} | configs
    assert all(asked.method == "GET" and TOKEN not in asked.query for asked in hub.asked)
    assert {asked.authorization for asked in hub.asked} == {f"Bearer {TOKEN}"}
    assert not (tmp_path / "hf").exists()


def test_a_gated_drafter_is_named_though_its_config_is_closed(hub):
    hub.gated, hub.closed = "auto", {"z/plain"}
    open_one = TreeDrafter("z/big-DFlash", Method.DFLASH, "0.28.0", gated=True)
    assert find() == [open_one, TreeDrafter("z/plain", gated=True)]


def test_a_crowded_tree_is_asked_about_its_first_ones_only(hub):
    hub.tags = {f"z/dflash-{number}": [TREE] for number in range(3000)}
    hub.repos |= {name: config("DFlashDraftModel") for name in hub.tags}
    assert [each.repo for each in find()] == list(hub.tags)[: model_tree.MOST_DRAFTERS]
    assert len({asked.path for asked in hub.asked}) == 2 + model_tree.MOST_DRAFTERS


@pytest.mark.parametrize("name", ["../big-dflash", "a/b/c-dflash", "z/dflash?x=1", "z/d--flash", ""])
def test_a_name_that_no_repository_has_is_not_asked_for(hub, name):
    hub.tags = {name: [TREE]}
    assert find() == []
    assert len(hub.asked) == 2


@pytest.mark.parametrize("refusal", ["missing", "broken", "bad token"])
def test_a_hub_that_refuses_is_an_error(hub, refusal, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.refusal, hub.echo = refusal, True
    with pytest.raises(HubAccessError):
        find()


@pytest.mark.parametrize("body", [b"[1]", b"{}", b"no", b'{"id": "m", "tags": 3}', b"[" * 100_000])
def test_an_answer_that_is_none_is_an_error(hub, body: bytes, monkeypatch):
    async def answer(*_: object) -> bytes:
        return body

    monkeypatch.setattr(client, "fetch_description", answer)
    with pytest.raises(HubAccessError):
        find()
    assert not hub.asked


def test_nothing_is_asked_for_a_folder_or_offline(hub, monkeypatch, tmp_path):
    assert find(str(tmp_path)) == []
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(HubAccessError):
        find()
    assert not hub.asked


def test_a_slow_hub_holds_nobody_for_longer_than_one_answer_may_take(hub, monkeypatch):
    """Each answer is in time, and all together are not."""
    monkeypatch.setattr(client, "TIMEOUT", 0.6)
    hub.delay = 0.4
    with pytest.raises(HubAccessError):
        find()
    assert len(hub.asked) <= 2
