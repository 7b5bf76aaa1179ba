"""Downloads by the engine's own huggingface_hub, from a hub of this machine."""

import asyncio
import os
import random
import shutil
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dflash_tui.benchmark import datasets, suites
from dflash_tui.common.errors import DflashError
from dflash_tui.engines import byte_progress
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.hub import cache, dataset_download, download, model_lookup
from dflash_tui.event_json import encode
from dflash_tui.events import Preparing, Step
from tests.support import escapes, hub_server
from tests.support.hub_server import COMMIT, Hub
from tests.support.process_search import find_processes, read_command_line
from tests.support.waiting import wait_until

pytestmark = pytest.mark.vllm

TOKEN = "hf_secret_of_the_test"
SIZE = 12_000_000
WEIGHTS = "model.safetensors"
FILES = {
    "config.json": b'{"architectures": []}',
    "odd [name].json": b"{}",
    "additional_chat_templates/rag.jinja": b"{{ y }}",
    WEIGHTS: random.Random(1).randbytes(SIZE),
    "README.md": b"# Model",
}


@pytest.fixture
def server(monkeypatch, tmp_path) -> Iterator[Hub]:
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with hub_server.running() as served:
        served.repos["owner/m"] = FILES
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield served


@pytest.fixture
def python(demo_engine: Engine) -> Path:
    """Return the engine's Python, whose huggingface_hub fetches."""
    return demo_engine.python


def children() -> list[psutil.Process]:
    """Return the processes that fetch."""
    return find_processes("fetch_model.py")


def fetch(python: Path, told: list[Preparing] | None = None) -> Path:
    async def both() -> Path:
        report = (told if told is not None else []).append
        return await download.download_model(await model_lookup.look_up_model("owner/m"), python, report)

    return asyncio.run(both())


async def cancelled(python: Path, at_bytes: int) -> list[str]:
    """Begin a download, cancel it when so many bytes are there, and return the command line of the child."""
    model = await model_lookup.look_up_model("owner/m")
    task = asyncio.create_task(download.download_model(model, python, lambda _event: None))
    while cache.measure_cached_bytes("owner/m", COMMIT, model.files) < at_bytes and not task.done():
        await asyncio.sleep(0.02)
    commands = [word for child in children() for word in read_command_line(child)]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    return commands


def test_a_data_set_is_fetched_and_its_prompts_are_kept(server, python):
    """By the engine's huggingface_hub, one file alone; the copy stays when the hub and its cache are gone."""
    data = b'{"question_id": 81, "category": "math", "prompt": ["How many?", "And now?"]}\n'
    server.repos["datasets/HuggingFaceH4/mt_bench_prompts"] = {"raw/question.jsonl": data, "README.md": b"# MT"}
    file = asyncio.run(dataset_download.fetch_dataset("mt-bench", python, lambda _event: None))
    assert file == datasets.fetched_dataset_file("mt-bench")
    assert {asked.path for asked in server.asked if asked.sent} == {
        f"datasets/HuggingFaceH4/mt_bench_prompts/resolve/{COMMIT}/raw/question.jsonl"
    }
    shutil.rmtree(os.environ["HF_HOME"])
    assert [(p.kind, p.text) for p in suites.load_suite("mt-bench").prompts] == [("math 81", "How many?")]


def test_a_fresh_download_is_whole(server, python):
    """Every byte, every link, the revision for an offline start; the last event says that it is done."""
    server.rate = 6_000_000
    told: list[Preparing] = []
    folder = fetch(python, told)
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == {*FILES} - {"README.md"}
    assert all((folder / name).read_bytes() == FILES[name] for name in {*FILES} - {"README.md"})
    assert cache.read_cached_commit("owner/m", "main") == COMMIT
    assert asyncio.run(model_lookup.look_up_model("owner/m")).complete
    assert told[-1].done
    assert told[-1].fraction == 1.0
    assert {event.step for event in told} == {Step.MODELS}
    fractions = [event.fraction for event in told if event.fraction is not None]
    assert fractions == sorted(fractions)
    assert any(0.1 < fraction < 0.9 for fraction in fractions)
    assert any("MB/s" in event.text and "left" in event.text for event in told)
    assert TOKEN not in str([encode(event) for event in told])
    assert not list((folder.parents[1] / "blobs").glob("*.incomplete"))
    asked = len(server.asked)
    assert fetch(python) == folder
    assert len(server.asked) == asked + 2  # the look; nothing is fetched again


def test_a_line_that_breaks_is_resumed(server, python):
    """Within one call: the next answer begins where the first ended."""
    server.cut[WEIGHTS] = 5_000_000
    folder = fetch(python)
    assert (folder / WEIGHTS).read_bytes() == FILES[WEIGHTS]
    first, second = server.sent(WEIGHTS)
    assert (first.begins, first.sent) == (0, 5_000_000)
    # What had come in but was not written is asked for once more: less than one piece of a megabyte.
    assert 0 <= first.sent - second.begins <= 1 << 20
    assert second.range == f"bytes={second.begins}-"


