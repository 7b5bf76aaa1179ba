"""Models on the hub and in its cache: what may be fetched, what is there, what a silent hub can do."""

import asyncio
import json
import socket
import time
from pathlib import Path

import pytest

from dflash_tui.engines import model_hub
from dflash_tui.engines.model_hub import Access, ModelAvailability
from tests.support import hub_server
from tests.support.hub_server import COMMIT, Hub

TOKEN = "hf_secret_of_the_test"
FILES = {
    "config.json": b'{"architectures": []}',
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ x }}",
    "model-00001-of-00002.safetensors": b"a" * 3000,
    "model-00002-of-00002.safetensors": b"b" * 2000,
    "model.safetensors.index.json": json.dumps(
        {"weight_map": {"x": "model-00001-of-00002.safetensors", "y": "model-00002-of-00002.safetensors"}}
    ).encode(),
    "additional_chat_templates/rag.jinja": b"{{ y }}",
    # vLLM does not load these:
    "pytorch_model.bin": b"c" * 9000,
    "original/consolidated.safetensors": b"d" * 9000,
    "README.md": b"# Model",
    "model.gguf": b"e" * 9000,
}
LOADED = {name: data for name, data in FILES.items() if data[:1] not in {b"c", b"d", b"e", b"#"}}
TOTAL = sum(len(data) for data in LOADED.values())


@pytest.fixture
def server(hub: Hub) -> Hub:
    hub.repos["owner/m"] = FILES
    return hub


def look(repo: str = "owner/m", revision: str = "main") -> ModelAvailability:
    return asyncio.run(model_hub.look_up_model(repo, revision))


def cache(files: dict[str, bytes], repo: str = "owner/m") -> Path:
    """Put files into the cache as huggingface_hub does."""
    at = model_hub.repository_folder(repo)
    (at / "refs").mkdir(parents=True, exist_ok=True)
    (at / "refs" / "main").write_text(COMMIT)
    for name, data in files.items():
        blob, link = at / "blobs" / hub_server.etag(name, data), at / "snapshots" / COMMIT / name
        for path in (blob, link):
            path.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        link.symlink_to(blob)
    return at


def test_an_open_model_is_measured(server):
    """Without a cache everything that vLLM loads is missing, and nothing else is counted."""
    model = look()
    assert (model.access, model.gated, model.commit) == (Access.OPEN, False, COMMIT)
    assert (model.total_bytes, model.cached_bytes, model.missing_bytes) == (TOTAL, 0, TOTAL)
    assert not model.complete
    assert {file.name for file in model.files} == set(LOADED)
    assert model_hub.advise_access(model) == ""


def test_complete_model_has_all_files(server):
    """Every file in its full length."""
    at = cache(LOADED)
    model = look()
    assert model.complete
    assert model.folder == str(at / "snapshots" / COMMIT)
    assert (model.cached_bytes, model.missing_bytes) == (TOTAL, 0)


def test_partial_download_counts_as_present(server):
    """The part of a download of ours, and not what a killed huggingface_hub left, which resumes nothing."""
    name = "model-00001-of-00002.safetensors"
    at = cache({other: data for other, data in LOADED.items() if other != name})
    blob = at / "blobs" / hub_server.etag(name, FILES[name])
    Path(f"{blob}.incomplete").write_bytes(b"a" * 1000)
    Path(f"{blob}.0a1b2c3d.incomplete").write_bytes(b"a" * 2000)
    model = look()
    assert (model.missing_bytes, model.complete) == (2000, False)


def test_no_weights_is_reported(server):
    """A repository that vLLM cannot load is not complete with its README."""
    server.repos["owner/m"] = {"config.json": b"{}"}
    model = look()
    assert (model.complete, model.missing_bytes) == (False, None)
    assert "no *.safetensors" in model.detail


@pytest.mark.parametrize(
    ("refusal", "token", "expected"),
    [
        ("anonymous", "", (Access.NEEDS_TOKEN, "HF_TOKEN")),
        ("anonymous", TOKEN, (Access.TOKEN_REFUSED, "valid one")),
        ("terms", TOKEN, (Access.TERMS_NOT_ACCEPTED, "/owner/m with the account")),
        ("missing", "", (Access.NOT_FOUND, "spelling")),
        ("revision", "", (Access.REVISION_NOT_FOUND, "branch, tag or commit")),
        ("forbidden", TOKEN, (Access.TOKEN_REFUSED, "valid one")),
        ("broken", "", (Access.UNREACHABLE, "network")),
    ],
)
def test_refusal_gives_hint(server, monkeypatch, refusal, token, expected):
    """The evidence is the hub's own words, on one line."""
    server.refusal = refusal
    monkeypatch.setenv("HF_TOKEN", token)
    model = look()
    access, words = expected
    assert model.access == access
    assert str(hub_server.REFUSALS[refusal][0]) in model.detail
    assert words in model_hub.advise_access(model)
    assert TOKEN not in repr(model) + model_hub.advise_access(model)
    assert model.detail.isprintable()


def test_a_slow_hub_does_not_hold_us(server, monkeypatch):
    monkeypatch.setattr(model_hub, "TIMEOUT", 0.5)
    server.delay = 60.0
    began = time.monotonic()
    model = look()
    assert (model.access, model.detail[:9]) == (Access.UNREACHABLE, "no answer")
    assert time.monotonic() - began < 50


def test_whole_snapshot_is_complete_without_hub(hub, monkeypatch):
    """By its own index: every shard that it names, and no fewer."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")
        at = cache(LOADED)
        model = look()
        assert (model.access, model.complete) == (Access.UNREACHABLE, True)
        assert "Connect" in model.detail
        (at / "snapshots" / COMMIT / "model-00002-of-00002.safetensors").unlink()
        assert not look().complete
        (at / "snapshots" / COMMIT / "model.safetensors.index.json").unlink()
        assert not look().complete


def test_offline_mode_sends_no_request(server, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    cache(LOADED)
    model = look()
    assert (model.access, model.complete, model.commit) == (Access.OFFLINE, True, COMMIT)
    assert not server.asked
    assert look("owner/other").complete is False


def test_model_folder_is_used_unchanged(server, tmp_path):
    (tmp_path / "config.json").write_bytes(b"{}")
    model = look(str(tmp_path))
    assert (model.complete, model.total_bytes, model.folder) == (True, None, str(tmp_path))  # its weights are not here
    (tmp_path / "model.safetensors").write_bytes(b"wwww")
    assert look(str(tmp_path)).total_bytes == 6
    assert not server.asked


def test_cache_folders_match_huggingface_hub(hub, monkeypatch, tmp_path):
    assert model_hub.hub_cache_folder() == tmp_path / "hf" / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", "$HF_HOME/elsewhere")
    assert model_hub.hub_cache_folder() == tmp_path / "hf" / "elsewhere"
    for name in ("HF_HUB_CACHE", "HF_HOME", "HF_ENDPOINT"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert model_hub.hub_cache_folder() == tmp_path / "xdg" / "huggingface" / "hub"
    assert model_hub.hub_endpoint() == "https://huggingface.co"
