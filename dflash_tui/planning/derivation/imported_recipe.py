"""Convert a `vllm serve` command into the text of a recipe, and list what was left out. Pure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import yaml

from dflash_tui.common.errors import UsageError
from dflash_tui.common.secrets import advise_on_secret, find_secret
from dflash_tui.common.yaml_loader import DEPTH_LIMIT
from dflash_tui.planning import serve_flags
from dflash_tui.planning.derivation.pair import NAME_PARTS
from dflash_tui.planning.field_types import HIGHEST_PORT, EnvName, FlagName
from dflash_tui.planning.methods import FACTS, DrafterUse, Method
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.serve_flags import make_absolute

_HINT = "dflash-tui recipes import -- vllm serve MODEL …"
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_ENDS = frozenset({"&&", "||", ";", "|", "&", ">", ">>", "2>&1", "2>", "<"})


class LeftOut(msgspec.Struct, frozen=True):
    """A part of a command that the recipe leaves out, and why."""

    what: str
    """The part as written in the command; it may hold a secret."""
    why: str


class ShellCommand(msgspec.Struct, frozen=True):
    """The parts of a `vllm serve` command."""

    words: tuple[str, ...]
    """The words after `vllm serve`."""
    env: dict[str, str] = {}
    left_out: tuple[LeftOut, ...] = ()


def read_shell_command(words: Sequence[str]) -> ShellCommand:
    """Return the parts of `[NAME=VALUE …] vllm serve …`; `words` are its words, or the whole command as one."""
    split = list(words)
    if len(split) == 1:
        try:
            split = shlex.split(split[0].replace("\\\n", " "), comments=True)
        except ValueError as error:
            raise UsageError("the command's quotes do not match", evidence=str(error)) from None
    split = [word for word in split if word.strip() not in {"", "\\"}]
    env: dict[str, str] = {}
    for word in list(split):
        if assigned := _ASSIGNMENT.fullmatch(word):
            env[assigned[1]] = assigned[2]
        elif word not in {"env", "export"}:
            break
        split.pop(0)
    if len(split) < 2 or split[0].rpartition("/")[2] != "vllm" or split[1] != "serve":
        raise UsageError("the command does not start with vllm serve", hint=_HINT)
    served = split[2:]
    end = next((index for index, word in enumerate(served) if word in _ENDS), len(served))
    after = " ".join(served[end:])
    return ShellCommand(
        tuple(served[:end]), env, (LeftOut(after, "is shell syntax, which no recipe has"),) if after else ()
    )


_WHY = "Imported from a command; not run as a recipe yet."
_SHORT = {
    "ac": "attention-config", "cc": "compilation-config", "dc": "diffusion-config",
    "dcp": "decode-context-parallel-size",
    "dp": "data-parallel-size", "dpa": "data-parallel-address", "dpb": "data-parallel-backend",
    "dpe": "data-parallel-external-lb", "dph": "data-parallel-hybrid-lb", "dpl": "data-parallel-size-local",
    "dpn": "data-parallel-rank", "dpp": "data-parallel-rpc-port", "dpr": "data-parallel-start-rank",
    "ep": "enable-expert-parallel", "n": "nnodes", "O": "optimization-level", "pcp": "prefill-context-parallel-size",
    "pp": "pipeline-parallel-size", "q": "quantization", "r": "node-rank", "sc": "speculative-config",
    "tp": "tensor-parallel-size",
}  # fmt: skip
_NO_SPECULATION = {"method": Method.NONE.value, "num_speculative_tokens": 0}
_LONGEST = 100
_FLAG = re.compile(r"-(?!\d+(?:\.\d+)?$)")
_DEEPEST = DEPTH_LIMIT - 2  # the recipe and its flags are two levels
_DOTTED = "speculative-config."


class ImportedRecipe(NamedTuple):
    """A recipe made from a command."""

    name: str
    text: str
    left_out: tuple[LeftOut, ...]


class _Import:
    def __init__(self, command: ShellCommand) -> None:
        self.flags, self.positions = _read_flags(command.words)
        self.left = list(command.left_out)

    def leave(self, what: str, why: str) -> None:
        self.left.append(LeftOut(what, why))

    def take(self, *names: str) -> Any:
        """Return the value of a flag that becomes a key of the recipe, by the first of `names` that is set."""
        values = [self.flags.pop(name) for name in names if name in self.flags]
        return values[0] if values else None

    def take_text(self, name: str) -> str:
        """Return a flag's value as text, the first of several."""
        value = self.take(name)
        several = value if isinstance(value, list) else [value]
        for other in several[1:]:
            self.leave(f"--{name} {other}", "a recipe has one")
        return "" if several[0] in (None, True, False) else str(several[0])


