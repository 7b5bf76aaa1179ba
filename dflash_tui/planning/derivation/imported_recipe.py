"""Convert a `vllm serve` command into the text of a recipe, and list what was left out. Pure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import yaml

from dflash_tui.common.errors import UsageError
from dflash_tui.common.secrets import explain_secrets, list_own_secrets
from dflash_tui.planning.derivation.pair import NAME_PARTS
from dflash_tui.planning.methods import FACTS, DrafterUse, Method
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.serve_flags import explain_reserved_flag, make_absolute

_HINT = "dflash-tui recipes import -- vllm serve MODEL …"
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_SHELL = frozenset({"&&", "||", ";", "|", "&", ">", ">>", "2>&1", "2>", "<"})
# Short options of `vllm serve`; the long name of each is a flag.
_SHORT = {
    "ac": "attention-config", "cc": "compilation-config", "dp": "data-parallel-size", "ep": "enable-expert-parallel",
    "O": "optimization-level", "pp": "pipeline-parallel-size", "q": "quantization", "sc": "speculative-config",
    "tp": "tensor-parallel-size",
}  # fmt: skip
_FLAG = re.compile(r"-(?!\d+(?:\.\d+)?$)")
# The loader refuses deeper YAML, and Python could not write it.
_MOST_NESTED = 14
_SPECULATION = "speculative-config"
# Flags of their own for keys of the speculative config.
_SPECULATION_FLAGS = {"spec-method": "method", "spec-model": "model", "spec-tokens": "num_speculative_tokens"}


class LeftOut(msgspec.Struct, frozen=True):
    """A part of a command that the recipe leaves out, and why."""

    what: str
    """The part as written in the command; it may hold a secret."""
    why: str


class ImportedRecipe(NamedTuple):
    """A recipe made from a command."""

    name: str
    text: str
    left_out: tuple[LeftOut, ...]


def import_recipe(words: Sequence[str]) -> ImportedRecipe:
    """Return the recipe of `[NAME=VALUE …] vllm serve …`, as its words or one text; raise UsageError if it is none."""
    env, positions, flags, left = _split_command(words)
    model = str(flags.pop("model", "") or next(iter(positions), ""))
    left += [LeftOut(word, "is neither a flag nor the value of one") for word in positions if word != model]
    if not model:
        raise UsageError("the command names no model before its flags", hint=_HINT)
    if re.search(r"\$[\w{(]", model):
        raise UsageError(f"{model} is a variable of your shell", hint="write the model's name in its place")
    last = model.rstrip("/").rpartition("/")[2]
    served = flags.pop("served-model-name", last)
    served, *others = served if isinstance(served, list) else [str(served)]
    left += [LeftOut(f"--served-model-name {other}", "a recipe has one") for other in others]
    if host := flags.pop("host", None):
        left.append(LeftOut(f"--host {host}", "servers listen on 127.0.0.1; --set host=ADDRESS opens one"))
    target = {"model": model, "served_name": served}
    target |= {"revision": str(flags.pop("revision"))} if "revision" in flags else {}
    speculation = _import_speculation(flags, left)
    method = speculation.get("method", Method.DFLASH.value)
    recipe: dict[str, Any] = {
        "title": f"{served.rpartition('/')[2]}, {method}, imported",
        "status": "experimental",
        "why": "Imported from a command; not run as a recipe yet.",
        "target": target,
        **speculation,
        "mode": "eager" if flags.pop("enforce-eager", False) else "compile",
        **({"port": flags.pop("port")} if "port" in flags else {}),
        "engine": {"vllm": list(recipe_loader.load_releases())[-1]},
        "env": _drop_secrets("env", env, left),
        "flags": _drop_secrets("flags", flags, left),
    }
    for name in list(recipe["flags"]):
        if reason := explain_reserved_flag(name):
            left.append(LeftOut(f"--{name}", reason))
            del recipe["flags"][name]
    recipe["flags"] = {name: make_absolute(name, value) for name, value in recipe["flags"].items()}
    name = re.sub(r"[^a-z0-9._-]+", "-", f"{last}-{method}".lower()).strip("-._")[:60]
    body = yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True, width=110)
    head = "# Imported by dflash-tui from a command. recipes/README.md explains the keys.\n"
    return ImportedRecipe(name or "imported", head + body, tuple(left))


def _split_command(words: Sequence[str]) -> tuple[dict[str, str], list[str], dict[str, Any], list[LeftOut]]:
    """Return a command's variables, words before the flags, flags with their values, and what follows the command.

    All words up to the next flag are values of a flag, so the model must come before the flags.
    """
    try:
        split = shlex.split(words[0].replace("\\\n", " "), comments=True) if len(words) == 1 else list(words)
    except ValueError as error:
        raise UsageError("the command's quotes do not match", evidence=str(error)) from None
    split = [word for word in split if word.strip() not in {"", "\\"}]
    env: dict[str, str] = {}
    while split and ((assigned := _ASSIGNMENT.fullmatch(split[0])) or split[0] in {"env", "export"}):
        env |= {assigned[1]: assigned[2]} if assigned else {}
        del split[0]
    if len(split) < 2 or split[0].rpartition("/")[2] != "vllm" or split[1] != "serve":
        raise UsageError("the command does not start with vllm serve", hint=_HINT)
    end = next((index for index, word in enumerate(split) if word in _SHELL), len(split))
    left = [LeftOut(" ".join(split[end:]), "is shell syntax, which no recipe has")] if split[end:] else []
    starts = [index for index in range(2, end) if _FLAG.match(split[index])]
    flags: dict[str, Any] = {}
    for start, after in pairwise([*starts, end]):
        name, joined = _name_flag(split[start])
        values = [*([] if joined is None else [joined]), *split[start + 1 : after]]
        if values:
            flags[name] = values if len(values) > 1 else _read_value(values[0])
        else:
            flags[name.removeprefix("no-")] = not name.startswith("no-")
    return env, split[2 : min([*starts, end])], flags, left


def _name_flag(word: str) -> tuple[str, str | None]:
    name, equals, value = word.partition("=")
    base, dot, key = name.partition(".")
    if base.startswith("--"):
        base = base[2:].replace("_", "-").lower()
    elif match := re.fullmatch(r"-O(\d)", base):
        return _SHORT["O"], match[1]
    else:
        base = _SHORT.get(base[1:], base[1:])
    return base + dot + key, value if equals else None


def _read_value(text: str) -> Any:
    """Return a word's value: a mapping, a number in Python's own notation, or else the text itself."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return text
    if isinstance(value, dict):
        return value if text.count("{") + text.count("[") <= _MOST_NESTED else text
    return value if isinstance(value, int | float) and str(value) == text else text


