"""A server that is not ours, at its URL: what is shown of it, what it is asked, and what its answers may be."""

import json
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from dflash_tui.cli.main import main
from dflash_tui.common import bounded_http
from dflash_tui.common.errors import UsageError
from dflash_tui.events import AnyEvent, Health, HealthChanged, LatenciesSampled, Sampled
from dflash_tui.monitoring import foreign_server
from dflash_tui.monitoring.foreign_server import ForeignServer, FoundServer
from dflash_tui.tui.app import DflashApp
from tests.support import recordings
from tests.support.fake_runs import free_port
from tests.support.openai_server import OpenAIServer
from tests.tui.panel import NO_GPU, shows, text, wait_for

METRICS = recordings.metrics("h200-vllm-0.26.0/g26-dflash-compile", "end")
NAME = "google/gemma-4-26B-A4B-it-with-a-name-that-is-much-too-long"


@pytest.fixture
def server(monkeypatch) -> Iterator[OpenAIServer]:
    monkeypatch.setattr(foreign_server, "INTERVAL", 0.05)
    made = OpenAIServer(models=(NAME,), texts={"/health": "", "/metrics": METRICS, "/version": '{"version": "0.26.0"}'})
    with made.serve():
        yield made


async def first(server: ForeignServer, count: int) -> list[AnyEvent]:
    events: list[AnyEvent] = []
    async for event in server.events():
        events.append(event)
        if len(events) == count:
            return events
    raise AssertionError("it ended")


async def test_foreign_server_gets_only_four_get_requests(server):
    found = ForeignServer(server.url)
    health, reading, latencies, again = await first(found, 4)
    assert isinstance(health, HealthChanged)
    assert health.health is Health.HEALTHY
    assert isinstance(reading, Sampled)
    assert reading.counters.steps == 264
    assert isinstance(latencies, LatenciesSampled)
    assert latencies.ttft
    assert latencies.tpot
    assert isinstance(again, Sampled)
    assert found.identity == (NAME, "0.26.0")
    assert {path for path, _, _ in server.asked} == {"/health", "/metrics", "/version", "/v1/models"}
    assert server.bodies == []
    assert not any("Authorization" in headers for _, headers, _ in server.asked)


async def test_the_key_comes_from_its_variable_only(server, monkeypatch):
    monkeypatch.setenv(foreign_server.KEY_VARIABLE, "k-123")
    monkeypatch.setenv("OPENAI_API_KEY", "not-for-you")
    await first(ForeignServer(server.url), 2)
    assert {headers["Authorization"] for _, headers, _ in server.asked} == {"Bearer k-123"}


@pytest.mark.parametrize(
    ("path", "answer", "said"),
    [
        ("/health", (401, ""), "if the server requires an API key, set DFLASH_TUI_API_KEY"),
        ("/metrics", "<html>hello</html>", "no counter of a vLLM server"),
        ("/metrics", "x" * (bounded_http.BODY_LIMIT + 1), "more than 4 MiB"),
    ],
)
async def test_a_bad_answer_is_reported(server, path, answer, said):
    server.texts[path] = answer
    (event,) = await first(ForeignServer(server.url), 1)
    assert isinstance(event, HealthChanged)
    assert event.health is Health.UNHEALTHY
    assert said in event.detail


@pytest.mark.parametrize("body", ["[" * 100_000, '{"data": [7]}'])
async def test_malformed_foreign_identity_is_tolerated(server, body):
    server.texts |= {"/version": body, "/v1/models": body}
    found = ForeignServer(server.url)
    await first(found, 2)
    assert found.identity.model == ""


async def test_endless_foreign_answer_times_out(server, monkeypatch):
    monkeypatch.setattr(foreign_server, "WHOLE", 0.3)
    server.slow = 2.0
    (event,) = await first(ForeignServer(server.url), 1)
    assert isinstance(event, HealthChanged)
    assert event.health is Health.UNHEALTHY


@pytest.mark.parametrize(
    ("given", "meant"),
    [("HTTPS://host/v1/", "https://host"), ("http://[::1]:80/metrics", "http://[::1]")],
)
def test_common_address_forms_are_accepted(given, meant):
    assert ForeignServer(given).url == meant


@pytest.mark.parametrize(
    "url",
    ["http://user:key@host", "http://ho\x1bst", "http://[::1", "http://host:0"],
)  # fmt: skip
def test_invalid_plain_address_is_refused(url):
    with pytest.raises(UsageError):
        ForeignServer(url)


