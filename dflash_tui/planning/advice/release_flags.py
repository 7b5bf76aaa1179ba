"""The names of the flags of `vllm serve`, release by release, so that a misspelt one is found without an engine."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
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


def find_mistakes(vllm: str, words: Sequence[str], names: frozenset[str] | None = None) -> list[str]:
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
    given = {name: _complete(known, name) for name, _ in _split_flags(words)}
    mistakes = explain_some(
        [_base(name) for name, (_, is_known) in given.items() if not is_known],
        lambda name: f"vLLM {vllm} has no flag --{name}{suggest_nearest(name, known, ', did you mean --{}?')}",
        "flags that it does not have",
    )
    # vLLM takes it for the whole one, and what is counted here does not.
    mistakes += explain_some(
        [name for name, (whole, is_known) in given.items() if is_known and whole != name.replace("_", "-")],
        lambda name: f"--{name} is short for --{given[name][0]}, write the whole name",
        "flags that are written short",
    )
    return mistakes or list(find_conflicts(read_flags(known, words)))


def read_flags(known: frozenset[str], words: Sequence[str]) -> dict[str, list[str]]:
    """Return the words of each flag on a command line, by its whole name without dashes; the last of several counts."""
    return {_complete(known, name)[0]: values for name, values in _split_flags(words)}


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


@lru_cache(maxsize=1 << 14)  # a recipe has the same ones in each of its combinations
def _complete(known: frozenset[str], name: str) -> tuple[str, bool]:
    """Return the name of a flag as vLLM's parser completes it, and whether there is such a flag.

    `_` is `-`, the one that begins so is meant, what follows a dot is a key of it, and a switch is turned off by `no-`.
    """
    plain, base = name.replace("_", "-"), _base(name)
    if base in known:
        return plain, True
    longer = [flag for flag in known if flag.startswith((base, base.removeprefix("no-")))]
    if len(longer) == 1 and longer[0].startswith(base):
        return longer[0] + plain.removeprefix(base), True
    return plain, bool(longer)
