"""Parsers of the command line: options before their command, usual words of other tools, errors in one line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NoReturn

from dflash_tui.common.sanitizer import join_clean_lines
from dflash_tui.common.secrets import redact_secrets

# What other tools call our commands, and the actions of commands.
USUAL_COMMANDS = {
    "run": "up",
    "start": "up",
    "launch": "up",
    "serve": "up",
    "list": "recipes",
    "ls": "recipes",
    "status": "ps",
    "kill": "stop",
    "down": "stop",
    "version": "--version",
}
HOST_OPTION = "--host"
INSTALL_OPTION = "--install-peers"
_USUAL_ACTIONS = {"ls": "list", "rm": "remove"}


class LineParser(argparse.ArgumentParser):
    """A parser whose errors are one line with the nearest name, and quote neither secrets nor control characters."""

    def error(self, message: str) -> NoReturn:
        """Write the message and where the help is, and exit with 2; logs of CI have it, too."""
        text = redact_secrets(join_clean_lines(message))
        self.exit(2, f"dflash-tui: error: {text} (see {self.prog} --help)\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write as the base does, which says nothing of help that cannot be written, and ends as if it were."""
        if file is sys.stdout and message:
            file.write(message)
        else:
            super()._print_message(message, file)

    def list_options(self) -> list[str]:
        """Return every option as it is typed."""
        return [name for action in self._actions for name in action.option_strings]

    def list_actions(self) -> Iterator[argparse.Action]:
        """Yield every option and argument, those of the commands below it as well."""
        for action in self._actions:
            yield action
            if isinstance(action.choices, dict):
                for command in action.choices.values():
                    yield from command.list_actions()

    def suggest_names(self, choices: Iterable[str]) -> list[str]:
        """Return the names that a mistyped choice may have meant."""
        return [*choices]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Check a choice as the base does, and name the nearest instead of all."""
        if action.choices is None or value in action.choices:
            return
        name = (action.metavar if isinstance(action.metavar, str) else action.dest).lower()
        what = " ".join(filter(None, [action.option_strings[-1] if action.option_strings else "", f"'{value}'"]))
        choices = [*map(str, action.choices)]
        if nearest := _suggest(str(value), self.suggest_names(choices)):
            raise argparse.ArgumentError(None, f"{what} is not a valid {name}{nearest}")
        raise argparse.ArgumentError(None, f"{what} is not a valid {name}; choose from {', '.join(choices)}")


class ProgramParser(LineParser):
    """The program: options before a command belong to that, and `--recipe NAME` is another way to write `up NAME`."""

    commands: Collection[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as the base does, with the command first and by our name; options without one are an error.

        What follows `--host HOST` is for the program there, and is kept as it was typed.
        """
        words = order_words(sys.argv[1:] if args is None else args, self.commands)
        near, far = _split_far_words(words)
        self._refuse_mistyped(words[0].partition("=")[0] if words else "")
        parsed, unknown = super().parse_known_args(near or words, namespace)
        parsed.far_words = far
        parsed.json = parsed.json or "--json" in far
        if parsed.command is None and not near and parsed.install_peers:
            self.error(f"{INSTALL_OPTION} needs {HOST_OPTION} HOST or a command")
        if parsed.command is None and unknown:
            meant = _suggest(unknown[0], self.list_options())
            self.error(f"{' '.join(unknown)}: options need --recipe NAME or a command{meant}")
        return parsed, unknown

    def _refuse_mistyped(self, first: str) -> None:
        """End where the first word is nearly an option of the program: what follows would be taken for a command."""
        options = self.list_options()
        mistyped = first.startswith("--") and not any(option.startswith(first) for option in options)
        if mistyped and (meant := _suggest(first, options)):
            self.error(f"there is no option {first}{meant}")

    def suggest_names(self, choices: Iterable[str]) -> list[str]:
        """Return commands, usual names of them, and the commands that launch a recipe of that name."""
        from dflash_tui.planning.recipes import recipe_loader

        return [*choices, *USUAL_COMMANDS, *(f"up {name}" for name in recipe_loader.list_recipe_files())]


