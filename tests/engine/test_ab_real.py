"""A quick A/B on a real vLLM: a patch in and out of the engine."""

import subprocess
import sys
from pathlib import Path

import pytest

from dflash_tui.core import experiments, inventory, server
from dflash_tui.core.findings import Word
from dflash_tui.core.patching import states

SUITE = Path(__file__).parents[1] / "data" / "two-prompts.yaml"


@pytest.mark.vllm
def test_what_a_patch_does_is_found_and_explained(with_engine, demo_engine):
    """Without the patch nothing beyond the first drafted token is accepted when sampling: AL falls, and only AL.

    Afterwards the engine has the patches that the recipe asks for.
    """
    words = [
        "--vary",
        "patch.cpu-expand-kernel=on,off",
        "--suite",
        str(SUITE),
        "--rounds",
        "3",
        "--scale",
        "2",
        "--yes",
    ]
    words += ["--port", str(server.free_port(18_500))]
    done = subprocess.run(
        [sys.executable, "-m", "dflash_tui", "ab", "demo-cpu", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    report = experiments.report(experiments.folder_of(experiments.find().id))
    assert report
    on, off = report.boots
    assert ("cpu-expand-kernel" in on.patches, "cpu-expand-kernel" in off.patches) == (True, False)
    assert all((boot.up or 0) > 0 and (boot.ready or 0) > (boot.up or 0) for boot in report.boots)
    (found,) = report.comparisons
    assert found.al
    assert found.al.high < 0.8, done.stdout
    # How fast it is depends on who else works here, and too much of that refuses; what shows is explained by AL.
    shown = {Word.SLOWER: {"AL", "both"}, Word.NO_DIFFERENCE: {""}}
    busy = [each for each in found.confounds if each.refuses]
    assert all(each.what.startswith("others kept the processors busy") for each in busy), done.stdout
    assert busy or found.cause in shown[found.word], done.stdout
    engine = inventory.find(Path(demo_engine.folder))
    assert engine
    assert "cpu-expand-kernel" in states.applied(engine)
    assert not any(server.members(run) for run in server.runs())
