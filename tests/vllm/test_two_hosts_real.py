"""Real vLLM over two hosts joined by a cable: each thing that may happen to one of them, and what is left then."""

import hashlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from dflash_tui.machine import processes
from dflash_tui.run_state.alarms import HALF_SECONDS, HANG_SECONDS
from tests.support import toy_pair
from tests.support.process_search import find_processes
from tests.support.two_hosts import FarOutput, TwoHosts, make_two_hosts
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.long, pytest.mark.chain("hosts"), pytest.mark.timeout(1200)]
OVER_BOTH = ("toy", "--peer", "spark-b", "--set", "tensor-parallel-size=2", "--port", "8744")
# As on one host, where an engine and its worker do not import vLLM again; without it three of five processes do.
FORKED = ("--set", "env.VLLM_WORKER_MULTIPROC_METHOD=fork")
# Prints what comes as it comes.
ASK = """
import json, sys, urllib.request
wanted = int(sys.argv[1])
fields = {"max_tokens": wanted, "temperature": 0, "ignore_eos": True, "stream": True}
body = json.dumps({"model": "toy", "prompt": "a b a b", **fields}).encode()
request = urllib.request.Request("http://127.0.0.1:8744/v1/completions", body, {"content-type": "application/json"})
for line in urllib.request.urlopen(request, timeout=300):
    print(line.decode().strip()[:200], flush=True)
"""
LIMIT = 300.0


@pytest.fixture
def hosts(tmp_path, demo_engine, engine_data) -> Iterator[TwoHosts]:
    """Two hosts with the kept engine; a has the models, b has none."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_DATA_HOME", str(engine_data))
        toy_pair.write_recipe()
        toy_pair.build_models()
    with make_two_hosts(tmp_path / "hosts", engine_data) as made:
        yield made


def list_rows(hosts: TwoHosts) -> str:
    return hosts.run("a", "dflash-tui", "ps", "--all").stdout


def says(hosts: TwoHosts, state: str) -> Callable[[], bool]:
    """Return whether `ps` says so of rank 1 by now."""
    return lambda: f"rank 1 on spark-b: {state}" in list_rows(hosts)


def wait_until_ended(hosts: TwoHosts) -> None:
    wait_until(lambda: not hosts.list_engines("a") and not hosts.list_engines("b"), LIMIT)


def ask(hosts: TwoHosts, tokens: int) -> FarOutput:
    """Begin a request; return it when its first words are there."""
    asking = hosts.start("a", "python3", "-c", ASK, str(tokens))
    wait_until(lambda: asking.text.count("data: ") > 1)
    return asking


def is_whole(answer: str) -> bool:
    """Whether an answer has come to its end: one that was cut by an error says so in between."""
    return "data: [DONE]" in answer and '"error"' not in answer


def hash_models(hosts: TwoHosts, host: str, folder: str) -> dict[str, str]:
    """Hash the files of a host's models in `folder`, by their path in it."""
    models = hosts.folder / host / "models" / folder
    files = [path for path in models.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {str(path.relative_to(models)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def spoil_model(hosts: TwoHosts) -> Path:
    """Change a byte of the target's weights on b; return where what was there before is kept."""
    [weights] = [*(hosts.folder / "b" / "models").glob("toy-*/target/*.safetensors")]
    kept = weights.with_suffix(".kept")
    data = weights.read_bytes()
    kept.write_bytes(data)
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 0x55]))
    kept.rename(hosts.folder / "kept")
    return weights


def explain(hosts: TwoHosts) -> dict[str, str]:
    """Return why the newest server failed, as `why` says it."""
    failure: dict[str, dict[str, str]] = json.loads(hosts.run("a", "dflash-tui", "why", "--json").stdout)
    return failure["diagnosis"]


def find_run_folder(hosts: TwoHosts, host: str) -> Path:
    """Return the folder of the newest run of a host."""
    return max((hosts.folder / host / "home" / ".local" / "state" / "dflash-tui" / "runs").iterdir())


def find_launcher(hosts: TwoHosts, host: str) -> psutil.Process:
    """Return the process of vLLM that was launched on a host, once it is there."""
    wait_until(lambda: hosts.list_engines(host))
    return min(hosts.list_engines(host), key=lambda process: process.pid)


