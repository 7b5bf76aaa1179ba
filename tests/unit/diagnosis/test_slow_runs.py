"""Recorded servers that answer and are slow: each is named with its setting, and those that do well are not."""

from pathlib import Path

import pytest

from dflash_tui.diagnosis.live_server import explain_run
from dflash_tui.monitoring import recording
from dflash_tui.run_state.state import RunState
from tests.support import recordings

RUNS = Path(__file__).parents[2] / "data/runs"
KNOWN_SLOW = sorted(RUNS.glob("cpu-*.zip"))
HEALTHY = [path for path in sorted(RUNS.glob("*.zip")) if path not in KNOWN_SLOW]


def explain(path: Path) -> dict[str, str]:
    """Return the signs of a recorded run, with what to do."""
    source, state = recording.read_recording(path), RunState()
    state.apply_all([*source.events()])
    found = explain_run(source, state)
    named = {found.kind: f"{found.cause}: {found.fix}"} if found.slow else {}
    return named | {warning.partition(":")[0]: warning for warning in found.warnings}


@pytest.mark.parametrize(
    ("name", "kind", "setting"),
    [
        ("cpu-eagle-head", "acceptance", "drafter"),
        ("cpu-long-drafts", "positions", "num_speculative_tokens="),
        ("cpu-no-prefix-cache", "prefix cache", "--enable-prefix-caching"),
        ("cpu-one-request", "kv cache", "max-model-len"),
        ("cpu-neighbour", "foreign load", "taskset"),
    ],
)
def test_slow_run_is_explained_by_its_setting(name, kind, setting):
    assert setting in explain(RUNS / f"{name}.zip")[kind]


def test_no_healthy_run_is_accused(folders):
    """The sample and the runs on an H200; the logs of others are held in test_posted_log."""
    assert {path.name: explain(path) for path in (*HEALTHY, recording.find_recording("sample").folder)} == {
        path.name: {} for path in (*HEALTHY, recording.find_recording("sample").folder)
    }
    assert len(HEALTHY) + len(recordings.names()) >= 20
