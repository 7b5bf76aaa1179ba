"""Recordings: the shipped sample, run folders, files from elsewhere and the clock that plays them."""

import json
import zipfile
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

import msgspec
import pytest

from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.events import AnyEvent, Exited, PhaseStarted, encode
from dflash_tui.monitoring import recording
from dflash_tui.monitoring.recording import LOG_PART, MAX_COMPRESSION, RUN_PART, SAMPLES_PART, Player
from dflash_tui.run_state.state import RunState
from dflash_tui.runs import server_process
from dflash_tui.runs.run import Run
from tests.support.recordings import packed
from tests.support.states import fold


def test_sample_replays_h200_run():
    state = fold(*recording.find_recording("sample").events())
    assert state.launched
    assert state.launched.synthetic == ""
    assert state.up_at is not None
    assert state.up_at - state.launched.at == pytest.approx(95, abs=1.5)
    assert state.time_to_ready == pytest.approx(99, abs=1.5)
    kinds = Counter(request.kind for request in state.requests if request.kind in {"JSON", "Q&A"})
    assert kinds == {"JSON": 24, "Q&A": 24}
    at = state.launched.at + 190
    events = [event for event in recording.find_recording("sample").events() if event.at <= at]
    busy = fold(*events).readings.window(60.0, at)
    assert busy
    assert busy.tok_s == pytest.approx(722, rel=0.01)
    assert busy.acceptance_length == pytest.approx(3.41, abs=0.05)
    assert any(load.power_w and load.power_w > 130 for event in state.gpus for load in event.gpus)
    assert state.status == "warm"


def test_a_recording_opens_where_something_happens(tmp_path, parts):
    """Seconds before the server is up; of one that never was before its end, and of one that still starts at first."""
    assert recording.find_recording("sample").find_opening() == pytest.approx(88.3, abs=0.1)
    start = json.loads(parts[RUN_PART])["started_at"]
    for events, opening in (([Exited(start + 60, 1)], 52.0), ([], 0.0), ([Exited(start + 3, 1)], 0.0)):
        samples = b"".join(encode(event) + b"\n" for event in events)
        path = packed(tmp_path / f"{opening}{len(events)}.zip", parts | {SAMPLES_PART: samples})
        assert recording.find_recording(str(path)).find_opening() == pytest.approx(opening)


def test_events_are_ordered_and_equal_from_file(tmp_path, parts):
    events = list(recording.find_recording("sample").events())
    # The server's own lines are stamped to the second, and two processes write samples.
    assert max(before.at - after.at for before, after in pairwise(events)) < 1.5
    assert list(recording.find_recording(str(packed(tmp_path / "a.zip", parts))).events()) == events


def test_recording_is_never_taken_for_process():
    found = recording.find_recording("sample")
    assert not server_process.is_alive(found)
    assert not server_process.list_processes(found)


def test_a_file_with_foreign_names_is_refused(tmp_path, parts):
    path = packed(tmp_path / "a.zip", parts | {"../../evil": b"x"})
    with pytest.raises(UsageError, match="not a recording"):
        recording.find_recording(str(path))
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.zip"]


@pytest.mark.parametrize("part", [RUN_PART, LOG_PART])
def test_unsupported_compression_is_refused(tmp_path, parts, part):
    """A header of LZMA says how much memory reading it takes."""
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data, compress_type=zipfile.ZIP_LZMA if name == part else zipfile.ZIP_DEFLATED)
    with pytest.raises(UsageError, match="not a recording"):
        recording.find_recording(str(path))


def test_decompression_bomb_is_refused(tmp_path, parts):
    path = packed(tmp_path / "a.zip", parts | {LOG_PART: bytes(64 << 20)})
    assert MAX_COMPRESSION * path.stat().st_size < 64 << 20
    with pytest.raises(UsageError, match="refused"):
        recording.find_recording(str(path))


@pytest.mark.parametrize("data", [b"", b"PK\x05\x06" + bytes(18)])
def test_invalid_archive_is_refused(tmp_path, data):
    path = tmp_path / "a.zip"
    path.write_bytes(data)
    with pytest.raises(UsageError, match="not a recording"):
        recording.find_recording(str(path))


@pytest.mark.parametrize(
    "change",
    [
        {"id": "../x"}, {"plan": 3}, {"engine": "A" * 200_000},
        {"prepared": [{"event": "preparing", "at": 1e18, "step": "engine", "text": "x"}]},  # played without an end
    ],
)  # fmt: skip
def test_a_run_that_cannot_be_is_refused(tmp_path, parts, change):
    told = json.loads(parts[RUN_PART]) | change
    path = packed(tmp_path / "a.zip", parts | {RUN_PART: json.dumps(told).encode()})
    with pytest.raises(UsageError, match="not a recording"):
        recording.find_recording(str(path))


def test_torn_file_plays_up_to_its_tear(tmp_path, parts, snapshot):
    path = packed(tmp_path / "a.zip", parts)
    whole = list(recording.find_recording(str(path)).events())
    data = bytearray(path.read_bytes())
    at = data.find(LOG_PART.encode()) + 4600
    data[at : at + 64] = b"\xff" * 64
    path.write_bytes(data)
    events = recording.find_recording(str(path)).events()
    read: list[AnyEvent] = []
    with pytest.raises(DflashError) as caught:
        read += events
    assert caught.value.what.removeprefix(str(path)) == snapshot
    assert read == whole[: len(read)]


