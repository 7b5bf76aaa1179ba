"""Every alarm: when it is raised, since when it is said to last, and when there is none."""

import pytest
from msgspec.structs import replace

from dflash_tui.events import (
    PROBE,
    AnyEvent,
    Counters,
    Exited,
    Foreign,
    GpuLoad,
    GpusSampled,
    Health,
    HealthChanged,
    Launched,
    LogLine,
    MemorySampled,
    ProcessorsSampled,
    RankSampled,
    RankState,
    RequestDone,
    Sampled,
    Stopping,
    Suspended,
)
from dflash_tui.run_state.alarms import HALF_SECONDS, HANG_SECONDS, Alarm, find_alarms, find_all_alarms
from dflash_tui.run_state.state import RunState
from dflash_tui.vllm_output.log_reader import LogReader
from tests.support.log_formats import NO_FP4
from tests.support.states import fold

GIB = 1 << 30
LAUNCHED = Launched(0.0, "run", "toy", 1, 8000, "eager", num_speculative_tokens=7)


def folded(*events: AnyEvent) -> RunState:
    return fold(LAUNCHED, HealthChanged(0.0, Health.WARM), *events)


def counters(steps: float, accepted: float = 3.0, **more) -> Counters:
    return Counters(steps * (1 + accepted), steps=steps, proposed=7 * steps, accepted=accepted * steps, **more)


def raised(state: RunState, now: float) -> dict[str, Alarm]:
    return {alarm.kind: alarm for alarm in find_alarms(state, now)}


def working(start: int, end: int, steps: float = 0.0, accepted: float = 3.0, speed: float = 10.0) -> list[AnyEvent]:
    """Return a reading a second of a server that works, from `steps` on; all its tokens accepted alike."""
    made = [Sampled(float(at), counters(steps + speed * (at - start), accepted, running=1)) for at in range(start, end)]
    return list(made)


def resting(counted: Counters, start: int, end: int) -> list[AnyEvent]:
    return [Sampled(float(at), counted) for at in range(start, end, 10)]


@pytest.mark.parametrize(
    ("mode", "line", "what"),
    [
        ("graphs", "CUDAGraphMode.FULL is not supported with A; setting cudagraph_mode=NONE", "the server"),
        (
            "graphs",
            "DFlash draft attention (A) does not support full CUDA graphs; running the draft eagerly.",
            "drafter",
        ),
        ("compile", "CUDAGraphMode.FULL is not supported with A; setting cudagraph_mode=PIECEWISE", "piecewise"),
        ("eager", "CUDAGraphMode.FULL is not supported with A; setting cudagraph_mode=NONE", ""),
    ],
)
def test_graphs_that_vllm_dropped_are_an_alarm(mode, line, what):
    """The server answers, as fast as in eager mode, and only this line of its log tells."""
    state = folded(replace(LAUNCHED, mode=mode), *LogReader(0.0, 0.0).feed_line(line))
    alarms = [(alarm.evidence, what in alarm.what) for alarm in find_alarms(state, 1.0)]
    assert alarms == ([(line, True)] if what else [])


@pytest.mark.parametrize(
    ("hardware", "arguments", "is_raised"),
    [("gb10", "{'max_model_len': 4096}", True), ("gb10", "{'moe_backend': 'marlin'}", False), ("h100", "{}", False)],
)
def test_marlin_without_flag_is_alarm(hardware, arguments, is_raised):
    """The weights are in FP4 and the GPU has FP4: its own kernels were meant."""
    reader = LogReader(0.0, 0.0)
    lines = (f"non-default args: {arguments}", NO_FP4)
    state = folded(replace(LAUNCHED, hardware=hardware), *(event for line in lines for event in reader.feed_line(line)))
    assert [alarm.evidence for alarm in find_alarms(state, 1.0)] == ([NO_FP4] if is_raised else [])


def test_idle_server_has_no_alarm():
    assert raised(folded(*working(0, 100), *resting(counters(990.0), 100, 900)), 895.0) == {}


def test_hang_lasts_from_last_to_next_token(snapshot):
    """Since the last token, not since it was noticed; what runs is told."""
    stuck = counters(990.0, running=2)
    state = folded(*working(0, 100), *resting(stuck, 100, 200))
    assert "hang" not in raised(state, 98.0 + HANG_SECONDS)
    alarm = raised(state, 195.0)["hang"]
    assert alarm.since == 99.0
    assert alarm.evidence == snapshot
    state.apply(Sampled(200.0, counters(991.0, running=2)))
    assert "hang" not in raised(state, 200.5)


