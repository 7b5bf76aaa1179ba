"""Why a server over several hosts failed, by the logs of all its ranks: what rank 0 says first is mostly a symptom.

Rank 0 says `timed out` or `closed by peer`; the cause is in another rank's log, or in none. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from dflash_tui.diagnosis.cause import UNKNOWN, Diagnosis, diagnose_run, find_logged_cause
from dflash_tui.events import Exited
from dflash_tui.run_state.state import RunState
from dflash_tui.vllm_output.log_reader import LogReader

SILENT, GONE = "rank_silent", "rank_gone"
# What rank 0 says when another rank is the cause.
_SYMPTOMS = frozenset(
    {
        "timeout",
        "rank_lost",
        "rendezvous",
        "collective_timeout",
        "engine_dead",
        "init_failed",
        "worker_died",
        "engine_died",
        "terminated",
    }
)
# What it says when nothing comes back: an address that is wrong leaves no line in the other log.
_WAITED = frozenset({"timeout", "collective_timeout"})
# What a rank says when another one ended before it, and what rank 0 says when one never came.
_FOLLOWED, _NEVER_CAME = "rank_lost", "rendezvous"


class RankLog(NamedTuple):
    """The log of a rank on another host, and what the keeper knew of it."""

    rank: int
    host: str
    log: bytes
    has_ended: bool = False
    """Whether it ended before rank 0 was stopped."""
    state: str = ""
    """How it was, such as `suspended`, and why; empty when nobody knows."""

    @property
    def name(self) -> str:
        """What it is called in a sentence."""
        return f"rank {self.rank} on {self.host}"


def explain_by_ranks(near: Diagnosis, ranks: Sequence[RankLog], started: float, utc_offset: float) -> Diagnosis:
    """Return why a server failed by the logs of its other ranks, where rank 0's own is no cause; else `near`.

    Args:
        near: what rank 0's log says.
        ranks: the other ranks.
        started: when they were launched, in seconds since the epoch.
        utc_offset: by how many seconds their stamps are ahead of UTC.
    """
    if near.kind not in _SYMPTOMS and not _says_nothing(near, ranks):
        return near
    for rank in ranks:
        if far := _diagnose_rank(rank, started, utc_offset):
            return replace(
                far,
                what=near.what,
                cause=f"{rank.name}: {far.cause}",
                evidence=tuple(dict.fromkeys((*far.evidence, *near.evidence))),
                process=f"{rank.name}{f', {far.process}' if far.process else ''}",
            )
    if gone := next((rank for rank in ranks if rank.has_ended), None):
        return _build_gone(near, gone)
    if near.kind in _WAITED and ranks:
        return _build_silent(near, ranks)
    if near.kind == _NEVER_CAME and (states := _name_states(ranks)):
        return replace(near, cause=f"{near.cause}: {states}", confidence="certain")
    return near


def _says_nothing(near: Diagnosis, ranks: Sequence[RankLog]) -> bool:
    """Whether rank 0's log has no error, and another rank ended before it."""
    return near.kind == UNKNOWN and not near.process and any(rank.has_ended for rank in ranks)


def _diagnose_rank(rank: RankLog, started: float, utc_offset: float) -> Diagnosis | None:
    """Return why a rank failed by itself; None where its log has no error, or only what followed from another's end."""
    reader, state = LogReader(started, utc_offset), RunState()
    events = reader.feed(rank.log + b"\n")
    state.apply_all(events)
    if find_logged_cause(state) is None:
        return None
    state.apply(Exited(max(event.at for event in events), None))
    far = diagnose_run(state)
    return far if far and far.kind != _FOLLOWED else None


def _build_gone(near: Diagnosis, rank: RankLog) -> Diagnosis:
    return replace(
        near,
        kind=GONE,
        cause=f"{rank.name} {rank.state or 'ended'} before the others did, and its log has no error",
        fix=(f"On {rank.host}, dmesg shows which processes the kernel killed when out of memory. Launch again.",),
        confidence="likely",
    )


def _name_states(ranks: Sequence[RankLog]) -> str:
    """Return how the other ranks were, as far as somebody saw that; empty for nothing."""
    return "; ".join(f"{rank.name} was {rank.state}" for rank in ranks if rank.state)


def _build_silent(near: Diagnosis, ranks: Sequence[RankLog]) -> Diagnosis:
    names, states = " and ".join(rank.name for rank in ranks), _name_states(ranks)
    why = states or "it was suspended, its host or the cable was gone, or it compiled for longer than the time-out"
    return replace(
        near,
        kind=SILENT,
        cause=f"{names} did not answer in time, and no error is in that log: {why}",
        fix=(
            "Check the cable and the other host (dflash-tui doctor RECIPE --peer HOST), then launch again.",
            "If the first request compiles for long there: --set env.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=1800.",
        ),
        confidence="certain" if states else "likely",
    )
