"""Servers behind IPv6 addresses, with real sockets: attached to, launched, measured."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psutil
import pytest
from msgspec.structs import replace

from dflash_tui.events import Health, HealthChanged
from dflash_tui.monitoring.foreign_server import ForeignServer
from dflash_tui.runs import lifecycle, registry
from dflash_tui.runs.run import Run
from dflash_tui.tui.app import format_farewell
from tests import DATA
from tests.cli.test_escapes import told
from tests.support import fake_engine, recordings
from tests.support.boot_factories import plan
from tests.support.fake_runs import free_port, wait_for_answer

SUITE = DATA / "two-prompts.yaml"
METRICS = recordings.metrics("h200-vllm-0.26.0/g26-dflash-compile", "end").encode()


def has_loopback() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


def find_link_local() -> str:
    """Return a link-local address of this machine with its zone; empty without one."""
    every = [address for addresses in psutil.net_if_addrs().values() for address in addresses]
    return next((each.address for each in every if each.family == socket.AF_INET6 and "%" in each.address), "")


pytestmark = pytest.mark.skipif(not has_loopback(), reason="this machine has no ::1")
LINK_LOCAL = find_link_local()


class Listening:
    """A server that listens at one address, and the hosts that it was asked by."""

    def __init__(self, host: str) -> None:
        self.hosts = hosts = set[str | None]()

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                """Say nothing."""

            def do_GET(self) -> None:
                hosts.add(self.headers["Host"])
                self.send_response(200)
                self.end_headers()
                self.wfile.write(METRICS if self.path == "/metrics" else b"{}")

        class Server(ThreadingHTTPServer):
            address_family = socket.AF_INET6

        self.server = Server(socket.getaddrinfo(host, 0)[0][4], Handler)  # type: ignore[arg-type]
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def listening(request) -> Iterator[Listening]:
    server = Listening(request.param)
    yield server
    server.server.shutdown()
    server.server.server_close()


async def read_health(url: str) -> HealthChanged:
    async for event in ForeignServer(url).events():
        assert isinstance(event, HealthChanged)
        return event
    raise AssertionError("it ended")


@pytest.mark.parametrize("listening", ["::1"], indirect=True)
async def test_attaching_to_the_loopback(listening):
    assert (await read_health(f"http://[::1]:{listening.port}/v1")).health is Health.HEALTHY
    assert listening.hosts == {f"[::1]:{listening.port}"}


@pytest.mark.skipif(not LINK_LOCAL, reason="this machine has no link-local address")
@pytest.mark.parametrize("listening", [LINK_LOCAL], ids=["link-local"], indirect=True)
@pytest.mark.parametrize("percent", ["%", "%25"])
async def test_attaching_to_a_link_local_address(listening, percent):
    """The zone is written as a URL or as a socket has it, and stays on this machine."""
    written = LINK_LOCAL.replace("%", percent)
    health = await read_health(f"http://[{written}]:{listening.port}")
    assert (health.health, health.detail) == (Health.HEALTHY, "")
    assert listening.hosts == {f"[{LINK_LOCAL.partition('%')[0]}]:{listening.port}"}


@pytest.mark.parametrize("host", ["::1", LINK_LOCAL], ids=["loopback", "link-local"])
def test_a_server_of_ours_is_launched_measured_and_stopped(host, monkeypatch):
    """With --set host=ADDRESS; the loopback needs no key."""
    if not host:
        pytest.skip("this machine has no link-local address")
    monkeypatch.setenv("VLLM_API_KEY", "" if host == "::1" else "a-key-of-the-test-that-is-long")
    fake_engine.make(free_port(19_300))
    said = told("up", "fake", "--detach", "--set", f"host={host}")
    assert registry.list_runs(), said
    run = registry.find_run()
    try:
        assert run.url == f"http://[{host}]:{run.plan.port}"
        wait_for_answer(run.url)
        assert "decode tok/s median" in told("bench", run.id, "--suite", str(SUITE))
        assert f"keeps running on [{host}]:{run.plan.port}\n" in format_farewell([run])
    finally:
        told("stop", run.id)


@pytest.mark.parametrize(("host", "url"), [("::", "http://[::1]:8000"), ("0.0.0.0", "http://127.0.0.1:8000"), (
    "fe80::1%eth0", "http://[fe80::1%eth0]:8000"), ("::ffff:127.0.0.1", "http://[::ffff:127.0.0.1]:8000")])  # fmt: skip
def test_where_a_server_is_asked(host, url):
    assert Run("x", replace(plan(), host=host, port=8000), 0, "", 0.0, 0.0, "").url == url


def test_a_port_that_is_taken_by_ipv6_alone_is_not_free():
    wanted = free_port(19_400)
    with socket.socket(socket.AF_INET6) as other:
        other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        other.bind(("::1", wanted))
        other.listen()
        assert lifecycle.find_free_port(wanted) > wanted
