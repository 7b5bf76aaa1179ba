"""What an A/B varies: `KEY=V1,V2,…` as named arms, each with the options of `up` that it changes. Pure."""

from __future__ import annotations

from typing import NamedTuple

import yaml

from dflash_tui.common.errors import UsageError
from dflash_tui.common.redaction import is_secret, looks_secret
from dflash_tui.planning.recipe import Mode
from dflash_tui.planning.request import Changes

DEFAULT = "mode=eager,compile"
_OPTIONS = ("mode", "profile", "variant", "vllm", "engine")
_MODES = tuple(Mode)
_SWITCHES = {"on": "true", "off": "false"}
# These would make no arms but other experiments, or collide.
_FIXED = frozenset({"port", "host", "gpu", "served-model-name", "served_model_name", "api-key"})
# Flags of vLLM 0.32 that decide what its prefix cache keeps and finds, and nothing else.
_PREFIX_CACHE = frozenset({
    "enable-prefix-caching", "no-enable-prefix-caching", "prefix-caching-hash-algo", "prefix-match-unit",
    "prefix-cache-retention-interval", "enable-mamba-shared-prefix-checkpoint",
    "no-enable-mamba-shared-prefix-checkpoint",
})  # fmt: skip
_KNOWN = (
    "mode, spec=on,off, n, profile, variant, vllm, engine, patch.NAME=on,off, env.NAME, speculation.KEY, "
    "or a flag of vllm serve; values with commas are quoted, or are JSON"
)


class Varied(NamedTuple):
    """What is varied, and by the arms' names what each changes."""

    key: str
    arms: dict[str, Changes]


def parse_variation(words: str) -> Varied:
    """Return the arms of `KEY=V1,V2,…`; a value that is given twice makes two arms that are alike.

    Values are the entries of a YAML list: text as it stands, quoted where it holds a comma, or JSON.

    Raises:
        UsageError: it is not of that form, or may not be varied.
    """
    key, equals, rest = words.partition("=")
    key = key.strip().removeprefix("--")
    if not equals or not key:
        raise UsageError(f"--vary {words}: expected KEY=VALUE,VALUE", hint=f"what can be varied: {_KNOWN}")
    if key in _FIXED:
        raise UsageError(f"--vary {key}: it is the same for all arms", hint=f"what can be varied: {_KNOWN}")
    if key.replace("_", "-") in _PREFIX_CACHE:
        what = f"--vary {key}: each prompt is made unique so that no cache answers, so this would compare nothing"
        do = "vllm bench serve --dataset-name prefix_repetition shows what a prefix cache saves"
        raise UsageError(what, hint=do)
    values = _values(key, rest)
    if (key.startswith("env.") and is_secret(key)) or any(map(looks_secret, values)):
        what = f"--vary {key}: these are secrets, and arms are called by their values"
        raise UsageError(what, hint="export what is secret in your shell, the same for all arms")
    if len(values) < 2:
        raise UsageError(f"--vary {words}: one value alone is compared with nothing", hint=f"--vary {key}=VALUE,VALUE")
    arms: dict[str, Changes] = {}
    for value in values:
        seen = sum(name == value or name.startswith(f"{value} (") for name in arms)
        arms[f"{value} ({seen + 1})" if seen else value] = _changes(key, value)
    return Varied(key, arms)


def order_boots(arms: int, boots: int) -> tuple[int, ...]:
    """Return the arm of each boot: forward, backward, forward …, so that what drifts meets every arm alike."""
    passes = [range(arms) if turn % 2 == 0 else reversed(range(arms)) for turn in range(boots)]
    return tuple(arm for one in passes for arm in one)


def _values(key: str, text: str) -> list[str]:
    line = f"[{text}]"
    try:
        node = yaml.compose(line, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        said = getattr(error, "problem", "") or str(error)
        raise UsageError(
            f"--vary {key}: these are no values with commas between", evidence=said, hint="quote what is text"
        ) from None
    if not isinstance(node, yaml.SequenceNode) or node.end_mark.index != len(line):
        raise UsageError(f"--vary {key}: brackets that do not match", hint="quote what is text")
    found = [
        each.value if isinstance(each, yaml.ScalarNode) else line[each.start_mark.index : each.end_mark.index]
        for each in node.value
    ]
    if any(not value.strip() or not value.isprintable() for value in found):
        raise UsageError(f"--vary {key}: a value is empty or not plain text", hint=f"--vary {key}=VALUE,VALUE")
    return found


def _changes(key: str, value: str) -> Changes:
    """Return the options of `up` that an arm changes; those that name nothing are found when the arm is planned."""
    part, _, name = key.partition(".")
    if key == "mode" and value not in _MODES:
        raise UsageError(f"--vary mode: expected eager or compile, not '{value}'")
    if key in _OPTIONS and value.startswith("-"):
        raise UsageError(f"--vary {key}: '{value}' is no name of one")
    if key in _OPTIONS:
        return {f"--{key}": None if key == "variant" and value == "none" else value}
    if key == "spec":
        return {"--num-speculative-tokens": None if _switch(key, value) == "true" else "0", "--set n": None}
    if key in {"n", "num-speculative-tokens", "num_speculative_tokens"}:
        if not (value.isascii() and value.isdigit() and int(value) <= 64):
            raise UsageError(f"--vary n: expected whole numbers from 0 to 64, not '{value}'")
        return {"--num-speculative-tokens": value, "--set n": None}
    if part in {"patch", "patches"} and name:
        return {f"--set patches.{name}": _switch(key, value)}
    return {f"--set {key}": value}


def _switch(key: str, value: str) -> str:
    if value not in _SWITCHES:
        raise UsageError(f"--vary {key}: expected on or off, not '{value}'", hint=f"--vary {key}=on,off")
    return _SWITCHES[value]
