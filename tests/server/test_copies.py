"""Models copied to another host, which another home folder plays: resumed, compared by hash, and nowhere else."""

import asyncio
import errno
import fcntl
import filecmp
import hashlib
import os
import shutil
import subprocess
import sys
import threading
from collections import namedtuple
from pathlib import Path

import pytest
from msgspec.structs import replace

from dflash_tui.common.errors import DflashError
from dflash_tui.engines.hub import cache, model_lookup
from dflash_tui.events import Preparing
from dflash_tui.launch.preflight.check import Check
from dflash_tui.peers import messages, transport
from dflash_tui.peers.connection import open_connection
from dflash_tui.peers.copies import missing_models, receiver, sender, sources
from dflash_tui.peers.copies.manifest import MOST_FILES, CopyFile, HubSnapshot, Manifest, OwnFolder
from dflash_tui.peers.copies.sources import CopySource
from dflash_tui.peers.messages import AskRoom, Refused, RoomFound
from dflash_tui.planning.cluster.hosts import Cluster, ClusterHost
from dflash_tui.planning.plan import Plan, PlannedModel
from tests import ROOT
from tests.support import command_line, escapes
from tests.support.far_home import FarHome
from tests.support.process_search import find_processes
from tests.support.two_hosts import make_two_hosts
from tests.support.waiting import until, wait_until

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


@pytest.fixture
def far(tmp_path, folders, monkeypatch) -> FarHome:
    """A host that has this program and no model; nobody asks the hub."""
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
def source(far) -> CopySource:
    """The model in the cache of this host."""
    put_model(cache.hub_cache_folder())
    return find(REPO)


@pytest.fixture
def far_cache(far) -> Path:
    """The hub's cache of the other host."""
    home: Path = far.folder
    return home / ".cache" / "huggingface" / "hub"


def plan_of(*names: str) -> Plan:
    return replace(command_line.planned("demo-cpu").plan, build_script="", models=tuple(map(PlannedModel, names)))


def find(*names: str) -> CopySource:
    [source] = asyncio.run(sources.find_sources(plan_of(*names)))
    return source


def find_tune(folder: Path, path: str = "/nowhere") -> CopySource:
    """Return the source for a folder, which is on this machine for the other host, too, so it is named otherwise."""
    source = find(str(folder))
    place = source.manifest.place
    assert isinstance(place, OwnFolder)
    return source._replace(manifest=replace(source.manifest, place=replace(place, path=path)))


def copy(source: CopySource, events: list[Preparing] | None = None) -> None:
    asyncio.run(sender.send_copy("spark-b", None, source, ([] if events is None else events).append))


def refusal(source: CopySource, kind: type[DflashError] = DflashError) -> DflashError:
    with pytest.raises(kind) as error:
        copy(source)
    assert error.value.hint
    return error.value


def ask(source: CopySource) -> RoomFound:
    async def connect() -> RoomFound:
        async with open_connection("spark-b") as peer:
            answer = await peer.ask(AskRoom, 60.0, manifest=source.manifest)
            assert isinstance(answer, RoomFound)
            return answer

    return asyncio.run(connect())


def test_a_model_of_the_hub_is_copied_whole(source, far_cache):
    """What vLLM loads of it, as huggingface_hub lays it out, so that it is found there without a network."""
    events: list[Preparing] = []
    copy(source, events)
    there = far_cache / "models--owner--model"
    snapshot = there / "snapshots" / COMMIT
    assert list_files(snapshot) == {name: FILES[name] for name in LOADED}
    assert all((snapshot / name).readlink().parts[-2] == "blobs" for name in LOADED)
    assert (there / "refs" / "main").read_text() == COMMIT
    assert not [*there.rglob("*.incomplete"), *there.rglob(".*.[0-9]*")]
    assert (events[-1].done, events[-1].fraction) == (True, 1.0)
    os.environ["HF_HOME"] = str(far_cache.parent)  # the fixture's own, which is put back
    model = model_lookup.find_local_model(REPO)
    assert model is not None
    assert model.folder == str(snapshot)


