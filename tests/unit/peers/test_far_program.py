"""How this program is run on another host: what ssh is given, and what is said when that breaks."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_tui.cli.parser import COMMANDS
from dflash_tui.common import formatting
from dflash_tui.common.formatting import CALLED_AS, name_commands
from dflash_tui.peers import far_program, transport
from tests.support import escapes

# What sh, bash, zsh, csh and fish all leave alone between single quotes.
HARMLESS = {*string.ascii_letters, *string.digits, *" -_=./:,+%@\\"}


def build(*words: str, on_terminal: bool = True, **variables: str) -> list[str]:
    return transport.build_program_command("ann@spark-b", words, variables, on_terminal=on_terminal)


@pytest.mark.parametrize(("on_terminal", "option", "value"), [(True, "-t", "yes"), (False, "-T", "no")])
def test_ssh_requests_terminal_only_on_terminal(on_terminal, option, value):
    command = build("ps", on_terminal=on_terminal)
    assert command[:2] == ["ssh", option]
    assert [word for word in command if word.startswith("RequestTTY")] == [f"RequestTTY={value}"]
    assert command[-3:-1] == ["--", "ann@spark-b"]
    assert {"BatchMode=yes", "ControlPath=none", "ForwardAgent=no"} <= {*command}
    assert not any("StrictHostKeyChecking" in word for word in command)


def test_interactive_ssh_survives_fifteen_second_network_gap():
    """Fifteen seconds, where a rank that is watched is told of after five."""
    values = dict(word.split("=", 1) for word in build() if word.startswith("ServerAlive"))
    assert int(values["ServerAliveInterval"]) * int(values["ServerAliveCountMax"]) == 15


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))), st.text(max_size=20))
def test_words_are_quoted_for_remote_shell(words, value):
    script, words_there = build(*words, NO_COLOR=value.replace("\0", ""))[-1].rsplit(" sh ", 1)
    assert script.startswith("sh -c '")
    assert (script.count("'"), {*"\n!\\"} & {*script}) == (2, set())
    assert (words_there[0], words_there[-1], {*words_there[1:-1]} - HARMLESS) == ("'", "'", set())
    assert "\\\\" not in words_there


def test_break_message_explains_state_and_return_command(snapshot):
    said = "Timeout, server spark-b not responding.\r\n"
    assert str(far_program.explain_break("spark-b", ["up", "demo-cpu"], said)) == snapshot
    assert str(far_program.explain_break("spark-b", ["up", "demo-cpu", "--foreground"], "")) == snapshot


def test_ssh_error_text_cannot_control_terminal():
    assert escapes.acting(str(far_program.explain_break("spark-b", [], escapes.all_of_them()))) == set()


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("ann@spark-b", "dflash-tui --host ann@spark-b"),
        ("", "dflash-tui"),
        ("-oX", "dflash-tui"),
        ("a;b", "dflash-tui"),
    ],
)
def test_remote_user_sees_command_with_host_option(name, program, monkeypatch):
    """A name that no ssh would take is not believed."""
    monkeypatch.setenv(formatting.CALLED_AS, name)
    assert formatting.name_program() == program


def test_program_outside_path_is_named_as_typed(monkeypatch):
    monkeypatch.setattr("sys.argv", [".venv/bin/dflash-tui", "up"])
    monkeypatch.setenv("PATH", "/nowhere")
    assert name_commands("see dflash-tui logs x") == "see .venv/bin/dflash-tui logs x"


@pytest.mark.parametrize(
    "text",
    [
        "dflash-tui stop 12 --yes",
        "see dflash-tui logs --rank 1; dflash-tui why shows the cause",
        "`dflash-tui ab resume ID`",
        "on spark-c: dflash-tui stop RUN",
        "ssh spark-c dflash-tui stop 12",
        "install the same release of dflash-tui on both",
        "~/bin/dflash-tui up",
        "dflash-tui --host spark-b ps",
        "dflash-tui upgrade",
    ],
)
def test_hints_name_commands_as_user_types_them(text, monkeypatch, snapshot):
    """What is done on a third host stays as it is, and so does a sentence."""
    assert name_commands(text) == text
    monkeypatch.setenv(CALLED_AS, "spark-b")
    assert name_commands(text) == snapshot


def test_every_user_command_gets_host_option(monkeypatch):
    monkeypatch.setenv(CALLED_AS, "spark-b")
    assert [name for name in COMMANDS if "--host" not in name_commands(f"dflash-tui {name}")] == ["agent"]