async def test_foreign_server_screen_offers_no_own_keys(server):
    panel = DflashApp(foreign=ForeignServer(server.url), probe=lambda: NO_GPU, load=dict)
    async with panel.run_test(size=(80, 24)) as pilot:
        await wait_for(pilot, lambda: "● HEALTHY" in text(panel))
        await shows(pilot, "○ FOREIGN: metrics only", server.url, "google/gemma-4", "queue", "tok/s")
        assert "too-long" in text(panel)  # a long name is cut in its middle
        for words in ("Stop", "Send prompts", "server.log", "memory GiB"):
            assert words not in text(panel)
        for key in "Sb4":
            await pilot.press(key)
            await shows(pilot, "did not start")
            panel.clear_notifications()
        await pilot.press("l")
        assert not panel.screen.is_modal
        assert server.bodies == []
        await pilot.press("exclamation_mark")
        assert panel.screen.is_modal
        await pilot.press("escape")
        server.texts["/health"] = (500, "")
        await shows(pilot, "✗ UNHEALTHY", "! /health: HTTP 500")
        await pilot.press("1")
        assert panel.current_mode == "launch"
        await wait_for(pilot, lambda: not [one for one in panel.workers if one.group == "foreign"])
        asked = len(server.asked)
        await pilot.press("2")
        await shows(pilot, "FOREIGN")
        await wait_for(pilot, lambda: len(server.asked) > asked)


async def test_enter_watches_a_server_that_was_found(server, monkeypatch):
    async def find() -> list[FoundServer]:
        return [FoundServer(server.url, 8123, "google/gemma-4", "0.26.0", None)]

    monkeypatch.setattr(foreign_server, "find_foreign_servers", find)
    panel = DflashApp(probe=lambda: NO_GPU, load=dict)
    async with panel.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "○ google/gemma-4  :8123  not ours")
        panel.screen.query_one("#servers").focus()
        await pilot.press("down", "enter")
        await shows(pilot, "○ FOREIGN: metrics only", server.url)
        await pilot.press("1", "2")
        await shows(pilot, "FOREIGN")


async def test_impossible_figures_do_not_end_panel(server):
    lines = [f'vllm:{name}{{engine="{engine}"}} 1.7e308' for engine in range(2)
             for name in ("num_requests_running", "request_success_total", "prompt_tokens_total")]  # fmt: skip
    places = [f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{place}"}} 1' for place in range(3000)]
    server.texts["/metrics"] = "\n".join(["vllm:generation_tokens_total 5", *lines, *places, ""])
    panel = DflashApp(foreign=ForeignServer(server.url), probe=lambda: NO_GPU, load=dict)
    async with panel.run_test(size=(80, 24)) as pilot:
        await wait_for(
            pilot, lambda: "● HEALTHY" in text(panel) and [path for path, _, _ in server.asked].count("/metrics") > 3
        )
        await shows(pilot, "● HEALTHY")


def test_lines_show_its_figures_and_alarms(server):
    command = [sys.executable, "-m", "dflash_tui", "attach", server.url, "--plain", "--every", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stderr
        rows = [process.stdout.readline() for _ in range(3)]  # the first figures may be of one reading
        said = [process.stderr.readline()]
        for answer, words in (((500, ""), "  → "), ("", "✓ hang: over after")):
            server.texts["/health"] = answer
            while words not in said[-1]:
                said.append(process.stderr.readline())
                assert said[-1], said
        process.terminate()
    assert rows[0].split()[:2] == ["time", "tok/s"]
    assert rows[2].split()[:2] == ["—", "0.0"]
    assert "metrics only" in said[0]
    assert [line.rpartition(": ")[2] for line in said if line.startswith("! hang: ")] == ["HTTP 500\n"]
    assert "press S" not in "".join(said)


def test_silent_address_is_not_watched(capsys):
    """Without a terminal a mistyped port would be asked for ever."""
    address = f"http://127.0.0.1:{free_port(18_900)}"
    assert main(["attach", address, "--plain"]) == 1
    assert f"no server answers at {address}" in capsys.readouterr().err


def test_other_program_on_port_is_no_server(capsys, monkeypatch):
    """Another port of the same machine is soon typed; that nothing answers there would be wrong."""

    class Greeter(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1)
            self.request.sendall(b"Invalid SSH identification string.\r\n")
            self.request.shutdown(socket.SHUT_WR)
            while self.request.recv(1 << 16):  # or the rest of the request would reset the connection
                pass

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Greeter) as listener:
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        place = f"127.0.0.1:{listener.server_address[1]}"
        assert main(["attach", f"http://{place}", "--json"]) == 1
        listener.shutdown()
    error = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert error["what"] == f"{place} does not speak HTTP, or breaks off its answers"
    assert "disconnected" in error["evidence"]