def test_what_is_there_is_not_sent_again(source, far, far_cache):
    assert ask(source).offsets.count(None) == 1  # of two files with the same hash one is sent
    put_model(far_cache)
    assert ask(source).is_done
    before = {path: path.stat().st_mtime_ns for path in far_cache.rglob("*") if path.is_file()}
    copy(source)
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.parametrize("kept", [1, 1700, 70_000, 3_000_000])
def test_a_copy_that_was_cut_goes_on_where_it_ended(kept, source, far, far_cache):
    """At any byte: of the manifest, of a small file, of the weights; nothing has its name before it is whole."""
    far.put_cut(kept)
    error = refusal(source)
    assert isinstance(error, sender.NotReached)
    for path in far_cache.rglob("blobs/*"):
        data = path.read_bytes()
        assert path.suffix == ".incomplete" or path.name in {file.digest for file in source.manifest.files}
        assert any(whole.startswith(data) for whole in FILES.values())
    assert not [*far_cache.rglob("refs/*"), *far_cache.rglob("snapshots/*")]
    far.put_ssh()
    offsets = ask(source).offsets
    [came] = [offset for offset, file in zip(offsets, source.manifest.files, strict=True) if file.size == len(WEIGHTS)]
    assert came is not None
    assert (came > 60_000) is (kept >= 70_000)
    taken = far.root / "taken"
    far.put_ssh(f"tee {taken}")
    (far.programs / "tee").symlink_to(shutil.which("tee") or "")
    copy(source)
    assert taken.stat().st_size < len(WEIGHTS) - came + 4000
    assert list_files(far_cache)[f"models--owner--model/snapshots/{COMMIT}/model.safetensors"] == WEIGHTS


def test_a_part_that_is_not_of_the_file_is_found_and_thrown_away(source, far_cache):
    """As after a power cut that left zeros."""
    blobs = far_cache / "models--owner--model" / "blobs"
    blobs.mkdir(parents=True)
    part = blobs / f"{hashlib.sha256(WEIGHTS).hexdigest()}.incomplete"
    part.write_bytes(bytes(4096))
    refusal(source)
    assert not part.exists()
    assert hashlib.sha256(WEIGHTS).hexdigest() not in list_files(blobs)
    copy(source)


def test_a_file_that_is_damaged_here_is_not_taken_there(source, far_cache):
    source.paths[0].write_bytes(WEIGHTS[:-1] + b"\0")
    refusal(source)
    assert all(data in FILES.values() for data in list_files(far_cache).values())


def test_a_file_that_becomes_shorter_meanwhile_ends_it(source):
    source.paths[0].write_bytes(WEIGHTS[:5000])
    assert str(source.paths[0]) in refusal(source).what


@pytest.mark.parametrize("way", ["cancel", "kill"])
def test_who_gives_up_ends_it_on_both_sides(way, source, far, far_cache):
    """And leaves what came, from where it can go on."""
    far.put_cut(70_000, stays=True)
    [weights] = [file for file in source.manifest.files if file.size == len(WEIGHTS)]
    part = far_cache / "models--owner--model" / "blobs" / f"{weights.digest}.incomplete"

    async def give_up() -> None:
        copying = asyncio.create_task(sender.send_copy("spark-b", None, source, lambda _: None))
        await until(lambda: part.exists() and part.stat().st_size > 60_000)
        copying.cancel()
        await asyncio.gather(copying, return_exceptions=True)

    if way == "cancel":
        asyncio.run(give_up())
    else:
        code = (
            "import asyncio; from tests.server import test_copies as t; from dflash_tui.peers.copies import sender; "
            f"t.copy(t.find({REPO!r}))"
        )
        near = subprocess.Popen([sys.executable, "-c", code])
        wait_until(lambda: part.exists() and part.stat().st_size > 60_000)
        near.kill()
        near.wait()
    wait_until(lambda: not find_processes("--receive"))
    assert WEIGHTS.startswith(part.read_bytes())
    far.put_ssh()
    copy(source)
    assert not part.exists()


def snapshot(name: str = "model.safetensors", **place: str) -> Manifest:
    fields = {"repo": REPO, "revision": "main", "commit": COMMIT} | place
    return Manifest(HubSnapshot(**fields), (CopyFile(name, 3, "a" * 64),))


