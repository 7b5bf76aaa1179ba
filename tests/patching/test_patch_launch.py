"""What a launch does to the files: what the plan says is in, what was switched off is out, and the run records all."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from dflash_tui.core import plan as plans
from dflash_tui.core import preflight_launch, prepare, recipe_files, server, setup
from dflash_tui.core.checks import Level
from dflash_tui.core.engine import Engine
from dflash_tui.core.events import Preparing
from dflash_tui.core.patching import change, files, guard, store
from dflash_tui.core.plan import Plan
from dflash_tui.core.server import Run
from dflash_tui.errors import PatchError
from tests.patching.conftest import CPU_FILE
from tests.situations import situation

NAME = "cpu-expand-kernel"


def made(engine: Engine, **settings: bool) -> Plan:
    """The demo's plan in this engine; the program only waits."""
    asked = {f"patches.{name.replace('_', '-')}": value for name, value in settings.items()}
    plan = plans.make(setup.resolve(recipe_files.find("demo-cpu"), settings=asked), engine=Path(engine.folder))
    return replace(plan, argv=(sys.executable, "-c", "import time; time.sleep(60)"))


def launch(plan: Plan, engine: Engine) -> tuple[Run, str]:
    """Bring the files to what the plan says, launch, end the program; return the run and what was said."""
    said: list[Preparing] = []
    asyncio.run(prepare._patches(plan, engine, said.append))
    run = prepare._launch(plan, engine, said, "")
    try:
        assert guard.in_use(engine) == [f"{run.id} on port {plan.port}"]
    finally:
        asyncio.run(server.stop(run))
    return run, " ".join(event.text for event in said)


def test_a_launch_applies_and_a_switch_takes_out(engine):
    """On, on again, off, on: the files follow the plan each time; while it runs nobody changes them."""
    run, said = launch(made(engine), engine)
    assert (run.patches, f"{NAME} applied now" in said) == ((NAME,), True)
    run, said = launch(made(engine), engine)
    assert (run.patches, f"{NAME} is in already" in said) == ((NAME,), True)
    run, said = launch(made(engine, cpu_expand_kernel=False), engine)
    assert (run.patches, f"{NAME} taken out" in said) == ((), True)
    assert store.manifest(engine) == {}
    assert launch(made(engine), engine)[0].patches == (NAME,)


def test_what_others_patched_is_not_passed_off_as_unpatched(engine):
    """A run without the patch would be one with it."""
    change.apply([files.load(NAME)], engine)
    Path(engine.folder, "dflash-patches.json").unlink()
    with pytest.raises(PatchError, match="by other hands, and was switched off"):
        launch(made(engine, cpu_expand_kernel=False), engine)
    assert server.runs() == []
    assert launch(replace(made(engine), unpatched=()), engine)[0].patches == (NAME,)


def test_what_is_taken_out_before_the_launch_stops_it(engine):
    """Another panel may have reverted it since: a server without its patch is not the one that was planned."""
    with pytest.raises(PatchError, match="was taken out by somebody else meanwhile"):
        prepare._launch(made(engine), engine, [], "")
    assert server.runs() == []


def test_the_doctor_sees_a_server_that_is_in_the_way(engine):
    """A patch that is needed cannot be applied while one runs."""
    waiting = prepare._launch(replace(made(engine), patches=()), engine, [], "")
    try:
        [found] = [
            check for check in preflight_launch.checks(situation("demo-cpu", engine=engine)) if check.name == "patch"
        ]
        assert found.level is Level.FAIL
        assert waiting.id in found.found
        assert found.fix == "stop it first: dflash-tui stop"
    finally:
        asyncio.run(server.stop(waiting))


def test_a_launch_ends_what_a_killed_change_left(engine):
    """Also one that needs no patch: no server starts on files that are half old and half new."""
    target = engine.site_packages / "vllm" / CPU_FILE
    old, before = target.with_name(f".{target.name}.dflash-old"), target.read_bytes()
    old.write_bytes(before)
    stale = target.parent / "__pycache__" / "cpu_triton_utils.cpython-311.pyc"
    stale.parent.mkdir()
    stale.write_bytes(b"of the new text")
    target.write_bytes(b"new")
    replaced = {"path": CPU_FILE, "before": store.sha256(before), "after": store.sha256(b"new")}
    not_yet = {"path": "utils/other.py", "before": store.sha256(b"x = 1\n"), "after": "1" * 64}
    journal = {"files": [replaced, not_yet], "manifest": []}
    Path(engine.folder, "dflash-patching.json").write_text(json.dumps(journal))
    _, said = launch(replace(made(engine), patches=()), engine)
    assert "an interrupted change" in said
    assert "undone" in said
    assert target.read_bytes() == before
    assert not old.exists()
    assert not stale.exists()


def test_a_run_records_patches_of_other_recipes(engine):
    """Whatever is in the engine is in the record: figures are compared with it."""
    change.apply([files.load(NAME)], engine)
    plan = replace(made(engine), patches=())
    run = prepare._launch(plan, engine, [], "")
    asyncio.run(server.stop(run))
    assert run.patches == (NAME,)
