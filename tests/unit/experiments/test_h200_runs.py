"""Two runs on a real H200 that the product itself launched, measured and recorded, beside what another client counted.

The client streamed requests one after the other and counted tokens by the server's usage. Its means over the same two
minutes (n = 5 looks, a second apart): eager 119.46 tok/s (119.40 to 119.51), compile 626.63 (626.52 to 626.87).
"""

import pytest
from msgspec import json

from dflash_tui.events import Phase
from dflash_tui.experiments.analysis import verdict
from dflash_tui.experiments.analysis.report import ExperimentReport, Verdict
from dflash_tui.monitoring import recording
from dflash_tui.run_state.state import RunState
from tests import DATA
from tests.support.recordings import RUNS
from tests.support.states import fold

CLIENT = {"eager": 119.46, "compile": 626.63}


def replayed(name: str) -> RunState:
    return fold(*recording.find_recording(str(RUNS / f"h200-{name}.zip")).events())


@pytest.mark.parametrize("mode", CLIENT)
def test_mean_matches_count_of_client(mode, snapshot):
    """Within 2 %; and every place that shows such a run says that its weights and its acceptance are made up."""
    state = replayed(mode)
    assert state.launched
    assert state.launched.synthetic == snapshot
    assert state.exit
    mean = state.readings.window(120, state.readings[-1].at)
    assert mean
    assert mean.seconds == pytest.approx(120, abs=2)
    assert mean.tok_s == pytest.approx(CLIENT[mode], rel=0.02)
    assert mean.acceptance_length == pytest.approx(7.8, abs=0.05)
    assert mean.tok_s == pytest.approx((mean.steps_s or 0) * (mean.acceptance_length or 0), rel=0.01)


@pytest.mark.parametrize("name", ["graphs", "graphs-split"])
def test_a_start_in_graphs_mode_compiles_nothing(name):
    """Its graphs are captured without torch.compile, by the V2 runner, and nothing says that they were dropped."""
    state = replayed(name)
    assert Phase.GRAPHS in state.phases
    assert Phase.COMPILE not in state.phases
    assert state.startup.facts["model runner"] == ("V2",)
    assert "without graphs" not in state.startup.facts


def test_start_durations_are_listed():
    """By the log's own stamps; the first request's cost is apart."""
    eager, compiled = replayed("eager"), replayed("compile")
    assert eager.launched
    assert compiled.launched
    assert eager.up_at
    assert compiled.up_at
    assert eager.up_at - eager.launched.at == pytest.approx(102, abs=1)
    assert compiled.up_at - compiled.launched.at == pytest.approx(157, abs=1)
    assert eager.time_to_ready == pytest.approx(109, abs=1)
    assert compiled.time_to_ready == pytest.approx(160, abs=1)


def test_published_h200_comparison_keeps_ratios_per_context():
    """Two boots each at 2k to 32k, sent in a shuffled order: the ratios of the raw requests, least context first."""
    kept = json.decode((DATA / "experiments" / "h200-stock-ours.json").read_bytes(), type=ExperimentReport)
    [comparison] = verdict.build_report(kept.design, kept.boots).comparisons
    assert [(prompt.kind, round(prompt.ratio.ratio, 2)) for prompt in comparison.prompts] == [
        ("2k", 1.34), ("8k", 1.51), ("16k", 1.73), ("32k", 2.06),
    ]  # fmt: skip
    assert comparison.word is Verdict.FASTER
