"""Servers behind IPv6 addresses, with real sockets: launched, measured and stopped."""

import contextlib
import socket

import pytest
from msgspec.structs import replace

from dflash_tui.runs import lifecycle, registry
from dflash_tui.runs.run import Run
from dflash_tui.tui.app import format_farewell
from tests import DATA
from tests.cli.test_escapes import told
from tests.support import fake_engine
from tests.support.boot_factories import plan
from tests.support.fake_runs import free_port, wait_for_answer

SUITE = DATA / "two-prompts.yaml"


def has_loopback() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


pytestmark = pytest.mark.skipif(not has_loopback(), reason="this machine has no ::1")


def test_server_on_ipv6_is_launched_and_measured():
    """With --set host=::1, and no key."""
    fake_engine.make(free_port(19_300))
    said = told("up", "fake", "--detach", "--set", "host=::1")
    assert registry.list_runs(), said
    run = registry.find_run()
    try:
        assert run.url == f"http://[::1]:{run.plan.port}"
        wait_for_answer(run.url)
        assert "decode tok/s median" in told("bench", run.id, "--suite", str(SUITE))
        assert f"keeps running on [::1]:{run.plan.port}\n" in format_farewell([run])
    finally:
        told("stop", run.id)


@pytest.mark.parametrize(("host", "url"), [("::", "http://[::1]:8000"), ("0.0.0.0", "http://127.0.0.1:8000")])
def test_server_address_is_derived(host, url):
    assert Run("x", replace(plan(), host=host, port=8000), 0, "", 0.0, 0.0, "").url == url


def test_port_taken_on_ipv6_only_is_busy():
    wanted = free_port(19_400)
    with socket.socket(socket.AF_INET6) as other:
        other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        other.bind(("::1", wanted))
        other.listen()
        assert lifecycle.find_free_port(wanted) > wanted