class CommandParser(LineParser):
    """A command whose action `unnamed` is meant when the first word after it names none."""

    unnamed = ""
    actions: tuple[str, ...] = ()

    def add_subparsers(self, **settings: Any) -> Any:
        """Add actions as the base does, and remember which."""
        actions = super().add_subparsers(**settings)
        self._choices: Collection[str] = actions.choices
        return actions

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as the base does, the action by our name; what is unknown is named together with the nearest option."""
        choices = getattr(self, "_choices", ())
        words = [*args] if args else []
        if words and words[0] not in choices and (usual := _USUAL_ACTIONS.get(words[0])) in choices:
            words = [str(usual), *words[1:]]
        if self.unnamed and words and words[0] not in {*self.actions, "-h", "--help"}:
            words = [self.unnamed, *words]
        parsed, unknown = super().parse_known_args(words, namespace)
        if unknown:
            self.error(self._explain_unknown(unknown))
        return parsed, unknown

    def _explain_unknown(self, unknown: list[str]) -> str:
        command = self.prog.partition(" ")[2]
        options = [word.partition("=")[0] for word in unknown if word.startswith("-")]
        if not options:
            return f"{command} takes no further word: {' '.join(unknown)}"
        if options[0] == HOST_OPTION:
            return f"{HOST_OPTION} HOST comes first: dflash-tui {HOST_OPTION} HOST {command}"
        near = _suggest(options[0], self.list_options())
        return f"{command} has no option {options[0]}{near}"


def _suggest(word: str, names: Iterable[str]) -> str:
    """Return the question whether the nearest of `names` was meant; empty where none is near."""
    import difflib

    # The dashes, which all options have, make none of them like another.
    by_word = {name.removeprefix("up ").lstrip("-"): name for name in names}
    word = word.lstrip("-")
    near = [word] if word in by_word else difflib.get_close_matches(word, by_word, 1)
    return f", did you mean {by_word[near[0]]}?" if near else ""


def order_words(words: Iterable[str], commands: Collection[str]) -> list[str]:
    """Return what was typed with the command first and by our name; what another host is to run as it is."""
    words = [*words]
    is_far = any(_split_far_words(words))
    return words if is_far else _name_command(_put_command_first(words, commands))


def _split_far_words(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the words that name another host, and what follows for the program there; none where no host is named."""
    near, far = list[str](), words
    while far and far[0].partition("=")[0] in {HOST_OPTION, INSTALL_OPTION}:
        count = 2 if far[0] == HOST_OPTION else 1
        near, far = near + far[:count], far[count:]
    is_named = any(word.partition("=")[0] == HOST_OPTION for word in near)
    return (near, far) if is_named else ([], [])


def _name_command(words: list[str]) -> list[str]:
    """Return `run NAME` as `up NAME`, and `help ps` as `ps --help`."""
    if not words:
        return words
    first, *arguments = words
    if first == "help":
        return [*arguments, "--help"]
    return [USUAL_COMMANDS.get(first, first), *arguments]


def _put_command_first(words: list[str], commands: Collection[str]) -> list[str]:
    """Return `--json ps` as `ps --json`, and `--json --recipe NAME` as `up NAME --json`."""
    if words and not words[0].startswith("-"):
        return words
    for place, word in enumerate(words):
        option, equals, recipe = word.partition("=")
        if option == "--recipe" and (equals or words[place + 1 :]):
            before, after = words[:place], words[place + 1 :]
            return ["up", recipe, *before, *after] if equals else ["up", after[0], *before, *after[1:]]
        if word in commands:
            return [*words[place:], *words[:place]]
    recipe = os.environ.get("DFLASH_TUI_RECIPE", "")
    return ["up", recipe, *words] if recipe and not {"-h", "--help", "--version", "-V", "-v"} & {*words} else words
