"""Flags of `vllm serve`: their names by release, which a recipe may set, which vLLM refuses, which take paths."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dflash_tui.common import paths
from dflash_tui.common.errors import UsageError
from dflash_tui.common.formatting import suggest_nearest
from dflash_tui.common.secrets import advise_on_secret
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.common.yaml_loader import load_yaml
from dflash_tui.planning.field_types import PLAIN_TEXT, FlagValue

_SUFFIXES = {letter: 1000**power for power, letter in enumerate("kmgt", 1)}
_SUFFIXES |= {letter: 1024**power for power, letter in enumerate("KMGT", 1)}
T = TypeVar("T")


def normalize_flag_names(flags: Mapping[str, T]) -> dict[str, T]:
    """Return the flags by vLLM's names: `_` becomes `-` up to the first dot, and the last duplicate wins."""
    return {_normalize_name(name): value for name, value in flags.items()}


@lru_cache(maxsize=1024)
def _normalize_name(name: str) -> str:
    return re.sub(r"^[^.]+", lambda match: match[0].replace("_", "-"), name)


def is_text_only(flags: Mapping[str, Any]) -> bool:
    """Whether the flags turn images and sound off, so that vLLM loads no tower for them."""
    limits = flags.get("limit-mm-per-prompt")
    none = isinstance(limits, Mapping) and bool(limits) and not any(limits.values())
    return none or bool(flags.get("language-model-only"))


def read_whole_number(flags: Mapping[str, Any], name: str) -> int | None:
    """Return a flag's whole number, such as `16384` or vLLM's `16k` (1000) and `16K` (1024); None without one."""
    return parse_whole_number(str(flags.get(name)))


def parse_whole_number(text: str) -> int | None:
    """Return a whole number written as for `read_whole_number`; None if it is not one."""
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?)([kmgtKMGT]?)", text.strip())
    return int(float(match[1]) * _SUFFIXES.get(match[2], 1)) if match else None


# One eighth of the longest argument that Linux accepts.
_LONGEST_VALUE = 1 << 14
FIRST_WITH_DFLASH = "0.20.0"
RESERVED_FLAGS = frozenset(
    {
        "host",
        "port",
        "served-model-name",
        "speculative-config",
        "enforce-eager",
        "model",
        "revision",
        "api-key",
        "disable-access-log-for-endpoints",
        "spec-method",
        "spec-model",
        "spec-tokens",
        "config",  # a file of flags, which could set the others
        "uds",  # replaces host and port
    }
)
# Flags that hold secrets, with the shortest prefix that vLLM's parser accepts for each.
_SECRET_FLAGS = {"hf-token": "hf-t", "api-key": "api-k", "ssl-keyfile-password": "ssl-keyfile-"}
RESERVED_SPECULATION = frozenset({"method", "model", "revision", "num_speculative_tokens"})


@lru_cache(maxsize=1024)  # the recipes share most of their flags
def explain_reserved_flag(flag: str) -> str:
    """Return why a recipe may not set `flag`; empty if it may.

    Names are matched as vLLM does: `_` for `-`, any unique prefix, and a dot before a key.
    """
    plain = flag.replace("_", "-").lower().partition(".")[0].removeprefix("no-")
    for secret, shortest in _SECRET_FLAGS.items():
        if secret.startswith(plain) and plain.startswith(shortest):
            return f"holds a secret: {advise_on_secret(secret)}"
    taken = any(name.startswith(plain) for name in RESERVED_FLAGS)
    return "is set by dflash-tui itself and cannot be set here" if taken else ""


def _explain_unwritable_value(value: Any) -> str:
    try:
        written = json.dumps(value, allow_nan=False, ensure_ascii=False).encode()  # raises for lone surrogates as well
    except (TypeError, ValueError, RecursionError) as error:
        return f"cannot be written as JSON: {error}"
    return f"expected at most {_LONGEST_VALUE:,} bytes" if len(written) > _LONGEST_VALUE else ""


def explain_unusable_value(flag: str, value: Any) -> str:
    """Return why `value` cannot be passed to vLLM or used for planning; empty if it can."""
    if why := _explain_unwritable_value(value):
        return why
    if value is None:
        return ""
    if isinstance(value, str) and not re.search(PLAIN_TEXT, value):
        return "expected text in one line, without control characters"
    if flag == "tensor-parallel-size" and not (type(value) is int and value > 0):
        return f"expected a number of GPUs, not {value!r}"
    if flag == "gpu-memory-utilization" and not (type(value) in {int, float} and 0 < value <= 1):
        return f"expected a share above 0 and up to 1, not {value!r}"
    return ""


