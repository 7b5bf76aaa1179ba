"""What requests sum up to, in figures and in lines."""

from typing import Any

import pytest

from dflash_tui.benchmark import suites
from dflash_tui.benchmark.server import Server
from dflash_tui.benchmark.summary import LevelSummary, RequestFigures, Spread, busy_seconds
from dflash_tui.events import Counters, RequestDone
from dflash_tui.presentation import benchmark_text
from dflash_tui.presentation.report import Note, Table, to_terminal
from tests.tui.conftest import a_run

SUITE = suites.load_suite("quick")


def request(kind: str = "Code", at: float = 0.0, total: float = 2.0, **changes) -> RequestDone:
    values: dict[str, Any] = {
        "tokens": 100,
        "ttft": 0.1,
        "decode_tok_s": 50.0,
        "finish": "length",
        "steps": 24.75,
        "accepted": 74.25,
    }
    return RequestDone(at, kind, total=total, **(values | changes))


def measured(*done: RequestDone, **plan) -> LevelSummary:
    before = Counters(generated=0.0, steps=100.0, proposed=700.0, accepted=300.0, per_position=(80.0, 60.0))
    after = Counters(generated=500.0, steps=150.0, proposed=1050.0, accepted=450.0, per_position=(120.0, 80.0))
    return LevelSummary.from_requests(Server.from_run(a_run(**plan)), done, before, after, SUITE)


def test_spread_with_enough_values_has_percentiles():
    few, many = Spread.from_values([3.0, None, 1.0, 2.0]), Spread.from_values([float(n) for n in range(101)])
    assert few == Spread(2.0, 1.0, 3.0, 3)
    assert many == Spread(50.0, 5.0, 95.0, 101)
    assert few is not None
    assert many is not None
    assert (few.percentiles, many.percentiles, Spread.from_values([None])) == (False, True, None)


def test_overlapping_requests_count_time_once():
    """Two overlap, one is inside another, and the pause before the last does not count."""
    done = [request(at=3, total=3), request(at=4, total=2), request(at=2, total=1), request(at=11, total=1)]
    assert busy_seconds(done) == pytest.approx(5.0)
    assert busy_seconds([]) == 0


def test_level_summary_counts_successful_requests():
    """Output over busy time; failures are counted and stay out of the spreads."""
    level = measured(
        request(at=2), request(at=4, decode_tok_s=70.0), request(at=5, total=1, error="HTTP 500", tokens=0)
    )
    assert (level.requests, level.failed, level.tokens, level.seconds) == (3, 1, 200, 5.0)
    assert level.tok_s == pytest.approx(40.0)
    assert level.acceptance == pytest.approx(150 / 350)
    assert level.acceptance_length == pytest.approx(4.0)
    assert (level.suite, level.digest) == ("quick", SUITE.digest)
    figures = level.kinds["Code"]
    assert figures.tok_s == Spread(60.0, 50.0, 70.0, 2)
    assert figures.steps_s == Spread(15.0, 12.5, 17.5, 2)
    assert figures.tpot is not None
    assert figures.tpot.high == pytest.approx(1 / 50)


def test_unknown_figure_is_dash():
    """Beside others a request has no steps; one chunk has no speed."""
    row = benchmark_text.format_request(request(steps=None, decode_tok_s=None, ttft=None))
    assert row.split() == ["Code", "—", "—", "—", "—", "2.0", "s", "100", "length"]
    assert RequestFigures.from_requests([request(steps=0.0)]).acceptance_length is None


def test_summary_lines_are_readable_and_greppable(snapshot):
    level = measured(*(request(kind, at=2 * n + 2) for n, kind in enumerate(("a", "b", "c", "d", "e"))))
    real = measured(request(), synthetic="")
    at_once = measured(request(), request("JSON", at=4.0, tokens=8, decode_tok_s=None))
    sentences = [
        [str(part) for part in benchmark_text.build_level(each).parts if isinstance(part, Note)]
        for each in (level, real, at_once)
    ]
    assert sentences == snapshot


def test_repeated_kinds_have_own_summary_rows():
    level = measured(*(request("Math", at=n, decode_tok_s=float(40 + n)) for n in range(3)), request("x", at=9))
    table = benchmark_text.build_level(level).parts[0]
    assert isinstance(table, Table)
    assert table.rows[0][:4] == ("Math", "3", "41.0", "40.0 to 42.0")
    assert table.rows[-1][:2] == ("all", "4")


def test_no_line_is_wider_than_the_terminal():
    """Long kinds and large figures fit into 80 columns."""
    big = {"decode_tok_s": 1234.5, "ttft": 123.456, "tokens": 65536, "steps": 9999.0, "chunk_p95": 12.345}
    done = [request("LongContextualised", at=999.0 * n, total=999.9, **big) for n in range(2)]
    level = measured(*done)
    rows = [benchmark_text.format_request(None), benchmark_text.format_request(done[0])]
    sections = [benchmark_text.build_level(level), benchmark_text.build_levels([level, level])]
    assert max(len(line) for text in (*rows, to_terminal(sections)) for line in text.splitlines()) <= 80
