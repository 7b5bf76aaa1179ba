"""The names of the flags of `vllm serve`, release by release, so that a misspelt one is found without an engine."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise

import msgspec

from dflash_tui.common import paths
from dflash_tui.common.errors import UsageError
from dflash_tui.common.formatting import suggest_nearest
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.planning.advice.flag_conflicts import find_conflicts
from dflash_tui.planning.text_cache import load_table

FILE = paths.PACKAGE_ROOT / "vllm_flags.yaml"
_MOST_EXPLAINED = 10


class FlagChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the flags of a release differ from those of the release before it in the table."""

    added: str = ""
    """Names without dashes, with spaces between."""
    removed: str = ""
    """Names that are gone."""


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    releases: dict[str, FlagChanges]


register_type(_Table)


@cache
def list_flags(vllm: str) -> frozenset[str]:
    """Return the names of a release's flags, without dashes; empty for a release that the table does not have."""
    table = load_table(FILE, _Table).releases
    if vllm not in table:
        return frozenset()
    flags: set[str] = set()
    for version, changes in table.items():
        flags = (flags | set(changes.added.split())) - set(changes.removed.split())
        if version == vllm:
            break
    return frozenset(flags)


def find_mistakes(vllm: str, words: Sequence[str], names: Collection[str] | None = None) -> list[str]:
    """Return a sentence for each flag on a command line that vLLM does not have, or that is written short.

    Where there is none, for each two values that it refuses together. Other values are judged by its own parser.

    Args:
        vllm: The release.
        words: What follows the model of `vllm serve`.
        names: The flags that it has, where its parser was asked; else those of the table, of which nothing is known
            for a release that it does not have.
    """
    known = list_flags(vllm) if names is None else names
    if not known:
        return []
    given = list(dict.fromkeys(name for name, _ in _split_flags(words)))
    whole = {name: _complete(known, name) for name in given}
    unknown = [name for name in given if not _is_known(known, whole[name])]
    mistakes = explain_some(
        unknown,
        lambda name: (
            f"vLLM {vllm} has no flag --{_base(name)}{suggest_nearest(_base(name), known, ', did you mean --{}?')}"
        ),
        "flags that it does not have",
    )
    short = [name for name in given if name not in unknown and whole[name] != name.replace("_", "-")]
    # vLLM takes it for the whole one, and what is counted here does not.
    mistakes += explain_some(
        short,
        lambda name: f"--{name} is short for --{whole[name]}, write the whole name",
        "flags that are written short",
    )
    return mistakes or list(find_conflicts(read_flags(known, words)))


def read_flags(known: Collection[str], words: Sequence[str]) -> dict[str, list[str]]:
    """Return the words of each flag on a command line, by its whole name without dashes; the last of several counts."""
    return {_complete(known, name): values for name, values in _split_flags(words)}


def check_settings(vllm: str, settings: Mapping[str, Sequence[str]]) -> None:
    """Check flags that were set by hand, each with the words that it becomes.

    Raises:
        UsageError: the release has no such flag.
    """
    for name, words in settings.items():
        for problem in find_mistakes(vllm, words):
            raise UsageError(f"--set {name}: {problem}")


def explain_some(
    mistakes: Sequence[str], explain: Callable[[str], str], kind: str, most: int = _MOST_EXPLAINED
) -> list[str]:
    """Return a sentence for each of `mistakes`; of many for the first, and how many more of the kind there are.

    Among thousands, to look for the nearest name of each takes seconds.
    """
    sentences = [explain(mistake) for mistake in mistakes[:most]]
    more = len(mistakes) - most
    return [*sentences, f"and {more:,} more {kind}"] if more > 0 else sentences


def _split_flags(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each flag without dashes, and its words."""
    starts = [index for index, word in enumerate(words) if word.startswith("--")]
    for start, end in pairwise([*starts, len(words)]):
        name, joined, value = words[start].partition("=")
        yield name[2:], [*([value] if joined else []), *words[start + 1 : end]]


def _base(name: str) -> str:
    return name.partition(".")[0].replace("_", "-")


def _complete(known: Collection[str], name: str) -> str:
    """Return the name of a flag as vLLM's parser completes it: `_` is `-`, and the one that begins so is meant."""
    base, dot, key = name.replace("_", "-").partition(".")
    longer = [flag for flag in known if flag.startswith(base)]
    return f"{longer[0]}{dot}{key}" if base not in known and len(longer) == 1 else name.replace("_", "-")


def _is_known(known: Collection[str], whole: str) -> bool:
    """Whether there is a flag of that name, or one that begins so; a switch may be turned off by `no-`."""
    beginnings = (_base(whole), _base(whole).removeprefix("no-"))
    return any(flag.startswith(beginnings) for flag in known)
