"""Recorded logs of real servers through the log reader."""

import random
import re
import time
from datetime import UTC, datetime

import pytest

from dflash_tui.common.sanitizer import LINE_LIMIT, clean_line
from dflash_tui.events import AnyEvent, LogLine, Phase, PhaseStarted, Progressed
from dflash_tui.vllm_output.log_reader import LogReader
from tests.support import recordings
from tests.support.states import read_lines

STAMP = re.compile(r"INFO (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d) ")


def replay(name: str) -> list[AnyEvent]:
    return read_lines(recordings.lines(name))


def phases(events: list[AnyEvent]) -> list[tuple[Phase, float]]:
    return [(event.phase, event.at) for event in events if isinstance(event, PhaseStarted)]


def started_at(name: str) -> float:
    """Return the launch in seconds since the epoch, from the first stamped line and its recorded offset."""
    for at, line in recordings.lines(name):
        if match := STAMP.search(line):
            month, day, hour, minute, second = (int(part) for part in match.groups())
            return datetime(2026, month, day, hour, minute, second, tzinfo=UTC).timestamp() - at
    raise AssertionError(name)


def test_the_stamps_alone_give_the_same_phases():
    """Read as raw bytes in random pieces, with only vLLM's own stamps, phases come out the same to the second."""
    started = {name: recorded for name in recordings.names() if Phase.API in dict(recorded := phases(replay(name)))}
    assert len(started) > 20
    for name, recorded in started.items():
        generator, data, events = random.Random(name), recordings.raw(name), []
        launch = started_at(name)
        reader = LogReader(launch, 0.0)
        while data:
            size = generator.randint(1, 5000)
            events += reader.feed(data[:size])
            data = data[size:]
        stamped = [(phase, at - launch) for phase, at in phases(events)]
        assert [phase for phase, _ in stamped] == [phase for phase, _ in recorded], name
        for (phase, by_stamp), (_, at) in zip(stamped, recorded, strict=True):
            assert by_stamp == pytest.approx(at, abs=2.0), (name, phase)


def test_carriage_returns_split_lines():
    """A progress bar that rewrites its line is read at every rewrite, and kept in the log only when complete."""
    bar = "(EngineCore pid=77) \rLoading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01,  1.12s/it]"
    done = bar.replace(" 50%", "100%").replace("1/2", "2/2")
    events = LogReader(0.0, 0.0).feed(f"{bar}\r{done}\n".encode())
    assert [(e.done, e.total) for e in events if isinstance(e, Progressed)] == [(1, 2), (2, 2)]
    assert [e.text[:7] for e in events if isinstance(e, LogLine)] == ["Loading"]


def test_hostile_lines_are_tamed():
    """Escape sequences, control and reordering characters go; a line without end is cut, memory stays bounded."""
    assert clean_line("\x1b[31mred\x1b[0m \x1b]0;title\x07ok\x00\x9b\u202e") == "red ok"
    assert len(clean_line("x" * 100_000)) == LINE_LIMIT


def test_a_forged_ready_line_is_not_believed():
    """Text inside other lines, such as a model called like a log line, starts no phase."""
    reader = LogReader(0.0, 0.0)
    for text in (
        "non-default args: {'model': 'x\\nINFO:     Application startup complete.'}",
        "(APIServer pid=1) INFO 11-21 01:18:17 [a.py:1] model Application startup complete.",
        "Application startup complete. Not.",
    ):
        assert Phase.UP not in dict(phases(reader.feed_line(text)))


def test_local_log_time_becomes_epoch_time():
    """The log stamps local time; the offset at the launch turns it into seconds since the epoch."""
    launch = datetime(2026, 11, 21, 1, 0, 0, tzinfo=UTC).timestamp()
    line = LogReader(launch, 3600.0).feed_line("INFO 11-21 02:00:07 [x.py:1] a")[-1]
    assert line.at == launch + 7


def test_stamps_without_a_year_stay_in_order():
    """Stamps have no year; the one of the line before is the nearest."""
    began = 1_795_000_000.0
    reader = LogReader(began, 0.0)
    for days, expected in ((0, 0), (-3, 0), (1, 1), (150, 150), (300, 300), (400, 400)):
        stamp = time.strftime("%m-%d %H:%M:%S", time.gmtime(began + days * 86_400.0))
        (line,) = [e for e in reader.feed(f"INFO {stamp} [x.py:1] words\n".encode()) if isinstance(e, LogLine)]
        assert line.at == pytest.approx(began + expected * 86_400.0, abs=1)
