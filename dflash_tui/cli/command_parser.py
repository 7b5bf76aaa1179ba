"""Parsers with one-line errors that suggest the nearest name, and aliases for the words of other tools."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from dflash_tui.common.sanitizer import join_clean_lines
from dflash_tui.common.secrets import redact_secrets

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
# Names of earlier releases; the next release drops them.
OLD_COMMANDS = {
    "verify-output": "verify --lossless",
    "orphans": "stop --orphans",
    "history": "runs history",
    "client": "ps --verbose",
}
HOST_OPTION = "--host"
INSTALL_OPTION = "--install-peers"
_USUAL_ACTIONS = {"ls": "list", "rm": "remove"}


class CommandParser(argparse.ArgumentParser):
    """A parser of a command, or of the program."""

    unnamed = ""
    """The default action, used if the first word is not an action."""
    actions: tuple[str, ...] = ()
    """The actions that a first word may name instead of `unnamed`."""

    def error(self, message: str) -> NoReturn:
        """Write the message without secrets and a pointer to the help; exit with 2."""
        text = redact_secrets(join_clean_lines(message))
        self.exit(2, f"dflash-tui: error: {text} (see {self.prog} --help)\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write like the base class, but raise if help cannot be written to stdout."""
        if file is sys.stdout and message:
            file.write(message)
        else:
            super()._print_message(message, file)

    def list_options(self) -> list[str]:
        """Return the strings of every option."""
        return [name for action in self._actions for name in action.option_strings]

    def list_actions(self) -> Iterator[argparse.Action]:
        """Yield every option and argument, those of subcommands included."""
        for action in self._actions:
            yield action
            if isinstance(action.choices, dict):
                for command in action.choices.values():
                    yield from command.list_actions()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse like the base class, but accept action names of other tools, and fail on unknown words."""
        words = [*(args or ())]
        nested = [action.choices for action in self._actions if isinstance(action.choices, dict)]
        choices = [name for names in nested for name in names]
        if words and words[0] not in choices and _USUAL_ACTIONS.get(words[0]) in choices:
            words[0] = _USUAL_ACTIONS[words[0]]
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
            return f"unexpected argument of {command}: {' '.join(unknown)}"
        near = _suggest(options[0], self.list_options())
        if not command:
            return f"{' '.join(unknown)}: options need --recipe NAME or a command{near}"
        if options[0] == HOST_OPTION:
            return f"{HOST_OPTION} HOST comes first: dflash-tui {HOST_OPTION} HOST {command}"
        return f"{command} has no option {options[0]}{near}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Validate a choice; on error suggest the nearest, or list all if none is near."""
        if action.choices is None or value in action.choices:
            return
        name = (action.metavar if isinstance(action.metavar, str) else action.dest).lower()
        what = " ".join(filter(None, [action.option_strings[-1] if action.option_strings else "", f"'{value}'"]))
        choices = [*map(str, action.choices)]
        names = [*choices, *_list_usual_commands()] if name == "command" else choices
        nearest = _suggest(str(value), names) or f"; choose from {', '.join(choices)}"
        raise argparse.ArgumentError(None, f"{what} is not a valid {name}{nearest}")


def _list_usual_commands() -> list[str]:
    from dflash_tui.planning.recipes import recipe_loader

    return [*USUAL_COMMANDS, *(f"up {name}" for name in recipe_loader.list_recipe_files())]


def _suggest(word: str, names: Iterable[str]) -> str:
    import difflib

    # Compare without dashes, which make all options similar.
    by_word = {name.removeprefix("up ").lstrip("-"): name for name in names}
    word = word.lstrip("-")
    near = [word] if word in by_word else difflib.get_close_matches(word, by_word, 1)
    return f", did you mean {by_word[near[0]]}?" if near else ""


def split_far_words(words: list[str]) -> tuple[list[str], list[str]]:
    """Split the words into those that name another host and those for it; both are empty without `--host`."""
    near, far = list[str](), words
    while far and far[0].partition("=")[0] in {HOST_OPTION, INSTALL_OPTION}:
        count = 2 if far[0] == HOST_OPTION else 1
        near, far = near + far[:count], far[count:]
    is_named = any(word.partition("=")[0] == HOST_OPTION for word in near)
    return (near, far) if is_named else ([], [])


def name_command(words: list[str]) -> list[str]:
    """Translate `run NAME` and `--recipe NAME` to `up NAME`, `help ps` to `ps --help`, and old names to new ones."""
    if not words:
        return words
    first, *others = words
    if first == "help":
        return name_command([*others, "--help"])
    if first == "--recipe" and others:
        return ["up", *others]
    if first.startswith("--recipe="):
        return ["up", first.partition("=")[2], *others]
    return [*OLD_COMMANDS.get(first, USUAL_COMMANDS.get(first, first)).split(), *others]
