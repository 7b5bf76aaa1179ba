"""A token that the user has in the environment, or gives by mistake, is found nowhere afterwards."""

import base64
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
    "DB_PASS": "the password of a database",
}  # fmt: skip
SUITE = DATA / "two-prompts.yaml"
REFUSED = (
    ("plan", "fake", "--set", f"env.X_TOKEN={PLANT}"),
    ("plan", "fake", "--set", f"env.HARMLESS={PLANT}"),
    ("plan", "fake", "--set", f"api-key={PLANT}"),
    ("plan", "fake", "--set", f"hf-token={PLANT}"),
    ("plan", "fake", "--set", f"otlp-traces-endpoint=http://me:{PLANT}@host"),
    ("plan", "fake", "--set", f"target.model=https://me:{PLANT}@host/model"),
    ("ab", "fake", "--vary", f"env.X_TOKEN={PLANT},other", "--yes"),
    ("ab", "fake", "--vary", f"env.HARMLESS={PLANT},other", "--yes"),
    ("plan", "fake", "--set", f"ssl-keyfile-password={PLANT}"),
    ("plan", "fake", "--set", f"model-loader-extra-config.aws_secret_access_key={PLANT}"),
    ("plan", "fake", "--set", f"speculation.auth_token={PLANT}"),
    ("plan", "fake", "--set", f"env.DB_PASS={PLANT}"),
    ("plan", "fake", "--set", "env.HARMLESS=the password of a database"),
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


def test_a_token_in_an_option_is_refused_before_anything_is_written(planted, folders):
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


def test_after_a_whole_life_it_is_nowhere(planted, folders, tmp_path, monkeypatch):
    """Launch, bench, export, reports, a failure that quotes it, an A/B: no file, no output and no command has it."""
    monkeypatch.chdir(tmp_path)
    fake_engine.make(free_port(18_900), launches={0: ["echoes"]})
    said = [told("plan", "fake"), told("plan", "fake", "--json"), told("up", "fake", "--detach", "--json")]
    run = registry.find_run()
    while not answers(run.url):
        assert server_process.is_alive(run)
    said += [told("bench", run.id, "--suite", str(SUITE)), told("ps")]
    assert "HTTP 401" in said[-2], "the server never had its say"
    running = listed()
    with run.log.open("a") as log:  # a server of another kind, which tells what it was given
        log.write(f"ValueError: 401 for {PLANT}key and {PLANT}\n")
        log.write(f"a header {base64.b64encode(f'me:{PLANT}key'.encode()).decode()}, hf_\x1b[1m{PLANT[3:]}\n")
    said += [told("stop", run.id), told("logs", run.id)]
    assert "ValueError: 401 for [left out]" in said[-1]
    run.samples.unlink()  # nobody asked for the end
    said += [told("why", run.id), told("attach", run.id, "--json"), told("report", run.id)]
    assert "401" in said[-3]
    coded = base64.b64encode(f"me:{PLANT}key".encode()).decode()[8:40]
    said += [told("report", run.id, "--json"), told("export", run.id, "-o", "run.zip"), told("replay", "run.zip")]
    said += [told("why", run.id, "--report"), told("replay", "run.zip", "--json"), told("history"), told("ps", "--all")]
    said += [told("ab", "fake", "--vary", "n=7,4", "--boots", "1", "--suite", str(SUITE), "--yes")]
    [design] = store.list_experiments()
    assert "BOOT  ARM" in said[-1]
    said += [told("report", design.id), told("report", design.id, "--json", "-o", "report.json")]
    assert not [part for part in (PLANT, PLANT[3:], coded) if part in "".join(said)]
    assert PLANT not in running + listed()
    run.log.unlink()  # the server's own file; it is shown and exported without
    assert in_files(folders) + in_files(tmp_path) == []
    with zipfile.ZipFile("run.zip") as packed:
        parts = [packed.read(name) for name in packed.namelist()]
    assert not any(part in text for text in parts for part in (PLANT.encode(), PLANT[3:].encode(), coded.encode()))
