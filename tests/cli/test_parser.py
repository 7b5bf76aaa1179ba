"""The grammar: where options may stand, and what stands for what."""

import pytest

from dflash_tui.cli.parser import build_parser, parse_words
from dflash_tui.cli.requests import read_launch_request


def parsed(*words: str) -> dict[str, object]:
    return vars(parse_words(words))


def test_a_recipe_without_a_command_is_launched():
    assert parsed("--recipe", "toy", "--json", "--set", "a=1") == parsed("up", "toy", "--json", "--set", "a=1")


def test_the_variable_names_the_recipe_to_launch(monkeypatch):
    monkeypatch.setenv("DFLASH_TUI_RECIPE", "toy")
    assert (parsed()["command"], parsed()["recipe"], parsed("ps")["command"]) == ("up", "toy", "ps")


def test_the_help_lists_commands_by_group(capsys):
    with pytest.raises(SystemExit):
        parsed("--help")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 45
    assert [line for line in lines if line in {"run:", "measure:", "look:", "set up:"}] == [
        "run:",
        "measure:",
        "look:",
        "set up:",
    ]
    assert max(map(len, lines)) <= 110


def test_variables_are_defaults(monkeypatch):
    """Also of the commands that have no such option: their errors are JSON then."""
    monkeypatch.setenv("DFLASH_TUI_JSON", "1")
    monkeypatch.setenv("DFLASH_TUI_PORT", "8123")
    assert (parsed("up", "toy")["port"], parsed("up", "toy")["json"], parsed("stop")["json"]) == (8123, True, True)


def test_options_alone_are_an_error(capsys):
    with pytest.raises(SystemExit) as caught:
        parsed("--json")
    assert caught.value.code == 2
    assert "--" in capsys.readouterr().err


def test_recorded_force_reason_holds_no_secret(capsys):
    assert parsed("up", "toy", "--force", "I know why")["force"] == "I know why"
    with pytest.raises(SystemExit):
        parsed("up", "toy", "--force", "because hf_aBaBaBaBaBaBaBaBaB")
    assert "looks like a secret" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        ("run demo-cpu --json", "up demo-cpu --json"),
        ("ls --json", "recipes --json"),
        ("down --all", "stop -a"),
        ("engine rm x", "engine remove x"),
    ],
)
def test_usual_words_mean_ours(words, ours):
    assert parsed(*words.split()) == parsed(*ours.split())
    assert parsed(*ours.split())["command"] in ours


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        ("verify-output demo-cpu --exact", "verify --lossless demo-cpu --exact"),
        ("orphans 12 --yes", "stop --orphans 12 --yes"),
        ("history demo-cpu", "runs history demo-cpu"),
        ("client --for curl", "ps -v --for curl"),
    ],
)
def test_an_old_name_means_the_new_one(words, ours, capsys):
    assert parsed(*words.split()) == parsed(*ours.split())
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "name"),
    [("demo-cpu", "up demo-cpu"), ("gema-4-31b", "up gemma-4-31b"), ("ps --al1", "--all"), ("recipes chek", "check")],
)
def test_wrong_word_gets_one_line_with_suggestion(words, name, capsys):
    with pytest.raises(SystemExit) as caught:
        parsed(*words.split())
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"did you mean {name}?" in error


@pytest.mark.parametrize("words", ["xyzzy", "ps --xyzzy", "engine"])
def test_word_without_near_match_gets_one_line(words, capsys):
    with pytest.raises(SystemExit) as caught:
        parsed(*words.split())
    error = capsys.readouterr().err
    assert (caught.value.code, error.count("\n"), "did you mean" in error) == (2, 1, False)


def test_help_is_a_command_too(capsys):
    with pytest.raises(SystemExit) as caught:
        parsed("help", "ab", "run")
    assert (caught.value.code, "dflash-tui ab run" in capsys.readouterr().out) == (0, True)


@pytest.mark.parametrize("gpu", ["DGX Spark", "GB10"])
def test_plan_takes_machine_class_by_usual_names(gpu):
    args = build_parser().parse_args(["plan", "gemma-4-31b", "--gpu", gpu])
    assert read_launch_request(args).gpu == "gb10"


@pytest.mark.parametrize(
    ("words", "far"),
    [
        (("--host=spark", "ps", "--json"), ["ps", "--json"]),
        (("--host", "spark", "--json", "--recipe", "toy"), ["--json", "--recipe", "toy"]),
        (("--host", "spark", "--install-peers", "up", "toy", "--install-peers"), ["up", "toy", "--install-peers"]),
    ],
)
def test_words_after_host_go_to_far_program(words, far, monkeypatch):
    monkeypatch.setenv("DFLASH_TUI_RECIPE", "toy")
    args = parsed(*words)
    assert (args["host"], args["far_words"], args["command"]) == ("spark", far, None)
    assert (args["json"], args["install_peers"]) == ("--json" in far, words[0] == "--install-peers" or "up" in far)


@pytest.mark.parametrize("words", [("--host", "--json"), ("ps", "--host", "spark")])
def test_host_option_comes_first_and_needs_name(words, capsys):
    with pytest.raises(SystemExit) as caught:
        parsed(*words)
    assert caught.value.code == 2
    assert "--host" in capsys.readouterr().err


def test_install_peers_option_needs_host(capsys):
    with pytest.raises(SystemExit):
        parsed("--install-peers")
    assert "--host" in capsys.readouterr().err
    assert parsed("up", "toy", "--peer", "b", "--install-peers")["install_peers"] is True
