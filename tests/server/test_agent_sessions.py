"""Recorded sessions with tools: what is sent of each turn, and tool calls that a stream breaks."""

import asyncio

import pytest
from msgspec.structs import replace

from dflash_tui.benchmark import client, suites
from dflash_tui.benchmark.prompts import Sampling
from dflash_tui.benchmark.server import Server, ServerFacts
from dflash_tui.events import RequestDone
from dflash_tui.presentation.benchmark_text import build_turns
from dflash_tui.presentation.report import to_terminal
from tests.support.openai_server import OpenAIServer

CALL = ("read_file", ('{"path": "', "invoice/", 'money.py"}'))
FACTS = ServerFacts(has_counters=False)


def sent_to(server: OpenAIServer, suite: str = "agents:1", rounds: int = 1) -> list[RequestDone]:
    async def send(url: str) -> list[RequestDone]:
        to = Server(url, "m", facts=FACTS)
        return [done async for done in client.send_suite(to, suites.load_suite(suite), Sampling(), rounds=rounds)]

    with server.serve() as url:
        return asyncio.run(send(url))


def test_each_turn_sends_the_recorded_messages():
    """The answers of the server do not go into later turns, so that every boot is sent the same."""
    server = OpenAIServer()
    done = sent_to(server, rounds=2)
    assert [request.kind for request in done[:3]] == ["fix 1", "fix 2", "fix 3"]
    first, second = server.bodies[:2]
    assert [message["role"] for message in first["messages"]] == ["system", "user"]
    assert second["messages"][: len(first["messages"])] == first["messages"]
    assert [message["role"] for message in second["messages"][2:]] == ["assistant", "tool"]
    assert (first["tool_choice"], {tool["function"]["name"] for tool in first["tools"]} >= {"read_file"}) == (
        "auto",
        True,
    )


def test_turns_share_prefixes_and_rounds_do_not():
    server = OpenAIServer()
    sent_to(server, rounds=2)
    ours, again = server.bodies[:8], server.bodies[8:]
    assert len({body["cache_salt"] for body in ours}) == 1
    assert {body["cache_salt"] for body in again}.isdisjoint(body["cache_salt"] for body in ours)
    assert ours[0]["messages"][0] != again[0]["messages"][0]


@pytest.mark.parametrize(("dropped", "broken"), [(None, 0), (2, 8), (0, 8)])
def test_a_broken_tool_call_is_counted(dropped, broken):
    done = sent_to(OpenAIServer(call=CALL, dropped=dropped))
    assert [sum(request.calls for request in done), sum(request.broken_calls for request in done)] == [8, broken]
    assert ("0 of 1 parse" if broken else "1 of 1 parse") in to_terminal([build_turns(done)])


def test_a_call_that_was_cut_is_not_broken():
    done = sent_to(OpenAIServer(call=CALL, dropped=2, finish="length"))
    assert not any(request.broken_calls for request in done)


def test_calls_need_offered_functions_and_their_arguments():
    for call in (("erase_disk", ("{}",)), ("read_file", ('{"file": "x"}',)), ("read_file", ('["x"]',))):
        assert all(request.broken_calls for request in sent_to(OpenAIServer(call=call)))


def test_a_word_lost_in_a_call_changes_the_answer():
    """JSON still parses without it; the digest of the streamed answer is another."""
    whole, lost = (sent_to(OpenAIServer(call=CALL, dropped=dropped)) for dropped in (None, 1))
    assert not any(request.broken_calls for request in lost)
    assert all(a.digests != b.digests for a, b in zip(whole, lost, strict=True))


def test_prefix_hits_are_shown_by_turn():
    done = [
        RequestDone(0.0, f"fix {turn}", tokens=9, prompt_tokens=200, ttft=0.1, total=1.0, cached=cached)
        for turn, cached in ((1, 0.0), (2, 150.0))
    ]
    _, first, second = to_terminal([build_turns([*done, replace(done[1], kind="trip 2")])]).splitlines()
    assert "0%" in first.replace(" %", "%")
    assert "75%" in second.replace(" %", "%")
