"""Runs as one file: what is in it, what is left out, and that it plays as the run did."""

import subprocess
import sys
import zipfile

import msgspec
import pytest
from msgspec.structs import replace

from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.events import Exited, HealthChanged, RequestDone
from dflash_tui.monitoring import recording
from dflash_tui.runs import server_process
from dflash_tui.runs.run import Run

TOKEN = "hf_" + "aB3dE5" * 6
SECRETS = (TOKEN, "hunter2hunter2", "s3cret-of-the-proxy", "opensesame", "The prompt of a user", "an answer of it")
LOG = f"""\
(APIServer pid=7) INFO 11-21 01:02:43 [utils.py:2] non-default args: {{'api_key': ['hunter2hunter2'], 'port': 8000}}
(APIServer pid=7) INFO 11-21 01:02:44 [hub.py:2] GET https://user:s3cret-of-the-proxy@hub.local/x HF_TOKEN={TOKEN}
(APIServer pid=7) INFO 11-21 01:02:45 [x.py:2] max_num_batched_tokens: 2048, tokens per step 7, api_key: None
(APIServer pid=7) INFO 11-21 01:03:00 [logger.py:40] Received request c-1: prompt: 'The prompt of a user', params: x
(APIServer pid=7) DEBUG 11-21 01:03:00 [logger.py:40] Request c-1 details: prompt: 'The prompt of a user', y: None.
(APIServer pid=7) INFO 11-21 01:03:01 [logger.py:40] Generated response c-1: output: 'an answer of it', z: [1]
(APIServer pid=7) INFO 11-21 01:03:02 [loggers.py:310] Engine 000: Avg generation throughput: 40.0 tokens/s
(APIServer pid=7) raw \udcff byte, header Authorization: Bearer opensesame
"""


@pytest.fixture
def run() -> Run:
    """An ended run whose flags, variables, log and samples hold secrets."""
    sample = recording.find_recording("sample")
    plan = replace(
        sample.plan,
        argv=(*sample.plan.argv, "--api-key", "hunter2hunter2", "--tokenizer", "mine", "--ssl-password=hunter2hunter2"),
        env={"HF_TOKEN": TOKEN, "MY_SECRET": "opensesame", "VLLM_MAX_TOKENS": "5"},
    )
    made = Run("20261121-010221-secretive", plan, 4711, "boot:1", sample.started_at, 0.0, "vllm 0.26.0")
    made.folder.mkdir(parents=True)
    (made.folder / "run.json").write_bytes(msgspec.json.encode(made))
    made.log.write_bytes(LOG.encode("utf-8", "surrogateescape"))
    made.record(RequestDone(made.started_at + 41, "Q&A", error="HTTP 401: Bearer opensesame"))
    with made.samples.open("ab") as file:
        file.write(b'{"event":"coun')
    return made


def content(path) -> str:
    with zipfile.ZipFile(path) as archive:
        return "".join(archive.read(name).decode("utf-8", "surrogateescape") for name in archive.namelist())


def test_secrets_prompts_and_answers_are_left_out(run, tmp_path):
    told = content(recording.export_run(run, str(tmp_path / "a.zip")))
    for secret in SECRETS:
        assert secret not in told
    for kept in ("max_num_batched_tokens: 2048, tokens per step 7, api_key: None", "40.0 tokens/s", '"mine"',
                 '"VLLM_MAX_TOKENS": "5"', "Received request c-1: [left out]", "'port': 8000", "\udcff"):  # fmt: skip
        assert kept in told


def test_prompt_export_keeps_prompts_without_secrets(run, tmp_path):
    told = content(recording.export_run(run, str(tmp_path / "a.zip"), with_prompts=True))
    for secret in SECRETS[:4]:
        assert secret not in told
    for text in SECRETS[4:]:
        assert text in told


def test_very_long_prompt_is_removed_completely(run, tmp_path):
    long = "INFO 11-21 01:03:00 [logger.py:40] Received request a: prompt: '" + "SECRETWORD " * 400_000
    run.log.write_text(f"{LOG.splitlines()[0]}\n{long}', params: x\n{'bar 1/9' + chr(13)}bar 2/9\nafter it\n")
    told = content(recording.export_run(run, str(tmp_path / "a.zip")))
    assert "SECRETWORD" not in told
    assert "Received request a: [left out]\nbar 1/9\rbar 2/9\nafter it\n" in told


def test_secret_across_read_pieces_is_removed(run, tmp_path):
    run.log.write_text("x" * ((1 << 20) - 20) + f" --api-key {TOKEN}" + "y" * (1 << 20) + "\nafter it\n")
    told = content(recording.export_run(run, str(tmp_path / "a.zip")))
    assert TOKEN[:8] not in told
    assert "after it" in told


def test_the_home_folder_is_not_named(run, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/some-body")
    run.log.write_text("INFO 11-21 01:02:43 [x.py:1] loading /home/some-body/models/a\n")
    told = content(recording.export_run(run, str(tmp_path / "a.zip")))
    assert "some-body" not in told
    assert "loading ~/models/a" in told


def test_the_file_plays_as_the_run_does(run, tmp_path):
    path = recording.export_run(run, str(tmp_path / "a.zip"))
    there, here = list(recording.read_recording(path).events()), list(recording.open_recording(run).events())
    assert [(type(event), event.at) for event in there] == [(type(event), event.at) for event in here]
    last = there[-1]
    assert isinstance(last, Exited)
    assert last.code is None  # the process is gone and nobody saw it end; elsewhere nobody could tell


def test_running_server_is_exported_without_exit(run, tmp_path, monkeypatch):
    monkeypatch.setattr(server_process, "is_alive", lambda _: True)
    run.record(HealthChanged(run.started_at + 60, "warm"))  # type: ignore[arg-type]
    events = list(recording.read_recording(recording.export_run(run, str(tmp_path / "a.zip"))).events())
    assert not any(isinstance(event, Exited) for event in events)


def test_export_overwrites_nothing_and_leaves_no_partial(run, tmp_path):
    path = recording.export_run(run, str(tmp_path / "a.zip"))
    before = path.read_bytes()
    with pytest.raises(UsageError, match="already exists"):
        recording.export_run(run, str(path))
    assert path.read_bytes() == before
    with pytest.raises(DflashError, match="cannot be written"):
        recording.export_run(run, str(tmp_path / "no" / "folder.zip"))
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.zip"]


def test_export_prints_file_that_replay_reads(run, tmp_path):
    command = [sys.executable, "-m", "dflash_tui"]
    done = subprocess.run([*command, "export", run.id], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == f"{tmp_path / run.id}.zip\n"
    assert "removed: access tokens" in done.stderr
    played = subprocess.run(
        [*command, "replay", f"{run.id}.zip", "--plain"], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert "(exit code unknown)" in played.stderr
