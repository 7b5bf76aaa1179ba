"""Lines of /metrics: what prometheus_client sees in them, at a cost that grows as they do."""

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from dflash_tui.vllm_output import metrics
from dflash_tui.vllm_output.metrics import parse_sample
from tests.support import recordings
from tests.support.expositions import parse, parse_with_prometheus

RECORDED = [
    ("cpu-vllm-0.32.0/dflash", "start"), ("cpu-vllm-0.32.0/dflash", "end"), ("cpu-vllm-0.32.0/eager", "end"),
    ("h200-vllm-0.26.0/g26-dflash-compile", "start"), ("h200-vllm-0.26.0/g26-dflash-compile", "end"),
]  # fmt: skip
NAME = "vllm:generation_tokens_total"


@pytest.mark.parametrize(("name", "when"), RECORDED)
def test_every_line_of_a_real_answer_is_read_as_prometheus_client_reads_it(name, when):
    """All families, not only those that are used here."""
    lines = [line for line in recordings.metrics(name, when).splitlines() if not line.startswith("#")]
    assert len(lines) > 400
    for line in lines:
        assert parse(line) == parse_with_prometheus(line) is not None, line


@given(st.text(max_size=30), st.floats(0, 1e15), st.integers(0, 9))
def test_what_prometheus_client_writes_is_read_back(label, value, position):
    """Labels of any text, and figures of any size."""
    registry = CollectorRegistry()
    Counter("vllm:a", "x", ["model_name", "position"], registry=registry).labels(label, str(position)).inc(value)
    Gauge("vllm:b", "x", registry=registry).set(-value)
    Histogram("vllm:c", "x", ["m"], registry=registry).labels(label).observe(value)
    samples = [parse(line) for line in generate_latest(registry).decode().split("\n") if line and line[0] != "#"]
    assert all(samples)
    written = {(s.name, frozenset(s.labels.items())): s.value for family in registry.collect() for s in family.samples}
    assert {(s.name, frozenset(s.labels.items())): s.value for s in samples if s} == written


@pytest.mark.parametrize(
    "line",
    ["", "# HELP vllm:x a", "vllm:x", "vllm:x{", 'vllm:x{a="b"', 'vllm:x{a="b} 1', 'vllm:x{a="b"c="d"} 1',
     "vllm:x{a=b} 1", 'vllm:x{a="b",a="c"} 1', "vllm:x{} ", "vllm:x 1_0", "vllm:x 1 2 3", "vllm:x one", "1 vllm:x",
     'vllm:x {"a"} 1'],
)  # fmt: skip
def test_what_is_no_sample_is_none(line):
    assert parse_sample(line) is None


BACKSLASHES = "\\\\"
LINES: dict[str, Callable[[int], str]] = {
    "labels": lambda size: NAME + "{" + ",".join(f'a{n}="b"' for n in range(size // 8)) + "} 1",
    "backslashes without end": lambda size: NAME + '{a="' + BACKSLASHES * (size // 2),
    "a label's name": lambda size: NAME + "{" + "a" * size,
}


@pytest.mark.parametrize("kind", LINES)
def test_a_line_costs_by_the_character_not_by_the_square(kind):
    """Of a line 16 times as long 16 times the work is asked, not 256 times."""

    def measure(size: int) -> float:
        line, costs = LINES[kind](size), list[float]()
        for _ in range(5):
            began = time.thread_time_ns()
            parse_sample(line)
            costs.append(time.thread_time_ns() - began)
        return min(costs) + 20_000  # what a clock may miss

    assert measure(16 * 8_000) < 64 * measure(8_000)


def test_what_is_kept_of_an_answer_has_a_bound():
    """Thousands of buckets and positions become a histogram that nobody shows, and the positions that are drafted."""
    reader = metrics.MetricsReader()
    reader.feed(b"vllm:generation_tokens_total 5\n")
    for number in range(20_000):
        reader.feed(b'vllm:time_to_first_token_seconds_bucket{le="%d"} %d\n' % (number, number))
        reader.feed(b"vllm:time_to_first_token_seconds_%d_sum 1\nvllm:prompt_tokens_total_%d 1\n" % (number, number))
        reader.feed(b'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="%d"} 1\n' % number)
    reader.feed(b'vllm:time_to_first_token_seconds_bucket{le="+Inf"} 20000\n')
    scrape = reader.result()
    assert scrape
    assert scrape.ttft is None
    assert len(scrape.counters.per_position) == 64
    kept = [*reader._sums, *reader._positions, *(bound for family in reader._buckets.values() for bound in family)]
    assert len(kept) < 1000
