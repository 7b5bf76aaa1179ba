"""Drafters in the hub's model tree: which are found, what is asked for, and what a hostile or silent hub can do."""

import asyncio
import json

import pytest

from dflash_tui.engines import model_config
from dflash_tui.engines.model_config import TreeDrafter
from dflash_tui.engines.model_hub import HubAccessError
from dflash_tui.planning.methods import Method
from tests.support.hub_server import Hub

TREE = "base_model:owner/big"


def config(architecture: str, **more: object) -> dict[str, bytes]:
    return {"config.json": json.dumps({"architectures": [architecture]} | more).encode(), "model.safetensors": b"w"}


@pytest.fixture
def hub(hub: Hub) -> Hub:
    """A hub with a model, two drafters of it and what else a tree has."""
    hub.repos = {
        "owner/big": config("Qwen3_5ForConditionalGeneration"),
        "owner/big-int4": config("Qwen3_5ForConditionalGeneration"),
        "z/big-DFlash": config("DFlash2DraftModel"),
        "z/plain": config("", speculators_model_type="eagle3"),
        "z/my-assistant": config("Qwen3_5ForConditionalGeneration"),
        "z/big-finetune": config("DFlashDraftModel"),
        "z/big-DFlash-GGUF": config("DFlashDraftModel"),
    }
    hub.tags = {name: [TREE] for name in hub.repos if name.startswith("z/")}
    hub.tags["z/plain"] = [TREE, "speculators"]
    hub.tags["owner/big-int4"] = [TREE, "base_model:quantized:owner/big"]
    return hub


def find(model: str = "owner/big") -> list[TreeDrafter]:
    return asyncio.run(model_config.find_tree_drafters(model))


FOUND = [TreeDrafter("z/big-DFlash", Method.DFLASH, "0.28.0"), TreeDrafter("z/plain", Method.EAGLE3)]


@pytest.mark.parametrize("model", ["owner/big", "owner/big-int4"])
def test_drafters_of_model_and_base_are_found(hub, model):
    """An assistant that serves, a finetune and a GGUF are none."""
    assert find(model) == FOUND


def test_gated_drafter_is_named_despite_closed_config(hub):
    hub.gated, hub.closed = "auto", {"z/plain"}
    open_one = TreeDrafter("z/big-DFlash", Method.DFLASH, "0.28.0", gated=True)
    assert find() == [open_one, TreeDrafter("z/plain", gated=True)]


def test_folder_or_offline_mode_asks_nothing(hub, monkeypatch, tmp_path):
    assert find(str(tmp_path)) == []
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(HubAccessError):
        find()
    assert not hub.asked
