"""Models copied to another host, which another home folder plays: whole, resumed, and in the hub's layout."""

import asyncio
import errno
import filecmp
import hashlib
import os
import shutil
import sys
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from dflash_tui.common.errors import DflashError
from dflash_tui.engines import model_hub
from dflash_tui.events import Preparing
from dflash_tui.launch.preflight.check import Check
from dflash_tui.peers import copies, transport
from dflash_tui.peers.connection import ask as ask_host
from dflash_tui.peers.copies import MissingModel, ModelCopy, RoomFound
from dflash_tui.planning.cluster import Cluster, ClusterHost
from dflash_tui.planning.plan import Plan, PlannedModel
from tests import ROOT
from tests.support import command_line
from tests.support.far_home import FarHome
from tests.support.process_search import find_processes
from tests.support.two_hosts import make_two_hosts
from tests.support.values import present
from tests.support.waiting import until, wait_until

pytestmark = pytest.mark.skipif(not shutil.which("rsync"), reason="no rsync (Debian, Ubuntu: rsync)")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "owner/model"
WEIGHTS = bytes(range(256)) * 12_000
FILES = {
    "model.safetensors": WEIGHTS,
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "additional_chat_templates/tool.jinja": b"x",
    "merges.txt": b"",
    "original/again.safetensors": b"not loaded",
}
LOADED = {name for name in FILES if not name.startswith("original/")}
CLUSTER = Cluster((ClusterHost("", "10.0.0.1", "eth0"), ClusterHost("spark-b", "10.0.0.2", "eth0")))
BLOB = f"blobs/{hashlib.sha256(WEIGHTS).hexdigest()}"


@pytest.fixture
def far(tmp_path, folders, monkeypatch) -> FarHome:
    """A host that has this program and no model; the hub is not asked."""
    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    home = FarHome(tmp_path / "far")
    home.put_program()
    return home


def put_model(root: Path) -> Path:
    """Put the model into a cache of the hub; return its folder there."""
    folder = root / "models--owner--model"
    for name, data in FILES.items():
        large = name.endswith(".safetensors")
        git = hashlib.sha1(f"blob {len(data)}\0".encode() + data, usedforsecurity=False)
        blob = folder / "blobs" / (hashlib.sha256(data) if large else git).hexdigest()
        link = folder / "snapshots" / COMMIT / name
        for path in (blob, link):
            path.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        link.symlink_to(os.path.relpath(blob, link.parent))
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    return folder


def list_files(folder: Path) -> dict[str, bytes]:
    """Return what lies in a folder, links followed, without what only locks."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if not name.endswith(".lock")}


@pytest.fixture
def source(far) -> ModelCopy:
    """The model in the cache of this host."""
    put_model(model_hub.hub_cache_folder())
    return find(REPO)


@pytest.fixture
def there(far) -> Path:
    """The model's folder in the hub's cache of the other host."""
    home: Path = far.folder
    return home / ".cache" / "huggingface" / "hub" / "models--owner--model"


def plan_of(*names: str) -> Plan:
    return replace(command_line.planned("demo-cpu").plan, build_script="", models=tuple(map(PlannedModel, names)))


def find(*names: str) -> ModelCopy:
    [source] = asyncio.run(copies.find_copies(plan_of(*names)))
    return source


def find_tune(folder: Path, path: str = "/nowhere") -> ModelCopy:
    """Return the source for a folder, which is on this machine for the other host, too, so it is named otherwise."""
    source = find(str(folder))
    return replace(source, path=path)


async def send(source: ModelCopy, events: list[Preparing]) -> None:
    await copies.copy_missing([source], "spark-b", CLUSTER, 1, events.append)


def copy(source: ModelCopy) -> list[Preparing]:
    events: list[Preparing] = []
    asyncio.run(send(source, events))
    return events


def refuse(source: ModelCopy) -> DflashError:
    with pytest.raises(DflashError) as error:
        copy(source)
    assert error.value.hint
    return error.value


def ask(source: ModelCopy) -> RoomFound:
    asking = ask_host("spark-b", "find_room", list[RoomFound], copies=[source], begins=False)
    [room] = asyncio.run(asking)
    return room


def put_short_rsync(far: FarHome, kept: int, *, stays: bool = False) -> None:
    """Let the other host's rsync get that many bytes; the line ends then, or stays until it ends here."""
    far.put_first_bytes()
    put_rsync(far, f"first-bytes {kept} {'stays' * stays} |")


def put_rsync(far: FarHome, first: str = "") -> None:
    (far.programs / "rsync").unlink()
    far.put(far.programs / "rsync", f'#!/bin/sh\n{first} {shutil.which("rsync")} "$@"\n')


def test_cached_model_keeps_its_layout(source, far, there):
    """What vLLM loads of it, by links to blobs, so that it is found there without a network."""
    events = copy(source)
    snapshot = there / "snapshots" / COMMIT
    assert list_files(snapshot) == {name: FILES[name] for name in LOADED}
    assert all((snapshot / name).readlink().parts[-2] == "blobs" for name in LOADED)
    assert (there / "refs" / "main").read_text() == COMMIT
    assert {path.name for path in there.iterdir()} == {"blobs", "refs", "snapshots"}
    assert (events[-1].done, events[-1].fraction) == (True, 1.0)
    os.environ["HF_HOME"] = str(there.parents[1])  # the fixture's own, which is put back
    model = present(model_hub.find_local_model(REPO))
    assert model.folder == str(snapshot)


