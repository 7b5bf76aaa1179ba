"""`chat` with the stand-in for a server: in a pipe and on a terminal."""

import io
import json
import sys
from typing import Any

import pytest

from dflash_tui.cli.main import main
from dflash_tui.common.errors import ServerFailed
from dflash_tui.common.sanitizer import escape_control_characters
from tests.support.fake_runs import wait_for_answer
from tests.support.json_lines import check_lines

ANSWER = "Hello there, this is speculative."
HOSTILE = "\x1b[31m\u202eevil\x1b]0;x\x07 "


@pytest.fixture
def typed(monkeypatch):
    """Return a function that lets standard input have these lines, as a pipe has them."""

    def put(*lines: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))

    return put


def asked(run) -> list[dict[str, Any]]:
    """Return what the server was asked to answer."""
    return [json.loads(line) for line in run.log.read_text().splitlines() if line.startswith("{")]


def test_piped_lines_are_turns_of_one_conversation(launch, typed, capfd):
    """The answer alone is on stdout; thoughts, measures and what a command did are on stderr. Text is escaped."""
    run = launch("log", "telling", "thinks=Let |me |see", f"adds={HOSTILE}")
    wait_for_answer(run.url)
    typed("/temperature 0.5", "/system Be brief.", "hi", "", "again", "/clear", "/temperature", "third", "/quit", "no")
    assert main(["chat"]) == 0
    shown = capfd.readouterr()
    assert shown.out == f"{ANSWER}{escape_control_characters(HOSTILE)}\n" * 3
    assert "Let me see" in shown.err
    assert "AL 3.55" in shown.err
    bodies = asked(run)
    said = [[(each["role"], each["content"]) for each in body["messages"]] for body in bodies]
    answer = ("assistant", f"{ANSWER}{HOSTILE}")
    told = ("system", "Be brief.")
    assert said == [
        [told, ("user", "hi")],
        [told, ("user", "hi"), answer, ("user", "again")],
        [told, ("user", "third")],
    ]
    assert [body.get("temperature") for body in bodies] == [0.5, 0.5, None]
    assert all("max_tokens" not in body for body in bodies)


def test_json_has_a_turn_per_line(launch, typed, capfd):
    run = launch("thinks=Hm.")
    wait_for_answer(run.url)
    typed("one", "/nonsense", "two")
    assert main(["chat", "--json", "--temperature", "0"]) == 0
    lines = capfd.readouterr().out.splitlines()
    check_lines("chat", lines)
    turns = [json.loads(line) for line in lines]
    assert [(turn["text"], turn["thinking"], turn["request"]["tokens"]) for turn in turns] == [(ANSWER, "Hm.", 40)] * 2


def test_a_failure_ends_a_pipe(launch, typed, capfd):
    """With the code of a server that failed, and its words."""
    wait_for_answer(launch("dead").url)
    typed("hi", "more")
    assert main(["chat"]) == ServerFailed.exit_code
    assert "EngineCore" in capfd.readouterr().err


def test_invalid_bytes_are_sent_as_question_marks(launch, typed, capfd):
    """As a pipe and the command line may have them, where Python keeps such bytes as halves of surrogate pairs."""
    run = launch("log")
    wait_for_answer(run.url)
    typed("caf\udce9")
    assert main(["chat", "--system", "\udcff"]) == 0
    assert capfd.readouterr().out == f"{ANSWER}\n"
    [body] = asked(run)
    assert [each["content"] for each in body["messages"]] == ["?", "caf?"]


def test_a_run_that_has_ended_is_refused(launch, capfd):
    assert main(["chat"]) == 2
    assert "up RECIPE" in capfd.readouterr().err


def test_ctrl_c_on_terminal_stops_only_answer(launch, terminal):
    """What came so far is said again with the next line."""
    run = launch("log", "stays=1")
    wait_for_answer(run.url)
    panel = terminal("chat", run.id)
    panel.until(b"> ")
    panel.type("first\n")
    panel.until(b"there, this ")
    panel.type("\x03")
    panel.until(b"stopped\r\n> ")
    panel.type("second\n")
    panel.until(b"40 tokens")
    panel.type("/quit\n")
    assert panel.ended() == 0
    _, second = asked(run)
    assert [each["content"] for each in second["messages"]][::2] == ["first", "second"]
    assert second["messages"][1]["content"].startswith("Hello there")