def test_a_cancelled_download_leaves_no_process_and_goes_on_later(server, python):
    """The token is in no command line, and the first bytes are not fetched twice."""
    server.rate = 4_000_000
    command = asyncio.run(cancelled(python, 3_000_000))
    assert command
    assert TOKEN not in " ".join(command)
    assert not children()
    model = asyncio.run(model_lookup.look_up_model("owner/m"))
    assert 3_000_000 <= model.cached_bytes < SIZE
    server.rate = 0
    folder = fetch(python)
    assert (folder / WEIGHTS).read_bytes() == FILES[WEIGHTS]
    assert server.sent(WEIGHTS)[-1].begins >= 3_000_000


def test_it_ends_with_whoever_started_it(server, python):
    """A panel that is killed leaves nobody fetching."""
    server.rate = 100_000
    code = (
        "import asyncio, sys; from pathlib import Path\n"
        "from dflash_tui.engines.hub import download, model_lookup\n"
        "async def main():\n"
        "    model, python = await model_lookup.look_up_model('owner/m'), Path(sys.argv[1])\n"
        "    await download.download_model(model, python, lambda event: print(event, flush=True))\n"
        "asyncio.run(main())"
    )
    starter = subprocess.Popen([sys.executable, "-c", code, str(python)], stdout=subprocess.PIPE)
    assert starter.stdout
    with starter:
        assert starter.stdout.readline()
        wait_until(children)
        fetching = children()
        starter.kill()
    assert not psutil.wait_procs(fetching, timeout=240)[1]


def test_what_was_kept_is_checked(server, python):
    """A kept part that is not the beginning of the file is found out, removed, and the next call is right."""
    blob = cache.repository_folder("owner/m") / "blobs" / hub_server.etag(WEIGHTS, FILES[WEIGHTS])
    blob.parent.mkdir(parents=True)
    Path(f"{blob}.incomplete").write_bytes(bytes(1_000_000))
    with pytest.raises(DflashError, match="could not be downloaded") as failed:
        fetch(python)
    assert "SHA-256" in failed.value.evidence
    assert failed.value.hint == download._HINTS["damaged"]
    assert not Path(f"{blob}.incomplete").exists()
    assert (fetch(python) / WEIGHTS).read_bytes() == FILES[WEIGHTS]


@pytest.mark.parametrize("name", [WEIGHTS, "config.json"])
def test_other_bytes_of_the_right_size_are_refused(server, python, monkeypatch, name):
    """What comes in at once is compared with the hash that names it, too: neither blob nor snapshot has them."""
    stated, other = hub_server.etag(name, FILES[name]), bytes(len(FILES[name]))
    server.repos["owner/m"] = {**FILES, name: other}
    true_etag = hub_server.etag
    monkeypatch.setattr(hub_server, "etag", lambda n, data: stated if n == name else true_etag(n, data))
    with pytest.raises(DflashError, match="could not be downloaded") as failed:
        fetch(python)
    assert ("SHA-256" if name == WEIGHTS else "SHA-1") in failed.value.evidence
    assert failed.value.hint == download._HINTS["damaged"]
    folder = cache.repository_folder("owner/m")
    assert [path.name for path in folder.rglob(f"*{stated}*")] == []
    assert not list(folder.glob(f"snapshots/*/{name}"))
    server.repos["owner/m"] = FILES
    assert (fetch(python) / name).read_bytes() == FILES[name]


def test_a_file_that_changes_while_a_line_breaks_is_refused(server, python):
    """The second half of another file, resumed within one call, makes no blob."""
    server.cut[WEIGHTS] = 5_000_000
    server.after_cut[WEIGHTS] = bytes(SIZE)
    with pytest.raises(DflashError) as failed:
        fetch(python)
    assert len(server.sent(WEIGHTS)) == 2
    assert "SHA-256" in failed.value.evidence
    assert not list(cache.repository_folder("owner/m").glob(f"blobs/{hub_server.etag(WEIGHTS, FILES[WEIGHTS])}*"))


def test_a_whole_part_is_read_and_not_fetched_again(server, python):
    """A call that was ended while it compared the hash left it; a range behind its last byte is an error (416)."""
    blob = cache.repository_folder("owner/m") / "blobs" / hub_server.etag(WEIGHTS, FILES[WEIGHTS])
    blob.parent.mkdir(parents=True)
    Path(f"{blob}.incomplete").write_bytes(FILES[WEIGHTS])
    assert (fetch(python) / WEIGHTS).read_bytes() == FILES[WEIGHTS]
    assert not [asked for asked in server.asked if asked.range]