def test_present_files_are_not_sent_again(source, far, there):
    assert len(ask(source).missing) == len(source.files) - 1  # of two files with the same blob one is sent
    put_model(there.parent)
    assert ask(source).is_done
    (there / "refs" / "main").write_text("f" * 40)
    room = ask(source)
    assert (room.is_done, room.missing) == (False, {})
    blob = (there / BLOB).stat().st_ino
    copy(source)
    assert ask(source).is_done
    assert (there / BLOB).stat().st_ino == blob


@pytest.mark.parametrize("way", ["cancelled", "cut"])
def test_copy_resumes_at_last_byte(way, source, far, there):
    """The other side ends, too, and no file has its name before it is whole."""
    part = there / ".dflash-tui.copy" / BLOB
    put_short_rsync(far, 1_000_000, stays=way == "cancelled")

    async def cancel() -> None:
        copying = asyncio.create_task(send(source, []))
        await until(lambda: part.exists() and part.stat().st_size > 600_000)
        copying.cancel()
        await asyncio.gather(copying, return_exceptions=True)

    if way == "cancelled":
        asyncio.run(cancel())
    else:
        assert "resumes" in refuse(source).hint
    wait_until(lambda: not find_processes("rsync --server"))
    assert {path.name for path in there.iterdir()} == {".dflash-tui.copy"}
    came = source.size - 2 - sum(ask(source).missing.values())
    assert 600_000 < came == part.stat().st_size
    put_short_rsync(far, len(WEIGHTS) - came + 10_000)
    copy(source)
    assert (there / BLOB).read_bytes() == WEIGHTS


def test_damaged_part_is_replaced(source, there):
    """As after a power cut that left zeros."""
    part = there / ".dflash-tui.copy" / BLOB
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes(4096))
    copy(source)
    assert (there / BLOB).read_bytes() == WEIGHTS


def test_host_without_rsync_is_named(source, far):
    (far.programs / "rsync").unlink()
    assert "sudo apt install rsync" in refuse(source).hint


def test_full_disk_refuses_before_copy(source, monkeypatch):
    monkeypatch.setattr(copies, "RESERVE", 1 << 60)
    assert "free there" in refuse(source).what


def test_disk_that_fills_keeps_what_came(source, far, there):
    """The limit on a file's size stands for the end of the disk."""
    put_rsync(far, 'trap "" XFSZ; ulimit -f 2000;')
    assert os.strerror(errno.EFBIG) in refuse(source).evidence
    assert (there / ".dflash-tui.copy" / BLOB).stat().st_size == 2000 * 512
    put_rsync(far)
    copy(source)
    assert ask(source).is_done


