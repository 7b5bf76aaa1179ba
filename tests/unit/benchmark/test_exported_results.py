"""Results as `vllm bench serve` writes them: with its definitions, and read again by ours."""

import json
import statistics

import pytest

from dflash_tui.benchmark import result_files
from dflash_tui.benchmark.result_files import Measured
from dflash_tui.events import RequestDone
from tests import DATA

DONE = (
    RequestDone(10.0, "Code", 101, 20, 0.1, 2.0, 50.0, "length", streams=1, steps=25.0, accepted=75.0),
    *(RequestDone(20.0 + n, "Code", 101, 20, 0.1 * n, 4.0, 10.0 * n, "length", streams=2, steps=25.0, accepted=75.0)
      for n in range(1, 5)),
    RequestDone(25.0, "Math", 51, 30, 0.5, 1.0, 100.0, "stop", streams=2, steps=20.0, accepted=30.0),
    RequestDone(26.0, "Math", error="HTTP 500", streams=2),
)  # fmt: skip
MEASURED = Measured("20260101-x", "org/model", 1.0, DONE)


def test_vllm_bench_serve_reads_the_last_level(tmp_path):
    """Tokens per second of the time in which anything was under way; times in milliseconds; AL as vLLM has it."""
    result = result_files.build_vllm_bench(MEASURED)
    seconds = 25.0 - 17.0
    assert (result["completed"], result["failed"], result["max_concurrency"]) == (5, 1, 2)
    assert result["duration"] == pytest.approx(seconds)
    assert result["output_throughput"] == pytest.approx((4 * 101 + 51) / seconds)
    assert result["median_ttft_ms"] == pytest.approx(statistics.median([100, 200, 300, 400, 500]))
    assert result["mean_tpot_ms"] == pytest.approx(statistics.fmean([100, 50, 1000 / 30, 25, 10]))
    assert result["spec_decode_acceptance_length"] == pytest.approx(1 + (4 * 75 + 30) / 120)
    real = json.loads((DATA / "imported" / "vllm-bench-serve.json").read_text())
    assert set(result) - set(real) <= {f"{f}_{name}_ms" for name in ("ttft", "tpot", "e2el")
                                       for f in ("mean", "median", "std", "p50", "p90", "p95", "p99")}  # fmt: skip
    (tmp_path / "a.json").write_text(json.dumps(result))
    [again] = result_files.load_imported_result(tmp_path / "a.json").measured
    assert (again.n, again.failed, again.streams) == (5, 1, 2)
    assert again.ttft == pytest.approx(0.3)


def test_unmeasured_rows_are_omitted():
    alone = Measured("x", "m", 1.0, (RequestDone(5.0, "Code", 1, total=1.0, finish="stop"),))
    result = result_files.build_vllm_bench(alone)
    assert not any("ttft" in key or "tpot" in key or "spec_decode" in key for key in result)
    failed = Measured("x", "m", 1.0, (RequestDone(5.0, "Code", error="refused"),))
    json.dumps(result_files.build_vllm_bench(failed), allow_nan=False)


def test_a_rate_is_exported_and_read_back(tmp_path):
    """Requests that arrived at 2.5 per second; one of before, whose rate is lost, is of another level."""
    rates = (0.0, 2.5, 2.5)
    done = tuple(
        RequestDone(5.0 + n, "Code", 11, 20, 0.1, 1.0, 10.0, "stop", streams=0, rate=each)
        for n, each in enumerate(rates)
    )
    result = result_files.build_vllm_bench(Measured("x", "m", 1.0, done))
    assert (result["num_prompts"], result["request_rate"], result["max_concurrency"]) == (2, 2.5, None)
    (tmp_path / "a.json").write_text(json.dumps(result))
    [again] = result_files.load_imported_result(tmp_path / "a.json").measured
    assert (again.rate, again.streams) == (2.5, None)
    lost = result_files.build_vllm_bench(Measured("x", "m", 1.0, done[:1]))
    assert lost["request_rate"] is None


def test_output_throughput_of_load_covers_its_window():
    """Fillers share the server with what counts: their tokens are in its output, and in nothing else."""
    result = result_files.build_vllm_bench(MEASURED._replace(output_tok_s=123.0, metadata={"arm": "a", "date": "no"}))
    assert result["output_throughput"] == 123.0
    assert result["total_output_tokens"] == 4 * 101 + 51
    assert result["arm"] == "a"
    assert result["date"] != "no"
