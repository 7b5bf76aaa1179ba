"""Recorded /metrics bodies through the parser, and the arithmetic over a window."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dflash_tui.events import Counters, Sampled, decode_recorded, encode
from dflash_tui.vllm_output import metrics
from dflash_tui.vllm_output.metrics import Rates, compute_rates, parse_sample
from tests.support import recordings
from tests.support.expositions import parse, parse_with_prometheus
from tests.support.scrapes import parse_counters, parse_metrics
from tests.support.values import present

PAIRS = ["cpu-vllm-0.32.0/dflash", "h200-vllm-0.26.0/g26-dflash-compile"]


def rates_of(before: Counters, after: Counters, seconds: float) -> Rates:
    return present(compute_rates(before, after, seconds))


def whole(text: str, name: str) -> float:
    """Sum a counter with prometheus_client over the whole text, as an independent check."""
    families = text_string_to_metric_families(text)
    return sum(s.value for family in families for s in family.samples if s.name == name)


@pytest.mark.parametrize("name", PAIRS)
def test_counters_match_response_body(name):
    """The few lines parsed give the same sums as parsing everything."""
    text = recordings.metrics(name, "end")
    counters = parse_counters(text)
    assert counters.generated == whole(text, "vllm:generation_tokens_total") > 0
    assert counters.steps == whole(text, "vllm:spec_decode_num_drafts_total") > 0
    assert counters.accepted == whole(text, "vllm:spec_decode_num_accepted_tokens_total")
    assert sum(filter(None, counters.per_position)) == counters.accepted
    assert counters.waiting == whole(text, "vllm:num_requests_waiting")


@pytest.mark.parametrize("name", PAIRS)
def test_rates_follow_the_definitions(name):
    """Acceptance is accepted / proposed, the acceptance length 1 + accepted / steps, tok/s = steps/s x AL."""
    before, after = (
        parse_counters(recordings.metrics(name, "start")),
        parse_counters(recordings.metrics(name, "end")),
    )
    assert after.steps
    assert after.accepted
    assert after.proposed
    found = rates_of(before, after, 10.0)
    assert found.acceptance_length
    assert found.steps_s
    assert found.acceptance == pytest.approx(after.accepted / after.proposed)
    assert found.acceptance_length == pytest.approx(1 + after.accepted / after.steps)
    assert found.tok_s == pytest.approx(found.steps_s * found.acceptance_length, rel=0.05)
    assert found.per_position[0] == pytest.approx((after.per_position[0] or 0.0) / after.steps)
    assert all(share is not None and 0 <= share <= 1 for share in found.per_position)


def test_a_hole_in_the_positions_shifts_nothing():
    """Positions 0 and 2 stay 0 and 2; what is missing at one end is unknown for the window."""
    family = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    body = "vllm:generation_tokens_total 9\nvllm:spec_decode_num_drafts_total {}\n"
    lines = '{f}{{position="0"}} {}\n{f}{{position="2"}} {}\n'
    before = parse_counters(body.format(100) + lines.format(80, 20, f=family))
    after = parse_counters(body.format(200) + lines.format(170, 50, f=family) + f'{family}{{position="3"}} 7\n')
    assert before.per_position == (80, None, 20)
    found = rates_of(before, after, 1.0)
    assert found.per_position == (0.9, None, 0.3, None)


def test_ratio_without_earlier_count_is_unknown():
    """A ratio since the start of the server is not that of the window."""
    after = Counters(50.0, steps=2000.0, proposed=9000.0, accepted=4000.0)
    for missing in ("accepted", "proposed"):
        before = replace(Counters(0.0, steps=1000.0, proposed=2000.0, accepted=1000.0), **{missing: None})
        found = rates_of(before, after, 1.0)
        assert found.acceptance is None
        assert found.acceptance_length == (None if missing == "accepted" else 4.0)


def test_without_speculation_its_figures_are_unknown():
    """A server without a drafter has no acceptance, rather than one of zero."""
    counters = parse_counters(recordings.metrics("cpu-vllm-0.32.0/eager", "end"))
    assert (counters.steps, counters.per_position) == (None, ())
    found = rates_of(counters, counters, 1.0)
    assert (found.tok_s, found.steps_s, found.acceptance, found.acceptance_length) == (0.0, None, None, None)


def test_engines_are_summed_and_fullest_cache_counts():
    """With several engines counters add up; the KV cache usage is that of the fullest."""
    text = "".join(
        f'vllm:generation_tokens_total{{engine="{e}",model_name="m"}} {n}\n'
        f'vllm:kv_cache_usage_perc{{engine="{e}",model_name="m"}} {n / 100}\n'
        for e, n in ((0, 10.0), (1, 30.0))
    )
    counters = parse_counters(text)
    assert (counters.generated, counters.kv_usage) == (40.0, 0.3)


@pytest.mark.parametrize("text", ["<html>", "vllm:generation_tokens_total{engine="])
def test_foreign_metrics_body_gives_no_counters(text):
    """Another program on the port, or half a body, gives no counters and no exception."""
    assert parse_metrics(text) is None


def test_a_counter_that_fell_gives_no_rate():
    """Counters that go backwards belong to another server."""
    assert compute_rates(Counters(generated=10), Counters(generated=4), 1.0) is None
    assert compute_rates(Counters(generated=10), Counters(generated=40), 0.0) is None


HUGE = "1.7e308"


@pytest.mark.parametrize(
    ("line", "other"),
    [
        (f'vllm:num_requests_running{{engine="0"}} {HUGE}', f'vllm:num_requests_running{{engine="1"}} {HUGE}'),
        ("vllm:num_requests_waiting -1", "vllm:num_requests_waiting NaN"),
    ],
)
def test_figures_that_cannot_be_are_left_out(line, other):
    """No sum of what a server tells is infinite, negative or beyond what anybody counts."""
    counters = parse_counters(f"vllm:generation_tokens_total 5\n{line}\n{other}\n")
    assert replace(counters, series=None) == Counters(
        generated=5.0, running=None, waiting=None, preemptions=None, prompt=None
    )


def test_untold_counters_stay_unknown_when_recorded():
    """A queue that nobody told is no empty one; recordings leave out their zeros, as all did that were made earlier."""
    untold = parse_counters("vllm:generation_tokens_total 5\n")
    zeros = parse_counters(
        "vllm:generation_tokens_total 5\nvllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
        "vllm:num_preemptions_total 0\nvllm:prompt_tokens_total 0\n"
    )
    earlier = decode_recorded(b'{"event":"counters","at":5.0,"counters":{"generated":5.0}}')
    for counters, known in ((untold, None), (zeros, 0)):
        recorded = decode_recorded(encode(Sampled(5.0, counters)))
        assert isinstance(recorded, Sampled)
        assert recorded.counters == counters
        figures = (counters.running, counters.waiting, counters.preemptions, counters.prompt)
        assert figures == (known, known, known, known)
    assert isinstance(earlier, Sampled)
    assert (earlier.counters.running, earlier.counters.waiting, earlier.counters.preemptions) == (0, 0, 0)
    rates = rates_of(zeros, untold, 1.0)
    assert (rates.preemptions, rates.prefill_s) == (None, None)
    assert b'"running"' not in encode(Sampled(5.0, zeros))


@pytest.mark.parametrize(("told", "known"), [("90", None), ("-0.1", None), ("1", 1.0)])
def test_no_cache_is_fuller_than_full(told, known):
    """A usage of 9000 % is unknown."""
    counters = parse_counters(f"vllm:generation_tokens_total 5\nvllm:kv_cache_usage_perc {told}\n")
    assert counters.kv_usage == known


def test_engine_joining_or_leaving_is_no_growth():
    """The million tokens that it had generated by then were not generated in this window."""
    name = "vllm:generation_tokens_total"
    first, second = f'{name}{{engine="0",model_name="m"}} ', f'{name}{{model_name="m",engine="1"}} '
    one, more, both, turned = (
        parse_counters(text)
        for text in (
            f"{first}10\n",
            f"{first}30\n",
            f"{first}30\n{second}1000000\n",
            f'{second}1000050\n{name}{{model_name="m",engine="0"}} 30\n',
        )
    )
    assert compute_rates(one, both, 2.0) is None
    assert compute_rates(replace(both, generated=0.0), one, 2.0) is None
    for before, after, speed in ((one, more, 10.0), (both, turned, 25.0), (replace(one, series=None), more, 10.0)):
        rates = rates_of(before, after, 2.0)
        assert rates.tok_s == speed


RECORDED = [
    ("cpu-vllm-0.32.0/dflash", "start"), ("cpu-vllm-0.32.0/dflash", "end"), ("cpu-vllm-0.32.0/eager", "end"),
    ("h200-vllm-0.26.0/g26-dflash-compile", "start"), ("h200-vllm-0.26.0/g26-dflash-compile", "end"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "when"), RECORDED)
def test_metrics_parse_as_prometheus_client_parses_them(name, when):
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
    ["vllm:x", 'vllm:x{a="b} 1', "vllm:x{a=b} 1", "vllm:x 1_0", "vllm:x one"],
)  # fmt: skip
def test_invalid_sample_is_none(line):
    assert parse_sample(line) is None


def test_memory_kept_per_metrics_answer_is_bounded():
    """Thousands of buckets and positions become a histogram that nobody shows, and the positions that are drafted."""
    reader = metrics.MetricsReader()
    reader.feed(b"vllm:generation_tokens_total 5\n")
    for number in range(20_000):
        reader.feed(b'vllm:time_to_first_token_seconds_bucket{le="%d"} %d\n' % (number, number))
        reader.feed(b"vllm:time_to_first_token_seconds_%d_sum 1\nvllm:prompt_tokens_total_%d 1\n" % (number, number))
        reader.feed(b'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="%d"} 1\n' % number)
    reader.feed(b'vllm:time_to_first_token_seconds_bucket{le="+Inf"} 20000\n')
    scrape = present(reader.result())
    assert scrape.ttft is None
    assert len(scrape.counters.per_position) == 64
    kept = [*reader._sums, *reader._positions, *(bound for family in reader._buckets.values() for bound in family)]
    assert len(kept) < 1000
