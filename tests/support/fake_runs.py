"""The stand-in for a server as a run of ours, and its observation."""

import contextlib
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from msgspec.structs import replace

from dflash_tui.events import decode_recorded
from dflash_tui.monitoring import observer
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.plan_builder import build_plan
from dflash_tui.planning.recipes import resolution
from dflash_tui.run_state.state import RunState
from dflash_tui.runs import lifecycle
from dflash_tui.runs.run import Run
from tests import ROOT
from tests.support import toy_pair
from tests.support.waiting import wait_until

FAKE = ROOT / "tests" / "support" / "fake_server.py"


def free_port(wanted: int) -> int:
    """Return a free port from `wanted` on that no other pytest worker takes: two that look at once find the same."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return lifecycle.find_free_port(wanted + 2000 * worker)


def made(port: int, *words: str) -> Plan:
    """Return the plan of a stand-in, without startup optimizations: it is asked once before it is ready."""
    argv = (sys.executable, str(FAKE), str(port), *words)
    demo = build_plan(resolution.resolve_recipe(toy_pair.load_demo()))
    return replace(demo, argv=argv, port=port, start=())


@asynccontextmanager
async def watching(run: Run) -> AsyncIterator[RunState]:
    """Observe `run` into a state for as long as the block lasts."""
    async with observer.fold_run(run) as (state, _):
        yield state


def wait_for_answer(url: str) -> None:
    """Wait until the stand-in that was just started listens."""
    wait_until(lambda: _answers(url))


def _answers(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        httpx.get(f"{url}/health", trust_env=False)
        return True
    return False


def recorded(run: Run, kind: type[Any]) -> list[Any]:
    lines = run.samples.read_bytes().splitlines()
    return [event for line in lines if isinstance(event := decode_recorded(line), kind)]
