"""A start in words: rows, facts and the estimate, from recorded starts."""

import pytest

from dflash_tui.events import WARM_UP, Counters, Exited, Health, HealthChanged, RequestDone, Sampled, SpeculationLogged
from dflash_tui.monitoring.startup_history import expect_startup
from dflash_tui.presentation.startup_text import (
    RowMark,
    build_startup_rows,
    find_silence,
    format_expected,
    format_ready_in,
    format_silence,
    list_facts,
)
from tests.support.recorded_startups import COMPILED, SILENT, start, state

DEAD = "h200-vllm-0.26.0/fail-engine-dead-first-request"


def notes(name: str, second: float) -> dict[str, str]:
    return {row.name: row.note for row in build_startup_rows(state(name, second), second, None)}


def test_weights_say_shards_size_and_speed():
    """While it loads: how much of how much, by the bar's own clock; afterwards vLLM's own seconds."""
    assert notes(COMPILED, 52.5)["weights"] == "6/11 shards · 25.6 of 47.0 GiB · 5.5 GB/s"  # 27.5 GB in 5 s
    after = notes(COMPILED, 1e9)
    assert after["weights"] == "11/11 shards · 47.0 GiB · 5.1 GB/s"  # 50.5 GB in 9.95 s
    assert after["drafter"] == "1/1 shard · 0.8 GiB · 5.7 GB/s"  # 0.859 GB in 0.15 s


def test_compile_row_shows_parts_and_cache_use():
    """Target and drafter apart, with Dynamo and Inductor; what is not known yet is left out."""
    whole = "cold · backbone 50.0 s (Dynamo 10.0, Inductor 34.5) · eagle_head 13.1 s (Dynamo 1.2, Inductor 11.1)"
    assert notes(COMPILED, 1e9)["compile"] in {whole, whole.replace("34.5)", "34.6)")}  # 34.55 either way
    assert notes(COMPILED, 70.0)["compile"] == "backbone (Dynamo 10.0)"
    assert notes("cpu-vllm-0.32.0/dflash_compile_warm", 1e9)["compile"] == "recompiled · backbone · eagle_head"


def test_graphs_row_shows_capture_progress_and_memory():
    """One bar after the other, then all graphs and the memory that they took."""
    assert notes(COMPILED, 158.0)["graphs"] == "32/32 mixed prefill-decode, PIECEWISE"
    assert notes(COMPILED, 159.17)["graphs"] == "32/32 decode, FULL"
    assert notes(COMPILED, 1e9)["graphs"] == "64 graphs · 0.56 GiB"
    assert notes(COMPILED, 1e9)["kv cache"] == "234,513 tokens · 14.31 requests of 16,384"


def test_rows_before_with_and_after_history():
    """Phases to come are known from history only; each row says what was expected and from how many starts."""
    now = state(COMPILED, 52.5)
    plain = build_startup_rows(now, 52.5, None)
    assert [row.name for row in plain] == ["import", "resolve", "engine", "weights", "healthy", "warm"]
    assert {format_expected(row.expected) for row in plain} == {"—"}
    expected = expect_startup([start(COMPILED, factor) for factor in (1.0, 0.9, 1.1)])
    full = build_startup_rows(now, 52.5, expected)
    assert [row.name for row in full][4:] == [
        "drafter", "compile", "profile", "kv cache", "autotune", "graphs", "jit", "api", "healthy", "warm",
    ]  # fmt: skip
    assert [row.mark for row in full][:5] == [RowMark.DONE] * 3 + [RowMark.RUNNING, RowMark.TO_COME]
    assert format_expected(full[5].expected) == "≈ 1:02 (3 starts)"


def test_unattributed_time_has_its_own_row():
    """What the log does not explain is neither hidden nor given to a phase; moments are not worth a row."""
    assert "unattributed" not in notes(COMPILED, 1e9)
    rows = {row.name: row for row in build_startup_rows(state(SILENT, 162.3), 164.0, None)}
    assert rows["unattributed"].seconds == pytest.approx(0.006 + 164.0 - 162.162)


def test_recorded_silence_marks_row_and_is_explained(snapshot):
    """The stalled row has a mark that needs no colour, and the full line says what is probably happening."""
    now = state(SILENT, 120.0)
    row = next(row for row in build_startup_rows(now, 120.0, None) if row.name == "jit")
    assert (row.mark, row.note) == (RowMark.STALLED, "no line for 50 s")
    quiet = find_silence(now, 120.0, None)
    assert quiet is not None
    assert format_silence(quiet) == snapshot


def test_server_dying_on_first_request_stays_unready():
    """It was up and healthy; the row of the first request failed and says why."""
    healthy, refused = HealthChanged(86.0, Health.HEALTHY), RequestDone(86.3, WARM_UP, error="HTTP 500")
    dead = state(DEAD, 1e9, healthy, refused, Exited(90.0, 0))
    by_name = {row.name: row for row in build_startup_rows(dead, 90.0, None)}
    assert by_name["api"].mark is RowMark.DONE
    assert by_name["healthy"].mark is RowMark.DONE
    assert (by_name["warm"].mark, by_name["warm"].note) == (RowMark.FAILED, "first request failed: HTTP 500")
    assert format_ready_in(dead, 90.0, None) == ""


def test_first_request_row_has_its_own_seconds(snapshot):
    """The row of the first request has its own seconds, which are no part of any phase."""
    done = RequestDone(166.0, WARM_UP, tokens=8, ttft=2.25, total=3.4)
    warm = state(COMPILED, 162.7, HealthChanged(162.6, Health.HEALTHY), done, HealthChanged(166.0, Health.WARM))
    last = build_startup_rows(warm, 170.0, None)[-1]
    assert (last.name, last.seconds, last.note) == ("warm", 3.4, snapshot)


def test_a_phase_that_died_is_marked():
    """The phase in which the server ended has failed; nothing is to come any more."""
    dead = state("h200-vllm-0.26.0/fail-illegal-memory-access", 1e9, Exited(90.0, 1))
    rows = build_startup_rows(dead, 90.0, expect_startup([start(COMPILED)]))
    assert [row.name for row in rows if row.mark is RowMark.FAILED] == ["jit"]
    assert [row.name for row in rows if row.mark is RowMark.TO_COME] == ["healthy", "warm"]


def test_facts_of_a_compiled_start(snapshot):
    """Attention of target and drafter, runner, kernels and memory, in the order of a launch."""
    assert list_facts(state(COMPILED)) == snapshot
    assert ("graphs", "0.34 GiB estimated") in list_facts(state(COMPILED, 143.7))
    assert list_facts(state(COMPILED, 10.0)) == []


def test_log_tells_speculation_only_without_counters(snapshot):
    logged = SpeculationLogged(90.0, 4.95, 584, 1036)
    assert list_facts(state(COMPILED, 10.0, logged)) == snapshot
    assert list_facts(state(COMPILED, 10.0, logged, Sampled(91.0, Counters(1.0)))) == []


def test_the_estimate_in_words(snapshot):
    """An estimate says that it is one and from how many starts; without history there is none."""
    assert format_ready_in(state(COMPILED, 80.0), 80.0, None).endswith("no estimate")
    one, three = expect_startup([start(COMPILED)]), expect_startup([start(COMPILED, f) for f in (1.0, 0.8, 0.9)])
    assert format_ready_in(state(COMPILED, 80.0), 80.0, one) == snapshot
    assert format_ready_in(state(COMPILED, 150.0), 170.0, three) == snapshot
    unanswered = expect_startup([start(COMPILED, first_request=None)])
    assert format_ready_in(state(COMPILED, 80.0), 80.0, unanswered).endswith("no estimate")
