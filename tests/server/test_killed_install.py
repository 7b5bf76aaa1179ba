"""Installs that are killed half-way with SIGKILL, by the command line, and what the next one makes of them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from dflash_tui.common import paths
from dflash_tui.engines import inventory
from dflash_tui.engines.environments import Engine
from dflash_tui.planning.plan_builder import engine_folder_for
from dflash_tui.planning.recipes import recipe_loader, resolution
from tests.support import tiny_wheels
from tests.support.process_search import find_processes
from tests.support.selection import leave_to_long
from tests.support.waiting import wait_until

ENGINE = [sys.executable, "-m", "dflash_tui", "engine"]
COMMAND = [*ENGINE, "install", "--trust"]
MODULES = 600
RECIPE = """\
title: A package that takes its time
status: experimental
engine: {vllm: 0.99.0, packages: [slow==1.0], download_mb: 4, disk_mb: 10}
target: {model: a/b, served_name: c}
drafter: {model: a/c}
num_speculative_tokens: 1
"""


@pytest.fixture
def wheel(tmp_path) -> None:
    """Write a wheel of 4 MB whose modules take seconds to compile."""
    module = "\n".join(f"value_{line} = [{line}]" for line in range(200))
    modules = {f"slow/module_{number}.py": module for number in range(MODULES)}
    tiny_wheels.write_files(tmp_path, "slow", "1.0", {"slow.bin": os.urandom(4_000_000), **modules})


def working_in(folder: Path) -> list[psutil.Process]:
    """Return the processes whose command names the folder."""
    return find_processes(str(folder), psutil.process_iter())


def installed(recipe: str, command: Sequence[str] = COMMAND) -> Engine:
    """Install its engine in peace; nothing else may lie beside it afterwards."""
    done = subprocess.run([*command, recipe, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    engines = inventory.list_engines()
    [engine] = [each for each in engines if not each.base]
    folder, names = Path(engine.folder), {Path(each.folder).name for each in engines}
    assert json.loads(done.stdout.splitlines()[-1])["folder"] in {each.folder for each in engines}
    assert {path.name for path in paths.engines_folder().iterdir()} == names | {f".{name}.lock" for name in names} | {
        "locked"
    }
    assert inventory.list_leftovers() == []
    wait_until(lambda: working_in(folder) == [])
    return engine


# What is there when it is killed, below the folder of the engine.
MOMENTS = {
    "a folder": "pyvenv.cfg",
    "an environment": "dflash-overrides.txt",
    "the first files": "lib/python3.*/site-packages/slow/*.py",
    "byte code": "lib/python3.*/site-packages/slow/__pycache__/*.pyc",
}


@pytest.mark.parametrize("moment", leave_to_long(MOMENTS, but=["the first files"]))
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_install_killed_at_any_moment_can_restart(wheel, tmp_path, monkeypatch, number, moment):
    """The real uv: told to end it leaves nothing; killed it leaves what the next names and makes anew."""
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    recipe = tmp_path / "slow.yaml"
    recipe.write_text(RECIPE)
    folder = engine_folder_for(resolution.resolve_recipe(recipe_loader.find_recipe(str(recipe))).engine)
    command = [*COMMAND, str(recipe), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: any(folder.glob(MOMENTS[moment])) or process.poll() is not None)
        process.send_signal(number)
        _, told_last = process.communicate()
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert "Traceback" not in told_last
    assert inventory.list_engines() == []
    if number == signal.SIGTERM:
        assert inventory.list_leftovers() == []
        wait_until(lambda: working_in(folder) == [])  # who was told to end with it does so in its own time
    else:
        listed = subprocess.run([*ENGINE, "list"], capture_output=True, text=True, check=False)
        assert (listed.returncode, str(folder) in listed.stdout + listed.stderr) == (0, True)
    engine = installed(str(recipe))
    assert len(list(engine.site_packages.glob("slow/__pycache__/*.pyc"))) == MODULES