def with_events(parts: dict[str, bytes], *told: Mapping[str, object]) -> dict[str, bytes]:
    """Return the parts with these events, one a second from the time the server was up."""
    start = json.loads(parts[RUN_PART])["started_at"] + 130
    lines = [json.dumps({"at": start + place, **event}) for place, event in enumerate(told)]
    return parts | {SAMPLES_PART: "\n".join(lines).encode() + b"\n"}


WARM = {"event": "health", "health": "warm"}


HISTOGRAM = {"bounds": [1, 2], "counts": [1, 2, 3], "total": 1}
COUNTERS = {"event": "counters", "counters": {"generated": 5.0}}


@pytest.mark.parametrize(
    "event",
    [
        {"event": "latencies", "ttft": HISTOGRAM | {"counts": [3, 4]}},
        {"event": "counters", "counters": {"generated": 1e308}},
        {"event": "counters", "counters": {"generated": 1, "per_position": [1.0] * 65}},
        {"event": "gpus", "gpus": [{"index": 0, "temperature_c": 10**30}]},
    ],
)
def test_impossible_event_is_left_out(tmp_path, parts, event):
    found = recording.find_recording(str(packed(tmp_path / "a.zip", with_events(parts, WARM, event, COUNTERS))))
    known = [one for one in found.events() if one.__struct_config__.tag == event["event"]]
    assert len(known) == (event["event"] == "counters")
    assert fold(*found.events()).readings[-1].counters.generated == 5


def test_local_run_is_found_by_its_name(parts):
    run = msgspec.json.decode(parts[RUN_PART], type=Run)
    run.folder.mkdir(parents=True)
    for name, data in parts.items():
        (run.folder / name).write_bytes(data)
    assert recording.find_recording("smollm2-135m-instruct-smollm2-135m-instruct-dflash").folder == run.folder
    lines = parts[SAMPLES_PART].split(b"\n")
    run.samples.write_bytes(b"\n".join(line for line in lines if b"exited" not in line and b"stopping" not in line))
    last = list(recording.find_recording(run.id).events())[-1]
    assert isinstance(last, Exited)  # nobody saw it end, but its process is not there
    assert last.code is None


def test_warm_up_does_not_count_for_speed(parts):
    run = msgspec.json.decode(parts[RUN_PART], type=Run)
    asked = [{"event": "request", "kind": kind, "total": 1, "decode_tok_s": speed}
             for kind, speed in (("Code", 30.0), ("warm-up", 1058.0), ("probe", 900.0))]  # fmt: skip
    run.folder.mkdir(parents=True)
    for name, data in with_events(parts, *asked).items():
        (run.folder / name).write_bytes(data)
    assert recording.measure_newest_speeds() == {run.plan.recipe: 30.0}


@pytest.mark.parametrize("name", ["no/such/file", "nothing.zip", "nothing"])
def test_missing_recording_is_refused(name):
    with pytest.raises(UsageError):
        recording.find_recording(name)


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_player_gives_only_events_that_are_due(clock):
    player = Player(recording.find_recording("sample"), speed=2.0, clock=clock)
    assert {type(event) for event in player.due_events(9)} >= {PhaseStarted}
    clock.at = 30.0
    events = list(player.due_events(9))
    assert player.position == 60.0
    known = [event for event in player.recording.events() if event.at <= player.now()]
    assert events == known[-len(events) :]
    assert len(events) > 100
    assert not list(player.due_events(9))


def test_speed_change_applies_from_now(clock):
    player = Player(recording.find_recording("sample"), speed=4.0, clock=clock)
    clock.at = 10
    player.change_speed(1)
    clock.at = 11
    assert (player.speed, player.position) == (8.0, 48)
    player.change_speed(-2)
    assert player.speed == 2.0
    player.change_speed(-99)
    assert player.speed == 0.25


def told(state: RunState) -> tuple[object, ...]:
    """What the screens take from a state."""
    now = state.exit.at if state.exit else 0.0
    return (
        state.status, state.ready_at, state.spans(now), state.readings.window(600, now), state.ttft(600, now),
        list(state.requests), list(state.memory), list(state.finished.requests), list(state.lines)[-50:],
    )  # fmt: skip


def test_only_seeking_backwards_restarts_playback(clock):
    player = Player(recording.find_recording("sample"), clock=clock)
    whole = fold(*player.recording.events())
    assert not player.seek(98)
    first = fold(*player.due_events(9))
    assert first.status == "healthy"
    assert player.seek(50)
    again = fold(*player.due_events(9))
    assert (again.ready_at, again.status) == (None, "starting")
    player.seek(1e9)
    again.apply_all([*player.due_events(9)])
    assert told(again) == told(whole)
    assert player.finished


def test_reading_stops_when_its_time_is_up(clock):
    player = Player(recording.find_recording("sample"), at=1e9, clock=clock)
    count = 0
    while player.behind:
        some = list(player.due_events(0))
        assert len(some) <= 32
        count += len(some)
    assert count == len(list(player.recording.events()))
