"""A machine that lacks something: a HOME that may only be read, shared memory, processes for all there is to do.

Small file systems are mounted for it, which needs root.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.server.faults.test_surroundings import XDG
from tests.support import fake_engine
from tests.support.fake_runs import free_port
from tests.support.pty_terminal import ENTER
from tests.support.small_disk import mount_disk

DFLASH = (sys.executable, "-m", "dflash_tui")
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="a disk can be mounted by root only")


def run(*words: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*before, *DFLASH, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=240)


@pytest.fixture
def home(tmp_path, monkeypatch) -> Iterator[Path]:
    """Mount a HOME that may only be read, with all folders of ours below it."""
    for name in (*XDG, "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with mount_disk(tmp_path / "home", "size=80g,ro") as folder:
        yield folder


READING = ("plan demo-cpu", "ps --all")
WRITING = ("up demo-cpu --detach", "recipes new mine")


@AS_ROOT
@pytest.mark.parametrize("words", READING)
def test_read_commands_work_in_read_only_home(home, words):
    done = run(*words.split())
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


@AS_ROOT
@pytest.mark.parametrize("words", WRITING)
def test_write_commands_name_read_only_folder(home, words):
    done = run(*words.split())
    assert done.returncode in {1, 4}
    assert "Traceback" not in done.stderr
    assert str(home) in done.stderr
    assert "XDG_" in done.stderr
    assert list(home.iterdir()) == []


@AS_ROOT
def test_doctor_reports_unwritable_home(home):
    """Before a launch finds out."""
    done = run("doctor", "demo-cpu")
    assert done.returncode == 4
    assert f"{home} cannot be written" in done.stdout


@AS_ROOT
def test_panel_opens_in_read_only_home(home, terminal):
    panel = terminal()
    seen = panel.until(b"demo-cpu")
    assert ENTER in seen
    panel.type("q")
    assert panel.ended() == 0


# Each runs a command in a mount namespace of its own. Without: a /dev that has what else a program needs of it.
SHARED_MEMORY = {
    "full": "mount -t tmpfs -o size=4k tmpfs /dev/shm && echo x > /dev/shm/x",
    "gone": 'd=$(mktemp -d) && mount -t tmpfs tmpfs "$d" && for f in null zero full random urandom tty; do '
    'touch "$d/$f" && mount --bind "/dev/$f" "$d/$f"; done && mkdir "$d/pts" && mount --bind /dev/pts "$d/pts" && '
    'ln -s pts/ptmx "$d/ptmx" && ln -s /proc/self/fd "$d/fd" && mount --move "$d" /dev',
}


@pytest.fixture
def without_shared_memory() -> Callable[[str], tuple[str, ...]]:
    """Return a function that gives the words before a command for which /dev/shm is missing in one way."""

    def words(how: str) -> tuple[str, ...]:
        before = ("unshare", "--mount", "sh", "-c", f'{SHARED_MEMORY[how]} && exec "$@"', "sh")
        if not shutil.which("unshare") or subprocess.run([*before, "true"], check=False).returncode != 0:
            pytest.skip("mount namespaces can be made by root only")
        return before

    return words


@pytest.mark.long
@AS_ROOT
@pytest.mark.parametrize("how", SHARED_MEMORY)
def test_a_life_without_shared_memory(without_shared_memory, how):
    """We need none: planned, launched, listed and stopped; the doctor says what a server may miss."""
    before = without_shared_memory(how)
    fake_engine.make(free_port(18_400))
    doctor = run("doctor", "fake", before=before)
    assert "shared memory" in doctor.stdout
    up = run("up", "fake", "--detach", "--force", "a test", before=before)
    assert up.returncode == 0, up.stderr
    for words in (("ps",), ("logs", up.stdout.strip()), ("why", up.stdout.strip()), ("stop",)):
        done = run(*words, before=before)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
