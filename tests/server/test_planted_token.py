"""A token of the environment, or one given by mistake, is in no option and in nothing that leaves the machine."""

import contextlib
import zipfile
from pathlib import Path

import httpx
import psutil
import pytest

from dflash_tui.experiments import store
from dflash_tui.runs import registry, server_process
from tests import DATA
from tests.cli.test_escapes import told
from tests.support import fake_engine
from tests.support.fake_runs import free_port

PLANT = "hf_Pl4ntedPl4ntedPl4ntedPl4nted"
ENV = {
    "HF_TOKEN": PLANT, "HUGGING_FACE_HUB_TOKEN": PLANT, "VLLM_API_KEY": f"{PLANT}key", "DFLASH_TUI_API_KEY": PLANT,
    "OPENAI_API_KEY": PLANT, "UV_INDEX_URL": f"https://me:{PLANT}@127.0.0.1:9/simple", "MY_PASSWORD": f"{PLANT}!",
}  # fmt: skip
SUITE = DATA / "two-prompts.yaml"
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


def listed() -> str:
    """Return the commands and titles of all processes that came from here."""
    told = []
    for process in psutil.process_iter():
        try:
            told += [*process.cmdline(), process.name()]
        except psutil.Error:
            continue
    return "\n".join(told)


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


def answers(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{url}/health").is_success
    return False


def in_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and PLANT.encode() in path.read_bytes()]


def test_exported_text_has_no_secret(planted, folders, tmp_path, monkeypatch):
    """No command of a process has it, no export, report or bug report."""
    monkeypatch.chdir(tmp_path)
    fake_engine.make(free_port(18_900), launches={0: ["echoes"]})
    assert PLANT not in told("up", "fake", "--detach", "--json")
    run = registry.find_run()
    while not answers(run.url):
        assert server_process.is_alive(run)
    told("bench", run.id, "--suite", str(SUITE))
    assert PLANT not in listed()
    with run.log.open("a") as log:  # a server of another kind, which tells what it was given
        log.write(f"ValueError: 401 for {PLANT}key and {PLANT}\n")
    told("stop", run.id)
    told("export", run.id, "-o", "run.zip")
    told("report", run.id, "-o", "run.md")
    told("report", run.id, "--json", "-o", "run.json")
    run.samples.unlink()  # nobody asked for the end
    bug_report = told("why", run.id, "--report")
    assert "401 for <secret>" in bug_report
    assert PLANT not in bug_report
    assert in_files(tmp_path) == []
    with zipfile.ZipFile("run.zip") as packed:
        parts = [packed.read(name) for name in packed.namelist()]
    assert any(b"401 for [left out]" in part for part in parts)
    assert not any(PLANT.encode() in part for part in parts)
