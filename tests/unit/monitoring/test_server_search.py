"""The vLLM servers of this machine that dflash-tui did not start, told from whatever else listens."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from dflash_tui.cli.main import main
from dflash_tui.machine.processes import Listener, list_listeners
from dflash_tui.monitoring import foreign_server
from dflash_tui.monitoring.foreign_server import FoundServer, find_foreign_servers

_SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    answers = {"/metrics": b'vllm:generation_tokens_total{engine="0"} 5\\n', "/version": b'{"version": "0.26.0"}',
               "/v1/models": b'{"data": [{"id": "some/model"}]}'}
    def do_GET(self):
        body = self.answers.get(self.path) if "silent" not in sys.argv else None
        self.send_response(200 if body else 404)
        self.end_headers()
        self.wfile.write(body or b"")
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


@contextmanager
def serving(*words: str) -> Iterator[tuple[int, int]]:
    """Run a server with these words in its command; yield its port and its pid."""
    command = [sys.executable, "-c", _SERVER, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline()), process.pid
        process.kill()


@pytest.fixture(autouse=True)
def listeners(monkeypatch):
    """Show the servers of this test alone."""

    def list_mine() -> list[Listener]:
        children = {child.pid for child in psutil.Process().children()}
        return [listener for listener in list_listeners() if listener.pid in children]

    monkeypatch.setattr(foreign_server, "list_listeners", list_mine)


def find() -> list[FoundServer]:
    return asyncio.run(find_foreign_servers())


def test_a_vllm_server_is_found():
    with serving() as (port, pid):
        assert find() == [FoundServer(f"http://127.0.0.1:{port}", port, "some/model", "0.26.0", pid)]


def test_another_http_server_is_not_found():
    with serving("silent"):
        assert find() == []


def test_silent_server_is_found_by_its_command(monkeypatch):
    with serving("silent") as (port, pid):
        words = ["python", "/opt/bin/vllm", "serve", "some/model", "--port", str(port)]
        monkeypatch.setattr(foreign_server, "_read_command", lambda _: words)
        assert find() == [FoundServer(f"http://127.0.0.1:{port}", port, "some/model", "", pid)]
        words[-1] = "1"  # the port is one of its others
        assert find() == []


def test_programs_other_than_servers_are_not_asked(monkeypatch):
    monkeypatch.setattr(foreign_server, "list_listeners", lambda: [Listener("127.0.0.1", 5432, 1)])
    monkeypatch.setattr(foreign_server, "_read_command", lambda _: ["postgres", "-D", "/data"])
    monkeypatch.setattr(foreign_server, "_identify", pytest.fail)
    assert asyncio.run(find_foreign_servers()) == []


def test_ps_lists_foreign_server(capsys):
    with serving() as (port, pid):
        assert main(["ps"]) == 0
        text = capsys.readouterr().out
        assert main(["ps", "--json"]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert f"dflash-tui attach http://127.0.0.1:{port}" in text
    assert "NOT STARTED BY DFLASH-TUI" in text
    fields = {"url": f"http://127.0.0.1:{port}", "port": port, "model": "some/model", "version": "0.26.0", "pid": pid}
    assert fields in lines
