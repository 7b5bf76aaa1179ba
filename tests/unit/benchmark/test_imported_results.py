"""Results of `vllm bench serve`: one that vLLM 0.32 wrote on the demo."""

import json

import pytest

from dflash_tui.benchmark import result_files
from dflash_tui.common.errors import UsageError
from tests import DATA

IMPORTED = DATA / "imported"


def test_vllm_bench_serve_is_read():
    """Percent become shares and milliseconds seconds."""
    found = result_files.load_imported_result(IMPORTED / "vllm-bench-serve.json")
    [measured] = found.measured
    assert (found.source, found.model) == ("vllm bench serve", "models/demo-cpu/target")
    assert (measured.n, measured.failed, measured.streams) == (5, 0, 1)
    assert measured.tok_s == pytest.approx(1952 / 83.1077, rel=1e-4)
    assert measured.acceptance == pytest.approx(1556 / 2863)
    assert measured.acceptance_length == pytest.approx(1 + 1556 / 409)
    assert measured.ttft == pytest.approx(0.207, abs=1e-3)
    assert measured.tpot == pytest.approx(0.0362, abs=1e-3)


def changed(**changes: object) -> str:
    return json.dumps(json.loads((IMPORTED / "vllm-bench-serve.json").read_text()) | changes)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "is not JSON"),
        ("[" * 50_000, "is not JSON"),
        ("[]", "is not a known benchmark result"),
        ('{"requests": 5}', "is not a known benchmark result"),
        (changed(output_throughput="fast"), "is not a valid benchmark result"),
        (changed(output_throughput=-1), "is not a valid benchmark result"),
        (changed(output_throughput=1e300), "is not a valid benchmark result"),
        (changed(spec_decode_acceptance_rate=4000), "is not a valid benchmark result"),
        (changed(completed=10**30), "is not a valid benchmark result"),
        (changed(completed=0), "holds no measurement"),
        (changed(median_ttft_ms=[]), "is not a valid benchmark result"),
        ('{"output_throughput": NaN, "completed": 1}', "is not JSON"),
    ],
)
def test_hostile_json_is_refused_in_words(tmp_path, text, what):
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=what):
        result_files.load_imported_result(path)


def test_no_file_and_a_folder_are_reported(tmp_path):
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            result_files.load_imported_result(path)


def test_results_that_were_appended_are_all_read(tmp_path):
    """`--append-result` puts one after the other, a line each; one that failed measured nothing."""
    path = tmp_path / "result.json"
    lines = [changed(max_concurrency=1), changed(max_concurrency=8, arm="eager", boot="2"), changed(completed=0)]
    path.write_text("\n".join(lines))
    found = result_files.load_imported_result(path)
    assert [(one.what, one.streams) for one in found.measured] == [("all requests", 1), ("eager, boot 2", 8)]


@pytest.mark.parametrize("end", ["", "{}", "no JSON"])
def test_lines_that_are_no_results_are_refused(tmp_path, end):
    """A line that is cut or of another tool is not left out silently."""
    path = tmp_path / "result.json"
    path.write_text(f"{changed()}\n{end or changed()[:-20]}")
    with pytest.raises(UsageError, match="is not"):
        result_files.load_imported_result(path)
