"""Known failures of a vLLM server: what identifies each, its cause and its fix. Pure.

They are rows of `known_failures.yaml`, which explains its keys. The texts were read in the sources of vLLM 0.18 to
0.33, torch, huggingface_hub and uvicorn, recorded, or posted by users.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from dflash_tui.common import yaml_loader
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.events import Phase, Problem
from dflash_tui.machine.hardware import Hardware
from dflash_tui.vllm_output.failure_signs import Sign, list_plain_texts

_FILE = Path(__file__).with_name("known_failures.yaml")
_SHORT = 200
# What is free now may be less in a moment.
_FREE_MARGIN = 0.98
_LEAST_SHARE = 0.05
_PINNED_ENGINE = "the engine that the recipe pins"
_EAGER = "eager mode (--enforce-eager), "
_ANY_ENGINE = "vLLM's own container image (vllm/vllm-openai)"
_EMPTY_PARTS = re.compile(r" ?\( ?s?\)|: (?=$|[.;,])|:$")


class Role(StrEnum):
    """What a failure explains, in the order in which rows are tried."""

    CAUSE = "cause"
    GENERAL = "general"
    CONSEQUENCE = "consequence"
    SYMPTOM = "symptom"


class Circumstances(NamedTuple):
    """What is known of a server that failed; empty or None for what is not."""

    release: str = ""
    hardware: Hardware | None = None
    phase: Phase | None = None
    has_recipe: bool = True
    eager: bool = False
    """Whether it had `--enforce-eager` already."""

    @property
    def engine(self) -> str:
        """A vLLM that works, in words."""
        return _PINNED_ENGINE if self.has_recipe else _ANY_ENGINE

    @property
    def advice_values(self) -> dict[str, str]:
        """What an advice may name in braces: a vLLM that works, and eager mode where that was not tried."""
        return {"engine": self.engine, "eager": "" if self.eager else _EAGER}

    def is_in(self, releases: str) -> bool:
        """Whether the release is known and among `releases`, a requirement."""
        try:
            return SpecifierSet(releases).contains(self.release, prereleases=True)
        except ValueError:  # not known
            return False

    def fits(self, releases: str, hardware: tuple[Hardware, ...], phases: tuple[Phase, ...]) -> bool:
        """Whether what is bound to these happens here; what is bound to something unknown does not."""
        return (
            (not releases or self.is_in(releases))
            and (not hardware or self.hardware in hardware)
            and (not phases or self.phase in phases)
        )


NOWHERE = Circumstances()


class KnownFailure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A known failure: its signs, its cause and its fix, and where it happens."""

    kind: str
    signs: tuple[Sign, ...]
    cause: str = ""
    fix: str = ""
    role: Role = Role.CAUSE
    fixed_in: str = ""
    releases: str = ""
    hardware: tuple[Hardware, ...] = ()
    phases: tuple[Phase, ...] = ()
    likely: bool = False
    link: str = ""

    def __post_init__(self) -> None:
        if bool(self.cause and self.fix) is (self.role is Role.SYMPTOM):
            raise ValueError("a failure needs a cause and a fix, a symptom has neither")
        try:
            SpecifierSet(self.releases)
        except InvalidSpecifier as error:
            raise ValueError(str(error)) from None

    @property
    def is_bound(self) -> bool:
        """Whether it happens only with some releases, on some hardware or in some phases."""
        return bool(self.releases or self.hardware or self.phases)


class FailureMatch(NamedTuple):
    """A known failure found in the message of an error: cause and fix with the values that the message states."""

    failure: KnownFailure
    cause: str
    fix: str
    log_values: dict[str, str]

    @property
    def kind(self) -> str:
        """The name of the failure."""
        return self.failure.kind


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    failures: tuple[KnownFailure, ...]


register_type(_Table)


@cache
def load_known_failures() -> tuple[KnownFailure, ...]:
    """Return the known failures in the order in which they are tried."""
    rows = yaml_loader.load_yaml(_FILE, _Table).failures
    return tuple(sorted(rows, key=lambda row: (list(Role).index(row.role), not row.is_bound)))


def find_fixing_release(kind: str) -> str:
    """Return the first release of vLLM that no longer fails like this; empty where no row says one."""
    return next((row.fixed_in for row in load_known_failures() if row.kind == kind and row.fixed_in), "")


