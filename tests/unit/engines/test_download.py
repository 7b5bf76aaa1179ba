"""Downloads by huggingface_hub and by its HTTP, from a hub of this machine."""

import asyncio
import random
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from dflash_tui.common.errors import DflashError
from dflash_tui.engines import download, model_hub
from dflash_tui.events import Preparing, Step, encode
from tests.support import hub_server
from tests.support.hub_server import COMMIT, Hub

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
def server(hub: Hub, monkeypatch) -> Hub:
    hub.repos["owner/m"] = FILES
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return hub


def fetch(told: list[Preparing] | None = None) -> Path:
    async def both() -> Path:
        report = (told if told is not None else []).append
        return await download.download_model(await model_hub.look_up_model("owner/m"), report)

    return asyncio.run(both())


async def cancel(at_bytes: int) -> None:
    """Begin a download and cancel it after the given bytes."""
    model = await model_hub.look_up_model("owner/m")
    task = asyncio.create_task(download.download_model(model, lambda _event: None))
    while model_hub.measure_cached_bytes("owner/m", COMMIT, model.files) < at_bytes and not task.done():
        await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


def test_a_fresh_download_is_whole(server):
    """Every byte, every link, the revision for an offline start; the last event says that it is done."""
    server.rate = 6_000_000
    told: list[Preparing] = []
    folder = fetch(told)
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == {*FILES} - {"README.md"}
    assert all((folder / name).read_bytes() == FILES[name] for name in {*FILES} - {"README.md"})
    assert model_hub.read_cached_commit("owner/m", "main") == COMMIT
    assert asyncio.run(model_hub.look_up_model("owner/m")).complete
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
    assert fetch() == folder
    assert len(server.asked) == asked + 2  # the look; nothing is fetched again


def test_a_line_that_breaks_is_resumed(server):
    """Within one call: the next answer begins where the first ended."""
    server.cut[WEIGHTS] = 5_000_000
    folder = fetch()
    assert (folder / WEIGHTS).read_bytes() == FILES[WEIGHTS]
    first, second = server.sent(WEIGHTS)
    assert (first.begins, first.sent) == (0, 5_000_000)
    # What had come in but was not written is asked for once more: less than one piece of a megabyte.
    assert 0 <= first.sent - second.begins <= 1 << 20
    assert second.range == f"bytes={second.begins}-"


def test_a_cancelled_download_is_resumed(server):
    """The first bytes are not fetched twice."""
    server.rate = 4_000_000
    asyncio.run(cancel(3_000_000))
    model = asyncio.run(model_hub.look_up_model("owner/m"))
    assert 3_000_000 <= model.cached_bytes < SIZE
    server.rate = 0
    assert (fetch() / WEIGHTS).read_bytes() == FILES[WEIGHTS]
    assert server.sent(WEIGHTS)[-1].begins >= 3_000_000


def test_kept_part_is_checked(server):
    """A kept part that is not the beginning of the file is found out, removed, and the next call is right."""
    blob = model_hub.repository_folder("owner/m") / "blobs" / hub_server.etag(WEIGHTS, FILES[WEIGHTS])
    blob.parent.mkdir(parents=True)
    Path(f"{blob}.incomplete").write_bytes(bytes(1_000_000))
    with pytest.raises(DflashError, match="could not be downloaded") as failed:
        fetch()
    assert "SHA-256" in failed.value.evidence
    assert failed.value.hint == download._DAMAGED
    assert not Path(f"{blob}.incomplete").exists()
    assert (fetch() / WEIGHTS).read_bytes() == FILES[WEIGHTS]


def test_the_token_stays_with_the_hub(server):
    """The storage that large files are redirected to never sees it."""
    with hub_server.running() as storage:
        storage.repos, server.storage = server.repos, storage.url
        assert (fetch() / WEIGHTS).read_bytes() == FILES[WEIGHTS]
        assert storage.sent(WEIGHTS)
        assert not any(asked.authorization for asked in storage.asked)
    assert any(asked.authorization == f"Bearer {TOKEN}" for asked in server.asked)


def test_a_small_disk_is_said_before(server, monkeypatch):
    """The figures: what is missing, what is free."""
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(10**12, 10**12, 7_000_000))
    with pytest.raises(DflashError, match="12 MB to download") as failed:
        fetch()
    assert "7 MB free" in failed.value.evidence
    assert not server.sent(WEIGHTS)
