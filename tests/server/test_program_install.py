"""This program brought to another host, which another home folder plays: installed whole, or not at all."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from dflash_tui import __version__
from dflash_tui.common.errors import DflashError
from dflash_tui.peers import far_program, transport
from dflash_tui.peers.connection import greet_host
from dflash_tui.peers.transport import NeedsProgram
from tests.support import tiny_wheels
from tests.support.far_home import FarHome
from tests.support.process_search import find_processes
from tests.support.two_hosts import make_two_hosts
from tests.support.waiting import PATIENCE, until, wait_until
from tests.support.wheelhouse import fill_wheelhouse, list_needed

VERSION = ["dflash-tui", __version__]


@pytest.fixture
def far(tmp_path, monkeypatch) -> FarHome:
    """A host without this program, whose index has an empty package for each that this program needs."""
    monkeypatch.setenv("PATH", os.environ["PATH"])
    home = FarHome(tmp_path / "far")
    for needed in list_needed():
        lowest = next(each.version for each in needed.specifier if each.operator == ">=")
        tiny_wheels.write_files(home.wheels, needed.name, lowest, {})
    return home


def install() -> str:
    return asyncio.run(far_program.install_program("spark-b"))


def refusal(kind: type[DflashError] = DflashError) -> DflashError:
    with pytest.raises(kind) as error:
        install()
    assert error.value.hint
    return error.value


@pytest.mark.long
def test_it_is_installed_and_found_and_replaced(far):
    """By a link to a folder of its own: one that a process runs from stays, one that was cut off goes."""
    with pytest.raises(NeedsProgram):
        asyncio.run(greet_host("spark-b"))
    (far.data / "program-cut").mkdir(parents=True)
    assert install().split()[0] == str(far.data / "program")
    first = (far.data / "program").resolve()
    program = far.data / "program" / "bin" / "dflash-tui"
    assert subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split() == VERSION
    assert far.list_programs() == ["program", first.name]
    assert not [*first.glob("*.whl"), *first.glob("*.log")]
    assert first.stat().st_mode & 0o77 == 0
    asked = transport.build_program_command("spark-b", ["--version"], on_terminal=False)
    assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split() == VERSION

    running = subprocess.Popen([first / "bin" / "python", "-c", "input()"], stdin=subprocess.PIPE)
    try:
        install()
        second = (far.data / "program").resolve()
        assert far.list_programs() == ["program", *sorted([first.name, second.name])]
    finally:
        running.communicate()


@pytest.mark.long
def test_packages_that_are_missing_leave_nothing(far):
    """And what was there before goes on to be there."""
    next(far.wheels.glob("textual-*")).unlink()
    (far.data / "program-old").mkdir(parents=True)
    (far.data / "program").symlink_to("program-old")
    assert "textual" in refusal().evidence
    assert far.list_programs() == ["program", "program-old"]


def told(kind: str) -> str:
    return far_program._FAILURES[kind][0].format(host="spark-b")


def test_unsuitable_remote_python_is_refused(far):
    far.put_python('case "$*" in *venv*) exit 1;; esac')
    assert refusal().what == told("python")
    assert not far.data.exists()


def test_truncated_wheel_is_not_installed(far):
    far.put_ssh("head -c 300000")
    assert refusal().what == told("cut")
    assert far.list_programs() == []


@pytest.fixture
def silent_index(far) -> Iterator[socket.socket]:
    """An index that takes a connection and never answers, so that an installation stays in its middle."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)
        far.links = f"http://127.0.0.1:{server.getsockname()[1]}/"
        far.put_ssh()
        yield server


@pytest.mark.long
def test_cancelled_remote_install_leaves_nothing(far, silent_index):
    """Pip is ended there, too."""

    async def leave() -> None:
        installing = asyncio.create_task(far_program.install_program("spark-b"))
        connection, _ = await asyncio.to_thread(silent_index.accept)
        [pip] = [process for process in find_processes("--only-binary") if "python" in process.name()]
        assert len(far.list_programs()) == 1
        installing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await installing
        await until(lambda: not pip.is_running() and far.list_programs() == [])
        connection.close()

    asyncio.run(leave())


@pytest.mark.long
def test_remote_install_of_killed_client_leaves_nothing(far, silent_index):
    code = "import asyncio; from dflash_tui.peers import far_program as p; asyncio.run(p.install_program('spark-b'))"
    near = subprocess.Popen([sys.executable, "-c", code])
    connection, _ = silent_index.accept()
    assert len(far.list_programs()) == 1
    near.kill()
    near.wait()
    wait_until(lambda: far.list_programs() == [])
    connection.close()


def test_no_secret_is_exported(far, tmp_path, monkeypatch):
    """Neither in the variables of ssh nor in what is sent."""
    monkeypatch.setenv("HF_TOKEN", "planted-4711-secret-token")
    far.put_answer(f"env >{tmp_path}/said; cat >>{tmp_path}/said & read line; exit 255")
    refusal()
    assert "planted" not in (tmp_path / "said").read_text(errors="replace")


@pytest.mark.long
@pytest.mark.index
def test_bare_host_gets_program_and_answers_plan(tmp_path):
    """Over a real ssh, by one command: the program is installed there, with real packages, and its agent answers."""
    data = tmp_path / "data"
    (data / "dflash-tui" / "models").mkdir(parents=True)
    fill_wheelhouse(tmp_path / "hosts" / "wheels")
    with make_two_hosts(tmp_path / "hosts", data) as hosts:
        programs = tmp_path / "hosts" / "b" / "home" / ".local" / "bin"
        (programs / "dflash-tui").unlink()
        (programs / "python3").symlink_to(sys.executable)
        asked = ["dflash-tui", "plan", "demo-cpu", "--peer", "spark-b", "--set", "tensor-parallel-size=2", "--json"]
        refused = hosts.run("a", *asked)
        assert (refused.returncode, "--install-peers" in refused.stderr) == (2, True)
        assert not (data / "dflash-tui" / "program").exists()
        planned = hosts.run("a", *asked, "--install-peers")
        assert planned.returncode == 0, planned.stderr
        assert [each["address"] for each in json.loads(planned.stdout)["cluster"]["hosts"]] == [
            "10.77.0.1",
            "10.77.0.2",
        ]
        assert hosts.run("a", *asked).returncode == 0
        there = hosts.run("a", "dflash-tui", "--host", "spark-b", "--version")
        assert (there.stdout.split(), there.stderr) == (VERSION, "")