HOSTILE = {
    "up": snapshot("../../../evil"),
    "absolute": snapshot("/etc/evil"),
    "inside": snapshot("a/../../b"),
    "dot": snapshot("."),
    "backslash": snapshot("..\\evil"),
    "repo": snapshot(repo="../../evil/x"),
    "repo words": snapshot(repo="a--b/../c"),
    "revision": snapshot(revision="../../../evil"),
    "no hash": Manifest(snapshot().place, (CopyFile("model.safetensors", 3),)),
    "twice": Manifest(snapshot().place, snapshot().files * 2),
    "file and folder": Manifest(snapshot().place, (CopyFile("a", 1, "a" * 64), CopyFile("a/b", 1, "b" * 64))),
    "folder": Manifest(OwnFolder("ft", "a" * 16), (CopyFile("../evil", 3),)),
}


def receive(line: bytes, data: bytes = b"") -> list[messages.AgentMessage | None]:
    """Return what the far side says, in this process, to a manifest and what follows."""
    read, write = os.pipe()
    said: list[bytes] = []
    with os.fdopen(write, "wb") as output:
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 1 << 20)
        output.write(line + data)
    try:
        receiver.receive_copy(read, said.append)
    finally:
        os.close(read)
    return [messages.decode_message(each) for each in said]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_that_lead_elsewhere_are_refused(name, far):
    """Before anything is written."""
    before = list_files(far.root.parent)
    [said] = receive(messages.encode_line(HOSTILE[name]), b"abc" * 9)
    assert isinstance(said, Refused)
    assert said.exit_code == 2
    assert list_files(far.root.parent) == before


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"{}\n",
        b"GET / HTTP/1.1\n",
        b"x" * 600_000 + b"\n",
        messages.encode_line(snapshot()).replace(b'"size":3', b'"size":-3'),
        messages.encode_line(snapshot()).replace(b'"size":3', b'"size":1e300'),
        messages.encode_line(snapshot()).replace(COMMIT.encode(), b"../" + COMMIT.encode()[3:]),
        messages.encode_line(HOSTILE["folder"]).replace(b'"ft"', b'"../ft"'),
        messages.encode_line(HOSTILE["folder"]).replace(b'"ft"', b'".ft"'),
        messages.encode_line(Manifest(snapshot().place, (CopyFile("a", 1),) * (MOST_FILES + 1)))[: 1 << 19],
    ],
)
def test_what_is_no_manifest_is_refused(line, far):
    before = list_files(far.root.parent)
    assert [type(each) for each in receive(line)] in ([Refused], [])
    assert list_files(far.root.parent) == before


@pytest.mark.parametrize("kind", ["blobs", "part", "repository", "fifo"])
def test_links_that_lead_elsewhere_are_refused(kind, far, source):
    """What lies behind them is not touched."""
    os.environ["HF_HOME"] = str(far.folder / "hf")
    outside = far.folder / "outside"
    outside.mkdir()
    kept = outside / "kept"
    kept.write_text("mine")
    folder = cache.repository_folder(REPO)
    file = source.manifest.files[0]
    part = folder / "blobs" / f"{file.digest}.incomplete"
    place = {"repository": folder, "blobs": folder / "blobs"}.get(kind, part)
    place.parent.mkdir(parents=True)
    if kind == "fifo":
        os.mkfifo(part)
    elif kind == "part":
        part.symlink_to(kept)
    else:
        place.symlink_to(outside)
    manifest = replace(source.manifest, files=source.manifest.files[:1])
    *_, said = receive(messages.encode_line(manifest), WEIGHTS[:500_000])
    assert isinstance(said, Refused)
    assert said.hint
    assert (kept.read_text(), [*outside.iterdir()]) == ("mine", [kept])


def test_more_than_was_announced_is_not_written(far):
    """Endless data ends with the last byte of the last file."""
    manifest = replace(snapshot(), files=(CopyFile("model.safetensors", 3, hashlib.sha256(b"abc").hexdigest()),))
    room, said = receive(messages.encode_line(manifest), b"abc" + b"x" * 100_000)
    assert isinstance(room, RoomFound)
    assert isinstance(said, messages.Done)
    blobs = cache.repository_folder(REPO) / "blobs"
    assert list_files(blobs) == {manifest.files[0].digest: b"abc"}


def test_no_room_is_said_before_a_byte_is_sent(far, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**10, 0, 10**9 + 2))
    [said] = receive(messages.encode_line(snapshot()), b"abc")
    assert isinstance(said, Refused)
    assert not cache.repository_folder(REPO).exists()


