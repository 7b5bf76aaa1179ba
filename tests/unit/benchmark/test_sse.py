"""The measures of a streamed answer, from whatever a server may send."""

import hashlib
import json

import pytest

from dflash_tui.benchmark.sse import CompletionStream, quote_server_text
from dflash_tui.events import decode_recorded, encode

GOOD = 'data: {"choices": [{"delta": {"content": "Hi"}, "finish_reason": "stop"}], "usage": {"completion_tokens": 3}}'


def taken(*lines: str) -> CompletionStream:
    stream = CompletionStream("Q&A", 2, 4)
    for line in lines:
        stream.take(line)
    return stream


def told(metrics: object) -> str:
    return f"data: {json.dumps({'choices': [], 'metrics': metrics})}"


def test_tokens_and_the_end_are_read():
    done = taken("", ": ping", GOOD, 'data: {"choices": null, "usage": null, "x": 1}', "data: [DONE]").result()
    assert (done.kind, done.round, done.streams) == ("Q&A", 2, 4)
    assert (done.tokens, done.finish, done.error, done.ttft is None) == (3, "stop", "", False)
    assert (done.decode_tok_s, done.chunk_p50, done.steps) == (None, None, None)


@pytest.mark.parametrize(
    "body",
    ['{"choices": [1]}', '{"choices": 5}', '{"usage": "x"}', '{"choices": [{"delta": 1}]}', "{not json",
     '{"choices": [{"finish_reason": {}}]}', '{"a":' + "[" * 5000, '{"choices": ["\\ud800"]}', '{"a": "\udcff"}'],
)  # fmt: skip
def test_what_is_no_chunk_is_an_error(body):
    """Wrong types are an answer that cannot be read, and no end of ours; what came before still counts."""
    done = taken(GOOD, f"data: {body}").result()
    assert done.tokens == 3
    assert done.error.startswith("not JSON: ")


def test_a_count_that_is_no_number_is_none():
    """True is a number to Python; a record of it could not be read again."""
    done = taken(GOOD.replace("3}", 'true, "prompt_tokens": true}')).result()
    assert [type(count) for count in (done.tokens, done.prompt_tokens)] == [int, int]
    assert decode_recorded(encode(done)) == done


def test_an_error_in_the_stream_is_told():
    assert taken('data: {"error": {"message": "EngineCore died", "code": 500}}').result().error == "EngineCore died"


def test_the_time_between_chunks_is_measured(monkeypatch):
    """Ten gaps of 10 ms and one of 110: the median does not see it, the 95th percentile does."""
    clock = iter([0.0, *(n / 100 for n in range(1, 12)), 0.22, 0.22])
    monkeypatch.setattr("dflash_tui.benchmark.sse.time.perf_counter", lambda: next(clock))
    piece = GOOD.replace('"completion_tokens": 3', '"completion_tokens": 43')
    done = taken(*[piece] * 12).result()
    assert done.ttft == pytest.approx(0.01)
    assert done.chunk_p50 == pytest.approx(0.01)
    assert done.chunk_p95 == pytest.approx(0.06)
    assert done.decode_tok_s == pytest.approx(42 / 0.21)


@pytest.mark.parametrize(("gap", "speed"), [(0.001, 2 / 0.002), (0.0002, None)])
def test_chunks_that_were_read_at_once_say_nothing_of_the_speed(monkeypatch, gap, speed):
    """A client that is kept from its processor finds them all waiting."""
    clock = iter((0.0, 1.0, 1.0 + gap, 1.0 + 2 * gap, 2.0))
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    done = taken(*[GOOD] * 3).result()
    assert done.ttft == 1.0
    assert done.decode_tok_s == (None if speed is None else pytest.approx(speed))


def test_answers_are_told_apart_without_being_kept():
    """The digests are of 40 and 200 characters and of all, wherever the chunks are cut; thinking is part of it."""

    def digests(*pieces: str, name: str = "content") -> tuple[str, ...]:
        return taken(*(f"data: {json.dumps({'choices': [{'delta': {name: p}}]})}" for p in pieces)).result().digests

    text = "é" * 45 + "x" * 300
    expected = tuple(hashlib.sha256(part.encode()).hexdigest() for part in (text[:40], text[:200], text))
    assert digests(text) == digests(*text) == digests(text[:10], text[10:], name="reasoning") == expected
    assert digests(text + "!")[:2] == expected[:2]
    assert digests(text + "!")[2] != expected[2]
    assert digests() == ()


def test_the_server_tells_the_steps_of_a_request():
    """As vLLM 0.29 and later put it beside the usage with `--per-request-spec-decode-metrics`."""
    detailed = {"num_spec_steps": 40, "num_accepted_draft_tokens": 87, "num_draft_tokens": 280, "num_spec_tokens": 7,
                "mean_acceptance_length": 3.175, "acceptance_histogram": [1] * 8}  # fmt: skip
    done = taken(GOOD, told({"tokens_per_second": 5.0, "speculative_decoding": detailed})).result()
    assert (done.steps, done.accepted) == (40, 87)


@pytest.mark.parametrize("metrics", [None, 5, "x", {"speculative_decoding": {"num_spec_steps": "many"}}, {}, [{}]])
def test_another_form_of_that_is_no_error(metrics):
    done = taken(GOOD, told(metrics)).result()
    assert (done.steps, done.error) == (None, "")


def test_a_server_cannot_write_on_the_terminal():
    assert quote_server_text("no\n \x1b[31mthanks\x1b[0m\x07, \u202eyes") == "no thanks, yes"
    assert len(quote_server_text("x" * 5000)) == 300
