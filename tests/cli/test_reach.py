"""`ps -v` and `ps --for`: what it prints where, and that the printed wiring reaches a server."""

import asyncio
import io
import json
import os
import subprocess
import sys

import msgspec
import pytest
from msgspec.structs import replace

from dflash_tui.cli.main import main
from dflash_tui.common import formatting
from dflash_tui.machine import network
from dflash_tui.presentation.client_text import Endpoint, format_endpoint
from dflash_tui.runs import lifecycle, registry, server_process
from dflash_tui.runs.run import EXPERIMENT_MARK
from dflash_tui.runs.server_process import KeptRanks, RankStatus
from dflash_tui.tui.app import build_farewell
from tests.support.fake_runs import free_port, made, wait_for_answer

KEY = "a-key-of-the-test-4711"


@pytest.fixture
def serving(launch):
    """A run of the stand-in that answers."""
    run = launch()
    wait_for_answer(run.url)
    return run


def test_data_is_on_stdout_hints_on_stderr(serving, capfd):
    """`ps --for opencode > opencode.json` is a file that opencode reads."""
    assert main(["ps", "--for", "opencode"]) == 0
    shown = capfd.readouterr()
    assert json.loads(shown.out)["model"] == f"dflash-tui/{serving.plan.served_name}"
    assert "opencode.json" in shown.err
    assert main(["ps", serving.id, "--json", "--for", "curl"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["run"], told["url"], told["key_variable"]) == (serving.id, f"{serving.url}/v1", "")
    assert told["wiring"].startswith("curl ")
    assert main(["ps", "--json"]) == 0
    endpoint, row = Endpoint.from_run(serving), json.loads(capfd.readouterr().out)
    assert (row["url"], row["model"], row["key_variable"]) == (endpoint.url, endpoint.model, "")
    assert main(["ps", "-v"]) == 0
    assert format_endpoint(endpoint) in capfd.readouterr().out


def test_ps_and_chat_name_boot_of_experiment(serving, capfd, monkeypatch):
    """Where it is the only server, or is named: it is gone when the A/B goes on."""
    boot = replace(serving, plan=replace(serving.plan, env={**serving.plan.env, EXPERIMENT_MARK: "the-ab"}))
    (serving.folder / registry.RUN_FILE).write_bytes(msgspec.json.encode(boot))
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    for words in (["ps", "-v"], ["ps", "--for", "curl"], ["chat"]):
        assert main(words) == 0
        assert "the-ab" in capfd.readouterr().err


def test_remote_user_gets_tunnel_and_host_commands(serving, capfd, monkeypatch):
    """Who came by `--host`: a tunnel to the server, and commands that name the host."""
    monkeypatch.setenv(formatting.CALLED_AS, "ann@spark-b")
    port = serving.plan.port
    tunnel = f"ssh -N -L {port}:127.0.0.1:{port} ann@spark-b"
    assert main(["ps", "--for", "curl"]) == 0
    told = capfd.readouterr()
    assert (tunnel in told.err, "ann" in told.out) == (True, False)
    farewell = build_farewell()
    assert tunnel in farewell
    assert f"dflash-tui --host ann@spark-b stop {serving.id}" in farewell


def test_server_on_all_addresses_lists_interface_addresses(launch, capfd, monkeypatch):
    """Not by the loopback that our own programs use, nor by a bridge of containers."""
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    interfaces = (
        network.Interface("enp1s0", ("192.0.2.7/24",), 1500),
        network.Interface("docker0", ("172.17.0.1/16",), 1500),
    )
    monkeypatch.setattr(network, "read_network", lambda: network.Network(interfaces))
    run = launch()
    open_to_all = replace(run, plan=replace(run.plan, host="0.0.0.0"))
    monkeypatch.setattr(registry, "find_run", lambda _: open_to_all)
    assert main(["ps", run.id, "-v"]) == 0
    told = capfd.readouterr()
    assert f"http://192.0.2.7:{run.plan.port}/v1" in told.err
    assert "172.17" not in told.err
    assert run.url in told.out


@pytest.fixture
def asking(monkeypatch):
    """A run of the stand-in that other machines could reach, and that asks for a key."""
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    run = lifecycle.launch_server(replace(made(free_port(18_300)), host="0.0.0.0"), engine="fake")
    wait_for_answer(run.url)
    yield run
    asyncio.run(lifecycle.stop_server(run, grace=0.1))


@pytest.mark.parametrize("program", ["python", "curl"])
def test_the_printed_wiring_streams_an_answer(program, asking, capfd):
    """OpenAI's own library and curl, with the key from the variable that the wiring names."""
    assert main(["ps", "--for", program]) == 0
    wiring = capfd.readouterr().out
    assert KEY not in wiring
    words = [sys.executable, "-c", wiring] if program == "python" else ["sh", "-c", wiring]
    env = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=env)
    if program == "python":
        assert done.stdout.endswith("speculative.\n"), done.stderr
    else:
        assert done.stdout.count("data: ") > 3, done.stderr


def test_ended_run_is_reported(serving, capfd):
    asyncio.run(lifecycle.stop_server(serving, grace=0.1))
    assert main(["ps", serving.id, "-v"]) == 0
    assert f"{serving.id} has ended" in capfd.readouterr().err


def test_ps_shows_nccl_transport_on_other_hosts(serving, capfd, monkeypatch):
    """With -v, once NCCL has said it there."""
    ranks = tuple(RankStatus(n, f"spark-{n}", "r", network=said) for n, said in enumerate(("Socket", "IB", ""), 1))
    monkeypatch.setattr(server_process, "read_kept", lambda _: KeptRanks(1, "", ranks))
    assert main(["ps", "-v"]) == 0
    row = capfd.readouterr().out
    assert ("sockets on spark-1" in row, "RoCE on spark-2" in row, "on spark-3:" in row) == (True, True, True)
    assert row.count("NCCL") == 2
    assert main(["ps"]) == 0
    assert "NCCL" not in capfd.readouterr().out