def test_ssh_gets_no_secrets(source, far, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "planted-4711-secret-token")
    ssh = far.root / "near" / "ssh"
    ssh.write_text(ssh.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\nenv >>{tmp_path}/env\n"))
    copy(source)
    assert "planted" not in (tmp_path / "env").read_text()


@pytest.fixture
def tune(far, tmp_path) -> Path:
    """A fine-tune in a folder of this host, with a link to weights elsewhere, and what vLLM does not load."""
    folder: Path = tmp_path / "my tune"
    (folder / "checkpoint-500").mkdir(parents=True)
    (folder / "checkpoint-500" / "optimizer.pt").write_bytes(b"large")
    (folder / "config.json").write_bytes(b"{}")
    (tmp_path / "weights").write_bytes(WEIGHTS)
    (folder / "model.safetensors").symlink_to(tmp_path / "weights")
    return folder


def test_folder_is_copied_among_our_models(tune, far):
    source = find_tune(tune)
    [name] = copies.name_folders(plan_of(str(tune))).values()
    models = far.data / "models"
    copy(source)
    assert list_files(models) == {f"{name}/config.json": b"{}", f"{name}/model.safetensors": WEIGHTS}
    assert not (models / name / "model.safetensors").is_symlink()
    assert not (models / name).stat().st_mode & 0o77
    assert ask(source).is_done
    os.utime(tune / "model.safetensors", (1, 1))
    assert [*copies.name_folders(plan_of(str(tune))).values()] != [name]


def test_changed_folder_does_not_get_its_name(tune, far):
    source = find_tune(tune)
    (tune / "config.json").write_bytes(b"{ }")
    assert "changed" in refuse(source).what
    assert not (far.data / "models" / source.folder).exists()
    assert sum(ask(find_tune(tune)).missing.values()) == find_tune(tune).size


def test_checks_state_what_is_copied(source, there):
    checks: list[Check] = []
    [missing] = asyncio.run(copies.find_missing([source], "spark-b"))
    for room in (missing.room, replace(missing.room, free=5), replace(missing.room, has_rsync=False)):
        checks += copies.check_missing([MissingModel(source, room)], "spark-b", CLUSTER, 1)
    assert missing.size == source.size - 2  # one of two files that are the same
    assert [(check.name, check.level.value) for check in checks] == [
        ("spark-b: target", "ok"),
        ("spark-b: target", "fail"),
        ("spark-b: target", "fail"),
    ]
    assert "10.0.0.2 (eth0)" in checks[0].finding
    put_model(there.parent)
    assert asyncio.run(copies.find_missing([source], "spark-b")) == []


def test_link_without_ssh_uses_the_usual_way(source, far, there):
    ssh = far.root / "near" / "ssh"
    words = ssh.read_text().partition("\n")
    refused = 'case "$*" in *HostName=*) echo "connect to host: Connection refused" >&2; exit 255;; esac'
    ssh.write_text(f"{words[0]}\n{refused}\n{words[2]}")
    events: list[Preparing] = []

    asyncio.run(copies.copy_missing([source], "spark-b", CLUSTER, 1, events.append))
    assert (there / "refs" / "main").is_file()
    assert any("no ssh over 10.0.0.2" in event.text for event in events)


def test_link_uses_the_key_of_the_host():
    """No proxy leads elsewhere, and the check of the key stays on."""
    link = transport.LinkAddress("10.0.0.1", "10.0.0.2", "spark-b.lan")
    needed = {"HostName=10.0.0.2", "BindAddress=10.0.0.1", "HostKeyAlias=spark-b.lan", "ProxyJump=none"}
    probe = transport.build_probe_command("ann@spark-b", link)
    _, ssh, *words = transport.build_rsync_words("ann@spark-b", link, "/from/", "/a b")
    assert probe[-3:-1] == ["--", "ann@spark-b"]
    assert words == ["--", "/from/", "ann@spark-b:/a b/"]
    for options in (probe, ssh.split()):
        assert needed <= {*options}
        assert not any("StrictHostKeyChecking" in word for word in options)
    assert transport.build_rsync_words("fe80::1", None, "/f/", "/t")[-1] == "[fe80::1]:/t/"


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ("hostname spark-b.lan\nport 22\n", "spark-b.lan"),
        ("hostname 10.9.9.9\nport 2222\n", "[10.9.9.9]:2222"),
        ("hostname x\nhostkeyalias known\nport 2222\n", "known"),
        ("", "spark-b"),
    ],
)
def test_key_name_is_from_ssh_settings(settings, name):
    assert transport.read_key_name("ann@spark-b", settings) == name


def test_incomplete_models_are_left_to_the_host(far, source):
    (model_hub.snapshot_folder(REPO, COMMIT) / "model.safetensors").unlink()
    assert asyncio.run(copies.find_copies(plan_of(REPO, "owner/other"))) == []


TRY = """
import asyncio, sys
from pathlib import Path
from dflash_tui.peers import copies, transport
from tests.server.test_copies import find_tune
link = transport.LinkAddress("10.77.0.1", "10.77.0.2", sys.argv[2])
source = find_tune(Path(sys.argv[1]))
async def run():
    [model] = await copies.find_missing([source], "spark-b", begins=True)
    await copies.send_copy("spark-b", link, model, lambda event: print(event.text, flush=True))
asyncio.run(run())
"""


@pytest.mark.long
@pytest.mark.chain("hosts")
def test_cable_pulled_out_over_real_ssh(tmp_path):
    """On the address of the link, by the key of the host; another host's key is refused there."""
    data, tune = tmp_path / "data", tmp_path / "tune"
    for folder in (data / "dflash-tui" / "models", tune):
        folder.mkdir(parents=True)
    (tune / "config.json").write_bytes(b"{}")
    piece = os.urandom(1 << 20)
    with (tune / "model.safetensors").open("wb") as weights:
        for _ in range(1500):
            weights.write(piece)
    with make_two_hosts(tmp_path / "hosts", data) as hosts:
        words = ("env", f"PYTHONPATH={ROOT}", sys.executable, "-c", TRY, str(tune))
        strange = hosts.run("a", *words, "10.77.0.1")
        assert strange.returncode
        assert "Host key verification failed" in strange.stderr
        models = hosts.folder / "b" / "models"

        def cut_cable() -> None:
            wait_until(lambda: _measure(models) > 1 << 28)
            hosts.change("cut")

        cutting = threading.Thread(target=cut_cable)
        cutting.start()
        cut = hosts.run("a", *words, "spark-b")
        cutting.join()
        came = _measure(models)
        assert cut.returncode
        assert 1 << 28 < came < 1500 << 20
        hosts.change("heal")
        wait_until(lambda: hosts.run("a", "ssh", "spark-b", "true").returncode == 0)
        copied = hosts.run("a", *words, "spark-b")
        assert copied.returncode == 0, copied.stderr
        [folder] = (path for path in models.iterdir() if not path.name.startswith("."))
        assert (folder / "model.safetensors").stat().st_size == 1500 << 20
        assert filecmp.cmp(folder / "model.safetensors", tune / "model.safetensors", shallow=False)
        print(copied.stdout)


def _measure(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
