"""The names of the flags of `vllm serve`, release by release, so that a misspelt one is found without an engine."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache

import msgspec

from dflash_tui.common import paths
from dflash_tui.common.formatting import suggest_nearest
from dflash_tui.common.untrusted_json import register_type
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


def list_changes(flags_by_release: Mapping[str, Iterable[str]]) -> dict[str, FlagChanges]:
    """Return the table of these releases, oldest first."""
    changes, before = {}, set[str]()
    for version, names in flags_by_release.items():
        flags = {*names}
        changes[version] = FlagChanges(" ".join(sorted(flags - before)), " ".join(sorted(before - flags)))
        before = flags
    return changes


def is_unknown_flag(vllm: str, name: str) -> bool:
    """Whether a release has no such flag; of one that is not in the table nothing is known.

    As vLLM's parser reads it: `_` for `-`, any beginning of a name for the name, and what follows a dot is a key of it.
    """
    flags = list_flags(vllm)
    plain = _simplify(name)
    beginnings = (plain, plain.removeprefix("no-"))
    return bool(flags) and not any(flag.startswith(beginnings) for flag in flags)


def explain_unknown_flags(
    vllm: str, names: Sequence[str], flags: Collection[str], form: str = ", did you mean {}?"
) -> list[str]:
    """Return that a release has no such flags, with the nearest of `flags` to each; of many the first, and a count.

    Among thousands, to look for the nearest of each takes seconds.
    """
    return explain_some(
        names,
        lambda name: f"vLLM {vllm} has no flag --{_simplify(name)}{suggest_nearest(_simplify(name), flags, form)}",
        "flags that it does not have",
    )


def explain_short_flag(name: str, whole: str) -> str:
    """Return that a flag is written short: vLLM takes it for the `whole` one, and what is counted here does not."""
    return f"--{name} is short for --{whole}, write the whole name"


def explain_some(
    mistakes: Sequence[str], explain: Callable[[str], str], kind: str, most: int = _MOST_EXPLAINED
) -> list[str]:
    """Return a sentence for each of `mistakes`; of many for the first, and how many more of the kind there are."""
    sentences = [explain(mistake) for mistake in mistakes[:most]]
    more = len(mistakes) - most
    return [*sentences, f"and {more:,} more {kind}"] if more > 0 else sentences


def _simplify(name: str) -> str:
    return name.lstrip("-").partition(".")[0].replace("_", "-")
