"""The grammar: where options may stand, and what stands for what."""

import pytest

from dflash_tui.cli.parser import build_parser


def parsed(*words: str) -> dict[str, object]:
    return vars(build_parser().parse_args(words))


@pytest.mark.parametrize(
    "words",
    [
        ("--recipe", "toy", "--json", "--mode", "eager", "--set", "a=1"),
        ("--recipe=toy", "--json", "--mode", "eager", "--set", "a=1"),
        ("--mode", "eager", "--json", "--set", "a=1", "--recipe", "toy"),
        ("--json", "--mode", "eager", "up", "toy", "--set", "a=1"),
    ],
)
def test_a_recipe_without_a_command_is_launched(words):
    """`--recipe NAME` is `up NAME`, wherever it stands; options before a command are those of the command."""
    assert parsed(*words) == parsed("up", "toy", "--json", "--mode", "eager", "--set", "a=1")


def test_the_variable_of_the_recipe_holds_where_no_command_is_given(monkeypatch):
    monkeypatch.setenv("DFLASH_TUI_RECIPE", "toy")
    assert (parsed()["command"], parsed("--json")["recipe"], parsed("ps")["command"]) == ("up", "toy", "ps")


def test_options_of_commands_may_stand_before_them():
    assert parsed("--json", "ps", "--all") == parsed("ps", "--all", "--json")
    assert (
        parsed("--json", "recipes", "check", "x")["json"] is parsed("recipes", "--json", "check", "x")["json"] is True
    )


def test_variables_are_defaults(monkeypatch):
    """Also of the commands that have no such option: their errors are JSON then."""
    monkeypatch.setenv("DFLASH_TUI_JSON", "1")
    monkeypatch.setenv("DFLASH_TUI_PORT", "8123")
    assert (parsed("up", "toy")["port"], parsed("up", "toy")["json"], parsed("stop")["json"]) == (8123, True, True)


@pytest.mark.parametrize("words", [("--json",), ("--json", "toy"), ("--recipe",), ("--nonsense",)])
def test_options_alone_are_an_error(words, capsys):
    with pytest.raises(SystemExit) as caught:
        parsed(*words)
    assert caught.value.code == 2
    assert "--" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["up", "service"])
def test_a_reason_that_is_recorded_holds_no_secret(command, capsys):
    assert parsed(command, "toy", "--force", "I know why")["force"] == "I know why"
    with pytest.raises(SystemExit):
        parsed(command, "toy", "--force", "because hf_aBaBaBaBaBaBaBaBaB")
    assert "looks like a secret" in capsys.readouterr().err