def find_commands(hosts: TwoHosts, *words: str) -> list[psutil.Process]:
    """Return the processes of spark-a with all these words."""
    return [process for process, command in hosts.list_processes("a") if {*words} <= {*command}]


def look_before(hosts: TwoHosts) -> str:
    """See what `plan` and `doctor` say of both hosts, and that this starts nothing; return the models' folder."""
    checked = hosts.run("a", "dflash-tui", "plan", *OVER_BOTH, "--json")
    assert checked.returncode == 0, checked.stderr
    plan = json.loads(checked.stdout)
    assert [each["address"] for each in plan["cluster"]["hosts"]] == ["10.77.0.1", "10.77.0.2"]
    told = hosts.run("a", "dflash-tui", "doctor", *OVER_BOTH, "--json").stdout
    checks = {check["name"]: check for check in map(json.loads, told.splitlines())}
    assert "10.77.0.2 (eth0)" in checks["spark-b: target"]["found"]
    assert not [*(hosts.folder / "b" / "models").iterdir()]
    return Path(plan["models_folder"]).name  # the kept data may hold models of other tests' recipes, too


def start_with_a_late_rank(hosts: TwoHosts) -> FarOutput:
    """Launch a server whose rank 1 comes late: rank 0 waits for it, and goes on when it is there."""
    controller = hosts.start("a", "dflash-tui", "up", *OVER_BOTH)
    late = find_launcher(hosts, "b")
    processes.send_signal(late, signal.SIGSTOP)
    wait_until(says(hosts, "suspended"))
    wait_until(lambda: b"distributed_init_method=" in (find_run_folder(hosts, "a") / "server.log").read_bytes())
    processes.send_signal(late, signal.SIGCONT)
    wait_until(lambda: "answers at" in controller.text, LIMIT)
    assert "  ranks  " in controller.text
    return controller


def outlive_what_passes(hosts: TwoHosts) -> None:
    """Suspend rank 1, pull the cable out under a request, and cut the keeper's ssh: each is said, and passes."""
    [worker] = find_processes("VLLM::Worker", hosts.list_engines("b"))
    processes.send_signal(worker, signal.SIGSTOP)
    wait_until(says(hosts, "suspended"))
    processes.send_signal(worker, signal.SIGCONT)
    wait_until(says(hosts, "running"))

    asking = ask(hosts, 800)
    hosts.change("cut")
    wait_until(says(hosts, "lost"))
    hosts.change("heal")
    assert is_whole(asking.wait())  # the ranks' own connections have outlived it
    wait_until(says(hosts, "running"))

    wait_until(lambda: find_commands(hosts, "ssh", "spark-b"))
    before = find_commands(hosts, "ssh", "spark-b")
    for connection in before:
        connection.kill()
    wait_until(lambda: {*find_commands(hosts, "ssh", "spark-b")} - {*before} and says(hosts, "running")())
    near, far = find_run_folder(hosts, "a") / "rank1.log", find_run_folder(hosts, "b") / "server.log"
    wait_until(lambda: near.read_bytes() == far.read_bytes())


def notice_half_a_server(hosts: TwoHosts) -> None:
    """Pull out the ranks' cable alone, as where ssh goes over another network: all is there, and nothing works."""
    watching = hosts.start("a", "dflash-tui", "attach", "--json")
    hosts.change("aside")
    before = find_commands(hosts, "ssh", "spark-b")
    for connection in before:
        connection.kill()
    wait_until(lambda: {*find_commands(hosts, "ssh", "spark-b")} - {*before} and says(hosts, "running")())
    asking = ask(hosts, 800)
    hosts.change("cut")
    try:
        wait_until(lambda: {"link", "half a server"} <= {*list_alarms(watching)})
        wait_until(says(hosts, "running (eth0"))
    finally:
        hosts.change("heal")
    half = list_alarms(watching)["half a server"]
    assert HALF_SECONDS <= float(str(half["at"])) - float(str(half["since"])) < HANG_SECONDS
    assert is_whole(asking.wait())
    watching.kill()


def list_alarms(watching: FarOutput) -> dict[str, dict[str, object]]:
    """Return the alarms that `attach --json` has raised so far, by their kinds."""
    lines = [json.loads(line) for line in watching.text.splitlines() if line.startswith("{") and line.endswith("}")]
    return {line["kind"]: line for line in lines if line["event"] == "alarm" and not line["over"]}