def test_a_disk_that_fills_up_keeps_what_came(source, far, far_cache):
    """The limit on a file's size stands for the end of the disk."""
    program = far.programs / "dflash-tui"
    whole = program.read_text()
    program.write_text(whole.replace("#!/bin/sh\n", "#!/bin/sh\nulimit -f 2000\n"))
    error = refusal(source)
    assert os.strerror(errno.EFBIG) in error.evidence
    [part] = far_cache.rglob("*.incomplete")
    assert part.read_bytes() == WEIGHTS[: 2000 * 512]
    program.write_text(whole)
    copy(source)


ROOM = messages.encode_line(RoomFound(0, (0, 0, 0, None, 0), 10**15, False)).decode().strip()


@pytest.mark.parametrize(
    "script",
    [
        "exit 0",
        "yes",
        "head -c 40000000 /dev/zero",
        "echo '{}'; sleep 0.1",
        f"echo '{ROOM}'",
        f"echo '{ROOM}'; cat >/dev/null & yes",
        f"echo '{ROOM.replace('null', '99')}'; cat >/dev/null",
        f"echo '{ROOM.replace('[0,', '[9999999999,')}'; cat >/dev/null",
        f"echo '{ROOM.replace('[0,', '[')}'; cat >/dev/null",
        f"echo '{ROOM.replace('[0,', '[-1,')}'; exit 3",
        """echo '{"say":"refused","id":0,"what":"no \\u001b[2J","exit_code":1}'""",
    ],
)
def test_a_far_side_that_lies_or_floods_is_found_out(script, source, far, monkeypatch):
    monkeypatch.setattr(sender, "_END_SECONDS", 0.5)
    far.put_answer(script)
    with pytest.raises(DflashError) as error:
        copy(source)
    assert escapes.acting(str(error.value)) == set()


def test_nothing_secret_goes_along(source, far, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "planted-4711-secret-token")
    far.put_answer(f"env >{tmp_path}/said; head -n 1 >>{tmp_path}/said; exit 255")
    refusal(source)
    said = (tmp_path / "said").read_text()
    assert ("planted" in said, REPO in said) == (False, True)


@pytest.fixture
def tune(far, tmp_path) -> Path:
    """A fine-tune in a folder of this host, with what vLLM does not load beside it."""
    folder: Path = tmp_path / "my tune"
    (folder / "checkpoint-500").mkdir(parents=True)
    (folder / "checkpoint-500" / "optimizer.pt").write_bytes(b"large")
    for name, data in {"model.safetensors": WEIGHTS, "config.json": b"{}"}.items():
        (folder / name).write_bytes(data)
    return folder


def test_a_folder_is_copied_among_our_own_models(tune, far):
    """It gets its name at the end; a changed one gets another."""
    source = find_tune(tune)
    [name] = sources.name_folders(plan_of(str(tune))).values()
    models = far.data / "models"
    far.put_cut(70_000)
    refusal(source)
    assert not (models / name).exists()
    far.put_ssh()
    assert any(ask(source).offsets)
    copy(source)
    assert list_files(models) == {f"{name}/config.json": b"{}", f"{name}/model.safetensors": WEIGHTS}
    assert not [path for path in (models, *models.rglob("*")) if path.stat().st_mode & 0o77]
    assert ask(source).is_done
    os.utime(tune / "model.safetensors", (1, 1))
    assert [*sources.name_folders(plan_of(str(tune))).values()] != [name]


def test_a_folder_that_changed_meanwhile_is_not_mixed(tune, far):
    """What came of an earlier version is not gone on with."""
    far.put_cut(70_000)
    refusal(find_tune(tune))
    far.put_ssh()
    (tune / "model.safetensors").write_bytes(WEIGHTS[::-1])
    source = find_tune(tune)
    assert ask(source).offsets == (0, 0)
    copy(source)
    assert WEIGHTS[::-1] in list_files(far.data / "models").values()


def test_a_folder_of_the_user_at_that_path_is_used(tune, far):
    """Its files are compared later."""
    assert ask(find_tune(tune, str(far.folder))).is_done


