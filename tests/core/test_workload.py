"""The measures of a streamed answer, from whatever a server may send."""

import pytest

from dflash_tui.core.workload import _Stream

GOOD = 'data: {"choices": [{"delta": {"content": "Hi"}, "finish_reason": "stop"}], "usage": {"completion_tokens": 3}}'


def test_tokens_and_the_end_are_read():
    stream = _Stream(0.0)
    for line in ("", ": ping", GOOD, 'data: {"choices": null, "usage": null, "x": 1}', "data: [DONE]"):
        stream.take(line)
    done = stream.result("Q&A")
    assert (done.tokens, done.finish, done.error, done.ttft is None) == (3, "stop", "", False)


@pytest.mark.parametrize(
    "body",
    ['{"choices": [1]}', '{"choices": 5}', '{"usage": "x"}', '{"choices": [{"delta": 1}]}', "{not json",
     '{"choices": [{"finish_reason": {}}]}', '{"a":' + "[" * 5000, '{"choices": ["\\ud800"]}', '{"a": "\udcff"}'],
)  # fmt: skip
def test_what_is_no_chunk_is_an_error(body):
    """Wrong types are an answer that cannot be read, and no end of ours; what came before still counts."""
    stream = _Stream(0.0)
    for line in (GOOD, f"data: {body}"):
        stream.take(line)
    done = stream.result("Q&A")
    assert done.tokens == 3
    assert done.error.startswith("not JSON: ")


def test_an_error_in_the_stream_is_told():
    stream = _Stream(0.0)
    stream.take('data: {"error": {"message": "EngineCore died", "code": 500}}')
    assert stream.result("Q&A").error == "EngineCore died"