def _import_speculation(flags: dict[str, Any], left: list[LeftOut]) -> dict[str, Any]:
    """Return the keys of a recipe for the speculation that `flags` ask for, and remove these flags."""
    config = flags.pop(_SPECULATION, None)
    config = dict(config) if isinstance(config, dict) else {}
    for name in [name for name in flags if name.startswith(f"{_SPECULATION}.")]:
        config[name.partition(".")[2]] = flags.pop(name)
    for flag, key in _SPECULATION_FLAGS.items():
        if (value := flags.pop(flag, None)) is not None:
            config.setdefault(key, value)
    method = _find_method(config)
    if config and method is None:
        left.append(LeftOut(f"--{_SPECULATION} {json.dumps(config)}", "dflash-tui does not know its method"))
    if not config or method is None:
        return {"method": Method.NONE.value, "num_speculative_tokens": 0}
    config.pop("method", None)
    model, revision = config.pop("model", None), config.pop("revision", None)
    tokens = config.pop("num_speculative_tokens", FACTS[method].default_tokens)
    if tokens is None:
        raise UsageError(
            "the command does not say how many tokens are drafted per step, and vLLM would read it from the drafter",
            hint="add num_speculative_tokens to its --speculative-config",
        )
    keys: dict[str, Any] = {} if method is Method.DFLASH else {"method": method.value}
    if model and FACTS[method].drafter is not DrafterUse.NEVER:
        keys["drafter"] = {"model": str(model)} | ({"revision": str(revision)} if revision else {})
    return keys | {"num_speculative_tokens": tokens, "speculation": _drop_secrets("speculation", config, left)}


def _find_method(config: dict[str, Any]) -> Method | None:
    """Return the method of a --speculative-config as vLLM reads it; None if recipes do not support it."""
    if (named := config.get("method")) is not None:
        name = "mtp" if str(named).endswith("_mtp") else str(named)
        return Method(name) if name in set(Method) else None
    drafter = str(config.get("model", "")).lower()
    guessed = (method for part, method in NAME_PARTS.items() if part in drafter)
    return next(guessed, Method.DRAFT_MODEL if drafter else None)


def _drop_secrets(part: str, values: dict[str, Any], left: list[LeftOut]) -> dict[str, Any]:
    """Return the values of one part of a recipe without secrets, which are added to `left` by their names."""
    secrets = dict(explain_secrets(part, values, list_own_secrets()))
    left += [LeftOut(f"--{name}" if part == "flags" else f"{part} {name}", why) for name, why in secrets.items()]
    return {name: value for name, value in values.items() if name not in secrets}
