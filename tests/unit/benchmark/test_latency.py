"""Percentiles of latencies and goodput."""

import random
from typing import Any

import pytest

from dflash_tui.benchmark import summary
from dflash_tui.benchmark.summary import Goodput, Latency, Percentiles, Slo
from dflash_tui.common.errors import UsageError
from dflash_tui.events import RequestDone

# numpy 2.3.5: numpy.percentile(values, [50, 90, 95, 99]).
OF_NUMPY: list[tuple[list[float], list[float]]] = [
    ([0.25], [0.25, 0.25, 0.25, 0.25]),
    ([1.0, 2.0], [1.5, 1.9, 1.95, 1.99]),
    ([0.13, 0.055, 0.351, 0.025, 0.256, 0.152, 0.02], [0.13, 0.294, 0.3225, 0.3453]),
    (
        [3.33, 2.04, 1.34, 3.19, 3.8, 7.84, 2.82, 3.53, 1.32, 6.04, 7.13, 4.23, 4.64, 4.39, 4.13, 2.25, 8.71, 4.84,
         4.57, 6.93, 4.79],
        [4.23, 7.13, 7.84, 8.536],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("values", "expected"), OF_NUMPY)
def test_percentiles_match_numpy(values, expected):
    shuffled = random.Random(1).sample(values, len(values))
    percentiles = Percentiles.from_values([*shuffled, None])
    assert percentiles is not None
    assert percentiles.values == pytest.approx(expected, rel=1e-12)
    assert percentiles.n == len(values)


def request(kind: str = "a", **changes: Any) -> RequestDone:
    usual: dict[str, Any] = {"tokens": 9, "ttft": 0.2, "decode_tok_s": 50.0, "total": 2.0}
    return RequestDone(0.0, kind, **(usual | changes))


def test_latencies_are_summarised_per_kind_and_overall():
    """What failed is in none; an unknown figure is one value less."""
    done = [request(), request("b", ttft=0.4), request("b", decode_tok_s=None), request("b", error="no", ttft=9.0)]
    groups = summary.group_latencies(done, {"a": [0.01], "b": [0.02, 0.03]})
    assert list(groups) == ["a", "b", ""]
    counts = {kind: [p.n if p else 0 for p in (one.ttft, one.tpot, one.itl, one.e2e)] for kind, one in groups.items()}
    assert counts == {"a": [1, 1, 1, 1], "b": [2, 1, 2, 2], "": [3, 2, 3, 3]}
    assert groups["a"].tpot == Percentiles(0.02, 0.02, 0.02, 0.02, 1)
    assert Latency.from_requests([]) == Latency()


@pytest.mark.parametrize(
    ("slo", "met"),
    [("ttft=0.2", 3), ("ttft=0.1", 0), ("tpot=0.02", 2), ("e2e=2", 3), ("ttft=0.3,tpot=0.02,e2e=5", 2)],
)
def test_goodput_counts_requests_within_all_limits(slo, met):
    """A request that failed or whose figure nobody knows is not."""
    done = [request(), request(), request(decode_tok_s=None), request(error="no")]
    goodput = Goodput.from_requests(summary.parse_slo(slo), done, 2.0)
    assert (goodput.met, goodput.n, goodput.per_second) == (met, 4, met / 2)
    assert summary.parse_slo("ttft=0.5,e2e=10") == Slo(ttft=0.5, e2e=10.0)


@pytest.mark.parametrize("text", ["", "ttft", "ttft=x", "ttft=0", "itl=1", "e2e=inf", "tpot=nan", "ttft=1;e2e=2"])
def test_invalid_objective_is_refused(text):
    with pytest.raises(UsageError):
        summary.parse_slo(text)
