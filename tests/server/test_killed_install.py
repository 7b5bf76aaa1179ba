"""Installs that are killed half-way with SIGKILL, by the command line, and what the next one makes of them."""

import csv
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import distributions
from pathlib import Path

import psutil
import pytest
import uv

from dflash_tui.common import paths
from dflash_tui.engines import inventory
from dflash_tui.engines.environments import Engine
from dflash_tui.planning.plan_builder import engine_folder_for
from dflash_tui.planning.recipes import recipe_loader, resolution
from tests.support.process_search import find_processes
from tests.support.selection import leave_to_long
from tests.support.waiting import wait_until

ENGINE = [sys.executable, "-m", "dflash_tui", "engine"]
COMMAND = [*ENGINE, "install", "--trust"]
# The same with a uv that leaves byte code out, which takes minutes of both cores for a real engine.
WITHOUT_BYTE_CODE = """\
import sys, uv
uv.find_uv_bin = lambda: {script!r}
from dflash_tui.cli import main as cli
sys.exit(cli.main(["engine", "install", *sys.argv[1:]]))
"""
SCRIPT = """\
#!/bin/sh
for word; do shift; [ "$word" = --compile-bytecode ] || set -- "$@" "$word"; done
exec {uv} "$@"
"""
WHEEL = "slow-1.0-py3-none-any.whl"
METADATA = "Metadata-Version: 2.1\nName: slow\nVersion: 1.0\n"
MODULES = 600
RECIPE = """\
title: A package that takes its time
status: experimental
engine: {vllm: 0.99.0, packages: [slow==1.0], download_mb: 4, disk_mb: 10}
target: {model: a/b, served_name: c}
drafter: {model: a/c}
num_speculative_tokens: 1
"""


class Index:
    """An index of one package, whose wheel comes as far as `held` and goes on when `go` is set."""

    def __init__(self, wheel: bytes) -> None:
        self.wheel, self.held = wheel, len(wheel) // 2
        self.sending, self.go = threading.Event(), threading.Event()
        self.url = ""


