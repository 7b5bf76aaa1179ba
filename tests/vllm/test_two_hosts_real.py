"""Real vLLM over two hosts joined by a cable: another model, a suspended rank, the cable out, a worker killed."""

import asyncio
import hashlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_tui.launch import preparation
from dflash_tui.machine import processes
from tests.support import command_line
from tests.support.process_search import find_processes
from tests.support.two_hosts import TwoHosts, make_two_hosts
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.long, pytest.mark.waits, pytest.mark.timeout(1200)]
OVER_BOTH = ("demo-cpu", "--peer", "spark-b", "--set", "tensor-parallel-size=2", "--port", "8744")
ASK = """
import json, urllib.request
body = json.dumps({"model": "demo-cpu", "prompt": "a b a b", "max_tokens": 8, "temperature": 0}).encode()
request = urllib.request.Request("http://127.0.0.1:8744/v1/completions", body, {"content-type": "application/json"})
print(json.load(urllib.request.urlopen(request, timeout=300))["usage"]["completion_tokens"])
"""
LIMIT = 300.0


@pytest.fixture
def hosts(tmp_path, engine_turn, demo_engine, engine_data) -> Iterator[TwoHosts]:
    """Two hosts with the kept engine; a has the models, b has none."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_DATA_HOME", str(engine_data))
        planned = command_line.planned("demo-cpu")
        asyncio.run(preparation.prepare_engine_and_models(planned.resolved, planned.plan, lambda _: None))
    with make_two_hosts(tmp_path / "hosts", engine_data) as made:
        yield made


def list_rows(hosts: TwoHosts) -> str:
    return hosts.run("a", "dflash-tui", "ps", "--all").stdout


def hash_models(hosts: TwoHosts, host: str, folder: str) -> dict[str, str]:
    """Hash the files of a host's models in `folder`, by their path in it."""
    models = hosts.folder / host / "models" / folder
    files = [path for path in models.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {str(path.relative_to(models)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def spoil_model(hosts: TwoHosts) -> Path:
    """Change a byte of the target's weights on b; return where what was there before is kept."""
    [weights] = [*(hosts.folder / "b" / "models").glob("demo-cpu-*/target/*.safetensors")]
    kept = weights.with_suffix(".kept")
    data = weights.read_bytes()
    kept.write_bytes(data)
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 0x55]))
    kept.rename(hosts.folder / "kept")
    return weights


def test_a_server_over_two_hosts_is_launched_watched_and_ended(hosts):
    """One start for all: what differs is refused first, and the last thing that happens ends both sides."""
    checked = hosts.run("a", "dflash-tui", "plan", *OVER_BOTH, "--json")
    assert checked.returncode == 0, checked.stderr
    plan = json.loads(checked.stdout)
    assert [each["address"] for each in plan["cluster"]["hosts"]] == ["10.77.0.1", "10.77.0.2"]
    told = hosts.run("a", "dflash-tui", "doctor", *OVER_BOTH, "--json").stdout
    checks = {check["name"]: check for check in map(json.loads, told.splitlines())}
    assert "10.77.0.2 (eth0)" in checks["spark-b: target"]["found"]
    assert not [*(hosts.folder / "b" / "models").iterdir()]
    launched = hosts.run("a", "dflash-tui", "up", *OVER_BOTH, "--wait")
    assert launched.returncode == 0, launched.stderr[-2000:]  # its end; the plan above is long
    served = Path(plan["models_folder"]).name  # the kept data may hold models of other tests' recipes, too
    assert [folder.name for folder in (hosts.folder / "b" / "models").iterdir() if folder.is_dir()] == [served]
    copied = hash_models(hosts, "b", served)
    assert copied
    assert copied == hash_models(hosts, "a", served)
    assert "10.77.0.2" in next(line for line in launched.stderr.splitlines() if "copied in" in line)
    assert hosts.run("a", "python3", "-c", ASK).stdout == "8\n"

    [worker] = find_processes("VLLM::Worker", hosts.list_engines("b"))
    processes.send_signal(worker, signal.SIGSTOP)
    wait_until(lambda: "on spark-b: suspended" in list_rows(hosts))
    processes.send_signal(worker, signal.SIGCONT)
    wait_until(lambda: "on spark-b: running" in list_rows(hosts))
    hosts.change("cut")
    wait_until(lambda: "on spark-b: lost" in list_rows(hosts))
    hosts.change("heal")
    wait_until(lambda: "on spark-b: running" in list_rows(hosts))
    assert hosts.run("a", "python3", "-c", ASK).stdout == "8\n"

    processes.send_signal(worker, signal.SIGKILL)
    wait_until(lambda: not hosts.list_engines("a") and not hosts.list_engines("b"), LIMIT)
    told = hosts.run("a", "dflash-tui", "why")
    assert "rank 1 on spark-b" in told.stdout + told.stderr

    weights = spoil_model(hosts)
    refused = hosts.run("a", "dflash-tui", "up", *OVER_BOTH, "--detach")
    assert (refused.returncode, hosts.list_engines("b")) == (4, [])
    assert "target's files" in refused.stderr
    assert weights.is_file()
