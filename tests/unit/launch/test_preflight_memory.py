"""Whether a launch fits, and what to do when it does not: every proposal is tried."""

import re

import pytest
from msgspec.structs import replace

from dflash_tui.engines.model_hub import Access, ModelAvailability
from dflash_tui.launch.preflight import machine as preflight_memory
from dflash_tui.launch.preflight.check import Check, CheckLevel, Situation
from dflash_tui.machine import system
from dflash_tui.machine.hardware import Hardware
from dflash_tui.machine.system import SystemMemory
from tests.support.preflight_situations import DESKTOP, GB10, GIB, a_gpu, situation

RECIPE = "gemma-4-26b-a4b"
QUIET = SystemMemory(120 * GIB, 100 * GIB, 1 * GIB, 16 * GIB, 0)


def check(found: Situation, name: str = "GPU memory") -> Check:
    (one,) = [check for check in preflight_memory.check_memory(found) if check.name == name]
    return one


def names(found: Situation) -> list[str]:
    return [check.name for check in preflight_memory.check_memory(found)]


def tried(found: Situation, fix: str) -> Check:
    """Return the check once the settings of a fix are made."""
    flags = {
        name: float(value) if "." in value else int(value) for name, value in re.findall(r"--set (\S+)=(\S+)", fix)
    }
    assert flags, fix
    resolved = replace(found.resolved, flags=found.resolved.flags | flags)
    return check(replace(found, resolved=resolved), "unified memory" if found.gpus[0].unified else "GPU memory")


def sized(target: float, drafter: float = 0.86) -> tuple[ModelAvailability, ...]:
    """Return models whose files weigh so many GB."""
    return tuple(
        ModelAvailability("a/b", "main", Access.OPEN, total_bytes=int(size * 1e9)) for size in (target, drafter)
    )


def test_fitting_plan_passes_check(snapshot):
    found = check(situation(RECIPE, DESKTOP))
    assert found.level is CheckLevel.OK
    assert found.finding == snapshot


@pytest.mark.parametrize("used", [4, 8])
def test_memory_of_other_programs_counts(used):
    tight = situation(RECIPE, replace(DESKTOP, memory_used=used * GIB))
    found = check(tight)
    assert found.level is CheckLevel.FAIL
    assert f"{32 - used}.0 GiB are free" in found.finding
    assert tried(tight, found.fix).level is CheckLevel.OK


def test_requests_that_are_too_long():
    length = 262144
    long = situation(RECIPE, DESKTOP, models=sized(26), settings={"max-model-len": length})
    found = check(long)
    assert found.level is not CheckLevel.OK
    assert tried(long, found.fix).level is CheckLevel.OK
    proposed = int(re.findall(r"max-model-len=(\d+)", found.fix)[0])
    assert proposed < length
    assert tried(long, found.fix.replace(str(proposed), str(proposed + 2048))).level is not CheckLevel.OK


def test_weights_that_do_not_fit():
    found = check(situation(RECIPE, replace(DESKTOP, memory_total=16 * GIB), models=sized(52)))
    assert found.level is CheckLevel.FAIL
    assert found.advice == preflight_memory._NOTHING_FITS


def test_too_large_target_gets_fitting_precision_advice():
    settings = {"target.model": "google/gemma-4-26B-A4B-it"}
    found = check(situation(RECIPE, replace(DESKTOP, memory_total=22 * GIB), models=sized(52), settings=settings))
    assert found.level is CheckLevel.FAIL
    assert found.fix.split()[:2] == ["--set", "target.model=cyankiwi/gemma-4-26B-A4B-it-AWQ-4bit"]


def test_a_variant_that_fits_is_named():
    """The largest of known size, those for this class first; else those with fewer bits, of which that is said."""
    large = check(situation("gemma-4-31b", a_gpu(Hardware.H100, used=30 * GIB), models=sized(62)))
    assert (large.level, "--variant fp8 (33 GB)" in large.fix) == (CheckLevel.FAIL, True)
    small = check(situation("gemma-4-31b", DESKTOP, models=sized(62)))
    assert [name in small.fix for name in ("nvfp4", "qat-int4", "fp8,", "z-lab")] == [False, True, False, False]


@pytest.mark.parametrize(
    ("memory", "used", "expected"),
    [
        (QUIET, 20, []),
        (QUIET._replace(cached=80 * GIB), 20, ["page cache"]),
        # Enough is free without what the cache holds.
        (QUIET._replace(cached=10 * GIB), 20, []),
        (QUIET._replace(swap_used=2 * GIB), 20, ["swap"]),
    ],
)
def test_available_memory_on_unified_memory(monkeypatch, memory, used, expected):
    """File pages that CUDA may count as taken, and swap, which stalls a GB10."""
    monkeypatch.setattr(system, "read_system_memory", lambda: memory)
    shared = situation(RECIPE, replace(GB10, memory_used=used * GIB))
    assert names(shared) == ["unified memory", *expected, "orphans"]
    assert all(check.fix for check in preflight_memory.check_memory(shared) if check.level is CheckLevel.WARN)
    assert "page cache" not in names(situation(RECIPE, DESKTOP))


@pytest.mark.parametrize("is_here", [True, False])
def test_page_cache_fix_names_release_command(monkeypatch, tmp_path, is_here):
    """By the command that the fix names, for the recipe in question; that of others by root alone."""
    monkeypatch.setattr(system, "read_system_memory", lambda: QUIET._replace(cached=80 * GIB))
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    model = ModelAvailability("a/b", "main", Access.GRANTED, folder=str(tmp_path) if is_here else None)
    found = check(situation(RECIPE, GB10, models=(model,)), "page cache")
    assert (f"dflash-tui doctor {RECIPE} --release-page-cache" in found.fix) == is_here
    assert ("sudo" in found.fix) != is_here


@pytest.mark.parametrize(("available", "level"), [(8 * GIB, CheckLevel.OK), (1 * GIB, CheckLevel.WARN)])
def test_the_demo_needs_some(monkeypatch, available, level):
    monkeypatch.setattr(system, "read_system_memory", lambda: QUIET._replace(available=available))
    assert check(situation("demo-cpu"), "memory").level is level
