"""The run screen, fed with recorded logs and real counters."""

import re
from unittest import mock

import msgspec
import pytest
from msgspec.structs import replace

from dflash_tui.benchmark import client
from dflash_tui.common.errors import EngineError
from dflash_tui.events import Counters, Exited, LogLine, RequestDone, Sampled, Suspended
from dflash_tui.runs.run import Run
from dflash_tui.tui.dialogs.experiments import ExperimentDialog, NewExperiment, NewTune
from dflash_tui.tui.widgets.chart import Chart
from dflash_tui.tui.widgets.log_pane import LogPane
from tests.support import command_line, fake_engine
from tests.support.fake_runs import free_port
from tests.tui.conftest import HOSTILE, a_run, panel_on_run
from tests.tui.panel import app, feed, shown_as, shows, text, wait_for


async def test_error_before_launch_stays_shown():
    panel = app()
    async with panel.run_test(size=(80, 24)) as pilot:
        panel.run_screen.view.clear(a_run().plan)
        panel.run_screen.view.fail(
            EngineError("vLLM could not be installed", evidence=HOSTILE, hint="check the network")
        )
        await panel.switch_mode("live")
        await pilot.press("1", "2")
        panel.run_screen.view.draw()
        await shows(pilot, "✗ FAILED", "could not be installed", HOSTILE, "→ check the network")


async def test_keys_freeze_display_change_span_and_log(live):
    now = live[1]
    async with panel_on_run(live) as (panel, pilot):
        await pilot.press("space")
        await shows(pilot, "FROZEN")
        panel.run_screen.view.take(LogLine(now, "said while frozen"))
        for _ in range(8):
            panel.run_screen.view.tick()
        assert "said while frozen" not in text(panel)
        await pilot.press("space")
        await shows(pilot, "said while frozen")
        assert "FROZEN" not in text(panel)

        spans = []
        for key in ("left_square_bracket", "left_square_bracket", *["right_square_bracket"] * 3):
            await pilot.press(key)
            spans.append(panel.run_screen.query_one("#tok_s", Chart).span)
        assert spans == [120.0, 120.0, 600.0, 3600.0, 3600.0]

        before = panel.run_screen.query_one(LogPane).size.height
        await pilot.press("l")
        await wait_for(pilot, lambda: panel.run_screen.query_one(LogPane).size.height > 25)
        await pilot.press("l")
        await wait_for(pilot, lambda: panel.run_screen.query_one(LogPane).size.height == before)


async def test_server_keys_are_hidden_without_server(live):
    panel = app(now=live[1])
    async with panel.run_test(size=(120, 36)) as pilot:
        await panel.switch_mode("live")
        await pilot.press("b", "S", "space", "l", "left_square_bracket")
        await pilot.pause()
        assert panel.screen is panel.run_screen
        await shows(pilot, "NO SERVER")
        assert "Send prompts" not in text(panel)
        await feed(pilot, a_run(), live[0])
        await shows(pilot, "Send prompts")
        panel.run_screen.view.take(Exited(live[1], 1))
        panel.run_screen.view.draw()
        await pilot.pause()
        assert "Send prompts" not in text(panel)


async def test_prompts_wait_until_server_answers(starting):
    async with panel_on_run(starting) as (panel, pilot):
        await pilot.press("b")
        assert "Send prompts" not in text(panel)
        assert panel.run_screen._sending is None
        panel.run_screen.action_send_prompts()  # as from the palette
        await pilot.pause()
        await shows(pilot, "no server answers yet")


async def test_refused_prompt_shows_full_reason(live, monkeypatch):
    """The row of a request has room for the beginning of an error, and not for what to do about it."""

    async def refuse(*_, **__):
        yield RequestDone(
            live[1], "code", error="HTTP 401: Unauthorized; the server requires an API key: set VLLM_API_KEY"
        )

    monkeypatch.setattr("dflash_tui.benchmark.client.send_suite", refuse)
    panel = app(now=live[1])
    async with panel.run_test(size=(120, 36)) as pilot:
        run = a_run()
        run.folder.mkdir(parents=True)
        await feed(pilot, run, live[0])
        await pilot.press("b")
        await shows(pilot, "code: HTTP 401", "set VLLM_API_KEY")


def a_launch(drafts: int, number: int, *done: RequestDone) -> Run:
    """Return a recorded run of the stand-in that drafts `drafts` tokens per step."""
    plan = command_line.planned(fake_engine.RECIPE, "--num-speculative-tokens", str(drafts)).plan
    run = replace(a_run(), id=f"20261121-01240{number}-fake", plan=plan)
    run.folder.mkdir(parents=True)
    (run.folder / "run.json").write_bytes(msgspec.json.encode(run))
    for request in done:
        run.record(request)
    return run


MEASURED = "give about 1.17 times the tok/s: {}, steps 0.81 as long, from 20261121-012401-fake"
UNMEASURED = "have {}; its steps were not measured here"


