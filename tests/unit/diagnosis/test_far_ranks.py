"""Failures of servers over two hosts, recorded on both: the far rank's own error comes before the near symptom."""

import pytest

from dflash_tui.diagnosis import postmortem
from dflash_tui.diagnosis.cause import Diagnosis, diagnose_run
from dflash_tui.diagnosis.postmortem import GONE, SILENT, RankLog, explain_by_ranks
from dflash_tui.events import Exited, Phase, PhaseStarted
from dflash_tui.vllm_output.log_reader import LogReader
from tests import DATA
from tests.support.states import LAUNCHED, fold, read_log


def near_of(log: bytes, code: int = 1) -> Diagnosis:
    events = read_log(log + b"\n")
    diagnosis = diagnose_run(fold(LAUNCHED, *events, Exited(events[-1].at, code)))
    assert diagnosis is not None
    return diagnosis


def explain(case: str, **known) -> Diagnosis:
    near, far = ((DATA / "ranks" / f"{case}.rank{rank}.log").read_bytes() for rank in (0, 1))
    return explain_by_ranks(near_of(near), [RankLog(1, "spark-b", far, **known)], 0.0, 0.0)


@pytest.mark.parametrize(
    ("case", "near", "kind", "names_rank"),
    [
        ("kill-worker1-idle", "rank_lost", "worker_died", True),
        ("wrong-master", "rendezvous", "rendezvous", True),
        ("rank1-late", "rendezvous", "rendezvous", False),
        ("other-model", "ranks_differ", "ranks_differ", False),
        ("cut-serving", "timeout", SILENT, True),
        ("stop1-sigstop-busy", "timeout", SILENT, True),
        ("pp2-dflash", "spec_parallel", "spec_parallel", False),
        ("prototype-vllm", "terminated", "worker_died", True),
        ("stop-rank0-sigterm", "terminated", "terminated", False),
    ],
)
def test_the_cause_by_both_logs(case, near, kind, names_rank):
    own = near_of((DATA / "ranks" / f"{case}.rank0.log").read_bytes())
    assert own.kind == near
    found = explain(case)
    assert (found.kind, "rank 1 on spark-b" in found.cause) == (kind, names_rank)
    assert found.what == own.what
    assert set(own.evidence) <= set(found.evidence)


def test_killed_rank_0_is_not_blamed_elsewhere():
    """Whose log ends with what followed, or with nothing."""
    near, far = ((DATA / "ranks" / f"kill-rank0-all.rank{rank}.log").read_bytes() for rank in (0, 1))
    killed = near_of(near, -9)
    assert explain_by_ranks(killed, [RankLog(1, "spark-b", far, has_ended=True)], 0.0, 0.0) == killed
    assert killed.kind == "killed"


def test_rank_reports_vain_wait_for_rank_0():
    """As `why` on its own host tells it."""
    far = near_of((DATA / "ranks" / "rank0-missing.rank1.log").read_bytes())
    assert (far.kind, "10.77.0.1" in " ".join(far.evidence)) == ("rendezvous", True)


def test_cause_names_keeper_state_of_missing_rank():
    known = explain("rank1-late", state="suspended (1 of its processes were stopped by a signal)")
    assert (known.kind, "spark-b was suspended" in known.cause) == ("rendezvous", True)


def test_evidence_names_address_far_rank_missed():
    assert "10.77.0.9" in " ".join(explain("wrong-master").evidence)


def test_keeper_state_is_reported():
    known = explain("stop1-sigstop-busy", state="suspended (2 of its processes were stopped by a signal)")
    assert (known.kind, known.confidence) == (SILENT, "certain")
    assert "stopped by a signal" in known.cause


@pytest.mark.parametrize(
    ("log", "kind", "word"),
    [(b"", GONE, "its worker died"), (b"ValueError: nothing works here", "unknown", "nothing works here")],
)
def test_first_ended_rank_explains_stopped_rank_0(log, kind, word):
    near = near_of(b"(APIServer pid=1) INFO 11-22 10:00:00 [launcher.py:1] [shutdown] API server: shutdown triggered")
    found = explain_by_ranks(near, [RankLog(1, "b", log, has_ended=True, state="ended (its worker died)")], 0.0, 0.0)
    assert found.kind == kind
    assert word in found.cause


def test_rank_0_error_is_its_own_cause():
    near = near_of(b"vllm serve: error: unrecognized arguments: --nonsense", 2)
    assert explain_by_ranks(near, [RankLog(1, "b", b"ValueError: x", has_ended=True)], 0.0, 0.0) == near


def test_waiting_for_other_ranks_is_a_phase():
    """From the line before the rendezvous until both are there; the ranks of one machine never wait for long."""
    line = "INFO 11-22 13:17:{} [x.py:1] {}"
    waits = "world_size=2 rank=0 local_rank=0 distributed_init_method=tcp://{}:29501 backend=gloo"
    joined = "rank 0 in world size 2 is assigned as DP rank 0, PP rank 0, PCP rank 0, TP rank 0"
    engine = "Initializing a V1 LLM engine (v0.32.0) with config: x"
    phases = {}
    for address in ("10.77.0.1", "127.0.0.1"):
        reader = LogReader(0.0, 0.0)
        lines = [line.format(10 + n, text) for n, text in enumerate((engine, waits.format(address), joined))]
        events = reader.feed("\n".join((*lines, "")).encode())
        phases[address] = [event.phase for event in events if isinstance(event, PhaseStarted)][1:]
    assert phases == {"10.77.0.1": [Phase.ENGINE, Phase.RANKS, Phase.ENGINE], "127.0.0.1": [Phase.ENGINE]}


def test_long_log_tail_begins_with_whole_line(tmp_path, monkeypatch):
    """Half a line may be half a secret, which nobody knows for one."""
    monkeypatch.setattr(postmortem, "_MOST_READ", 20)
    (tmp_path / "log").write_bytes(b"token hf_0123456789\nRuntimeError: no\n")
    assert postmortem._read_end(tmp_path / "log") == b"RuntimeError: no\n"
