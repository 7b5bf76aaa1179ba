"""The answer of a conversation as it streams: in words, clean, bounded, thinking and tool calls apart."""

import json
from collections.abc import Mapping

import pytest

from dflash_tui.benchmark.conversation import chat
from dflash_tui.benchmark.conversation.chat import AnswerStream, Conversation, Part, ToolCall
from dflash_tui.common.secrets import own_secrets
from dflash_tui.events import RequestDone
from tests.tui.conftest import a_run

KEY = "planted-4711-secret-key"


def streamed(*deltas: Mapping[str, object]) -> tuple[list[tuple[Part, str]], chat.Turn]:
    """Return the pieces that were shown, and the whole."""
    shown: list[tuple[Part, str]] = []
    stream = AnswerStream(lambda part, text: shown.append((part, text)))
    for delta in deltas:
        stream.take(f"data: {json.dumps({'choices': [{'delta': delta}]})}")
    return shown, stream.build_turn(stream.result())


def test_words_are_shown_when_they_end():
    """What has no blanks between its words, as Chinese, is shown at once."""
    shown, turn = streamed({"content": "Hel"}, {"content": "lo, wor"}, {"content": "ld\n\tdone"}, {"content": "你好"})
    assert [text for _, text in shown] == ["Hello, ", "world\n    ", "done你好"]
    assert turn.text == "Hello, world\n    done你好"


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
    calls = [[begun], [{"index": 1, "function": {"name": "time\x1b[2J"}}, more]]
    _, turn = streamed(*({"tool_calls": call} for call in calls))
    assert turn.tool_calls == (ToolCall("weather", '{"city": "Rome"}'), ToolCall("time", ""))
    assert turn.request.ttft is not None


@pytest.mark.parametrize(
    "pieces", [["\x1b[31", "mred\x1b", "[0m and", " more"], ["\x1b]0;ti", "tle\x07", "red and more"]]
)
def test_an_escape_sequence_in_pieces_is_none(pieces):
    shown, turn = streamed(*({"content": piece} for piece in pieces))
    assert turn.text == "red and more"
    assert "".join(text for _, text in shown) == turn.text


