"""The measures of a streamed answer, from whatever a server may send."""

import hashlib
import json
import time
from types import SimpleNamespace

import pytest

from dflash_tui.benchmark import sse
from dflash_tui.benchmark.sse import MOST_CHARACTERS, MOST_MARKS, CompletionStream, quote_server_text

GOOD = 'data: {"choices": [{"delta": {"content": "Hi"}, "finish_reason": "stop"}], "usage": {"completion_tokens": 3}}'


def taken(*lines: str) -> CompletionStream:
    stream = CompletionStream("Q&A", 2, 4)
    for line in lines:
        stream.take(line)
    return stream


def told(metrics: object) -> str:
    return f"data: {json.dumps({'choices': [], 'metrics': metrics})}"


def counted(text: str | None, count: int, delta: object = None) -> str:
    """A chunk of a server that counts in each."""
    chunk = {"choices": [{"delta": delta or {"content": text}}], "usage": {"completion_tokens": count}}
    return f"data: {json.dumps(chunk)}"


def test_tokens_and_the_end_are_read():
    done = taken("", ": ping", GOOD, 'data: {"choices": null, "usage": null, "x": 1}', "data: [DONE]").result()
    assert (done.kind, done.round, done.streams) == ("Q&A", 2, 4)
    assert (done.tokens, done.finish, done.error, done.ttft is None) == (3, "stop", "", False)
    assert (done.decode_tok_s, done.chunk_p50, done.steps) == (None, None, None)


@pytest.mark.parametrize(
    "body",
    ['{"choices": [{"delta": 1}]}', "{not json", '{"a":' + "[" * 5000, '{"choices": ["\\ud800"]}'],
)
def test_invalid_chunk_is_an_error(body):
    """Wrong types are an answer that cannot be read, and no end of ours; what came before still counts."""
    done = taken(GOOD, f"data: {body}").result()
    assert done.tokens == 3
    assert done.error.startswith("not JSON: ")


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ((counted("a", 1), counted("b", 2)), "the answer ended without [DONE] or a finish reason"),
        (('data: {"choices": [{"delta": {"content": "a"}}]}',), "the answer ended without [DONE] or a finish reason"),
        ((counted("a", 1), "data: [DONE]"), ""),
        ((GOOD,), ""),  # other servers leave [DONE] out
        ((counted("a", 1), 'data: {"error": {"message": "EngineCore died"}}'), "EngineCore died"),
        ((": ping", "event: end", "data: [DONE]"), "the answer holds no token"),
    ],
)
def test_answer_without_end_marker_is_incomplete(lines, error):
    """A proxy that gives up on a server may end its answer like any other."""
    stream = taken(*lines)
    stream.end()
    assert stream.result().error == error


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('{"error":{"message":"the model is overloaded"}}', '{"error":{"message":"the model is overloaded"}}'),
        ('{\n  "detail":\n    "the model\x1b[31m is\x07 asleep"\n}', '{ "detail": "the model is asleep" }'),
        ('event: error\ndata: {"object": "error", "message": "no"}', '{"object": "error", "message": "no"}'),
        ("x\n" * 100_000, ("x " * 150).strip()),
    ],
    ids=["JSON", "JSON in lines", "event", "many lines"],
)
def test_invalid_answer_is_quoted(body, said):
    """The beginning of it, in one line: it often says why there is no answer."""
    stream = taken(*body.split("\n"))
    stream.end()
    reason, _, quote = stream.result().error.partition(": ")
    assert ("no token" in reason, quote.rstrip()) == (True, said)


def test_space_after_data_colon_is_optional():
    """As the standard of such events has it."""
    stream = taken(GOOD.replace("data: ", "data:"), "data:[DONE]")
    done = stream.result()
    assert (done.tokens, done.finish, done.error, stream.is_complete) == (3, "stop", "", True)


