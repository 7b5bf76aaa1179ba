"""Installs that lose their panel or their disk half-way: nothing half-made stays, and the next one makes it."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import uv

from dflash_tui.common import paths
from dflash_tui.engines import inventory
from dflash_tui.runs import registry
from tests.support import tiny_wheels
from tests.support.small_disk import mount_disk

# uv up to where it installs; then it has begun, and takes its time.
SLOW_UV = """#!/bin/sh
case "$1 $2" in
  "pip install") touch {begun}; exec sleep 600 ;;
  *) exec {uv} "$@" ;;
esac
"""
PANEL = "import sys, uv; uv.find_uv_bin = lambda: {uv!r}; from dflash_tui import __main__; sys.exit(__main__.main())"
RECIPE = """\
title: A package that is larger than it says
status: experimental
engine: {vllm: 0.99.0, packages: [large==1.0], download_mb: 1, disk_mb: 1}
target: {model: a/b, served_name: c}
drafter: {model: a/c}
num_speculative_tokens: 1
"""


def engines() -> list[str]:
    """Return the names of the folders where engines are made."""
    return [path.name for path in paths.engines_folder().iterdir() if path.is_dir()]


@pytest.mark.long
def test_lost_connection_during_panel_install_leaves_nothing(folders, tmp_path, terminal):
    """The panel installs and its terminal goes: uv ends with it, nothing half-made stays, nothing was launched."""
    script, begun = tmp_path / "uv", tmp_path / "begun"
    script.write_text(SLOW_UV.format(begun=begun, uv=uv.find_uv_bin()))
    script.chmod(0o755)
    panel = terminal(program=("-c", PANEL.format(uv=str(script))))
    panel.until(b"demo-cpu")
    panel.type("/demo-cpu")
    for shown in (b"Keep the filter", b"Launch"):  # what enter does
        panel.until(shown)
        panel.type("\r")
    panel.reading_until(begun.exists)
    assert engines()
    [install] = psutil.Process(panel.pid).children()
    panel.hang_up()
    assert panel.ended() == 129
    assert not install.is_running()
    assert engines() == []
    assert inventory.list_leftovers() == []
    assert registry.list_runs() == []


@pytest.fixture
def wheels(tmp_path, monkeypatch) -> Path:
    """Let uv find a package of 8 MB, of which nothing can be packed, in a folder."""
    folder: Path = tmp_path / "wheels"
    tiny_wheels.write_files(folder, "large", "1.0", {"large.bin": os.urandom(8 << 20), "large/__init__.py": ""})
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    return folder


def test_full_disk_during_install_leaves_nothing(tmp_path, monkeypatch, wheels):
    """The real uv, where the engine is made or where uv unpacks: its own words, nothing half-made; with room it goes.

    The recipe says that it needs little, so that the check before the download finds room enough.
    """
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    recipe = tmp_path / "large.yaml"
    recipe.write_text(RECIPE)
    command = [sys.executable, "-m", "dflash_tui", "engine", "install", "--trust", str(recipe)]
    with mount_disk(tmp_path / "small", "size=5m") as disk:
        monkeypatch.setenv("XDG_DATA_HOME", str(disk))
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
        assert (done.returncode, "Traceback" in done.stderr) == (3, False), done.stderr
        assert os.strerror(errno.ENOSPC) in done.stderr
        assert "free some space" in done.stderr
        assert engines() == []
        assert inventory.list_leftovers() == []
        subprocess.run(["mount", "-o", "remount,size=50m", str(disk)], check=True)
        again = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
        assert again.returncode == 0, again.stderr
        [engine] = inventory.list_engines()
        assert (engine.site_packages / "large.bin").stat().st_size == 8 << 20
