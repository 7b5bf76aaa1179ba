"""A token of the environment, or one given by mistake, is in no option and in nothing that leaves the machine."""

from pathlib import Path

import pytest

from dflash_tui.experiments import store
from tests.cli.test_escapes import told
from tests.support import fake_engine

PLANT = "hf_Pl4ntedPl4ntedPl4ntedPl4nted"
ENV = {
    "HF_TOKEN": PLANT, "HUGGING_FACE_HUB_TOKEN": PLANT, "VLLM_API_KEY": f"{PLANT}key", "DFLASH_TUI_API_KEY": PLANT,
    "OPENAI_API_KEY": PLANT, "UV_INDEX_URL": f"https://me:{PLANT}@127.0.0.1:9/simple", "MY_PASSWORD": f"{PLANT}!",
}  # fmt: skip
REFUSED = (
    ("plan", "fake", "--set", f"env.X_TOKEN={PLANT}"),
    ("plan", "fake", "--set", f"env.HARMLESS={PLANT}"),
    ("plan", "fake", "--set", f"api-key={PLANT}"),
    ("plan", "fake", "--set", f"hf-token={PLANT}"),
    ("plan", "fake", "--set", f"otlp-traces-endpoint=http://me:{PLANT}@host"),
    ("ab", "fake", "--vary", f"env.X_TOKEN={PLANT},other", "--yes"),
    ("ab", "fake", "--vary", f"env.HARMLESS={PLANT},other", "--yes"),
    ("plan", "fake", "--set", f"ssl-keyfile-password={PLANT}"),
    ("plan", "fake", "--set", f"model-loader-extra-config.aws_secret_access_key={PLANT}"),
    ("plan", "fake", "--set", f"speculation.auth_token={PLANT}"),
    ("attach", f"http://me:{PLANT}@127.0.0.1:9", "--plain"),
)


@pytest.fixture
def planted(monkeypatch):
    for name, value in ENV.items():
        monkeypatch.setenv(name, value)


def test_token_in_option_is_refused_before_writing(planted, folders):
    """With what to do instead, and without repeating it."""
    fake_engine.make(18_900)
    for words in REFUSED:
        said = told(*words)
        assert "error" in said, words
        assert PLANT not in said, words
    assert not store.list_experiments()
    assert in_files(folders) == []


def in_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and PLANT.encode() in path.read_bytes()]
