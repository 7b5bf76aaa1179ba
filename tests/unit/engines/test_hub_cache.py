"""The Hugging Face cache is looked for where huggingface_hub looks for it."""

import os

import pytest

from dflash_tui.engines import model_hub


@pytest.fixture(autouse=True)
def settings(monkeypatch, tmp_path):
    """Start from an empty cache."""
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING", "TRANSFORMERS_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))


def test_cache_folders_match_huggingface_hub(monkeypatch, tmp_path):
    assert model_hub.hub_cache_folder() == tmp_path / "hf" / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", "$HF_HOME/elsewhere")
    assert model_hub.hub_cache_folder() == tmp_path / "hf" / "elsewhere"
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert model_hub.hub_cache_folder() == tmp_path / "xdg" / "huggingface" / "hub"
    assert model_hub.hub_endpoint() == "https://huggingface.co"