def test_two_host_server_starts_and_ends_together(hosts):
    """One start for all: what differs is refused first, and the last thing that happens ends both sides."""
    folder = look_before(hosts)
    controller = start_with_a_late_rank(hosts)
    copied = hash_models(hosts, "b", folder)
    assert [path.name for path in (hosts.folder / "b" / "models").iterdir() if path.is_dir()] == [folder]
    assert copied
    assert copied == hash_models(hosts, "a", folder)
    assert "10.77.0.2" in next(line for line in controller.text.splitlines() if "copied in" in line)

    controller.kill()
    assert is_whole(ask(hosts, 8).wait())
    again = hosts.run("a", "dflash-tui", "up", *OVER_BOTH[:-1], "8745", "--detach")
    assert (again.returncode, find_run_folder(hosts, "b").name in again.stderr) == (2, True)
    outlive_what_passes(hosts)
    notice_half_a_server(hosts)

    [worker] = find_processes("VLLM::Worker", hosts.list_engines("b"))
    processes.send_signal(worker, signal.SIGKILL)  # idle: rank 0 would never know
    wait_until_ended(hosts)
    assert "rank 1 on spark-b" in explain(hosts)["cause"]

    weights = spoil_model(hosts)
    refused = hosts.run("a", "dflash-tui", "up", *OVER_BOTH, "--detach")
    assert (refused.returncode, hosts.list_engines("b")) == (4, [])
    assert "target's files" in refused.stderr
    assert weights.is_file()


def test_a_worker_suspended_at_work_ends_both(hosts):
    """Rank 0 ends when vLLM has waited for its time limit; the cause is on the other host."""
    # No less, since its first step may take so long on a busy machine.
    waits = ("--set", "env.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=45")
    launched = hosts.run("a", "dflash-tui", "up", *OVER_BOTH, *FORKED, *waits, "--wait")
    assert launched.returncode == 0, launched.stderr[-2000:]
    asking = ask(hosts, 3000)
    [worker] = find_processes("VLLM::Worker", hosts.list_engines("b"))
    processes.send_signal(worker, signal.SIGSTOP)
    wait_until_ended(hosts)
    assert not is_whole(asking.wait())
    why = explain(hosts)
    assert why["kind"] == "rank_silent"
    assert "rank 1 on spark-b" in why["cause"]
    assert "was suspended" in why["cause"]


@pytest.mark.parametrize("what", ["rank 1 killed", "rank 0 killed"])
def test_start_killed_on_one_host_leaves_nothing(what, hosts):
    waits = ("--set", "distributed-timeout-seconds=15")
    launched = hosts.run("a", "dflash-tui", "up", *OVER_BOTH, *FORKED, *waits, "--detach")
    assert launched.returncode == 0, launched.stderr[-2000:]
    near, far = (find_launcher(hosts, host) for host in ("a", "b"))
    processes.send_signal(far if what == "rank 1 killed" else near, signal.SIGKILL)
    wait_until_ended(hosts)
    wait_until(lambda: not find_commands(hosts, "keep"))
    if what == "rank 1 killed":
        assert "rank 1 on spark-b" in explain(hosts)["cause"]


def test_cable_left_unplugged_leaves_no_process(hosts):
    """The lease ends rank 1 by itself; a stop here says what it does not reach, and tries until it does."""
    launched = hosts.run("a", "dflash-tui", "up", *OVER_BOTH, *FORKED, "--detach")
    assert launched.returncode == 0, launched.stderr[-2000:]
    wait_until(says(hosts, "running"))
    lease = find_run_folder(hosts, "b") / "lease"
    hosts.change("cut")
    wait_until(says(hosts, "lost"))
    os.utime(lease, (1, 1))
    wait_until(lambda: not hosts.list_engines("b"))
    assert hosts.list_engines("a")
    stopped = hosts.run("a", "dflash-tui", "stop")
    assert (stopped.returncode, "! rank 1 on spark-b: left" in stopped.stderr) == (0, True)
    assert says(hosts, "left")()
    hosts.change("heal")
    wait_until(says(hosts, "stopped"))
    wait_until(lambda: not find_commands(hosts, "keep"))
    wait_until_ended(hosts)
