"""What is said of TTFT, end-to-end time and output beside the judged measure, at each number of streams."""

from itertools import product

import pytest
from msgspec.structs import replace

from dflash_tui.benchmark.load import MeasuredWindow
from dflash_tui.experiments.analysis import verdict
from dflash_tui.experiments.analysis.measures import E2E, FURTHER, OUTPUT, START, TTFT
from dflash_tui.experiments.analysis.report import FurtherVerdict, Verdict
from dflash_tui.experiments.design import Boot, Design
from dflash_tui.presentation import experiment_report as tables
from dflash_tui.presentation import verdict_text
from tests.support.boot_factories import KINDS, boot, modes, request
from tests.support.values import present

# Boots of an arm differ by 1 %.
JITTER = (0.99, 1.01, 1.0, 1.0, 1.01, 0.99, 1.0, 1.0)


def measured(of: Design, arms: tuple[dict[str, float], dict[str, float]], *, windows: bool = True) -> list[Boot]:
    """Return boots of two arms with these seconds and this output, the same at each number of streams."""
    made = []
    for number, arm in enumerate(of.order):
        scale, figures = JITTER[number], arms[arm]
        requests = [
            request(kind, 10.0, ttft=figures[TTFT] * scale, total=figures[E2E] * scale, streams=streams)
            for kind, streams in product(KINDS, of.concurrency)
        ]
        times = [MeasuredWindow(each, 10.0, round(figures[OUTPUT] * scale * 10_000), each - 0.2) for each in
                 of.concurrency] if windows else []  # fmt: skip
        made.append(boot(of, number, requests, windows=tuple(times)))
    return made


def judge(of: Design, made: list[Boot]) -> dict[tuple[str, int], FurtherVerdict]:
    (one,) = verdict.build_report(of, made).comparisons
    return {(each.measure, each.streams): each for each in one.further}


EAGER, FASTER = {TTFT: 0.4, E2E: 9.0, OUTPUT: 50.0}, {TTFT: 0.5, E2E: 6.0, OUTPUT: 75.0}
ORDER = (0, 1, 1, 0, 0, 1, 1, 0)


def test_each_measure_has_verdict_per_stream_count():
    """An arm may answer later and be done sooner; ratios of seconds are those of seconds."""
    further = judge(modes(ORDER, concurrency=(2, 8)), measured(modes(ORDER, concurrency=(2, 8)), (EAGER, FASTER)))
    assert set(further) == set(product(FURTHER, (2, 8)))
    words = {TTFT: (Verdict.SLOWER, 1.25), E2E: (Verdict.FASTER, 2 / 3), OUTPUT: (Verdict.FASTER, 1.5)}
    for (measure, _), one in further.items():
        assert one.word is words[measure][0]
        assert one.ratio.ratio == pytest.approx(words[measure][1], rel=0.02)
        assert one.ratio.low < one.ratio.ratio < one.ratio.high
        assert one.level == pytest.approx(1 - 0.05 / 6)


def test_single_stream_output_needs_no_window():
    """As in experiments of before; that of several streams is not."""
    of = modes(ORDER)
    further = judge(of, measured(of, (EAGER, FASTER), windows=False))
    assert further[OUTPUT, 1].ratio.ratio == pytest.approx(1.5, rel=0.02)
    several = modes(ORDER, concurrency=(8,))
    assert (OUTPUT, 8) not in judge(several, measured(several, (EAGER, FASTER), windows=False))


def test_refused_verdict_refuses_further_ones():
    of = modes(ORDER)
    made = measured(of, (EAGER, FASTER))
    made[1] = boot(of, 1, made[1].requests, gpus=("another",))
    assert {one.word for one in judge(of, made).values()} == {Verdict.REFUSED}


def test_measured_starts_send_no_prompts():
    of = modes(ORDER, measures_start=True)
    made = [boot(of, number, (), start="measured", ready=60.0 * JITTER[number]) for number in range(8)]
    (one,) = verdict.build_report(of, made).comparisons
    assert (one.measure, one.further) == (START, ())


def test_report_has_percentiles_and_energy_per_arm():
    """By number of streams and arm, with n; fewer than 20 requests have a median alone."""
    of = modes(ORDER, concurrency=(1, 8))
    made = [
        replace(each, windows=tuple(replace(window, joules=2.0 * window.tokens) for window in each.windows))
        for each in measured(of, (EAGER, FASTER))
    ]
    report = verdict.build_report(of, made)
    table = present(tables.build_latency_table(report))
    rows = {row[:4]: row[4:] for row in table.rows}
    assert len(rows) == 2 * 2 * 3
    assert rows["A eager", "8", "all", "TTFT"][:3] == ("20", "400 ms", "404 ms")
    assert [line.count("2 J (4 boots)") for line in tables.describe_energy(report)] == [2, 2]
    single = present(tables.build_latency_table(verdict.build_report(of, made[:2])))
    assert {row[6] for row in single.rows} == {"—"}
    assert tables.describe_energy(verdict.build_report(of, measured(of, (EAGER, FASTER)))) == []


def test_report_lists_further_verdicts_by_stream_count(snapshot):
    of = modes(ORDER, concurrency=(1, 8))
    report = verdict.build_report(of, measured(of, (EAGER, FASTER)))
    lines = [str(each) for each in verdict_text.list_details(report, report.comparisons[0])]
    assert [line for line in lines if TTFT in line] == snapshot
