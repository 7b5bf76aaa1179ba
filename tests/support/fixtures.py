"""A hub with the models of a recipe, real trees of processes, and the parts of the sample."""

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from dflash_tui.monitoring import recording
from dflash_tui.monitoring.recording import LOG_PART, RUN_PART, SAMPLES_PART
from tests.support import hub_server
from tests.support.hub_server import Hub

# Keeps 64 MiB and, like a server, starts processes that are called otherwise, each by the one before.
NEST = """
import os, subprocess, sys, time
kept, below = b"x" * (64 << 20), ""
if titles := sys.argv[1:]:
    words = [titles[0], "-c", "import os; exec(os.environ['NEST'])", *titles[1:]]
    started = subprocess.Popen(words, executable=os.environ["PYTHON"], stdout=subprocess.PIPE, text=True)
    below = started.stdout.readline().strip()  # an empty line more could come when its reader is gone
print(os.getpid(), below, flush=True)
time.sleep(600)
"""


@pytest.fixture
def tree() -> Iterator[Callable[..., tuple[int, ...]]]:
    """Return a function that starts a server and below it, one by the other, processes of these titles."""
    pids: list[int] = []
    servers: list[subprocess.Popen[str]] = []

    def start(*titles: str) -> tuple[int, ...]:
        # By another name Python does not find its library.
        env = {**os.environ, "NEST": NEST, "PYTHON": sys.executable, "PYTHONHOME": sys.base_prefix}
        command = [sys.executable, "-c", NEST, *titles]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, start_new_session=True)
        servers.append(server)
        assert server.stdout is not None
        started = [int(pid) for pid in server.stdout.readline().split()]
        pids.extend(started)
        assert len(started) == len(titles) + 1
        return tuple(started)

    yield start
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for server in servers:
        server.communicate()


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Iterator[Hub]:
    """Serve an empty hub to a user without a token and with an empty cache."""
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING", "TRANSFORMERS_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "hf" / "token"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with hub_server.running() as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        yield served


@pytest.fixture
def gemma_hub(hub: Hub) -> Hub:
    """Serve the models of gemma-4-26b-a4b, a few bytes each."""
    files = {"config.json": b"{}", "model.safetensors": b"x" * 1000}
    names = ("gemma-4-26B-A4B-it", "gemma-4-26B-A4B-it-DFlash", "gemma-4-26B-A4B-it-AWQ-4bit")
    hub.repos = {f"{owner}/{name}": files for owner, name in zip(("google", "z-lab", "cyankiwi"), names, strict=True)}
    return hub


@pytest.fixture
def parts() -> dict[str, bytes]:
    """The three parts of the sample."""
    folder = recording.find_recording("sample").folder
    return {name: (folder / name).read_bytes() for name in (RUN_PART, LOG_PART, SAMPLES_PART)}


_MOST_PIDS, _LIMITED_USERS = 1 << 22, itertools.count()


@pytest.fixture
def limited() -> Callable[[int], list[str]]:
    """Return a function that gives the words before a command whose user may have so many processes and threads.

    The limit does not hold for root, so that another user is played, who may read our files all the same.
    """
    may = ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
    # Of no other pytest worker and of no earlier test: their processes, also those that are about to end, would count.
    user = str(100_000 + os.getpid() + _MOST_PIDS * next(_LIMITED_USERS))
    played = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", *may] if os.getuid() == 0 else []
    if played and not shutil.which("setpriv"):
        pytest.skip("root has no limit of processes, and setpriv (util-linux) is not there")
    return lambda most: ["prlimit", f"--nproc={most}:{most}", *played]