@pytest.mark.parametrize(("earlier", "said", "dialog"), [((7,), MEASURED, NewExperiment), ((), UNMEASURED, NewTune)])
async def test_prompts_name_fewer_drafts_to_try(live, monkeypatch, earlier, said, dialog):
    """By the acceptance of the five prompts and the steps of earlier runs; one key opens the A/B or the tune of it."""
    fake_engine.make(free_port(18_500))
    done = RequestDone(live[1], "Code", 300, 30, 0.2, 2.0, 100.0, "length", steps=100, accepted=200)

    async def send(*_, **__):
        yield done

    shares = [0.7**place for place in range(1, 16)]
    none = Counters(0.0, 0.0, 0.0, 0.0, 0.0, (0.0,) * 15)
    some = Counters(4e3, 0.0, 1e3, 15e3, 1e3 * sum(shares), tuple(1e3 * share for share in shares))
    monkeypatch.setattr(client, "send_suite", send)
    monkeypatch.setattr(client, "read_counters", mock.AsyncMock(side_effect=[none, some]))
    for number, fewer in enumerate(earlier, 1):
        a_launch(fewer, number, replace(done, decode_tok_s=100.0 / 0.81))
    async with panel_on_run(live, run=a_launch(15, 0)) as (panel, pilot):
        await pilot.press("a")
        assert panel.screen is panel.run_screen
        await pilot.press("b")
        await shows(pilot, f"a n=7 would {said.format('acceptance length 3.14 instead of 3.32')}", "a Try it")
        await pilot.press("a")
        await wait_for(pilot, lambda: isinstance(panel.screen, dialog))
        asked = shown_as(panel, ExperimentDialog)
        await wait_for(pilot, lambda: asked.planned is not None)
        assert asked.planned
        assert asked.vary == "n=15,7"
        assert "--vary n=15,7" in asked.planned.design.command
        assert "--num-speculative-tokens" not in asked.planned.design.command
        await pilot.press("escape")
        panel.run_screen.view.prepare(a_run().plan)
        panel.run_screen.view.draw()
        await wait_for(pilot, lambda: "n=7 would" not in text(panel))  # another run was not asked


async def test_c_cycles_charts_on_small_screen(live):
    async with panel_on_run(live, size=(80, 24)) as (panel, pilot):
        seen = []
        for _ in range(5):
            seen += [chart.id for chart in panel.run_screen.query(Chart) if chart.display]
            await pilot.press("c")
            await pilot.pause()
        assert seen == ["tok_s", "acceptance", "memory", "gpu", "tok_s"]
        assert "no GPU" not in text(panel)


async def test_alarms_notify_and_open_in_full(live):
    now = live[1]
    async with panel_on_run(live, size=(80, 24)) as (panel, pilot):
        panel.run_screen.view.take(Suspended(now - 5, (4711,)))
        panel.run_screen.view.draw()
        await wait_for(pilot, lambda: re.search("! .* suspended .* 5 s", text(panel)) is not None)
        await pilot.press("exclamation_mark")
        await shows(pilot, "resume it: kill -CONT 4711")
        await pilot.press("escape")
        panel.run_screen.view.take(Suspended(now, ()))
        panel.run_screen.view.draw()
        await wait_for(pilot, lambda: "suspended" not in text(panel))


async def test_the_published_cycle_is_seen_and_named(live):
    now = live[1]
    speeds = (221, 214, 218, 222, 230, 103, 59, 62, 62, 212) * 4
    done = [
        RequestDone(now - 50 + place, "Code", 256, 30, 0.2, 2.0, speed, "length", steps=100, accepted=400)
        for place, speed in enumerate(speeds)
    ]
    async with panel_on_run(live, *done) as (panel, pilot):
        await wait_for(pilot, lambda: re.search("4 of every 10 .* 62 instead of 21", text(panel)) is not None)
        await shows(pilot, "every 10: 6 fast, 4 slow", "▄▃▃▃")
        panel.run_screen.view.prepare(a_run().plan)
        panel.run_screen.view.draw()
        await wait_for(pilot, lambda: "6 fast, 4 slow" not in text(panel))  # those of the run before


async def test_useless_positions_are_marked_and_n_suggested(live):
    events, now = live
    made = []
    for at in range(20, 30):
        places = (8e3 + 400 * at, 8e3 + 390 * at, 8e3 + 2.0 * at, 8e3 + at, 8e3, 8e3, 8e3)
        counted = Counters(
            4000.0 + 1200 * at, steps=9000.0 + 400 * at, proposed=7e4 + 2800 * at, accepted=3e4 + 800 * at
        )
        made.append(Sampled(now + at, replace(counted, per_position=places, running=1)))
    panel = app(now=now + 30)
    async with panel.run_test(size=(120, 36)) as pilot:
        await feed(pilot, a_run(), [*events, *made])
        await shows(pilot, "accepted per position: try n=2", "✗ 3")