class Handler(BaseHTTPRequestHandler):
    index: Index

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        if self.path.endswith("/slow/"):
            digest = hashlib.sha256(self.index.wheel).hexdigest()
            link = f'<a href="/{WHEEL}#sha256={digest}" data-core-metadata="true">{WHEEL}</a>'
            self.send([link.encode()], "text/html")
        elif self.path.endswith(".metadata"):
            self.send([METADATA.encode()], "text/plain")
        elif self.path.endswith(".whl"):
            self.send([self.index.wheel[: self.index.held], self.index.wheel[self.index.held :]], "application/zip")
        else:
            self.send_error(404)

    def send(self, parts: list[bytes], kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(sum(map(len, parts))))
        self.end_headers()
        for number, part in enumerate(parts):
            if number:
                self.index.sending.set()
                self.index.go.wait(60)
            self.wfile.write(part)
            self.wfile.flush()


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Say nothing of clients that went away."""


@pytest.fixture
def index(tmp_path) -> Iterator[Index]:
    """Serve a wheel of 4 MB that stops in the middle; its modules take seconds to compile."""
    path = tmp_path / WHEEL
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("slow.bin", os.urandom(4_000_000))
        for number in range(MODULES):
            wheel.writestr(f"slow/module_{number}.py", "\n".join(f"value_{line} = [{line}]" for line in range(200)))
        wheel.writestr("slow-1.0.dist-info/METADATA", METADATA)
        wheel.writestr("slow-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("slow-1.0.dist-info/RECORD", "")
    served = Index(path.read_bytes())
    server = Server(("127.0.0.1", 0), type("Bound", (Handler,), {"index": served}))
    served.url = f"http://127.0.0.1:{server.server_address[1]}/simple"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield served
    served.go.set()
    server.shutdown()
    server.server_close()


@contextmanager
def installing(recipe: str, command: Sequence[str] = COMMAND) -> Iterator[subprocess.Popen[str]]:
    """Install its engine; the block ends it by SIGKILL when it has seen enough."""
    with subprocess.Popen([*command, recipe, "--json"], stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL


def told(process: subprocess.Popen[str], words: str) -> None:
    """Read what an install says until it says `words`."""
    assert process.stdout is not None
    while words not in (line := process.stdout.readline()):
        assert line, "it ended"


def working_in(folder: Path) -> list[psutil.Process]:
    """Return the processes whose command names the folder."""
    return find_processes(str(folder), psutil.process_iter())


def installed(recipe: str, command: Sequence[str] = COMMAND) -> Engine:
    """Install its engine in peace; nothing else may lie beside it afterwards."""
    done = subprocess.run([*command, recipe, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    engines = inventory.list_engines()
    [engine] = [each for each in engines if not each.base]
    folder, names = Path(engine.folder), {Path(each.folder).name for each in engines}
    assert json.loads(done.stdout.splitlines()[-1])["folder"] in {each.folder for each in engines}
    assert {path.name for path in paths.engines_folder().iterdir()} == names | {f".{name}.lock" for name in names} | {
        "locked"
    }
    assert inventory.list_leftovers() == []
    wait_until(lambda: working_in(folder) == [])
    return engine


def complete(engine: Engine) -> None:
    """Look for every file that the packages of the engine say they have.

    The kept demo engine is no measure: what vLLM leaves open moves with the index from one day to the next.
    """
    site, listed = engine.site_packages, 0
    for package in distributions(path=[str(site)]):
        rows = [row for row in csv.reader((package.read_text("RECORD") or "").splitlines()) if row]
        assert [row[0] for row in rows if not (site / row[0]).exists()] == [], package.name
        listed += len(rows)
    assert listed > 20_000


@pytest.mark.long
def test_install_killed_downloading_or_compiling_is_redone(index, tmp_path, monkeypatch):
    """The half-made folder is no engine and is named; the next install makes one of it, the uv of the first ended."""
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    recipe = tmp_path / "slow.yaml"
    recipe.write_text(RECIPE)
    folder = engine_folder_for(resolution.resolve_recipe(recipe_loader.find_recipe(str(recipe))).engine)
    with installing(str(recipe)) as process:
        wait_until(lambda: index.sending.is_set() or process.poll() is not None)
        assert working_in(folder)
    assert inventory.list_engines() == []
    assert inventory.list_leftovers() == [folder]
    index.go.set()
    with installing(str(recipe)) as process:
        told(process, "compiling")
    assert inventory.list_engines() == []
    assert inventory.list_leftovers() == [folder]
    engine = installed(str(recipe))
    assert "slow==1.0" in engine.packages
    assert (engine.site_packages / "slow.bin").stat().st_size == 4_000_000
    assert len(list(engine.site_packages.glob("slow/__pycache__/*.pyc"))) == MODULES


# What is there when it is killed, below the folder of the engine.
MOMENTS = {
    "a folder": "pyvenv.cfg",
    "an environment": "dflash-overrides.txt",
    "the first files": "lib/python3.*/site-packages/slow/*.py",
    "byte code": "lib/python3.*/site-packages/slow/__pycache__/*.pyc",
}


@pytest.mark.parametrize("moment", leave_to_long(MOMENTS, but=["the first files"]))
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_install_killed_at_any_moment_can_restart(index, tmp_path, monkeypatch, number, moment):
    """The real uv: told to end it leaves nothing; killed it leaves what the next names and makes anew."""
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    recipe = tmp_path / "slow.yaml"
    recipe.write_text(RECIPE)
    folder = engine_folder_for(resolution.resolve_recipe(recipe_loader.find_recipe(str(recipe))).engine)
    command = [*COMMAND, str(recipe), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: any(folder.glob(MOMENTS[moment])) or process.poll() is not None)
        process.send_signal(number)
        _, told_last = process.communicate()
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert "Traceback" not in told_last
    assert inventory.list_engines() == []
    if number == signal.SIGTERM:
        assert inventory.list_leftovers() == []
        wait_until(lambda: working_in(folder) == [])  # who was told to end with it does so in its own time
    else:
        listed = subprocess.run([*ENGINE, "list"], capture_output=True, text=True, check=False)
        assert (listed.returncode, str(folder) in listed.stdout + listed.stderr) == (0, True)
    engine = installed(str(recipe))
    assert len(list(engine.site_packages.glob("slow/__pycache__/*.pyc"))) == MODULES


@pytest.mark.long
@pytest.mark.vllm
@pytest.mark.chain("installs")
def test_killed_while_it_installs_the_real_one(folders, demo_engine, tmp_path, monkeypatch):
    """While its packages are linked; then one good engine is there."""
    # What was downloaded for the demo engine lies in uv's own cache.
    monkeypatch.delenv("XDG_CACHE_HOME")
    folder = engine_folder_for(resolution.resolve_recipe(recipe_loader.find_recipe("demo-cpu")).engine)
    script = tmp_path / "uv"
    script.write_text(SCRIPT.format(uv=uv.find_uv_bin()))
    script.chmod(0o755)
    command = [sys.executable, "-c", WITHOUT_BYTE_CODE.format(script=str(script))]
    with installing("demo-cpu", command):
        wait_until(lambda: any(folder.glob("lib/python3.*/site-packages/torch")))
    assert inventory.list_engines() == []
    assert inventory.list_leftovers() == [folder]
    engine = installed("demo-cpu", command)
    complete(engine)
    found = inventory.describe_environment(engine.python)
    assert (found.vllm, found.dflash) == ("0.32.0", True)