def test_the_time_between_chunks_is_measured(monkeypatch):
    """Ten gaps of 10 ms and one of 110: the median does not see it, the 95th percentile does."""
    clock = iter([0.0, *(n / 100 for n in range(1, 12)), 0.22, 0.22])
    monkeypatch.setattr("dflash_tui.benchmark.sse.time.perf_counter", lambda: next(clock))
    done = taken(*(counted("x", 3 + 4 * n) for n in range(12))).result()
    assert done.ttft == pytest.approx(0.01)
    assert done.chunk_p50 == pytest.approx(0.01)
    assert done.chunk_p95 == pytest.approx(0.06)
    assert done.decode_tok_s == pytest.approx(44 / 0.21)


@pytest.mark.parametrize(("gap", "speed"), [(0.001, 4 / 0.002), (0.0002, None)])
def test_chunks_read_at_once_give_no_speed(monkeypatch, gap, speed):
    """A client that is kept from its processor finds them all waiting."""
    clock = iter((0.0, 1.0, 1.0 + gap, 1.0 + 2 * gap, 2.0))
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    done = taken(*(counted("x", 1 + 2 * n) for n in range(3))).result()
    assert done.ttft == 1.0
    assert done.decode_tok_s == (None if speed is None else pytest.approx(speed))


ROLE = {"role": "assistant", "content": ""}
# What a server sends at 0, 1, 2 … s: text or none, and how many tokens there are by then.
ARRIVALS = {
    "special tokens only": (("", 1), ("", 5), ("", 9)),
    "special tokens at both ends": (("", 1), ("Hi", 5), ("", 9)),
    "part of a character": (("H", 1), ("", 5), ("é!", 9)),
    "tokens that come late": (("", 0), ("H", 3), ("i", 6), ("", 7)),
}


