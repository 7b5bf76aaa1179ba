"""A file that starts vLLM, as somebody wrote it: a script, a compose file, a sparkrun recipe, or one command. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from dflash_tui.common import yaml_loader
from dflash_tui.common.errors import UsageError, YamlError
from dflash_tui.common.secrets import redact_secrets
from dflash_tui.planning.derivation import command_template
from dflash_tui.planning.derivation.shell_command import LeftOut, ShellCommand, read_shell_command

LARGEST = 64 << 10
_SHOWN, _MOST_LINES = 60, 200
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::?-([^{}]*))?\})")
_STARTS = re.compile(r"\bvllm\s+serve\b|\bvllm\.entrypoints\.|\b(docker|podman)\s+run\b")
_ANOTHER = "is another command of the file"
_CONTAINER = "is for a container; engines run without one"


class _Variables:
    """The variables of a file by name; what their values add to its words is bounded, since each may hold the last."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self._room = LARGEST

    def substitute(self, text: str, find: Callable[[re.Match[str]], str]) -> str:
        """Return a text with what `find` gives for each variable in it.

        Raises:
            UsageError: it is more than any command has.
        """

        def count(match: re.Match[str]) -> str:
            value = find(match)
            self._room -= len(value)
            if self._room < 0:
                raise UsageError("the file's variables hold more than any command that starts vLLM")
            return value

        return _VARIABLE.sub(count, text)


def read_command_file(name: str, text: str) -> ShellCommand:
    """Return the command of a file that starts vLLM.

    Args:
        name: The file's name; a compose file, and a recipe of sparkrun, end with .yaml or .yml.
        text: What is in it.

    Raises:
        UsageError: nothing in it starts vLLM, its quotes do not match, or a variable of the command has no value in it.
    """
    return _read_yaml(text) if name.endswith((".yaml", ".yml")) else _read_script(text)


def _read_script(text: str) -> ShellCommand:
    """Return the first command of a script that starts vLLM, with the variables that it exports before."""
    variables, exported = _Variables(), dict[str, str]()
    left: list[LeftOut] = []
    start: ShellCommand | None = None
    for line, words in _split_commands(text):
        assigned = [match for word in words if (match := _ASSIGNMENT.fullmatch(word))]
        if start is None and (_STARTS.search(line) or "vllm serve" in " ".join(words)):
            command = read_shell_command([_expand(word, variables, left) for word in words if word not in {"$@", "$*"}])
            start = replace(command, env=exported | command.env)
        elif start is None and assigned and len(assigned) == len(words) - (words[0] == "export"):
            values = {match[1]: _expand_known(match[2], variables) for match in assigned}
            variables.values |= values
            exported |= values if words[0] == "export" else {}
        elif words[0] not in {"set", "exec"}:
            left.append(LeftOut(_shorten(line), _ANOTHER))
    if start is None:
        raise UsageError("nothing in the file starts vLLM", hint="dflash-tui recipes import -- vllm serve MODEL …")
    return replace(start, left_out=(*start.left_out, *left))