def test_the_token_stays_with_the_hub(server, python):
    """The storage that large files are redirected to never sees it."""
    with hub_server.running() as storage:
        storage.repos, server.storage = server.repos, storage.url
        assert (fetch(python) / WEIGHTS).read_bytes() == FILES[WEIGHTS]
        assert storage.sent(WEIGHTS)
        assert not any(asked.authorization for asked in storage.asked)
    assert any(asked.authorization == f"Bearer {TOKEN}" for asked in server.asked)


# Headers of files, and whose error it is: ours, or that of huggingface_hub.
LIES = {
    "a blob that climbs": ({"ETag": '"../../../../climbed"', "X-Linked-Etag": '"../../../../climbed"'}, "Hostile"),
    "a blob that is a path": ({"ETag": '"{}/climbed"', "X-Linked-Etag": '"{}/climbed"'}, "Hostile"),
    "a commit that climbs": ({"X-Repo-Commit": "../../../../climbed"}, "Hostile"),
    "a size that is more": ({"X-Linked-Size": "99999999999"}, "ValueError"),
    "a size that is none": ({"X-Linked-Size": "-1"}, "OSError"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_hub_that_lies_in_its_headers_writes_nothing_elsewhere(server, python, tmp_path, lie):
    """One error, no file beside the cache, and the token went to nobody else."""
    headers, kind = LIES[lie]
    server.lies = {name: value.format(tmp_path) for name, value in headers.items()}
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(DflashError) as failed:
        fetch(python)
    assert kind in failed.value.evidence
    assert ("HF_ENDPOINT" in failed.value.hint) is (kind == "Hostile")
    assert not escapes.acting(str(failed.value))
    assert TOKEN not in str(failed.value)
    written = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    assert {path for path in written if not path.is_relative_to(tmp_path / "hf")} == set()
    assert list(tmp_path.rglob("*climbed*")) == []
    assert {asked.authorization for asked in server.asked} <= {f"Bearer {TOKEN}"}


@pytest.mark.parametrize("name", [WEIGHTS, "config.json"])
@pytest.mark.parametrize("headers", [{}, {"Content-Encoding": "gzip"}], ids=["plain", "packed"])
def test_no_more_of_a_file_is_written_than_the_hub_says(server, python, tmp_path, name, headers):
    """An answer that does not end, or that unpacks to terabytes, would fill the disk."""
    server.endless[name] = headers
    with pytest.raises(DflashError) as failed:
        fetch(python)
    assert "Hostile" in failed.value.evidence
    assert failed.value.hint == download._HINTS["hostile"]
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 3 * SIZE


@pytest.mark.parametrize(
    ("refusal", "words"), [("terms", "accept the terms"), ("missing", "check the spelling"), ("broken", "same command")]
)
def test_a_refusal_on_the_way_says_what_to_do(server, python, refusal, words):
    """Refused after the look: the sentence, the hub's words and the advice, without the token."""
    model = asyncio.run(model_lookup.look_up_model("owner/m"))
    server.refusal, server.echo = refusal, True
    with pytest.raises(DflashError, match=r"^owner/m ") as failed:
        asyncio.run(download.download_model(model, python, lambda _event: None))
    assert str(hub_server.REFUSALS[refusal][0]) in failed.value.evidence
    assert words in failed.value.hint
    assert TOKEN not in str(failed.value)


def test_what_may_not_be_fetched_is_not_begun(server, python):
    """The advice of the look is that of the download."""
    server.refusal = "terms"
    with pytest.raises(DflashError, match="cannot be downloaded") as failed:
        fetch(python)
    assert "terms not accepted" in failed.value.evidence
    assert "accept the terms" in failed.value.hint


def test_a_small_disk_is_said_before(server, python, monkeypatch):
    """The figures: what is missing, what is free."""
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(10**12, 10**12, 7_000_000))
    with pytest.raises(DflashError, match="12 MB to download") as failed:
        fetch(python)
    assert "7 MB free" in failed.value.evidence
    assert not server.sent(WEIGHTS)


def test_an_engine_without_the_library_is_said(server, tmp_path):
    """The error names what to do about the engine."""
    alone = tmp_path / "python"
    alone.write_text(f'#!/bin/sh\nexec {shutil.which("python3")} -S "$@"\n')
    alone.chmod(0o755)
    with pytest.raises(DflashError, match="could not be downloaded") as failed:
        fetch(alone)
    assert "huggingface_hub" in failed.value.evidence
    assert "engine" in failed.value.hint


def test_a_stall_is_said_not_killed(server, python, monkeypatch):
    """No byte for a while is in the text; the download goes on."""
    monkeypatch.setattr(byte_progress, "_STALLED", 0.6)
    server.delay = 1.5
    told: list[Preparing] = []
    fetch(python, told)
    assert any("stalled for" in event.text for event in told)
    assert told[-1].done
