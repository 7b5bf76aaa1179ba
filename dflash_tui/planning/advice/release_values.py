"""The values that flags of `vllm serve` take, release by release, so that a wrong one is found without an engine."""

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cache
from itertools import pairwise

import msgspec

from dflash_tui.common import paths
from dflash_tui.common.errors import UsageError
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.planning.advice import release_flags
from dflash_tui.planning.advice.flag_conflicts import find_conflicts

FILE = paths.PACKAGE_ROOT / "vllm_flag_values.json"
_WHOLE = re.compile(r"[+-]?\d+(_\d+)*")
_SIZE = re.compile(r"[+-]?\d+(?:\.\d+)?[kmgt]|[+-]?\d+[KMGT]?")
_PLUGINS = {"tool-call-parser": "tool-parser-plugin", "reasoning-parser": "reasoning-parser-plugin"}
# With one of them vLLM may take another tokenizer than the target's.
_OTHER_TOKENIZER = frozenset({"tokenizer", "tokenizer-mode", "tokenizer-revision", "skip-tokenizer-init"})
_MOST_SHOWN = 12


class Kind(StrEnum):
    """What the parser reads a value as."""

    SWITCH = "switch"
    WHOLE = "whole"
    SIZE = "size"
    """A whole number that may be written as 16k."""
    SIZE_OR_AUTO = "size or auto"
    NUMBER = "number"
    CHOICE = "choice"


_NUMBERS = {
    Kind.NUMBER: "a number",
    Kind.WHOLE: "a whole number",
    Kind.SIZE: "a whole number, as 16384 or 16k,",
    Kind.SIZE_OR_AUTO: "auto or a whole number, as 16384 or 16k,",
}