def _split_commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the commands of a script with their words; one goes on behind a backslash and within quotes."""
    began = ""
    for line in text.replace("\\\r\n", " ").replace("\\\n", " ").splitlines():
        began = f"{began}\n{line}" if began else line
        try:
            words = shlex.split(began, comments=True)
        except ValueError:
            if began.count("\n") > _MOST_LINES:
                break
            continue
        if words:
            yield " ".join(began.split()), words
        began = ""
    if began.strip():
        raise UsageError("the file's quotes do not match", evidence=_shorten(began.strip()))


def _expand(word: str, variables: _Variables, left: list[LeftOut]) -> str:
    """Return a word with the values that the file gives its variables.

    Raises:
        UsageError: the file gives one none, or too much.
    """

    def find(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        value = variables.values.get(name, match[3])
        if value is None:
            hint = "put its value into the file, or name the command: recipes import -- vllm serve …"
            raise UsageError(f"the variable {name} has no value in the file", hint=hint, evidence=_shorten(word))
        if name not in variables.values:
            left.append(LeftOut(f"${name}", f"has no value in the file; its default {value} is taken"))
        return value

    assigned = _ASSIGNMENT.fullmatch(word)
    if assigned and (inner := _VARIABLE.fullmatch(assigned[2])) and (inner[1] or inner[2]) not in variables.values:
        return assigned[1]  # as docker takes it: from the shell that servers have, too
    return variables.substitute(word, find)


def _expand_known(value: str, variables: _Variables) -> str:
    return variables.substitute(value, lambda match: variables.values.get(match[1] or match[2], match[3] or match[0]))


def _read_yaml(text: str) -> ShellCommand:
    try:
        content = yaml_loader.parse_yaml_value(text)
    except YamlError as error:
        raise UsageError(f"line {error.line}: {error}", hint="a file without anchors and tags") from None
    if isinstance(content, dict) and isinstance(content.get("command"), str):
        return _read_template(content)
    return _read_compose(content.get("services") if isinstance(content, dict) else None)


def _read_template(content: Mapping[str, Any]) -> ShellCommand:
    """Return the command of a recipe of sparkrun or spark-vllm-docker, filled in with the defaults beside it."""
    start = _read_script(command_template.fill_template(content))
    variables = content.get("env")
    own = {str(name): str(value) for name, value in variables.items()} if isinstance(variables, dict) else {}
    from_shell = [name for name, value in own.items() if _VARIABLE.search(value)]
    left = [LeftOut(f"env {name}", "its value comes from your shell, which servers have") for name in from_shell]
    left += [LeftOut(name, _CONTAINER) for name in ("build_args", "mods", "pre_exec", "post_exec") if content.get(name)]
    env = {name: value for name, value in own.items() if name not in from_shell} | start.env
    image = str(content.get("container") or "")
    return replace(start, env=env, image=image, left_out=(*start.left_out, *left))


def _read_compose(services: Any) -> ShellCommand:
    """Return the first service of a compose file that starts vLLM."""
    left, start = list[LeftOut](), None
    for name, service in services.items() if isinstance(services, dict) else ():
        if start is None and isinstance(service, dict) and "vllm" in f"{service.get('image')} {service.get('command')}":
            start = _read_service(service, left)
        else:
            left.append(LeftOut(f"service {name}", "is another service of the file"))
    if start is None:
        hint = "a compose file with an image or a command of vllm, or a sparkrun recipe with a command"
        raise UsageError("the file has no service and no command that starts vLLM", hint=hint)
    return replace(start, left_out=(*start.left_out, *left))


def _read_service(service: Mapping[str, Any], left: list[LeftOut]) -> ShellCommand:
    """Return a service as the `docker run` that it stands for."""
    words, unset = ["docker", "run"], _Variables()
    variables = service.get("environment") or []
    pairs = (
        [f"{name}={value}" for name, value in variables.items()]
        if isinstance(variables, dict)
        else _list_words(variables)
    )
    for pair in pairs:
        words += ["-e", _expand(pair, unset, left)]
    for port in _list_words(service.get("ports") or []):
        words += ["-p", _expand(port, unset, left)]
    for volume in _list_words(service.get("volumes") or []):
        words += ["-v", volume]
    if entrypoint := service.get("entrypoint"):
        words += ["--entrypoint", shlex.join(_list_words(entrypoint))]
    readable_keys = {"environment", "ports", "volumes", "entrypoint", "image", "command"}
    left += [LeftOut(str(name), _CONTAINER) for name in service if name not in readable_keys]
    image = _expand(str(service.get("image") or "vllm"), unset, left)
    return read_shell_command(
        [*words, image, *(_expand(word, unset, left) for word in _list_words(service.get("command")))]
    )


def _list_words(value: Any) -> list[str]:
    """Return what compose takes as words: a list, or a text as a shell splits it."""
    if value is None:
        return []
    if isinstance(value, list):
        return [str(word) for word in value]
    try:
        return shlex.split(str(value))
    except ValueError as error:
        raise UsageError("the file's quotes do not match", evidence=str(error)) from None


def _shorten(line: str) -> str:
    line = redact_secrets(line)  # before it is cut: of half a secret nobody would know what it is
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"