def test_what_is_copied_is_said_before(source, far, monkeypatch):
    async def look() -> list[missing_models.MissingModel]:
        async with open_connection("spark-b") as peer:
            missing = await missing_models.find_missing([source], peer)
            checks.extend(missing_models.check_missing(missing, peer, CLUSTER, 1))
            checks.extend(missing_models.check_missing([missing[0]._replace(free=5)], peer, CLUSTER, 1))
            return missing

    checks: list[Check] = []
    [missing] = asyncio.run(look())
    assert missing.size == source.size - 2  # one of two files that are the same
    assert [(check.name, check.level.value) for check in checks] == [
        ("spark-b: target", "ok"),
        ("spark-b: target", "fail"),
    ]
    assert "10.0.0.2 (eth0)" in checks[0].finding
    put_model(far.folder / ".cache" / "huggingface" / "hub")
    assert asyncio.run(_find(source)) == []


async def _find(source: CopySource) -> list[missing_models.MissingModel]:
    async with open_connection("spark-b") as peer:
        return await missing_models.find_missing([source], peer)


def test_a_link_without_ssh_is_left_for_the_usual_way(source, far, far_cache):
    """And that is said."""
    ssh = far.root / "near" / "ssh"
    words = ssh.read_text().partition("\n")
    refused = 'case "$*" in *HostName=*) echo "connect to host: Connection refused" >&2; exit 255;; esac'
    ssh.write_text(f"{words[0]}\n{refused}\n{words[2]}")
    events: list[Preparing] = []

    async def run() -> None:
        async with open_connection("spark-b") as peer:
            await missing_models.copy_missing([source], peer, CLUSTER, 1, events.append)

    asyncio.run(run())
    assert (far_cache / "models--owner--model" / "refs" / "main").is_file()
    assert any("10.0.0.2" in event.text for event in events)


def test_on_the_link_the_key_is_that_of_the_host():
    """Whoever else has the address is refused, and no proxy leads elsewhere."""
    link = transport.LinkAddress("10.0.0.1", "10.0.0.2", "spark-b.lan")
    words = transport.build_receive_command("ann@spark-b", link)
    assert words[-3:-1] == ["--", "ann@spark-b"]
    assert {"HostName=10.0.0.2", "BindAddress=10.0.0.1", "HostKeyAlias=spark-b.lan", "ProxyJump=none"} <= {*words}
    assert not any("StrictHostKeyChecking" in word for word in words)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ("hostname spark-b.lan\nport 22\n", "spark-b.lan"),
        ("hostname 10.9.9.9\nport 2222\n", "[10.9.9.9]:2222"),
        ("hostname x\nhostkeyalias known\nport 2222\n", "known"),
        ("", "spark-b"),
    ],
)
def test_the_name_of_a_key_is_what_ssh_has_for_it(settings, name):
    assert transport.read_key_name("ann@spark-b", settings) == name


def test_models_that_are_not_whole_here_are_left_to_the_other_host(far, source):
    """As are those whose blobs have no name by which they could be compared."""
    source.paths[0].rename(source.paths[0].with_name("etag"))
    link = cache.snapshot_folder(REPO, COMMIT) / "model.safetensors"
    link.unlink()
    assert asyncio.run(sources.find_sources(plan_of(REPO, "owner/other"))) == []
    link.symlink_to(source.paths[0].with_name("etag"))
    assert asyncio.run(sources.find_sources(plan_of(REPO))) == []


def test_a_person_who_calls_it_is_told(capsys):
    run = [sys.executable, "-m", "dflash_tui", "agent", "--receive"]
    said = subprocess.run(run, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (said.returncode, "--peer" in said.stderr) == (2, True)


TRY = """
import asyncio, sys
from pathlib import Path
from dflash_tui.peers import transport
from dflash_tui.peers.copies import sender, sources
from tests.server.test_copies import find_tune
link = transport.LinkAddress("10.77.0.1", "10.77.0.2", sys.argv[2])
said = lambda event: print(event.text, flush=True)
asyncio.run(sender.send_copy("spark-b", link, find_tune(Path(sys.argv[1])), said))
"""


@pytest.mark.long
@pytest.mark.chain("hosts")
def test_over_a_real_ssh_a_cable_that_is_pulled_out_costs_what_was_under_way(tmp_path):
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