@cache
def list_symptoms() -> frozenset[str]:
    """Return the kinds that only say that something failed before; none of them is ever shown as a cause."""
    return frozenset(row.kind for row in load_known_failures() if row.role is Role.SYMPTOM)


@cache
def _number_plain_texts() -> tuple[tuple[str, int], ...]:
    """Return each text of which a message that shows a failure has one, with the failure's number."""
    return tuple(
        (text, number)
        for number, failure in enumerate(load_known_failures())
        for text in sorted({text for sign in failure.signs for text in list_plain_texts(sign.sign)})
    )


def find_signs(message: str, frames: tuple[str, ...] = ()) -> Iterator[tuple[KnownFailure, re.Match[str]]]:
    """Yield the known failures that a message shows, below these lines of its traceback, wherever they happen."""
    candidates = {number for text, number in _number_plain_texts() if text in message}
    for number, failure in enumerate(load_known_failures()):
        for sign in failure.signs if number in candidates else ():
            if match := sign.search(message, frames):
                yield failure, match
                break


# A failing server logs the same lines over and over; 512 of maximal length take 1 MB.
@lru_cache(maxsize=512)
def recognize_failure(message: str, frames: tuple[str, ...] = ()) -> str:
    """Return the kind of the known failure that a message shows, or an empty string."""
    return next((failure.kind for failure, _ in find_signs(message, frames)), "")


def explain_failure(
    message: str, frames: tuple[str, ...] = (), circumstances: Circumstances = NOWHERE
) -> FailureMatch | None:
    """Return the known failure that a message shows, with its values filled in; None for an unknown one."""
    for failure, match in find_signs(message, frames):
        if circumstances.fits(failure.releases, failure.hardware, failure.phases):
            log_values = {name: value for name, value in match.groupdict().items() if value is not None}
            cause, fix = (_fill_in(words, failure, log_values, circumstances) for words in (failure.cause, failure.fix))
            return FailureMatch(failure, cause, fix, log_values)
    return None


def cut_after_sign(message: str) -> str:
    """Return a long message up to where it has shown which failure it is; a short one as it is."""
    if len(message) <= _SHORT:
        return message
    end = next((match.end() for _, match in find_signs(message)), len(message))
    return message if end >= len(message) else f"{message[:end]}…"


def find_root_cause(problems: Iterable[Problem]) -> Problem | None:
    """Return the problem that explains a failed start, or None.

    The first known cause, or what the same process adds at that moment to a general one; else what came first of errors
    that nobody knows and known consequences; else an error without a message.
    """
    bare: Problem | None = None
    first: Problem | None = None
    general: Problem | None = None
    for problem in problems:
        role = find_role(problem)
        if general is not None:
            if problem.process != general.process or problem.at > general.at + 1:
                return general
            if role is Role.CAUSE:
                return problem
        elif role is Role.CAUSE:
            return problem
        elif role is Role.GENERAL:
            general = problem
        elif role is None and ":" not in problem.text:
            bare = bare or problem
        elif role is not Role.SYMPTOM:
            first = first or problem
    return general or first or bare


def find_role(problem: Problem) -> Role | None:
    """Return what a logged problem explains; None for one that nobody knows."""
    if not problem.kind:
        return None
    return next((failure.role for failure, _ in find_signs(problem.text, problem.frames)), None)


def _compute_fitting_share(log_values: dict[str, str]) -> str:
    """Return the share of the memory that is free, with a margin; `less` where the message does not state it."""
    try:
        share = float(log_values["free"]) / float(log_values["total"])
    except (KeyError, ValueError, ZeroDivisionError):
        return "less"
    return f"{math.floor(share * _FREE_MARGIN * 100) / 100:g}" if _LEAST_SHARE <= share <= 1 else "less"


def _fill_in(words: str, failure: KnownFailure, log_values: dict[str, str], circumstances: Circumstances) -> str:
    """Return words with the values that the message states; what stands around a value that it does not is left out."""
    if "{" not in words:
        return words
    names = {name for sign in failure.signs for name in re.findall(r"\(\?P<(\w+)>", sign.sign)}
    circumstance_values = circumstances.advice_values | {"fitting_share": _compute_fitting_share(log_values)}
    filled = words.format_map(circumstance_values | dict.fromkeys(names, "") | log_values)
    return filled if names <= log_values.keys() else " ".join(_EMPTY_PARTS.sub("", filled).split()).replace(" ,", ",")