# By the sources of vLLM 0.20.2 to 0.33.0: flags that name a file ...
FILES = frozenset({
    "chat-template", "log-config-file", "logging-config.pylogging_config_file", "mm-encoder-fp8-scale-path",
    "reasoning-parser-plugin", "ssl-ca-certs", "ssl-certfile", "ssl-keyfile", "tool-parser-plugin",
})  # fmt: skip
# ... flags that name a folder, or something else such as a repository of the hub ...
FOLDERS = frozenset(["allowed-local-media-path", "generation-config", "hf-config-path", "lora-modules", "tokenizer"])
# ... and flags that name a place to write to.
WRITTEN = frozenset(["download-dir", "mm-encoder-fp8-scale-save-path"])
_TEMPLATE, _LORA = "chat-template", "lora-modules"
# vLLM reads a chat template with one of these characters as the template itself; it ships templates of these names.
_OF_TEXT, _OF_VLLM = frozenset("{}\n"), "template_*.jinja"


def takes_path(name: str) -> bool:
    """Whether a flag takes exactly one path, so that its value is plain text."""
    return _normalize_name(name) in (FILES | FOLDERS | WRITTEN) - {_LORA}


def make_absolute(name: str, value: Any) -> Any:
    """Return a flag's value with its path made absolute; a path to read only if it exists here."""
    flag = _normalize_name(name)
    if flag not in FILES | FOLDERS | WRITTEN or not isinstance(value, str) or not value or _is_text(flag, value):
        return value
    title, equals, place = value.rpartition("=") if flag == _LORA else ("", "", value)
    path = paths.expand_home(place)
    if flag in WRITTEN or _is_there(flag, path):
        return f"{title}{equals}{os.path.abspath(path)}"  # noqa: PTH100 - Path.absolute keeps `..`
    return value


def check_model_path(name: str) -> None:
    """Raise UsageError if a model is named by a path that does not exist."""
    if name.startswith(("/", "./", "../")) and not Path(name).exists():
        hint = "name a folder that holds a model, or a repository of the hub as owner/name"
        raise UsageError(f"there is no model folder {name}", hint=hint)


def list_missing(flags: Mapping[str, Any]) -> dict[str, str]:
    """Return the paths at which vLLM would find nothing, by flag: relative ones, and those that do not exist."""
    missing = {}
    for name, value in flags.items():
        flag = _normalize_name(name)
        if flag not in FILES | FOLDERS or not isinstance(value, str) or _is_text(flag, value):
            continue
        path = Path(value.rpartition("=")[2] if flag == _LORA else value)
        is_path = flag in FILES or path.is_absolute() or str(value).startswith((".", "~"))
        if is_path and not (path.is_absolute() and _is_there(flag, path)):
            missing[name] = value
    return missing


def _is_text(flag: str, value: str) -> bool:
    """Whether the value is a template's text, or a template that vLLM ships."""
    return flag == _TEMPLATE and (bool(_OF_TEXT & {*value}) or ("/" not in value and Path(value).match(_OF_VLLM)))


def _is_there(flag: str, path: Path) -> bool:
    try:
        return path.is_file() if flag in FILES else path.is_dir()
    except (OSError, ValueError):  # such as a name that is too long
        return False


_BATCHED, _LENGTH, _SEQUENCES = "max-num-batched-tokens", "max-model-len", "max-num-seqs"
_UNCHUNKED = "no-enable-chunked-prefill"


