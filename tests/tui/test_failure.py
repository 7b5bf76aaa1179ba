"""A failed run on the panel: cause, evidence, what to do, and a key that launches again with a change."""

import os
import re

import msgspec
import pytest
from textual.widgets import Input

from dflash_tui.events import AnyEvent, Exited, Problem
from dflash_tui.monitoring import recording
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.request import LaunchChanges, LaunchRequest
from dflash_tui.runs import lifecycle, registry
from dflash_tui.runs.run import Run
from dflash_tui.tui.dialogs.basic import ErrorDialog
from dflash_tui.tui.dialogs.doctor import RemedyDialog, plan_relaunch
from dflash_tui.tui.screens.run import build_player
from dflash_tui.tui.widgets.run_view import FailurePane
from tests.support import command_line, recordings
from tests.tui.conftest import a_run, panel_on_run, recorded
from tests.tui.panel import app, feed, shown_as, shows, text, wait_for

DEMO = LaunchRequest(recipe="demo-cpu")
CPU = "cpu-vllm-0.32.0"


def of_demo(*options: str) -> Run:
    """Return a run of the demo as it is launched with these options."""
    plan = command_line.planned("demo-cpu", *options).plan
    return msgspec.structs.replace(a_run(), plan=plan)


def ended(name: str, code: int = 1) -> list[AnyEvent]:
    events = recorded(f"{CPU}/{name}")
    return [*events, Exited(events[-1].at + 1, code)]


@pytest.mark.parametrize(
    ("name", "code", "told"),
    [
        ("fail_max_model_len_kv", 1, ("exited before it was ready (exit code 1)", "needs 0.03 GiB of KV cache",
                                      "max-model-len 8064, which vLLM says fits")),
        ("kill9_core_idle", 0, ("failed while serving (exit code 0)", "killed from outside", "launch again unchanged")),
        ("fail_eagle3_runtime_crash", 0, ("unknown to dflash-tui", "shape '[-1, 192]'", "without speculation")),
    ],
)  # fmt: skip
async def test_cause_evidence_and_remedy_need_no_scrolling(name, code, told):
    async with panel_on_run((ended(name, code), 1e10), run=a_run(request=DEMO)) as (panel, pilot):
        await shows(pilot, "✗ FAILED", "cause", "evidence", "to do", *told)
        assert panel.run_screen.query_one(FailurePane).max_scroll_y == 0
        await pilot.resize_terminal(80, 24)
        await wait_for(pilot, lambda: max(map(len, text(panel).splitlines())) <= 80)
        await shows(pilot, "✗ FAILED", "cause", "evidence", "to do", *told)


async def test_fix_key_shows_and_launches_new_command(monkeypatch):
    """F shows what changes; enter checks it like every launch, and hands it on with what was changed."""
    wanted: list[Plan] = []
    async with panel_on_run((ended("fail_max_model_len_kv"), 1e10), run=of_demo()) as (panel, pilot):
        await pilot.press("f")
        await wait_for(pilot, lambda: "changes of vLLM" in text(panel))
        seen = text(panel)
        assert "dflash-tui up demo-cpu --set max-model-len=8064" in seen
        assert "+ --max-model-len 8064" in seen
        assert isinstance(panel.screen, RemedyDialog)
        monkeypatch.setattr(panel, "bring_up", lambda planned: wanted.append(planned.plan))
        await pilot.press("enter")
        await wait_for(pilot, lambda: bool(wanted))
    assert wanted[0].argv[wanted[0].argv.index("--max-model-len") + 1] == "8064"


async def test_number_or_arrows_choose_remedy(tmp_path):
    """The first is highlighted; esc leaves everything as it is."""
    async with panel_on_run(
        (ended("fail_dflash_bad_target_layers", 0), 1e10), run=of_demo("--set", f"drafter.model={tmp_path}")
    ) as (panel, pilot):
        await pilot.press("f")
        await wait_for(pilot, lambda: isinstance(panel.screen, RemedyDialog))
        dialog = shown_as(panel, RemedyDialog)
        assert len(dialog.remedies) == 2
        chosen = []
        for key in ("2", "1", "down", "down", "up", "9"):
            await pilot.press(key)
            chosen.append(dialog.place)
        assert chosen == [1, 0, 1, 0, 1, 1]
        await pilot.resize_terminal(60, 20)
        await shows(pilot, "2  without speculation")
        await wait_for(pilot, lambda: re.search(r"│ +[a-z ]*cause ", text(panel)) is not None)
        await wait_for(pilot, lambda: "--num-speculative-tokens 0" in text(panel))
        await pilot.press("escape")
        await pilot.pause()
        assert panel.screen is panel.run_screen
    assert registry.list_runs() == []


