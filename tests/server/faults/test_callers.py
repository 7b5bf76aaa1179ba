"""Commands that are ended while they work, suspended servers, and proxies."""

import asyncio
import os
import signal
import subprocess
import sys

import psutil

from dflash_tui.runs import lifecycle, server_process
from tests.support import hub_server
from tests.support.preflight_situations import engine_in
from tests.support.waiting import wait_until

DFLASH = (sys.executable, "-m", "dflash_tui")


def test_suspended_server_is_stopped(launch):
    """It cannot obey SIGTERM; SIGKILL ends it."""
    server = launch("deaf")
    os.kill(server.pid, signal.SIGSTOP)
    asyncio.run(lifecycle.stop_server(server, grace=0.5))
    assert not server_process.is_alive(server)
    assert server_process.list_processes(server) == []


def test_ended_export_leaves_no_partial_file(launch, tmp_path):
    run_ = launch("deaf")
    with (run_.folder / "server.log").open("ab") as log:
        log.writelines(b"INFO a line that is as long as many lines are %d\n" % n for n in range(2_000_000))
    export = subprocess.Popen([*DFLASH, "export", run_.id, "-o", str(tmp_path / "x.zip")], start_new_session=True)
    wait_until(lambda: list(tmp_path.iterdir()))
    export.terminate()
    assert export.wait(60) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_hanging_engine_ends_with_its_command(tmp_path):
    """Its process and its temporary files are gone."""
    engine = engine_in(tmp_path / "engine")
    engine.python.unlink()
    engine.python.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 300\n")
    engine.python.chmod(0o755)
    (tmp_path / "engine" / "bin" / "vllm").touch()
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = [*DFLASH, "engine", "adopt", str(tmp_path / "engine")]
    asking = subprocess.Popen(command, env=os.environ | {"TMPDIR": str(temporary)}, start_new_session=True)
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
    engines = int((tmp_path / "pid").read_text())
    asking.terminate()
    assert asking.wait(60) == 128 + signal.SIGTERM
    wait_until(lambda: not psutil.pid_exists(engines))
    assert list(temporary.iterdir()) == []


def test_attach_uses_no_proxy_and_no_redirect():
    """The key goes to the server that was named, and to no other."""
    with hub_server.running() as server, hub_server.running() as elsewhere, hub_server.running() as proxy:
        server.elsewhere = elsewhere.url
        env = os.environ | dict.fromkeys(("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"), proxy.url)
        env = {name: value for name, value in env.items() if name.lower() != "no_proxy"} | {"VLLM_API_KEY": "k" * 20}
        command = [*DFLASH, "attach", server.url, "--plain", "--every", "1"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env) as attached:
            wait_until(lambda: len(server.asked) > 3)
            attached.terminate()
        assert elsewhere.asked == []
        assert proxy.asked == []