def import_recipe(command: ShellCommand) -> ImportedRecipe:
    """Return the recipe of a command, and what was left out of it."""
    making = _Import(command)
    model = making.take_text("model") or next(iter(making.positions), "")
    for word in making.positions:
        if word != model:
            making.leave(word, "is neither a flag nor the value of one")
    if not model or model.startswith("-"):
        raise UsageError("the command names no model before its flags", hint=_HINT)
    if re.search(r"\$[\w{(]", model):
        raise UsageError(f"{model} is a variable of your shell", hint="write the model's name in its place")
    served = making.take_text("served-model-name") or model.rstrip("/").rpartition("/")[2]
    target = {"model": model, "served_name": served}
    if revision := making.take_text("revision"):
        target["revision"] = revision
    recipe: dict[str, Any] = {"title": "", "status": "experimental", "why": _WHY, "target": target}
    recipe |= _import_speculation(making)
    recipe["mode"] = "eager" if making.take("enforce-eager") else "compile"
    recipe |= _import_port(making)
    recipe["engine"] = {"vllm": list(recipe_loader.load_releases())[-1]}
    recipe |= {
        name: part for name, part in (("env", _import_env(making, command)), ("flags", _import_flags(making))) if part
    }
    method = recipe.get("method", Method.DFLASH.value)
    recipe["title"] = f"{served.rpartition('/')[2]}, {method}, imported"
    name = re.sub(r"[^a-z0-9._-]+", "-", f"{model.rstrip('/').rpartition('/')[2]}-{method}".lower()).strip("-._")[:60]
    body = yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True, width=110)
    head = "# Imported by dflash-tui from a command. recipes/README.md explains the keys.\n"
    return ImportedRecipe(name or "imported", head + body, tuple(making.left))


def _read_flags(words: tuple[str, ...]) -> tuple[dict[str, Any], list[str]]:
    """Return the flags with their values, and the words before them; the last duplicate wins.

    All words up to the next flag are values of a flag, so the model must come before the flags.
    """
    flags: dict[str, Any] = {}
    positions: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        name, joined = _name_flag(word)
        if not name:
            positions.append(word)
        elif joined is not None:
            flags[name] = _read_value(joined)
        else:
            end = next((place for place, word in enumerate(left) if _FLAG.match(word)), len(left))
            values, left = left[:end], left[end:]
            if values:
                flags[name] = values if len(values) > 1 else _read_value(values[0])
            else:
                flags |= {name.removeprefix("no-"): False} if name.startswith("no-") else {name: True}
    return flags, positions


def _name_flag(word: str) -> tuple[str, str | None]:
    if word.startswith("--") and len(word) > 2:
        name, equals, value = word[2:].partition("=")
        base, dot, key = name.partition(".")
        return base.replace("_", "-").lower() + dot + key, value if equals else None
    if match := re.fullmatch(r"-O(\d)", word):
        return _SHORT["O"], match[1]
    if match := re.fullmatch(r"-([A-Za-z]+)(\.[^=]+)?(?:=(.*))?", word, re.DOTALL):
        return _SHORT.get(match[1], match[1]) + (match[2] or ""), match[3]
    return "", None


def _read_value(text: str) -> Any:
    """Return a word's value: a mapping, a number in our own notation, or else the text itself."""
    if text.lstrip().startswith("{"):
        try:
            value = msgspec.json.decode(text)
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            return text
        return value if isinstance(value, dict) and not _is_deep(value, _DEEPEST) else text
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        if str(number) == text:
            return number
    return text


