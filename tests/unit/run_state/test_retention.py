"""What is kept of a long run does not grow with it: counted in values and bytes of text, not in resident memory."""

import pytest

from dflash_tui.events import LogLine
from dflash_tui.run_state.series import THINNING_PERIOD
from dflash_tui.run_state.state import RunState
from dflash_tui.vllm_output.log_reader import LogReader
from tests.support.recorded_load import HOUR, load


def test_levels_and_files_of_lines_are_held_once():
    """Thousands of lines share the few names in them."""
    reader = LogReader(0.0, 0.0)
    stamped = [f"INFO 01-01 00:00:{second:02} [loggers.py:310] a line\n" for second in range(60)]
    found = [event for line in stamped for event in reader.feed(line.encode()) if isinstance(event, LogLine)]
    assert len(found) == 60
    assert {line.source for line in found} == {"loggers.py"}
    assert len({id(line.source) for line in found}) == len({id(line.level) for line in found}) == 1


def test_a_second_day_of_samples_takes_no_more_than_the_first():
    """A server at work for two days: as many samples of each kind as after one."""
    state, found = RunState(), []
    for second in range(0, 48 * HOUR, 10):
        for event in load(1.8e9, second):
            state.apply(event)
        if second % (24 * HOUR) == 24 * HOUR - 10:
            kept = (state.readings, state.gpus, state.memory, state.latencies, state.requests, state.finished.requests)
            found.append([len(values) for values in kept])
    assert found[0] == pytest.approx(found[1], abs=2 * THINNING_PERIOD)
    assert all(0 < held < 1000 for held in found[1])