def test_a_first_request_may_take_longer():
    """Kernels are compiled for it."""
    state = fold(LAUNCHED, *resting(counters(0.0, running=1), 0, 400))
    assert "hang" not in raised(state, 290.0)
    assert "hang" in raised(state, 395.0)


def test_gap_in_readings_is_no_hang():
    """Nobody looked: nothing is known."""
    assert raised(folded(*working(0, 100), Sampled(100.0, counters(990.0, running=1))), 200.0) == {}


def test_suspended_process_is_hang_immediately():
    state = folded(*working(0, 100), Suspended(99.0, (4711,)))
    alarm = raised(state, 100.0)["hang"]
    assert (alarm.since, alarm.hint) == (99.0, "resume it: kill -CONT 4711")
    state.apply(Suspended(104.0, ()))
    assert raised(state, 105.0) == {}


@pytest.mark.parametrize(
    ("state", "age", "raises"),
    [(RankState.RUNNING, 5, False), (RankState.RUNNING, 30, True), (RankState.SUSPENDED, 1, True)],
)
def test_suspended_or_silent_far_rank_raises_alarm(state, age, raises):
    """Rank 0 says that it is healthy for as long as nobody asks it."""
    sample = RankSampled(100.0 - age, 1, "spark-b", state, 90.0, "why")
    alarms = raised(folded(sample), 100.0)
    assert ("rank" in alarms) is raises
    if raises:
        assert "spark-b" in alarms["rank"].what


def test_down_link_raises_alarm_for_reachable_rank():
    """Since it is down, not since the rank runs; ssh goes another way."""
    fine = [RankSampled(float(at), 1, "spark-b", RankState.RUNNING, 0.0) for at in range(80, 90, 5)]
    down = [RankSampled(float(at), 1, "spark-b", RankState.RUNNING, 0.0, "eth0 has no carrier") for at in (91, 96)]
    alarm = raised(folded(*fine, *down), 100.0)["link"]
    assert (alarm.since, alarm.evidence) == (91.0, "eth0 has no carrier")
    assert raised(folded(*fine, *down, replace(fine[0], at=99.0)), 100.0) == {}


