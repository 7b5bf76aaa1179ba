"""`replay` without a panel: lines, JSON and alarms of recordings, and what a panel loads for one."""

import json
import subprocess
import sys

from dflash_tui.events import Preparing, Suspended, encode
from dflash_tui.monitoring import recording
from dflash_tui.monitoring.recording import SAMPLES_PART
from tests.support.recordings import packed


def replay(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dflash_tui", "replay", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


def test_replay_lines_match_attach():
    done = replay("sample", "--plain")
    assert done.returncode == 0
    rows = done.stdout.splitlines()
    assert rows[0].split() == ["time", "tok/s", "accept", "AL", "steps/s", "memory", "running", "waiting"]
    assert rows[4].split()[:6] == ["1:55", "933.1", "40.3", "%", "3.82", "244.8"]
    for words in ("  engine            4 s", "● warm, ready after 1:38"):
        assert words in done.stderr


def test_json_is_every_event():
    done = replay("sample", "--json", "--every", "20")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    # How a step of the preparation began was printed when it did.
    known = sum(
        event.done if isinstance(event, Preparing) else 1 for event in recording.find_recording("sample").events()
    )
    assert sum(event["event"] != "figures" for event in events) == known
    assert any(isinstance(event.get("tok_s"), float) for event in events if event["event"] == "figures")


def test_recording_panel_imports_no_server_modules():
    # 0.2 to 0.5 s of imports; what `replay sample` needs to show its first picture is Textual and the run itself.
    code = "import sys, dflash_tui.cli.commands.recordings, dflash_tui.tui.app as app\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"httpx", "prometheus_client", "plotext"} & set(loaded)


def test_alarms_are_replayed_as_they_came(tmp_path, parts):
    """A recorded suspension is told when it begins and when it is over, as lines and as JSON."""
    at = recording.find_recording("sample").started_at + 100
    for seconds, pids in ((0, (4711,)), (20, ())):
        parts[SAMPLES_PART] += encode(Suspended(at + seconds, pids)) + b"\n"
    lines = sorted(parts[SAMPLES_PART].splitlines(), key=lambda line: json.loads(line)["at"])
    parts[SAMPLES_PART] = b"\n".join(lines) + b"\n"
    path = packed(tmp_path / "a.zip", parts)
    said = replay(str(path), "--plain").stderr
    assert "! hang: " in said
    assert "✓ hang: over after" in said
    told = [json.loads(line) for line in replay(str(path), "--json").stdout.splitlines()]
    found = [(event["kind"], event["over"]) for event in told if event["event"] == "alarm"]
    assert found == [("hang", False), ("hang", True)]
