"""A command that starts vLLM, as somebody typed it: variables, a container, and the words of `vllm serve`. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

import msgspec

from dflash_tui.common.errors import UsageError


def split_names(text: str) -> frozenset[str]:
    """Return the names that are listed in a text."""
    return frozenset(text.split())


_LONGEST, _MOST_WORDS = 64 << 10, 2000
# As docker takes it, too: -eNAME=VALUE.
_JOINED = re.compile(r"-e[A-Za-z_]\w*(=|$)")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_ENDS = frozenset({"&&", "||", ";", "|", "&", ">", ">>", "2>&1", "2>", "<"})
_SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
_SERVERS = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main")
# Options of `docker run` that take a word; all others are switches, or have their value behind `=`.
_WITH_WORD = split_names(
    """
    -e --env --env-file -v --volume -p --publish --name --gpus --ipc --shm-size --network --net --ulimit --runtime
    --entrypoint -w --workdir -u --user --restart --device --cap-add --cap-drop --security-opt -m --memory
    --memory-swap --cpus --mount -h --hostname --pull --platform -l --label --log-opt --log-driver --group-add --pid
    --tmpfs --add-host --cpuset-cpus --cpuset-mems --health-cmd --health-interval --stop-timeout --stop-signal
    --oom-score-adj
    """
)


class LeftOut(msgspec.Struct, frozen=True):
    """Something of a command that a recipe does not take over, and why."""

    what: str
    """As it stands there; it may hold a secret."""
    why: str


class ShellCommand(msgspec.Struct, frozen=True):
    """What a command that starts vLLM is made of."""

    words: tuple[str, ...]
    """What follows `vllm serve`."""
    env: dict[str, str] = {}
    image: str = ""
    """The container's image."""
    port: str = ""
    """The machine's port of a container."""
    left_out: tuple[LeftOut, ...] = ()


def read_shell_command(words: Sequence[str]) -> ShellCommand:
    """Return the parts of a command: `vllm serve …`, also behind variables, in a container, or by another's script.

    Args:
        words: Its words, or the whole of it as one.

    Raises:
        UsageError: it is too long, its quotes do not match, or it starts no vLLM.
    """
    split = _split(words)
    left: list[LeftOut] = []
    env: dict[str, str] = {}
    split = _take_variables(split, env, left)
    image = port = ""
    if split[:2] in (["docker", "run"], ["podman", "run"]):
        split, image, port = _read_container(split[2:], env, left)
    served = _find_server(split, env, left, is_entrypoint=bool(image))
    return ShellCommand(tuple(_cut_at_end(served, left)), env, image, port, tuple(left))


def _split(words: Sequence[str]) -> list[str]:
    if sum(map(len, words)) > _LONGEST:
        raise UsageError("the command is longer than any that starts vLLM")
    split = list(words)
    if len(split) == 1:
        try:
            split = shlex.split(split[0].replace("\\\n", " "), comments=True)
        except ValueError as error:
            raise UsageError("the command's quotes do not match", evidence=str(error)) from None
    if len(split) > _MOST_WORDS:
        raise UsageError("the command has more words than any that starts vLLM")
    return [word for word in split if word.strip() not in {"", "\\"}]


def _take_variables(words: list[str], env: dict[str, str], left: list[LeftOut]) -> list[str]:
    """Return the words behind variables and the programs that only start another one."""
    for index, word in enumerate(words):
        if match := _ASSIGNMENT.fullmatch(word):
            env[match[1]] = match[2]
        elif word in {"sudo", "nohup", "exec"}:
            left.append(LeftOut(word, "servers run as you, detached"))
        elif word not in {"env", "export"}:
            return words[index:]
    return []


def _read_container(words: list[str], env: dict[str, str], left: list[LeftOut]) -> tuple[list[str], str, str]:
    """Return the words behind the image, the image, and the machine's port."""
    port, entrypoint, arguments = "", [], list(words)
    while arguments and arguments[0].startswith("-"):
        word = arguments.pop(0)
        option, equals, value = ("-e", "=", word[2:]) if _JOINED.match(word) else word.partition("=")
        if option in _WITH_WORD and not equals:
            value = arguments.pop(0) if arguments else ""
        assigned = _ASSIGNMENT.fullmatch(value)
        if option in {"-e", "--env"} and assigned:
            env[assigned[1]] = assigned[2]
        elif option in {"-p", "--publish"}:
            port = value.split(":")[-2] if ":" in value else value
        elif option == "--entrypoint":
            entrypoint = _split_entrypoint(value)
        elif option in {"-e", "--env"}:
            left.append(LeftOut(f"{option} {value}", "its value comes from your shell, which servers have"))
        else:
            left.append(
                LeftOut(
                    (equals or " ").join(filter(None, [option, value])), "is for a container; engines run without one"
                )
            )
    if not arguments:
        raise UsageError("the command names no image to run", hint="recipes import -- docker run IMAGE …")
    return [*entrypoint, *arguments[1:]], arguments[0], port


def _split_entrypoint(value: str) -> list[str]:
    try:
        return shlex.split(value)
    except ValueError:  # quotes that do not match
        return [value]


def _find_server(words: list[str], env: dict[str, str], left: list[LeftOut], *, is_entrypoint: bool) -> list[str]:
    """Return what follows `vllm serve`; the image's own entry point is that."""
    if words and words[0].rpartition("/")[2] in _SHELLS and len(words) > 2 and re.fullmatch(r"-\w*c", words[1]):
        words = _take_variables(_split(words[2:3]), env, left)
    for index, word in enumerate(words):
        name, following = word.rpartition("/")[2], words[index + 1 : index + 2]
        is_module = word in _SERVERS and index and words[index - 1] == "-m"
        if (name == "vllm" and following == ["serve"]) or is_module:
            before = words[: index - 2] if is_module else words[:index]
            before = _take_variables(before, env, left)
            left += (
                [LeftOut(" ".join(before), "comes before vllm serve, and dflash-tui does not know it")]
                if before
                else []
            )
            return words[index + 1 :] if is_module else words[index + 2 :]
    if is_entrypoint:
        return words[1:] if words[:1] == ["serve"] else words
    raise UsageError("the command does not start vLLM", hint="dflash-tui recipes import -- vllm serve MODEL …")


def _cut_at_end(words: list[str], left: list[LeftOut]) -> list[str]:
    """Return the words before a pipe or another command."""
    end = next((index for index, word in enumerate(words) if word in _ENDS), len(words))
    if words[end:]:
        left.append(LeftOut(" ".join(words[end:]), "is shell syntax, which no recipe has"))
    return words[:end]