@pytest.mark.parametrize(("left", "raises"), [(GIB // 2, True), (8 * GIB, False)])
def test_the_memory_of_another_host_runs_out(left, raises):
    sample = RankSampled(99.0, 1, "spark-b", RankState.RUNNING, 0.0, available=left, total=100 * GIB)
    assert ("far memory" in raised(folded(sample), 100.0)) is raises


def rank_samples(load: float | None, *, on_gpu: bool = True, begin: int = 100, end: int = 200) -> list[AnyEvent]:
    """Return what a keeper records of rank 1 meanwhile: a GPU at `load`, or that many processors."""
    gpus, busy = ((GpuLoad(0, utilisation=load),), None) if on_gpu else ((), load)
    return [
        RankSampled(float(at), 1, "spark-b", RankState.RUNNING, 0.0, gpus=gpus, busy=busy)
        for at in range(begin, end, 5)
    ]


def near_samples(load: float | None, *, on_gpu: bool = True, begin: int = 100, end: int = 200) -> list[AnyEvent]:
    if on_gpu:
        return [GpusSampled(float(at), (GpuLoad(0, utilisation=load),)) for at in range(begin, end, 10)]
    return [ProcessorsSampled(float(at), load or 0.0, 8, 9) for at in range(begin, end, 10)]


STUCK = resting(counters(990.0, running=1), 100, 200)


@pytest.mark.parametrize("on_gpu", [True, False])
@pytest.mark.parametrize(
    ("near", "far", "named"),
    [(1.0, 0.0, "rank 1 on spark-b"), (0.0, 1.0, "rank 0"), (0.02, 0.03, "all ranks"), (0.99, 0.96, "")],
)
def test_half_server_is_named_after_ten_seconds(near, far, named, on_gpu):
    """The general alarm, which names nobody, comes after a minute."""
    samples = [*near_samples(near, on_gpu=on_gpu), *rank_samples(far, on_gpu=on_gpu)]
    state = folded(*working(0, 100), *sorted([*STUCK, *samples], key=lambda event: event.at))
    assert raised(state, 99.0 + HALF_SECONDS) == {}
    alarm = raised(state, 111.0).get("half a server")
    assert (alarm.what if alarm else "").count(named or "half") == bool(named)
    if alarm:
        assert (alarm.since, "no token for" in alarm.evidence, "spark-b" in alarm.evidence) == (100.0, True, True)
    state.apply(Sampled(111.5, counters(991.0, running=1)))
    assert raised(state, 112.0) == {}


@pytest.mark.parametrize(
    "event",
    [RankSampled(109.0, 1, "spark-b", RankState.SUSPENDED, 105.0, "2 of its processes"), Suspended(109.0, (4711,))],
)
def test_suspended_rank_raises_only_one_alarm(event):
    state = folded(*working(0, 100), *STUCK[:2], *near_samples(1.0, end=110), *rank_samples(0.0, end=109), event)
    assert [*raised(state, 112.0)] == ["hang" if isinstance(event, Suspended) else "rank"]


def test_idle_ranks_raise_no_half_server_alarm():
    state = folded(*working(0, 100), *resting(counters(990.0), 100, 200), *near_samples(0.0), *rank_samples(0.0))
    assert raised(state, 195.0) == {}


def test_half_server_alarm_waits_after_load_change():
    """A prompt that takes long goes from one rank to the other in pipelines."""
    far = [*rank_samples(1.0, end=150), *rank_samples(0.0, begin=150)]
    state = folded(*working(0, 100), *STUCK, *near_samples(1.0), *far)
    assert "half a server" not in raised(state, 155.0)
    assert raised(state, 165.0)["half a server"].since == 150.0


@pytest.mark.parametrize(
    ("near", "far", "roce", "hosts"),
    [
        ("Socket", "Socket", "rocep1s0f1", ["this machine", "spark-b"]),
        ("Socket", "", "any device", ["this machine"]),
        ("IB", "IB", "rocep1s0f1", []),
        ("Socket", "Socket", "", []),
    ],
)
def test_sockets_instead_of_roce_raise_alarm(near, far, roce, hosts):
    """Four times slower, by one report, and only NCCL's log tells."""
    said = LogReader(0.0, 0.0).feed(f"a:1:1 [0] NCCL INFO Using network {near}\n".encode() if near else b"")
    sample = RankSampled(99.0, 1, "spark-b", RankState.RUNNING, 0.0, network=far)
    alarm = raised(folded(replace(LAUNCHED, roce=roce), *said, sample), 100.0).get("sockets")
    assert bool(alarm) is bool(hosts)
    assert all(host in (alarm.evidence if alarm else "") for host in hosts)


def test_failed_probe_is_hang_until_next_token():
    rest = resting(counters(50.0), 0, 800)
    state = folded(*rest, RequestDone(795.0, PROBE, total=60.0, error="ReadTimeout"))
    assert raised(state, 799.0)["hang"].since == 735.0
    state.apply(Sampled(800.0, counters(60.0)))
    assert "hang" not in raised(state, 801.0)


def test_warm_server_that_stops_answering_is_hang():
    state = folded(*working(0, 50), HealthChanged(60.0, Health.UNHEALTHY, "/health: ReadTimeout"))
    alarm = raised(state, 90.0)["hang"]
    assert (alarm.since, alarm.evidence) == (60.0, "/health: ReadTimeout")


def test_falling_acceptance_alarm_has_both_figures(snapshot):
    """Compared with the hour before, not with a fixed number; a small change is none."""
    state = folded(*working(0, 300), *_changed(300, 361, accepted=0.6))
    alarm = raised(state, 359.5)["acceptance"]
    assert alarm.evidence == snapshot
    assert 300 <= alarm.since <= 345
    assert raised(folded(*working(0, 300), *_changed(300, 400, accepted=2.0)), 399.5) == {}


def _changed(start: int, end: int, *, accepted: float) -> list[AnyEvent]:
    """Return readings that go on after `working(0, start)` with another acceptance."""
    found: list[AnyEvent] = []
    for at in range(start, end):
        before, new = 10.0 * (start - 1), 10.0 * (at - start + 1)
        total = 3 * before + accepted * new
        made = Counters(4 * before + (1 + accepted) * new, steps=before + new, proposed=7 * (before + new),
                        accepted=total, running=1)  # fmt: skip
        found.append(Sampled(float(at), made))
    return found


def test_drafter_that_never_helped_raises_alarm():
    alarm = raised(folded(*working(0, 100, accepted=0.01)), 99.0)["acceptance"]
    assert alarm.what == "no draft is accepted"


def test_few_steps_tell_nothing():
    assert raised(folded(*working(0, 20, accepted=0.0, speed=1.0)), 19.0) == {}


@pytest.mark.parametrize("drafted", [None, 0.0])
def test_tokens_without_drafts_raise_speculation_alarm(drafted, snapshot):
    """Whether the counters are absent or stand still; one-token answers are none of it."""

    def plain(at: int, finished: float = 0.0) -> Sampled:
        return Sampled(float(at), Counters(20.0 * at, steps=drafted, proposed=drafted, accepted=drafted, running=1,
                                           finished=finished))  # fmt: skip

    alarm = raised(folded(*(plain(at) for at in range(100))), 99.0)["speculation"]
    assert alarm.evidence == snapshot
    assert "speculation" not in raised(folded(*(plain(at, 20.0 * at) for at in range(100))), 99.0)


@pytest.mark.parametrize(("method", "raises"), [("dflash", True), ("ngram", False)])
def test_only_text_drafting_methods_may_draft_seldom(method, raises):
    counted = [Counters(20.0 * at, steps=4.0 * at, proposed=20.0 * at, accepted=4.0 * at) for at in range(100)]
    state = fold(replace(LAUNCHED, method=method), *(Sampled(float(at), each) for at, each in enumerate(counted)))
    assert ("speculation" in raised(state, 99.0)) is raises


HOT = GpuLoad(0, 90.0, 95.0, 1500, 3000, 88, throttle=("thermal (hardware)",), foreign=())


SLOW = GpuLoad(0, clock_mhz=1500, clock_max_mhz=3000, utilisation=0.96)


@pytest.mark.parametrize(
    ("load", "told", "setting"),
    [
        (HOT, "GPU 0: thermal (hardware), 1500 of 3000 MHz, 90 of 95 W, 88 °C", "cooling"),
        (replace(SLOW, throttle=("power cap",)), "GPU 0: power cap, 1500 of 3000 MHz", "nvidia-smi -pl"),
        (replace(SLOW, throttle=("clocks set by the user",)), "GPU 0: clocks set by the user", "nvidia-smi -rgc"),
        (replace(SLOW, throttle=()), "GPU 0: no reason from the driver, 1500 of 3000 MHz", "GB10"),
    ],
)
def test_a_throttled_gpu(load, told, setting):
    state = folded(*(GpusSampled(float(at), (load,)) for at in range(0, 40, 10)))
    alarm = raised(state, 35.0)["throttling"]
    assert (told in alarm.evidence, setting in alarm.hint, alarm.since) == (True, True, 0.0)


@pytest.mark.parametrize(
    "load",
    [
        replace(SLOW, clock_mhz=2900, throttle=("power cap", "sync boost")),
        replace(SLOW, throttle=None),
        replace(SLOW, utilisation=0.3, throttle=()),
    ],
)
def test_usual_clocks_are_no_alarm(load):
    """Most GPUs meet their power cap at full load, and one that rests lowers its clocks."""
    assert raised(folded(*(GpusSampled(float(at), (load,)) for at in range(0, 40, 10))), 35.0) == {}


def test_missing_gpu_readings_are_left_out():
    """A throttled GPU without clocks and heat: its reason alone, no None."""
    state = folded(*(GpusSampled(float(at), (GpuLoad(0, throttle=("thermal (hardware)",)),)) for at in range(20)))
    assert raised(state, 19.5)["throttling"].evidence == "GPU 0: thermal (hardware)"


def test_a_foreign_server_is_looked_at_too(snapshot):
    """Its counters raise the same alarms, and no key is offered that stops it."""
    resting_later = resting(counters(990.0, running=2), 100, 500)
    state = fold(HealthChanged(0.0, Health.HEALTHY), *working(0, 100), *resting_later)
    alarm = raised(state, 495.0)["hang"]
    assert alarm.what == "no tokens are generated"
    assert "press S" not in alarm.hint
    state.apply(HealthChanged(500.0, Health.UNHEALTHY, "/health: HTTP 500"))
    assert raised(state, 501.0)["hang"].what == snapshot


def test_a_short_peak_is_not_throttling():
    state = folded(GpusSampled(0.0, (GpuLoad(0, throttle=()),)), GpusSampled(10.0, (HOT,)))
    assert raised(state, 14.0) == {}


def test_somebody_else_on_the_gpu():
    """A large process that is not the server's; a desktop's few megabytes are none."""
    crowd = GpuLoad(0, foreign=(Foreign(77, "python", 20 * GIB), Foreign(5, "Xorg", 90 << 20)))
    alarm = raised(folded(GpusSampled(10.0, (crowd,))), 12.0)["foreign load"]
    assert alarm.evidence == "python (pid 77) holds 20.0 GiB"
    small = GpuLoad(0, foreign=(Foreign(5, "Xorg", 90 << 20), Foreign(6, "x")))
    assert raised(folded(GpusSampled(10.0, (small,)), GpusSampled(11.0, (GpuLoad(0),))), 12.0) == {}


def test_the_machines_memory_runs_out():
    """Where the server takes it from the machine; a full GPU of its own is as it should be."""

    def sample(at: float, left: int | None) -> MemorySampled:
        return MemorySampled(at, 116 * GIB, 119 * GIB, "unified, all", left)

    state = folded(sample(0.0, 20 * GIB), sample(10.0, 4 * GIB), sample(20.0, 3 * GIB))
    alarm = raised(state, 22.0)["memory"]
    assert alarm.since == 10.0
    assert alarm.evidence.startswith("3.0 GiB of 119.0 GiB left")
    assert raised(folded(sample(20.0, None)), 22.0) == {}


def test_preemptions_are_counted_in_five_minutes():
    quiet = [Sampled(float(at), counters(10.0 * at, running=1, preemptions=2.0)) for at in range(100)]
    busy = [Sampled(float(at), counters(10.0 * at, running=1, preemptions=5.0)) for at in range(100, 120)]
    assert raised(folded(*quiet), 99.0) == {}
    alarm = raised(folded(*quiet, *busy), 119.0)["preemptions"]
    assert alarm.since == 100.0
    assert alarm.evidence.startswith("3 in")


@pytest.mark.parametrize("end", [Exited(100.0, 0), Stopping(100.0)])
def test_a_server_that_ends_has_no_alarms(end):
    """What is wrong then is said elsewhere, or wanted."""
    assert raised(folded(*working(0, 100), Suspended(99.0, (1,)), end), 101.0) == {}


def test_mismatched_drafter_accepting_nothing_raises_alarm():
    """By the counters since the start, also of a server that rests now."""
    state = folded(*resting(counters(400.0, 0.0), 0, 20))
    assert raised(state, 15.0)["acceptance"].what == "no draft is accepted"
    text = replace(LAUNCHED, method="ngram")
    assert "acceptance" not in raised(folded(text, *resting(counters(400.0, 0.0), 0, 20)), 15.0)


@pytest.mark.parametrize(
    ("shares", "n"),
    [((0.6, 0.4, 0.2, 0.1, 0.0, 0.0, 0.005, 0.0), 4), ((0.6, 0.4, 0.2, 0.1, 0.05, 0.03, 0.02, 0.01), None)],
)
def test_drafts_that_are_never_accepted(shares, n):
    """The alarm names how many are worth their cost."""
    read = Counters(
        900.0, steps=400.0, proposed=3200.0, accepted=400 * sum(shares), per_position=tuple(400 * s for s in shares)
    )
    alarms = raised(folded(*resting(read, 0, 20)), 15.0)
    assert (f"num_speculative_tokens={n};" in alarms["positions"].hint) if n else "positions" not in alarms


@pytest.mark.parametrize(("accepted", "is_raised"), [(0.5, True), (2.0, False)])
def test_acceptance_far_below_published_is_alarm(accepted, is_raised):
    state = folded(replace(LAUNCHED, published_length=4.0), *working(0, 100, accepted=accepted))
    assert ("below published" in raised(state, 99.0)) is is_raised


@pytest.mark.parametrize(
    ("running", "usage", "max_seqs", "kind"),
    [(1, 0.7, "", "kv cache"), (4, 0.2, "4", "queue"), (4, 0.2, "", "queue"), (0, 0.0, "", None)],
)
def test_waiting_requests_give_reason(running, usage, max_seqs, kind):
    """The KV cache has no room for one more, or --max-num-seqs lets no more run."""
    lines = [f"non-default args: {{'max_num_seqs': {max_seqs}}}"] if max_seqs else []
    waiting = counters(90.0, running=running, waiting=2, kv_usage=usage)
    busy = [Sampled(float(at), replace(waiting, generated=400.0 + at)) for at in range(40)]
    state = folded(*(event for line in lines for event in LogReader(0.0, 0.0).feed_line(line)), *busy)
    assert raised(state, 40.0).keys() & {"kv cache", "queue"} == ({kind} if kind else set())


@pytest.mark.parametrize(
    ("sizes", "hits", "is_raised"), [((100, 300), 0, True), ((100, 300), 64, False), ((300, 0), 0, False)]
)
def test_growing_prompts_without_cache_hits_raise_alarm(sizes, hits, is_raised):
    """Of prompts that do not grow nothing could be reused."""
    first, step = sizes
    reads, asked = [], 0.0
    for turn in range(7):
        asked += first + step * turn
        reads.append(counters(10.0 * turn, finished=turn + 1.0, finished_tokens=40.0 * turn, prefix_queries=asked,
                              finished_prompt_tokens=asked, prefix_hits=float(hits)))  # fmt: skip
    state = folded(*(Sampled(float(at), read) for at, read in enumerate(reads)))
    assert ("prefix cache" in raised(state, 7.0)) is is_raised


def test_late_kernel_compilation_raises_alarm():
    """The first requests of a server compile theirs."""
    line = "Triton kernel JIT compilation during inference: {}. This causes a latency spike; consider more."
    lines = [LogLine(at, line.format(f"k{at:.0f}")) for at in (10.0, 11.0, 300.0)]
    assert "compiled" not in raised(folded(*lines), 301.0)
    assert raised(folded(*lines, LogLine(400.0, line.format("late"))), 401.0)["compiled"].evidence.endswith(
        "k300, late"
    )


@pytest.mark.parametrize(("preempted", "is_raised"), [(60.0, True), (3.0, False)])
def test_preemptions_before_are_named_to_who_asks(preempted, is_raised):
    """The panel shows those of the last five minutes only."""
    state = folded(*resting(counters(990.0, finished=100.0, preemptions=preempted), 0, 20))
    assert "preemptions" not in raised(state, 15.0)
    assert ("preemptions" in {alarm.kind for alarm in find_all_alarms(state, 15.0)}) is is_raised


def test_a_sampler_that_left_the_fast_path():
    line = LogLine(1.0, "FlashInfer top-p/top-k sampling unavailable: SM 12.x requires CUDA >= 12.9; falling back.")
    assert raised(folded(line), 2.0)["sampler"].evidence == line.text


def test_a_server_that_is_swapped_out():
    """A GPU's own memory is never on a disk."""
    swapped = MemorySampled(1.0, 9 * GIB, 32 * GIB, "resident", 20 * GIB, GIB)
    assert "1.0 GiB" in raised(folded(swapped), 2.0)["swap"].evidence
    assert "swap" not in raised(folded(replace(swapped, available=None)), 2.0)


@pytest.mark.parametrize(("stalled", "is_raised"), [(0.37, True), (0.02, False), (None, False)])
def test_programs_wait_for_unified_memory(stalled, is_raised):
    """A page cache alone is as it should be: the kernel gives it back."""
    sample = MemorySampled(1.0, 100 * GIB, 120 * GIB, "unified", 20 * GIB, cached=60 * GIB, stalled=stalled)
    alarms = raised(folded(sample), 2.0)
    assert list(alarms) == (["swap"] if is_raised else [])
    if is_raised:
        expected = "all programs wait for memory 37 % of the time, 60.0 GiB of 120.0 GiB are page cache"
        assert (alarms["swap"].evidence, "--release-page-cache" in alarms["swap"].hint) == (expected, True)


@pytest.mark.parametrize(("others", "is_raised"), [(1.6, True), (0.3, False), (None, False)])
def test_a_busy_neighbour_on_the_processors(others, is_raised):
    samples = [ProcessorsSampled(float(at), 0.4, 2, 8, others) for at in range(0, 30, 2)]
    assert ("foreign load" in raised(folded(*samples), 29.0)) is is_raised
