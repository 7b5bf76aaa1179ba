"""Silent phases: the recorded 93 s without a line, with and without knowledge of the processes."""

import pytest

from dflash_tui.events import Activity
from dflash_tui.run_state.startup import QUIET_SECONDS, STALL_SECONDS, detect_silence
from tests.support import recorded_startups
from tests.support.recorded_startups import SILENT
from tests.support.values import present

LAST = 69.328  # the last line before the silence, "Free memory on device"
END = 162.162  # "Kernel JIT monitor activated"


def test_recorded_silence_becomes_warning_naming_jit():
    """The 93 s in which FlashInfer compiled say so, after a while, for as long as they last, and not after."""
    startup = recorded_startups.state(SILENT, 120.0).startup
    assert detect_silence(startup, LAST, LAST + QUIET_SECONDS - 1) is None
    quiet = present(detect_silence(startup, LAST, LAST + QUIET_SECONDS + 1))
    assert not quiet.warning
    for second in (LAST + STALL_SECONDS, 120.0, END - 0.1):
        stalled = present(detect_silence(startup, LAST, second))
        assert stalled.warning
        assert stalled.seconds == pytest.approx(second - LAST)
        assert "FlashInfer" in stalled.likely_cause
    assert detect_silence(recorded_startups.state(SILENT, 162.7).startup, END, 163.0) is None


@pytest.mark.parametrize(
    ("second", "words"),
    [(15.0, "imports torch"), (55.0, "engine process imports"), (64.0, "checkpoint"), (67.0, "measure the memory")],
)
def test_each_phase_has_its_own_explanation(second, words):
    """What is probably going on follows from the phase."""
    startup = recorded_startups.state(SILENT, second).startup
    quiet = present(detect_silence(startup, second, second + 40))
    assert words in quiet.likely_cause


def test_processes_that_work_are_no_stall():
    """While CPU or disk are in use a silence is told, but not as a warning; without either it is one."""
    for cpu, disk, warning in ((2.0, 0, False), (0.0, 50_000_000, False), (0.01, 1000, True)):
        startup = recorded_startups.state(SILENT, 120.0).startup
        for tick in range(10):
            startup.apply(Activity(102 + 2.0 * tick, cpu * 2 * tick, disk * 2 * tick, 5000))
        found = present(detect_silence(startup, LAST, 121.0, usual=200.0))
        assert found.cores == pytest.approx(cpu, abs=0.01)
        assert found.disk == pytest.approx(disk, rel=0.01)
        assert found.warning is warning


def test_old_samples_are_ignored():
    """When nobody measures any more, the processes are unknown instead of idle."""
    startup = recorded_startups.state(SILENT, 120.0).startup
    startup.apply(Activity(80.0, 1.0, 0, 5000))
    startup.apply(Activity(82.0, 1.0, 0, 5000))
    found = present(detect_silence(startup, LAST, 120.0))
    assert (found.cores, found.disk) == (None, None)


def test_silence_usual_for_phase_gives_no_warning():
    """A phase that was as long before, and whose processes nobody measures, is not warned of until it is longer."""
    startup = recorded_startups.state(SILENT, 120.0).startup
    usual = present(detect_silence(startup, LAST, 120.0, usual=92.8))
    assert not usual.warning
    longer = present(detect_silence(startup, LAST, LAST + 93.5, usual=92.8))
    assert longer.warning


def test_a_log_that_grows_is_not_silent():
    """A progress bar has no stamp of its own; that the log grows shows that it moves."""
    startup = recorded_startups.state(SILENT, 120.0).startup
    startup.apply(Activity(110.0, 1.0, 0, 5000))
    startup.apply(Activity(112.0, 1.0, 0, 5100))
    assert detect_silence(startup, LAST, 120.0) is None


def test_silence_counts_from_health_not_last_line():
    """Who comes late sends the first request late: what came before was no waiting for it."""
    startup = recorded_startups.state(SILENT, 162.7).startup
    startup.healthy_at = 300.0
    assert detect_silence(startup, END, 300.0 + QUIET_SECONDS - 1) is None
    quiet = present(detect_silence(startup, END, 300.0 + STALL_SECONDS + 1))
    assert quiet.seconds == pytest.approx(STALL_SECONDS + 1)
