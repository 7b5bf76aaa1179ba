"""What an experiment varies: `KEY=V1,V2,…` as named arms, each with what it changes of the launch request. Pure."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import yaml

from dflash_tui.common import yaml_loader
from dflash_tui.common.errors import UsageError
from dflash_tui.common.settings_secrets import advise_on_secret, find_secret
from dflash_tui.planning.recipe import Mode
from dflash_tui.planning.request import LaunchChanges

DEFAULT = "mode=eager,compile"
_FIELDS = ("mode", "profile", "variant", "vllm", "engine")
_MODES = tuple(Mode)
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
    """A parsed `--vary`."""

    key: str
    """What is varied, such as `mode`, `n` or `env.NAME`."""
    arms: dict[str, LaunchChanges]
    """By the arms' names, what each changes of the request."""


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
    values = _split_values(key, rest)
    if place := find_secret(key, values):
        what = f"--vary {place}: these are secrets, and arms are called by their values"
        raise UsageError(what, hint=f"{advise_on_secret(place)}, the same for all arms")
    if len(values) < 2:
        raise UsageError(f"--vary {words}: one value alone is compared with nothing", hint=f"--vary {key}=VALUE,VALUE")
    arms: dict[str, LaunchChanges] = {}
    for value in values:
        seen = sum(name == value or name.startswith(f"{value} (") for name in arms)
        arms[f"{value} ({seen + 1})" if seen else value] = _build_changes(key, value)
    return Varied(key, arms)


def order_boots(arms: int, boots: int) -> tuple[int, ...]:
    """Return the arm of each boot: forward, backward, forward …, so that what drifts meets every arm alike."""
    passes = [range(arms) if turn % 2 == 0 else reversed(range(arms)) for turn in range(boots)]
    return tuple(arm for one in passes for arm in one)


def _split_values(key: str, text: str) -> list[str]:
    line = f"[{text}]"
    try:
        node = yaml_loader.compose_yaml(line)
    except yaml_loader.YamlError as error:
        raise UsageError(
            f"--vary {key}: these are no values with commas between", evidence=str(error), hint="quote what is text"
        ) from None
    if not isinstance(node, yaml.SequenceNode) or node.end_mark.index != len(line):
        raise UsageError(f"--vary {key}: brackets that do not match", hint="quote what is text")
    values = [
        each.value if isinstance(each, yaml.ScalarNode) else line[each.start_mark.index : each.end_mark.index]
        for each in node.value
    ]
    if any(not value.strip() or not value.isprintable() for value in values):
        raise UsageError(f"--vary {key}: a value is empty or not plain text", hint=f"--vary {key}=VALUE,VALUE")
    return values


def _build_changes(key: str, value: str) -> LaunchChanges:
    """Return what an arm changes; a value that names nothing is noticed when the arm is planned."""
    part, _, name = key.partition(".")
    if key in _FIELDS:
        return _change_field(key, value)
    if key == "spec" and _switch(key, value):
        return LaunchChanges(removed=("num_speculative_tokens",), removed_settings=("n",))
    if key == "spec" or key.replace("-", "_") in {"n", "num_speculative_tokens"}:
        tokens = 0 if key == "spec" else _read_tokens(value)
        return LaunchChanges(num_speculative_tokens=tokens, removed_settings=("n",))
    if part in {"patch", "patches"} and name:
        return LaunchChanges(settings={f"patches.{name}": "true" if _switch(key, value) else "false"})
    return LaunchChanges(settings={key: value})


def _change_field(name: str, value: str) -> LaunchChanges:
    if name == "mode" and value not in _MODES:
        raise UsageError(f"--vary mode: expected eager, graphs or compile, not '{value}'")
    if value.startswith("-"):
        raise UsageError(f"--vary {name}: '{value}' is no name of one")
    if name == "variant" and value == "none":
        return LaunchChanges(removed=("variant",))
    return msgspec.convert({name: value}, LaunchChanges)


def _read_tokens(value: str) -> int:
    if not (value.isascii() and value.isdigit() and int(value) <= 64):
        raise UsageError(f"--vary n: expected whole numbers from 0 to 64, not '{value}'")
    return int(value)


def _switch(key: str, value: str) -> bool:
    if value not in {"on", "off"}:
        raise UsageError(f"--vary {key}: expected on or off, not '{value}'", hint=f"--vary {key}=on,off")
    return value == "on"
