"""The Hugging Face cache and the token are looked for where huggingface_hub looks for them."""

import os

import pytest

from dflash_tui.engines.hub import cache


@pytest.fixture(autouse=True)
def settings(monkeypatch, tmp_path):
    """Start from an empty cache and no token."""
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING", "TRANSFORMERS_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))


def test_places_are_those_of_huggingface_hub(monkeypatch, tmp_path):
    assert cache.hub_cache_folder() == tmp_path / "hf" / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", "$HF_HOME/elsewhere")
    assert cache.hub_cache_folder() == tmp_path / "hf" / "elsewhere"
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.hub_cache_folder() == tmp_path / "xdg" / "huggingface" / "hub"
    assert cache.hub_endpoint() == "https://huggingface.co"


def test_tokens_are_found_where_huggingface_hub_finds_them(monkeypatch, tmp_path):
    assert cache.read_hub_token() is None
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "token").write_text(" from_file\n")
    assert cache.read_hub_token() == "from_file"
    (tmp_path / "other").write_text("from_path")
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "other"))
    assert cache.read_hub_token() == "from_path"
    monkeypatch.setenv("HUGGING_FACE_HUB_TOKEN", "older")
    assert cache.read_hub_token() == "older"
    monkeypatch.setenv("HF_TOKEN", "newer")
    assert cache.read_hub_token() == "newer"
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    assert cache.read_hub_token() is None
