"""Lists on a terminal of 80 columns: nothing is wider, and nothing of it is cut."""

import functools
import io
import shutil
import sys
import time
from collections import Counter

import pytest

from dflash_tui.cli import main
from dflash_tui.cli.console import print_status
from dflash_tui.machine import nvml, system
from dflash_tui.machine.gpus import GpuProbe
from tests.support import hostile_home

SAID = "somebody's name of it, which has more words than a name should have"
LISTS = {
    "ps": ("ps", "--all"),
    "ps verbose": ("ps", "--all", "--verbose"),
    "history": ("runs", "history"),
    "ab list": ("ab", "list"),
    "doctor": ("doctor",),
    "plan": ("plan", "gemma-4-31b", "--gpu", "gb10", "--profile", "seed"),
    "plan of a laptop": ("plan", "gemma-4-26b-a4b", "--gpu", "rtx-5090-laptop"),
    "catalogue of a pair": ("recipes", "catalogue", "gemma-4-31b/mtp"),
    # At 80 columns the titles, and the methods, which the names of pairs have, are left out.
    "recipes": ("recipes",),
    "catalogue": ("recipes", "catalogue"),
}
LEAVES_OUT = {"recipes", "catalogue"}


class Screen(io.StringIO):
    """Standard output that is a terminal."""

    def isatty(self) -> bool:
        return True


def told(words: tuple[str, ...], columns: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what a command writes to a terminal of so many columns, up to a command to copy."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys, "stdout", screen := Screen())
    assert main.main(words) == 0
    return screen.getvalue().partition("\ncommand\n")[0]


@pytest.mark.parametrize("name", LISTS)
def test_list_fits_80_columns_and_loses_nothing(name, monkeypatch, tmp_path):
    hostile_home.made(SAID, tmp_path)
    monkeypatch.setattr(nvml, "probe_gpus", GpuProbe)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)  # an age is the same in both, and what is free
    monkeypatch.setattr(system, "read_system_memory", functools.cache(system.read_system_memory))
    monkeypatch.setattr(shutil, "disk_usage", functools.cache(shutil.disk_usage))
    wide, narrow = (told(LISTS[name], columns, monkeypatch) for columns in (1000, 80))
    assert max(map(len, wide.splitlines())) > 80
    assert not [line for line in narrow.splitlines() if len(line) > 80 and len(line.split()) > 1]
    assert "…" not in narrow
    if name not in LEAVES_OUT:
        assert Counter(narrow.split()) == Counter(wide.split())


def test_status_is_folded_but_command_is_not(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys, "stderr", screen := Screen())
    command = "  stop:  dflash-tui stop 20261121-012400-a-recipe-with-a-long-name --then --more"
    print_status(f"! {'word ' * 20}end\n{command}\n  vllm serve a \\\n    --flag {'value ' * 20}")
    lines = screen.getvalue().splitlines()
    assert command in lines
    assert sum("--flag" in line for line in lines) == 1
    assert [line[:2] for line in lines[: lines.index(command)]] == ["! ", "  ", "  "]
    assert max(len(line) for line in lines[: lines.index(command)]) <= 40


def test_an_error_is_folded(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys, "stderr", screen := Screen())
    assert main.main(["logs", "a-run-that-nobody-has-launched-here"]) == 2
    assert max(len(line) for line in screen.getvalue().splitlines() if len(line.split()) > 1) <= 40


def test_piped_plan_output_is_not_folded(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert main.main(["plan", "gemma-4-31b", "--gpu", "gb10", "--verbose"]) == 0
    assert max(map(len, capsys.readouterr().out.partition("\ncommand\n")[0].splitlines())) > 200