@pytest.mark.parametrize("counting", [True, False], ids=["counted", "not counted"])
@pytest.mark.parametrize("kind", ARRIVALS)
def test_tokens_without_text_are_counted_on_arrival(monkeypatch, kind, counting):
    """One token at first and four a second after: as the server counts, or else by its chunks and the final count."""
    pieces = ARRIVALS[kind]
    clock = iter([0.0, *(float(n) for n, (text, count) in enumerate(pieces, 1) if count or text), 99.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    lines = [counted(None, 0, ROLE) if counting else f"data: {json.dumps({'choices': [{'delta': ROLE}]})}"]
    for text, count in pieces:
        if count:
            lines.append(counted(text, count) if counting else piece(text, None))
    done = taken(*lines, ended(pieces[-1][1])).result()
    late = kind == "tokens that come late"
    assert (done.error, done.tokens, done.ttft) == ("", pieces[-1][1], 2.0 if late else 1.0)
    assert done.decode_tok_s == pytest.approx((2.0 if counting else 3.0) if late else 4.0)
    assert done.chunk_p50 == 1.0


def test_final_chunk_without_token_is_no_arrival():
    """As servers end that say the reason in a chunk of its own."""
    end = 'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}'
    done = taken(piece("Hi", None), end, ended(3)).result()
    assert (done.finish, done.decode_tok_s, done.chunk_p50) == ("stop", None, None)


def test_answers_are_compared_without_being_kept():
    """Wherever the chunks are cut; thinking is part of it."""

    def digests(*pieces: str, name: str = "content") -> tuple[str, ...]:
        return taken(*(f"data: {json.dumps({'choices': [{'delta': {name: p}}]})}" for p in pieces)).result().digests

    text = "é" * 45 + "x" * 300
    expected = (hashlib.sha256(text.encode()).hexdigest(),)
    assert digests(text) == digests(*text) == digests(text[:10], text[10:], name="reasoning") == expected
    assert digests(text + "!") != expected
    assert digests() == ()


def test_per_request_steps_come_from_server():
    """As vLLM 0.29 and later put it beside the usage with `--per-request-spec-decode-metrics`."""
    detailed = {"num_spec_steps": 40, "num_accepted_draft_tokens": 87, "num_draft_tokens": 280, "num_spec_tokens": 7,
                "mean_acceptance_length": 3.175, "acceptance_histogram": [1] * 8}  # fmt: skip
    done = taken(GOOD, told({"tokens_per_second": 5.0, "speculative_decoding": detailed})).result()
    assert (done.steps, done.accepted) == (40, 87)


def test_impossible_accepted_draft_count_is_unknown():
    """A server that counts 500 to a step says nothing that could be shown."""
    metrics = {"speculative_decoding": {"num_spec_steps": 10, "num_accepted_draft_tokens": 5000}}
    done = taken(GOOD, told(metrics)).result()
    assert (done.steps, done.accepted) == (None, None)


@pytest.mark.parametrize("metrics", [None, 5, "x", {"speculative_decoding": {"num_spec_steps": "many"}}, {}, [{}]])
def test_another_form_of_that_is_no_error(metrics):
    done = taken(GOOD, told(metrics)).result()
    assert (done.steps, done.error) == (None, "")


def test_a_server_cannot_write_on_the_terminal():
    assert quote_server_text("no\n \x1b[31mthanks\x1b[0m\x07, \u202eyes") == "no thanks, yes"
    assert len(quote_server_text("x" * 5000)) == 300


def piece(text: str, tokens: object, field: str = "content") -> str:
    return f"data: {json.dumps({'choices': [{'delta': {field: text}, 'token_ids': tokens}]})}"


def ended(count: int) -> str:
    return f"data: {json.dumps({'choices': [], 'usage': {'completion_tokens': count}})}"


def test_an_answer_is_built_with_its_tokens():
    """Thoughts are in it, and the token of an end that has no text."""
    lines = (piece("Hm. ", [1], "reasoning_content"), piece("Hello\nyou", [2, 3]), piece("", [4]), ended(4))
    answer = taken(*lines).build_answer()
    assert (answer.text, answer.tokens, answer.cut) == ("Hm. Hello\nyou", (1, 2, 3, 4), False)


@pytest.mark.parametrize("tokens", [None, [1, 2]])
def test_incomplete_token_list_is_dropped(tokens):
    """A server that names none, some, or something else: the text is kept."""
    answer = taken(piece("Hello", tokens), ended(3)).build_answer()
    assert (answer.text, answer.tokens) == ("Hello", ())


def test_decreasing_token_count_gives_no_speed():
    """It would be shown as millions of tokens per second."""
    done = taken(counted("a", 10_000_000), counted("b", 20_000_000), ended(40)).result()
    assert ("20000000" in done.error, "40" in done.error) == (True, True)


def test_token_arrival_times_are_kept(monkeypatch):
    """In milliseconds since the request was sent, as often as the count grew; of a server that counts."""
    times = iter((10.0, 10.2504, 10.5, 10.75))
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    stream = CompletionStream("Q&A")
    for count in (1, 1, 6, 9):
        stream.take(counted("x", count))
    assert stream.list_marks() == ((250, 1), (500, 6), (750, 9))
    monkeypatch.undo()
    assert taken(piece("Hello", None), ended(3)).list_marks() == ()


def test_arrivals_of_a_long_answer_are_thinned():
    """Evenly, with the first one and the last."""
    stream = CompletionStream("Q&A")
    for count in range(1, 2 * MOST_MARKS + 2):
        stream.arrivals.take(count, carries=True)
    counts = [count for _, count in stream.list_marks()]
    assert (counts[0], counts[1], counts[-1], len(counts) <= MOST_MARKS) == (1, 4, 2 * MOST_MARKS + 1, True)


def test_request_ends_when_server_reports_end(monkeypatch):
    """Not when its connection is at rest, up to a second later: other readings are held against that time."""
    now = [0.0]
    clock = SimpleNamespace(perf_counter=lambda: now[0], time=lambda: 1000 + now[0])
    monkeypatch.setattr(sse, "time", clock)
    stream = CompletionStream("Math")
    now[0] = 2.0
    stream.take("data: [DONE]")
    now[0] = 3.0
    done = stream.result()
    assert (done.at, done.total) == (1002.0, 2.0)


def test_a_kept_answer_is_bounded():
    long = taken(piece("a " * MOST_CHARACTERS, None), ended(2)).build_answer()
    assert (long.cut, len(long.text)) == (True, MOST_CHARACTERS)