def find_conflicts(flags: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield a sentence per pair of values that `SchedulerConfig.verify_max_model_len` refuses."""
    values = {name: " ".join(words) for name, words in flags.items()}
    batched, length, sequences = (read_whole_number(values, name) for name in (_BATCHED, _LENGTH, _SEQUENCES))
    if batched is None:
        return
    if _UNCHUNKED in flags and length is not None and batched < length:
        yield (
            f"--{_UNCHUNKED} with --{_BATCHED} {batched}, less than --{_LENGTH} {length}: vLLM refuses it; raise "
            f"{_BATCHED} to {length}, lower {_LENGTH}, or leave chunked prefill on"
        )
    if sequences is not None and batched < sequences:
        yield f"--{_BATCHED} {batched} is less than --{_SEQUENCES} {sequences}: raise it to {sequences} or more"


FILE = paths.PACKAGE_ROOT / "vllm_flags.yaml"


class FlagChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a release's flags differ from the release before it: names without dashes, separated by spaces."""

    added: str = ""
    removed: str = ""


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    releases: dict[str, FlagChanges]


register_type(_Table)


@cache
def list_flags(vllm: str) -> frozenset[str]:
    """Return the names of a release's flags, without dashes; empty for a release that the table lacks."""
    table = load_yaml(FILE, _Table).releases
    if vllm not in table:
        return frozenset()
    flags: set[str] = set()
    for version, changes in table.items():
        flags = (flags | set(changes.added.split())) - set(changes.removed.split())
        if version == vllm:
            break
    return frozenset(flags)


def find_mistakes(vllm: str, words: Sequence[str], names: frozenset[str] | None = None) -> list[str]:
    """Return a sentence per flag on a command line that vLLM does not have, or that is abbreviated.

    If there is none, a sentence per pair of values that vLLM refuses; vLLM's parser checks all other values. `names`
    are the flags by the engine's parser; without them the table's are used, and an unknown release has no mistakes.
    """
    known = list_flags(vllm) if names is None else names
    if not known:
        return []
    given = {name: _complete(known, name) for name, _ in _split_flags(words)}
    mistakes = [
        f"vLLM {vllm} has no flag --{base}{suggest_nearest(base, known, ', did you mean --{}?')}"
        for base in (_base(name) for name, (_, is_known) in given.items() if not is_known)
    ]
    # vLLM accepts the abbreviation, but this program looks flags up by their whole names.
    mistakes += [
        f"--{name} is short for --{whole}, write the whole name"
        for name, (whole, is_known) in given.items()
        if is_known and whole != name.replace("_", "-")
    ]
    return mistakes or list(find_conflicts(read_flags(known, words)))


def read_flags(known: frozenset[str], words: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of each flag on a command line, by its whole name; the last duplicate wins."""
    return {_complete(known, name)[0]: values for name, values in _split_flags(words)}


def check_settings(vllm: str, settings: Mapping[str, Sequence[str]]) -> None:
    """Raise UsageError if the release lacks a flag that the user set; `settings` has the words of each."""
    for name, words in settings.items():
        for problem in find_mistakes(vllm, words):
            raise UsageError(f"--set {name}: {problem}")


def _split_flags(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    starts = [index for index, word in enumerate(words) if word.startswith("--")]
    for start, end in pairwise([*starts, len(words)]):
        name, joined, value = words[start].partition("=")
        yield name[2:], [*([value] if joined else []), *words[start + 1 : end]]


def _base(name: str) -> str:
    return name.partition(".")[0].replace("_", "-")


@lru_cache(maxsize=1 << 14)  # the combinations of a recipe's parts repeat the same flags
def _complete(known: frozenset[str], name: str) -> tuple[str, bool]:
    """Return a flag's name as vLLM's parser completes it, and whether vLLM has it.

    `_` is `-`, a unique prefix means the flag, a dot starts a key, and `no-` turns a switch off.
    """
    plain, base = name.replace("_", "-"), _base(name)
    if base in known:
        return plain, True
    longer = [flag for flag in known if flag.startswith((base, base.removeprefix("no-")))]
    if len(longer) == 1 and longer[0].startswith(base):
        return longer[0] + plain.removeprefix(base), True
    return plain, bool(longer)


def build_flag(name: str, value: FlagValue) -> list[str]:
    """Return the words of one flag: a switch for true, JSON for a mapping, several words for a list.

    A key inside a flag (`compilation-config.mode`) takes one word, which vLLM reads as JSON. A value that starts with a
    dash is joined by `=`, or vLLM would read it as another flag.
    """
    is_key = "." in name
    if isinstance(value, bool) and not is_key:
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, list) and not is_key:
        return [f"--{name}", *value]
    word = json.dumps(value) if isinstance(value, bool | list | dict) else str(value)
    return [f"--{name}={word}"] if word.startswith("-") else [f"--{name}", word]