async def test_token_is_typed_hidden_and_never_written(monkeypatch):
    """What is typed is neither shown nor written; the server inherits it."""
    monkeypatch.setenv("HF_TOKEN", "")  # what the panel sets is taken back with it
    panel, launched = app(now=1e10), list[str]()
    monkeypatch.setattr(panel, "bring_up", lambda planned: launched.append(planned.plan.recipe))
    async with panel.run_test(size=(120, 36)) as pilot:
        run = a_run(request=DEMO)
        at = run.started_at
        await feed(pilot, run, [Problem(at, "GatedRepoError: 403", "gated"), Exited(at + 9, 1)])
        await pilot.press("f")
        await shows(pilot, "changes of vLLM", "export HF_TOKEN=…; dflash-tui up demo-cpu")
        await pilot.press("enter", *"hf_secret")
        entry = panel.screen.query_one(Input)
        await wait_for(pilot, lambda: entry.value == "hf_secret")
        assert entry.password
        assert "hf_secret" not in text(panel)
        await pilot.press("enter")
        await wait_for(pilot, lambda: launched == ["demo-cpu"])
        assert os.environ["HF_TOKEN"] == "hf_secret"


async def test_a_report_is_written_and_copied(folders):
    """U writes a text for the tracker beside the log."""
    panel = app(now=1e10)
    async with panel.run_test(size=(120, 36)) as pilot:
        run = a_run(request=DEMO)
        run.folder.mkdir(parents=True)
        await feed(pilot, run, ended("fail_eagle3_runtime_crash", 0))
        await wait_for(pilot, lambda: panel.run_screen.view.failure is not None)
        await pilot.press("u")
        await wait_for(pilot, lambda: panel.clipboard != "")
        assert panel.clipboard.startswith("# RuntimeError")
        await wait_for(pilot, (run.folder / "report.md").exists)
        await wait_for(pilot, lambda: panel.clipboard == (run.folder / "report.md").read_text())


async def test_unwritable_failure_report_is_reported(folders):
    """A full disk or a folder that is gone ends nothing; the clipboard has the text."""
    panel = app(now=1e10)
    async with panel.run_test(size=(120, 36)) as pilot:
        run = a_run(request=DEMO)
        (run.folder / "report.md").mkdir(parents=True)
        await feed(pilot, run, ended("fail_eagle3_runtime_crash", 0))
        await wait_for(pilot, lambda: panel.run_screen.view.failure is not None)
        await pilot.press("u")
        await wait_for(pilot, lambda: isinstance(panel.screen, ErrorDialog))
        await shows(pilot, "cannot be written", "Is a directory")
        assert panel.clipboard.startswith("# RuntimeError")


async def test_failure_keys_appear_only_after_failure(live):
    """A healthy server has nothing to fix."""
    async with panel_on_run(live, run=a_run(request=DEMO)) as (panel, pilot):
        assert "Fix" not in text(panel)
        await pilot.press("f", "u")
        assert panel.screen is panel.run_screen
        panel.run_screen.view.take(Exited(live[1], -9))
        panel.run_screen.view.draw()
        await shows(pilot, "Fix")


def test_relaunch_takes_free_port_unless_port_requested(folders, monkeypatch):
    """The port of before may be held by what is left."""
    monkeypatch.setattr(lifecycle, "find_free_port", lambda wanted: int(wanted) + 5)
    planned = plan_relaunch(a_run(request=DEMO), LaunchChanges())
    assert planned.plan.port == 8005
    planned = plan_relaunch(a_run(request=DEMO), LaunchChanges(port=8123))
    assert planned.plan.port == 8123


async def test_reopened_failed_run_keeps_failure_keys(folders, monkeypatch):
    """Over night, or from `up`: what helps, the report, and the same launch once more, whose port is free again."""
    monkeypatch.setattr(lifecycle, "find_free_port", int)
    run = msgspec.structs.replace(of_demo("--set", "max-model-len=9999"), id="20261121-012400-late")
    run.folder.mkdir(parents=True)
    (run.folder / "run.json").write_bytes(msgspec.json.encode(run))
    run.log.write_text("".join(f"{line}\n" for _, line in recordings.lines(f"{CPU}/fail_max_model_len_kv")))
    run.record(Exited(run.started_at + 60, 1))
    panel = app()
    async with panel.run_test(size=(120, 36)) as pilot:
        panel.open_run(run)
        await shows(pilot, "REPLAY", "✗ FAILED", "f Fix", "u Report", "max-model-len 8064")
        await pilot.press("u")
        await wait_for(pilot, (run.folder / "report.md").exists)
        await pilot.press("f")
        await shows(pilot, "without what you changed")
        await pilot.press("2")
        await shows(pilot, "changes of vLLM", "+ --max-model-len 8064")
        await pilot.press("escape", "enter")
        await shows(pilot, "as it was", "no change: the same")
        await pilot.press("escape")
        panel.play(build_player(recording.find_recording(recording.SAMPLE)))
        await shows(pilot, "REPLAY", "sample")
        assert "Launch again" not in text(panel)