class FlagValues(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The values that a flag takes."""

    kind: Kind
    choices: tuple[str, ...] = ()
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    needs: dict[str, tuple[str, ...]] = {}
    """Of parsers, the tokens without which one refuses a tokenizer."""


class ValueChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How the values of a release differ from those of the release before it in the table."""

    changed: dict[str, FlagValues] = {}
    removed: tuple[str, ...] = ()
    """Flags that are gone, or of which nothing is known from this release on."""


register_type(ValueChanges)


@cache
def _load_changes() -> dict[str, ValueChanges]:
    return msgspec.json.decode(FILE.read_bytes(), type=dict[str, ValueChanges])


@cache
def list_values(vllm: str) -> Mapping[str, FlagValues]:
    """Return by flag what it takes in a release; empty for a release that the table does not have."""
    values: dict[str, FlagValues] = {}
    for version, changes in _load_changes().items():
        values = {name: takes for name, takes in (values | changes.changed).items() if name not in changes.removed}
        if version == vllm:
            return values
    return {}


def list_changes(values_by_release: Mapping[str, Mapping[str, FlagValues]]) -> dict[str, ValueChanges]:
    """Return the table of these releases, oldest first."""
    changes, before = {}, dict[str, FlagValues]()
    for version, values in values_by_release.items():
        changed = {name: takes for name, takes in values.items() if before.get(name) != takes}
        changes[version] = ValueChanges(changed, tuple(name for name in before if name not in values))
        before = dict(values)
    return changes


def find_mistakes(vllm: str, words: Sequence[str]) -> list[str]:
    """Return a sentence for each flag on a command line that the release does not have, or whose value it refuses.

    Of many those of the first, and how many more there are.
    Two values that it refuses together have a sentence, too.

    Args:
        vllm: The release; of one that is not in the table nothing is known.
        words: What follows the model of `vllm serve`.
    """
    flags = list(_split_flags(words))
    names = {_complete(vllm, name) for name, _ in flags}
    unknown = {name: None for name, _ in flags if release_flags.is_unknown_flag(vllm, name)}
    mistakes = release_flags.explain_unknown_flags(vllm, [*unknown], release_flags.list_flags(vllm))
    short = {name: whole for name, _ in flags if (whole := _complete(vllm, name)) != name.replace("_", "-")}
    mistakes += release_flags.explain_some(
        [*short],
        lambda name: release_flags.explain_short_flag(name, short[name]),
        "flags that are written short",
    )
    wrong = [
        explain_wrong_value(vllm, name, values)
        for name, values in flags
        if name not in unknown and _PLUGINS.get(_complete(vllm, name)) not in names
    ]
    mistakes += release_flags.explain_some([*filter(None, wrong)], str, "values that it refuses")
    return mistakes or list(find_conflicts(read_flags(vllm, words)))


def read_flags(vllm: str, words: Sequence[str]) -> dict[str, list[str]]:
    """Return the words of each flag on a command line, by its whole name without dashes; the last of several counts."""
    return {_complete(vllm, name): values for name, values in _split_flags(words)}


def find_missing_tokens(vllm: str, flag: str, parser: str, tokens: Collection[str]) -> list[str]:
    """Return the tokens that a parser of a release insists on and a tokenizer lacks."""
    takes = list_values(vllm).get(flag)
    return [token for token in takes.needs.get(parser, ()) if token not in tokens] if takes else []


def find_parsers(vllm: str, words: Sequence[str]) -> dict[str, str]:
    """Return by flag the release's own parsers on a command line, where they read the target's own tokenizer."""
    flags = read_flags(vllm, words)
    if flags.keys() & _OTHER_TOKENIZER:
        return {}
    return {flag: " ".join(flags[flag]) for flag, plugin in _PLUGINS.items() if flag in flags and plugin not in flags}


def check_settings(vllm: str, settings: Mapping[str, Sequence[str]]) -> None:
    """Check flags that were set by hand, each with the words that it becomes.

    Raises:
        UsageError: the release has no such flag, or refuses its value.
    """
    all_words = [word for words in settings.values() for word in words]
    for name, words in settings.items():
        for problem in find_mistakes(vllm, words):
            if problem in find_mistakes(vllm, all_words):  # a plug-in among them may bring other names
                raise UsageError(f"--set {name}: {problem}")


def _split_flags(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each flag without dashes, and its words."""
    starts = [index for index, word in enumerate(words) if word.startswith("--")]
    for start, end in pairwise([*starts, len(words)]):
        name, joined, value = words[start].partition("=")
        yield name[2:], [*([value] if joined else []), *words[start + 1 : end]]


def _complete(vllm: str, name: str) -> str:
    """Return the name of a flag as vLLM's parser completes it: `_` is `-`, and the one that begins so is meant."""
    flags, plain = release_flags.list_flags(vllm), name.replace("_", "-")
    base, dot, key = plain.partition(".")
    longer = [flag for flag in flags if flag.startswith(base)]
    return f"{longer[0]}{dot}{key}" if base not in flags and len(longer) == 1 else plain


def explain_wrong_value(vllm: str, name: str, words: Sequence[str]) -> str:
    """Return why a release refuses the value of a flag; empty where it takes it or nothing is known."""
    takes = list_values(vllm).get(_complete(vllm, name))
    if takes is None:
        return ""
    value = " ".join(words)
    if takes.kind is Kind.SWITCH:
        expectation = "true or false" if words else ""
    else:
        expectation = _explain_choice(takes, value) if takes.kind is Kind.CHOICE else _explain_number(takes, value)
    return f"--{name} {value or '(nothing)'}: vLLM {vllm} takes {expectation}" if expectation else ""


def explain_wrong_number(vllm: str, name: str, words: Sequence[str]) -> str:
    """Return why a release refuses the number that a flag has; empty for a flag that takes none."""
    takes = list_values(vllm).get(_complete(vllm, name))
    is_number = takes is not None and takes.kind not in {Kind.SWITCH, Kind.CHOICE}
    return explain_wrong_value(vllm, name, words) if is_number else ""


def _explain_choice(takes: FlagValues, value: str) -> str:
    """Return what is expected instead; empty where the value is one of the choices."""
    if value in takes.choices:
        return ""
    near = difflib.get_close_matches(value, takes.choices, 3)
    if near and len(takes.choices) > _MOST_SHOWN:
        return f"for instance {', '.join(near)}"
    more = ", …" if len(takes.choices) > _MOST_SHOWN else ""
    return f"one of {', '.join(takes.choices[:_MOST_SHOWN])}{more}"


def _explain_number(takes: FlagValues, value: str) -> str:
    """Return what is expected instead; empty where the value is a number within the bounds."""
    if takes.kind is Kind.SIZE_OR_AUTO and value.strip().lower() in {"-1", "auto"}:
        return ""
    what = _NUMBERS[takes.kind]
    low, high = takes.least if takes.above is None else takes.above, takes.most if takes.below is None else takes.below
    if low is None and takes.kind in {Kind.SIZE, Kind.SIZE_OR_AUTO}:
        low = 1
    bounds = [] if low is None else [f"{'from' if takes.above is None else 'above'} {low:g}"]
    bounds += [] if high is None else [f"{'up to' if takes.below is None else 'below'} {high:g}"]
    number = _read_number(takes.kind, value)
    if number is None or not _is_within(takes, number, low, high):
        return " ".join([what, *bounds])
    return ""


def _read_number(kind: Kind, value: str) -> float | None:
    text = value.strip()
    pattern = _WHOLE if kind is Kind.WHOLE else _SIZE if kind is not Kind.NUMBER else None
    if pattern and not pattern.fullmatch(text):
        return None
    try:
        return float(text.rstrip("kmgtKMGT") if kind in {Kind.SIZE, Kind.SIZE_OR_AUTO} else text)
    except ValueError:
        return None


def _is_within(takes: FlagValues, number: float, low: float | None, high: float | None) -> bool:
    enough = low is None or (number >= low if takes.above is None else number > low)
    return enough and (high is None or (number <= high if takes.below is None else number < high))
