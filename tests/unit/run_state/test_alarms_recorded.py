"""Alarms over the time of real recordings: a server that does well gives none, one that does not gives its own."""

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from dflash_tui.events import (
    AnyEvent,
    Exited,
    GpuLoad,
    GpusSampled,
    Health,
    HealthChanged,
    Launched,
    RankSampled,
    RankState,
    Sampled,
)
from dflash_tui.monitoring import recording
from dflash_tui.run_state.alarms import find_alarms
from dflash_tui.run_state.state import RunState
from dflash_tui.vllm_output.log_reader import LogReader
from tests.support import recordings
from tests.support.recordings import RUNS
from tests.support.scrapes import parse_counters

SAMPLE = recording.find_recording("sample")


def alarmed(events: Iterable[AnyEvent], until: float = 0.0) -> dict[str, float]:
    """Return the kinds of the alarms that a look each second has seen, and when first."""
    state, seen, due = RunState(), dict[str, float](), 0.0

    def look(end: float) -> None:
        nonlocal due
        while due <= end:
            for alarm in find_alarms(state, due):
                seen.setdefault(alarm.kind, due)
            due += 1.0

    for event in events:
        due = due or event.at
        look(event.at)
        state.apply(event)
    look(until)
    return seen


def logged(name: str) -> Iterable[AnyEvent]:
    """Yield a recorded log as events, with what /metrics said at its start and its end where that was recorded."""
    reader, at, sampled = LogReader(1.0, 0.0), 1.0, False
    yield Launched(1.0, "run", "toy", 1, 8000, "eager", num_speculative_tokens=7 if "dflash" in name else 0)
    for seconds, line in recordings.lines(name):
        at = 1.0 + seconds
        yield from reader.feed_line(line, at)
        if reader.up and not sampled:
            sampled = True
            yield HealthChanged(at, Health.HEALTHY)
            yield from sample(name, "start", at)
    yield from sample(name, "end", at)
    yield Exited(at, 0)


def sample(name: str, which: str, at: float) -> Iterable[AnyEvent]:
    if (recordings.FOLDER / name / f"metrics_{which}.txt").exists():
        yield Sampled(at, parse_counters(recordings.metrics(name, which)))


def test_no_recorded_server_gives_an_alarm():
    """Starts, traffic, failures and kills are none: a death has its own explanation, and none of these hung."""
    for name in recordings.names():
        assert alarmed(logged(name)) == {}, name


@pytest.mark.parametrize("name", ["sample", RUNS / "h200-eager.zip", RUNS / "h200-compile.zip"])
def test_no_run_on_h200_gives_an_alarm(name):
    """A start and some traffic, with all samples."""
    events = list(recording.find_recording(str(name)).events())
    assert sum(isinstance(event, Sampled) for event in events) > 30
    assert alarmed(events) == {}


def test_sample_with_stopped_tokens_raises_hang():
    """The same recording, whose counters stand still while a request runs, hangs after a minute of that."""
    events = [event for event in SAMPLE.events() if not isinstance(event, Exited)]
    busy = [event for event in events if isinstance(event, Sampled) and event.counters.running]
    frozen, at = busy[len(busy) // 2].counters, busy[len(busy) // 2].at
    before = [event for event in events if event.at <= at]
    stopped = [Sampled(at + second, frozen) for second in range(1, 100)]
    found = alarmed([*before, *stopped])
    assert set(found) == {"hang"}
    assert 55 <= found["hang"] - at <= 65


def test_half_of_a_server_is_named_early():
    """A busy GPU, and a rank on another host whose GPU does nothing while the recorded one works on."""
    large = recording.find_recording(str(RUNS / "h200-compile.zip"))
    events = [event for event in large.events() if not isinstance(event, Exited)]
    busy = [event for event in events if isinstance(event, Sampled) and event.counters.running]
    at = busy[len(busy) // 2].at
    before = [event for event in events if event.at <= at]
    [*_, gpus] = [event for event in before if isinstance(event, GpusSampled)]
    working = [GpuLoad(0, utilisation=card.utilisation) for card in gpus.gpus]
    assert [card.utilisation for card in working] > [0.5]
    resting = (replace(working[0], utilisation=0.0),)
    stopped: list[AnyEvent] = []
    for second in range(1, 100):
        far = RankSampled(at + second, 1, "spark-b", RankState.RUNNING, at, gpus=resting)
        stopped += [Sampled(at + second, busy[len(busy) // 2].counters), replace(gpus, at=at + second), far]
    found = alarmed([*before, *stopped])
    assert {*found} == {"half a server", "hang"}
    assert 9 <= found["half a server"] - at <= 13