def _is_deep(value: Any, left: int) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return parts is not None and (left == 0 or any(_is_deep(part, left - 1) for part in parts))


def _import_speculation(making: _Import) -> dict[str, Any]:
    config = making.take("speculative-config")
    config = dict(config) if isinstance(config, Mapping) else {}
    dotted = [name for name in making.flags if name.startswith(_DOTTED)]
    config |= {name.removeprefix(_DOTTED): making.take(name) for name in dotted}
    for flag, key in (("spec-method", "method"), ("spec-model", "model"), ("spec-tokens", "num_speculative_tokens")):
        if (value := making.take(flag)) is not None:
            config.setdefault(key, value)
    if not config:
        return _NO_SPECULATION
    method = _find_method(config)
    if method is None:
        making.leave(f"--speculative-config {json.dumps(config)}", "dflash-tui does not know its method")
        return _NO_SPECULATION
    model, tokens, revision = (config.pop(key, None) for key in ("model", "num_speculative_tokens", "revision"))
    config.pop("method", None)
    keys: dict[str, Any] = {} if method is Method.DFLASH else {"method": method.value}
    if model and FACTS[method].drafter is not DrafterUse.NEVER:
        keys["drafter"] = {"model": str(model)} | ({"revision": str(revision)} if revision else {})
    keys["num_speculative_tokens"] = FACTS[method].default_tokens if tokens is None else tokens
    if keys["num_speculative_tokens"] is None:
        raise UsageError(
            "the command does not say how many tokens are drafted per step, and vLLM would read it from the drafter",
            hint="add num_speculative_tokens to its --speculative-config",
        )
    for key in list(config):
        if find_secret(f"speculation.{key}", config[key]):
            making.leave(f"{key} of --speculative-config", f"holds a secret; {advise_on_secret(key)}")
            del config[key]
    return keys | ({"speculation": config} if config else {})


def _find_method(config: Mapping[str, Any]) -> Method | None:
    """Return the method of a --speculative-config as vLLM reads it; None if recipes do not support it."""
    if (named := config.get("method")) is not None:
        name = "mtp" if str(named).endswith("_mtp") else str(named)
        return Method(name) if name in set(Method) else None
    drafter = str(config.get("model", "")).lower()
    guessed = (method for part, method in NAME_PARTS.items() if part in drafter)
    return next(guessed, Method.DRAFT_MODEL if drafter else None)


def _import_port(making: _Import) -> dict[str, Any]:
    if (host := making.take("host")) is not None:
        making.leave(f"--host {host}", "servers listen on 127.0.0.1; --set host=ADDRESS opens one")
    port = str(making.take("port") or "")
    if re.fullmatch(r"[1-9][0-9]{0,4}", port) and int(port) <= HIGHEST_PORT:
        return {"port": int(port)}
    if port:
        making.leave(f"port {port[:_LONGEST]}", "is not a port")
    return {}


def _import_env(making: _Import, command: ShellCommand) -> dict[str, str]:
    env: dict[str, str] = {}
    for name, value in command.env.items():
        if find_secret(f"env.{name}", value):
            making.leave(f"variable {name}", f"holds a secret; {advise_on_secret(f'env.{name}')}")
        elif not _fits(EnvName, name):
            making.leave(f"variable {name}", "is not a name of a variable")
        else:
            env[name] = value
    return env


def _import_flags(making: _Import) -> dict[str, Any]:
    flags: dict[str, Any] = {}
    for name, value in making.flags.items():
        if find_secret(f"flags.{name}", value):
            making.leave(f"--{name}", f"holds a secret; {advise_on_secret(name)}")
        elif reason := serve_flags.explain_reserved_flag(name):
            making.leave(f"--{name}", reason)
        elif not _fits(FlagName, name):
            making.leave(f"--{name}", "is not a name of a flag")
        else:
            flags[name] = make_absolute(name, value)
    return flags


def _fits(kind: Any, text: str) -> bool:
    try:
        msgspec.convert(text, kind)
    except msgspec.ValidationError:
        return False
    return True
