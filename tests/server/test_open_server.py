"""A server that other machines may reach: only when asked for, and only with a key, which is never an argument."""

import httpx
import psutil
import pytest

from dflash_tui.runs import registry
from tests import DATA
from tests.cli.test_escapes import told
from tests.server.test_planted_token import PLANT, in_files
from tests.support import fake_engine
from tests.support.fake_runs import free_port, wait_for_answer
from tests.support.process_search import read_command_line

SUITE = DATA / "two-prompts.yaml"
OPEN = ("up", "fake", "--detach", "--set", "host=0.0.0.0")


def list_words() -> str:
    """Return the commands and titles of all processes."""
    return "\n".join(word for process in psutil.process_iter() for word in read_command_line(process))


@pytest.fixture
def engine():
    fake_engine.make(free_port(19_100))


@pytest.mark.parametrize("key", ["", "short", "with a\nline end in it"])
def test_without_a_key_it_is_refused(engine, key, monkeypatch):
    """Before anything is launched, with what to export; and no reason given to --force changes that."""
    monkeypatch.setenv("VLLM_API_KEY", key)
    for words in (OPEN, (*OPEN, "--force", "I want it")):
        said = told(*words)
        assert "export VLLM_API_KEY" in said
        assert ("that of VLLM_API_KEY has" in said) == bool(key)
        assert ("key: " in said, "--force" in said) == (True, False)
    assert registry.list_runs() == []


def test_server_with_key_rejects_keyless_requests(engine, folders, monkeypatch):
    """It is warned of; our own requests have the key, others are turned away; no command and no file has it."""
    monkeypatch.setenv("VLLM_API_KEY", PLANT)
    said = told(*OPEN)
    assert registry.list_runs(), said
    run = registry.find_run()
    assert "it listens on 0.0.0.0" in said
    assert run.plan.argv[run.plan.argv.index("--host") + 1] == "0.0.0.0"
    wait_for_answer(run.url)
    assert httpx.post(f"{run.url}/v1/chat/completions", json={}, timeout=120).status_code == 401
    bench = told("bench", run.id, "--suite", str(SUITE))
    assert "HTTP 401" not in bench
    assert "tok/s" in bench
    assert PLANT not in list_words()
    told("stop", run.id)
    assert in_files(folders) == []


@pytest.mark.parametrize("given", ["127.0.0.1", "localhost", "null"])
def test_this_machine_alone_needs_no_key(engine, given):
    """As without the option."""
    said = told("plan", "fake", "--set", f"host={given}")
    assert "--host 127.0.0.1" in said
    assert "it listens on" not in said


@pytest.mark.parametrize("given", ["everywhere", "0.0.0.0 --api-key x"])
def test_invalid_address_is_refused(engine, given):
    said = told("plan", "fake", "--set", f"host={given}")
    assert "is not an address" in said
    assert "Traceback" not in said