def test_a_secret_in_pieces_is_left_out(monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    own_secrets.read_own_secrets()
    shown, turn = streamed(*({"content": letter} for letter in f"it is {KEY}, "))
    assert KEY not in turn.text + "".join(text for _, text in shown)
    assert turn.text.startswith("it is ")


PHRASE = "correct horse battery staple"


@pytest.mark.parametrize(
    "pieces",
    [
        ("key " + KEY[:-4] + "\u200b", KEY[-4:] + " end"),
        ("it is correct ", "horse ", "battery ", "staple, ", "end"),
        ("x" * 4090 + KEY[:12], KEY[12:] + " end"),
        ("x " * 32_762 + KEY, " end"),
    ],
    ids=["invisible", "with blanks", "in a long word", "in a long piece"],
)
def test_a_secret_that_is_cut_otherwise_is_left_out(pieces, monkeypatch):
    """By a character that is not seen, by its own blanks, by the longest word, by the longest piece."""
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    monkeypatch.setenv("DB_PASSWORD", PHRASE)
    own_secrets.read_own_secrets()
    shown, turn = streamed(*({"content": piece} for piece in pieces))
    for text in (turn.text, "".join(text for _, text in shown)):
        assert KEY[:-1] not in text
        assert "battery" not in text
        assert text.endswith("end")


@pytest.mark.parametrize(
    "quoted",
    [
        r"correct h\xf6rse battery staple", "correct h&#246;rse battery staple", "correct h%C3%B6rse battery staple",
        r"correct h\\u00f6rse battery staple",
    ],
)  # fmt: skip
def test_a_quoted_secret_with_blanks_is_left_out(quoted, monkeypatch):
    """As Python, HTML, an address and JSON in JSON write it, word by word and broken off; what follows is shown."""
    monkeypatch.setenv("DB_PASSWORD", "correct hörse battery staple")
    own_secrets.read_own_secrets()
    pieces = [{"content": f"{word} "} for word in f"it is '{quoted}' . 100% of 7 x 9 % 5".split(" ")]
    shown, turn = streamed(*pieces)
    assert turn.text == "".join(text for _, text in shown)
    assert turn.text == "it is '[left out]' . 100% of 7 x 9 % 5 "
    for cut in range(len(quoted)):
        stream = AnswerStream()
        stream.take(f"data: {json.dumps({'choices': [{'delta': {'content': f'it is {quoted[:cut]}'}}]})}")
        assert stream.build_turn(stream.result(), cut=True).text in {"it is ", "it ", "it", ""}


@pytest.mark.parametrize("shown_of_it", range(1, len(KEY), 5))
def test_no_half_of_a_secret_is_left_where_an_answer_is_cut(shown_of_it, monkeypatch):
    """At the longest answer, in text and in the arguments of a tool, and where it was broken off."""
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    own_secrets.read_own_secrets()
    monkeypatch.setattr(chat, "LONGEST_ANSWER", 100)
    filler = "word " * 20
    piece = filler[shown_of_it:] + KEY + " and more"
    shown, turn = streamed({"content": piece})
    assert turn.text == "".join(text for _, text in shown) == filler[shown_of_it:]
    call = {"index": 0, "function": {"name": "f", "arguments": piece}}
    [tool] = streamed({"tool_calls": [call]})[1].tool_calls
    assert tool.arguments.rstrip() == filler[shown_of_it:].rstrip()
    stream = AnswerStream()
    stream.take(f"data: {json.dumps({'choices': [{'delta': {'content': 'it is ' + KEY[:shown_of_it]}}]})}")
    assert stream.build_turn(stream.result(), cut=True).text == "it is "


async def test_no_half_of_a_secret_is_left_where_a_server_ends_an_answer_early(monkeypatch):
    """As a proxy does that loses the server."""
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    own_secrets.read_own_secrets()

    async def send(_url: str, _body: object, stream: AnswerStream, *, key: str) -> RequestDone:
        stream.take(f"data: {json.dumps({'choices': [{'delta': {'content': 'it is ' + KEY[:9]}}]})}")
        stream.end()
        return stream.result()

    monkeypatch.setattr("dflash_tui.benchmark.client.send_conversation", send)
    turn = await Conversation(a_run()).ask("what?")
    assert (turn.text, "ended without [DONE]" in turn.request.error) == ("it is ", True)


@pytest.mark.parametrize(
    "deltas",
    [
        [{"reasoning": f"so {KEY[:9]}"}, {"content": f"{KEY[9:]} it is"}],
        [{"reasoning": f"so {KEY[:9]}"}, {"content": "well"}, {"reasoning": f"{KEY[9:]} it is"}],
        [{"content": f"so {KEY[:9]}"}, {"reasoning": "well"}, {"content": f"{KEY[9:]} it is"}],
        [{"reasoning": f"so {KEY[:3]}"}, {"content": KEY[3:20]}, {"reasoning": f"{KEY[20:]} it is "}],
        [{"tool_calls": [{"index": 0, "function": {"name": KEY[:9], "arguments": f"{KEY[9:]} it is"}}]}],
    ],
    ids=["thoughts, answer", "thoughts in two", "answer in two", "few letters", "tool call"],
)
def test_a_secret_in_two_parts_of_an_answer_is_left_out(deltas, monkeypatch):
    """Each part alone is none, and they are read one after the other."""
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    own_secrets.read_own_secrets()
    shown, turn = streamed(*deltas)
    calls = "".join(call.name + call.arguments for call in turn.tool_calls)
    texts = ["".join(text for _, text in shown), turn.thinking + turn.text, turn.text + turn.thinking, calls]
    for text in texts:
        assert KEY not in text
        assert KEY[:9] not in text
        assert KEY[9:] not in text
    assert "it is" in texts[0] + calls


def test_parts_of_an_answer_that_are_no_secret_are_whole(monkeypatch):
    """Also where they end and begin as one does."""
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    own_secrets.read_own_secrets()
    shown, turn = streamed({"reasoning": f"a {KEY[:3]} "}, {"content": "key it is"}, {"reasoning": "planned "})
    assert [text for _, text in shown] == [f"a {KEY[:3]} ", "key it ", "planned ", "is"]
    assert (turn.thinking, turn.text) == (f"a {KEY[:3]} planned ", "key it is")


def test_what_is_no_text_is_no_answer():
    odd: list[dict[str, object]] = [
        {"content": 5},
        {"tool_calls": 7},
        {"tool_calls": [3, {"index": "x", "function": "y"}]},
        {"reasoning": []},
    ]
    shown, turn = streamed(*odd)
    assert (shown, turn.text, turn.thinking) == ([], "", "")


def test_an_answer_is_bounded(monkeypatch):
    """What is kept and shown ends; a word without an end is shown in between."""
    monkeypatch.setattr(chat, "LONGEST_ANSWER", 10_000)
    shown, turn = streamed(*({"content": "x" * 100} for _ in range(200)))
    assert len(turn.text) == 10_000
    assert len(shown) > 1
    many = [{"tool_calls": [{"index": place, "function": {"name": "f"}}]} for place in range(100)]
    assert len(streamed(*many)[1].tool_calls) == 16


@pytest.mark.parametrize(("length", "most"), [("4096", 1024), ("2", 1), ("auto", None)])
def test_an_answer_leaves_room_for_the_next_line(length, most):
    """A quarter of the context, where the launch names a number."""
    talk = Conversation(a_run(argv=("vllm", "--max-model-len", length)))
    assert talk._build_body().get("max_tokens") == most


def test_the_oldest_turns_are_forgotten(monkeypatch):
    """In pairs, so that the first that is left is the user's."""
    monkeypatch.setattr(chat, "MOST_TURNS", 2)
    talk = Conversation(a_run())
    talk.messages = [{"role": role, "content": str(n)} for n in range(4) for role in ("user", "assistant")]
    talk.messages.append({"role": "user", "content": "now"})
    talk._forget_oldest()
    assert [each["content"] for each in talk.messages] == ["3", "3", "now"]
    assert talk.messages[0]["role"] == "user"
    monkeypatch.setattr(chat, "MOST_CHARACTERS", 2)
    talk._forget_oldest()
    assert talk.messages == [{"role": "user", "content": "now"}]
