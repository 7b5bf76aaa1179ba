"""The answer of a conversation as it streams: in words, clean, bounded, thinking and tool calls apart."""

import json
from collections.abc import Mapping

import pytest

from dflash_tui.benchmark import chat
from dflash_tui.benchmark.chat import AnswerStream, Conversation, Part, ToolCall
from dflash_tui.benchmark.server import Server
from tests.tui.conftest import a_run

KEY = "planted-4711-secret-key"


def streamed(*deltas: Mapping[str, object]) -> tuple[list[tuple[Part, str]], chat.Turn]:
    """Return the pieces that were shown, and the whole."""
    shown: list[tuple[Part, str]] = []
    stream = AnswerStream(lambda part, text: shown.append((part, text)))
    for delta in deltas:
        stream.take(f"data: {json.dumps({'choices': [{'delta': delta}]})}")
    return shown, stream.build_turn(stream.result())


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_thinking_is_apart(name):
    """Under either name; its last word is shown before the answer begins."""
    shown, turn = streamed({name: "Let me "}, {name: "see"}, {"content": "Yes"})
    assert shown == [(Part.THINKING, "Let me "), (Part.THINKING, "see"), (Part.ANSWER, "Yes")]
    assert (turn.thinking, turn.text) == ("Let me see", "Yes")


def test_a_tool_call_comes_in_pieces():
    """Each by its index: the name first, then the arguments. It counts as an answer."""
    begun = {"index": 0, "function": {"name": "weather", "arguments": '{"ci'}}
    more = {"index": 0, "function": {"arguments": 'ty": "Rome"}'}}
    calls = [[begun], [{"index": 1, "function": {"name": "time"}}, more]]
    _, turn = streamed(*({"tool_calls": call} for call in calls))
    assert turn.tool_calls == (ToolCall("weather", '{"city": "Rome"}'), ToolCall("time", ""))
    assert turn.request.ttft is not None


def test_an_answer_is_bounded(monkeypatch):
    """What is kept and shown ends; a word without an end is shown in between."""
    monkeypatch.setattr(chat, "LONGEST_ANSWER", 10_000)
    shown, turn = streamed(*({"content": "x" * 100} for _ in range(200)))
    assert len(turn.text) == 10_000
    assert len(shown) > 1
    many = [{"tool_calls": [{"index": place, "function": {"name": "f"}}]} for place in range(100)]
    assert len(streamed(*many)[1].tool_calls) == 16


@pytest.mark.parametrize(("length", "most"), [("4096", 1024), ("2", 1), ("auto", None)])
def test_answer_leaves_context_for_next_message(length, most):
    """A quarter of the context, where the launch names a number."""
    talk = Conversation(Server.from_run(a_run(argv=("vllm", "--max-model-len", length))))
    assert talk._build_body().get("max_tokens") == most


def test_the_oldest_turns_are_forgotten(monkeypatch):
    """In pairs, so that the first that is left is the user's."""
    monkeypatch.setattr(chat, "MOST_CHARACTERS", 5)
    talk = Conversation(Server.from_run(a_run()))
    talk.messages = [{"role": role, "content": str(n)} for n in range(4) for role in ("user", "assistant")]
    talk.messages.append({"role": "user", "content": "now"})
    talk._forget_oldest()
    assert [each["content"] for each in talk.messages] == ["3", "3", "now"]
    assert talk.messages[0]["role"] == "user"
    monkeypatch.setattr(chat, "MOST_CHARACTERS", 2)
    talk._forget_oldest()
    assert talk.messages == [{"role": "user", "content": "now"}]
