"""Known failures of a vLLM server: the signs, the cause and the fix of each. Pure.

The table is `known_failures.yaml`, which explains its keys. Its messages come from the sources of vLLM 0.18 to 0.33,
torch, huggingface_hub and uvicorn, from recorded runs, and from users' posts.
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

_LEAST_LETTERS = 3
_TOKEN = re.compile(
    r"(?P<escape>\\.)|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])|(?P<open>\((?:\?(?:P<\w+>|<?[=!]|:))?)|(?P<close>\))|"
    r"(?P<quantifier>[*+?]\??|\{\d*,?\d*\}\??)|(?P<other>[.^$])|(?P<bar>\|)|(?P<letter>.)", re.DOTALL
)  # fmt: skip


class Sign(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pattern that identifies a failure by its error message, with an example."""

    sign: str
    """The regular expression."""
    line: str
    """An example message that matches; with `frame`, it follows a matching traceback line."""
    frame: str = ""
    """A pattern that a traceback line above the message must match; empty for any."""

    def __post_init__(self) -> None:
        if not all(list_plain_texts(self.sign)):
            raise ValueError(
                f"each alternative of a sign needs {_LEAST_LETTERS} letters in a row that stand for themselves"
            )

    def search(self, message: str, frames: tuple[str, ...] = ()) -> re.Match[str] | None:
        """Return the match in the message; None if it or the traceback (`frames`) does not match."""
        if not any(text in message for text in list_plain_texts(self.sign)):
            return None
        match = _compile(self.sign).search(message)
        if match and self.frame and not any(_compile(self.frame).search(frame) for frame in frames):
            return None
        return match


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


@cache
def list_plain_texts(pattern: str) -> tuple[str, ...]:
    """Return literal texts of which every match contains at least one; an empty text if a match may contain none."""
    return _list_texts(list(_TOKEN.finditer(pattern))[::-1])


def _list_texts(tokens: list[re.Match[str]]) -> tuple[str, ...]:
    """Return the texts of one group; its tokens are popped from `tokens`, which are in reverse order."""
    texts: list[str] = []
    best: tuple[str, ...] = ("",)
    run = ""
    while tokens and tokens[-1].lastgroup != "close":
        token = tokens.pop()
        kind, text = token.lastgroup, token[0]
        group: tuple[str, ...] = ("",)
        if kind == "open":
            group = _list_texts(tokens)
            tokens.pop()
            if text[-1] in "=!":  # a lookahead or lookbehind
                group = ("",)
        quantifier = tokens.pop()[0] if tokens and tokens[-1].lastgroup == "quantifier" else ""
        may_be_missing = quantifier[:1] in {"*", "?", "{"}
        stands_for_itself = kind == "letter" or (kind == "escape" and not text[1].isalnum())
        if stands_for_itself:
            run += "" if may_be_missing else text[-1]
            group = (run,)
        elif may_be_missing:
            group = ("",)
        best = max(best, group, key=lambda texts: min(map(len, texts)))
        if quantifier or not stands_for_itself:
            run = ""
        if kind == "bar":
            texts += best
            best = ("",)
    return tuple(text if len(text) >= _LEAST_LETTERS else "" for text in (*texts, *best))


_FILE = Path(__file__).with_name("known_failures.yaml")
_SHORT = 200
# Free memory may shrink before the next launch.
_FREE_MARGIN = 0.98
_LEAST_SHARE = 0.05
_PINNED_ENGINE = "the engine that the recipe pins"
_EAGER = "eager mode (--enforce-eager), "
_ANY_ENGINE = "vLLM's own container image (vllm/vllm-openai)"
_EMPTY_PARTS = re.compile(r" ?\( ?s?\)|: (?=$|[.;,])|:$")


class Role(StrEnum):
    """The role of a failure; rows are tried in this order of roles."""

    CAUSE = "cause"
    GENERAL = "general"
    CONSEQUENCE = "consequence"
    SYMPTOM = "symptom"


class Circumstances(NamedTuple):
    """The circumstances of a failed server; empty or None where unknown."""

    release: str = ""
    hardware: Hardware | None = None
    phase: Phase | None = None
    has_recipe: bool = True
    eager: bool = False
    """Whether the server ran with `--enforce-eager`."""

    @property
    def engine(self) -> str:
        """The vLLM to recommend, as text."""
        return _PINNED_ENGINE if self.has_recipe else _ANY_ENGINE

    @property
    def advice_values(self) -> dict[str, str]:
        """The values of an advice's placeholders: `engine`, and `eager`, which is empty if eager mode was on."""
        return {"engine": self.engine, "eager": "" if self.eager else _EAGER}

    def is_in(self, releases: str) -> bool:
        """Whether the release is known and satisfies the requirement `releases`."""
        try:
            return SpecifierSet(releases).contains(self.release, prereleases=True)
        except ValueError:  # the release is unknown
            return False

    def fits(self, releases: str, hardware: tuple[Hardware, ...], phases: tuple[Phase, ...]) -> bool:
        """Whether all given conditions hold; a condition on an unknown circumstance does not."""
        return (
            (not releases or self.is_in(releases))
            and (not hardware or self.hardware in hardware)
            and (not phases or self.phase in phases)
        )


NOWHERE = Circumstances()


class KnownFailure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A known failure: its signs, cause and fix, and the circumstances that it is limited to."""

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


class FailureMatch(NamedTuple):
    """A known failure found in an error message; cause and fix contain the message's values."""

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

    def place(row: KnownFailure) -> tuple[int, bool]:
        return list(Role).index(row.role), not (row.releases or row.hardware or row.phases)

    return tuple(sorted(yaml_loader.load_yaml(_FILE, _Table).failures, key=place))


def find_fixing_release(kind: str) -> str:
    """Return the first vLLM release with the failure fixed; empty if the table names none."""
    return next((row.fixed_in for row in load_known_failures() if row.kind == kind and row.fixed_in), "")


@cache
def list_symptoms() -> frozenset[str]:
    """Return the kinds that merely follow an earlier failure and are never shown as a cause."""
    return frozenset(row.kind for row in load_known_failures() if row.role is Role.SYMPTOM)


def find_signs(message: str, frames: tuple[str, ...] = ()) -> Iterator[tuple[KnownFailure, re.Match[str]]]:
    """Yield the known failures whose signs match a message and its traceback, in any circumstances."""
    for failure in load_known_failures():
        if match := next(filter(None, (sign.search(message, frames) for sign in failure.signs)), None):
            yield failure, match


# A failing server logs the same lines over and over; 512 of maximal length take 1 MB.
@lru_cache(maxsize=512)
def recognize_failure(message: str, frames: tuple[str, ...] = ()) -> str:
    """Return the kind of the first known failure that matches a message, or an empty string."""
    return next((failure.kind for failure, _ in find_signs(message, frames)), "")


def explain_failure(
    message: str, frames: tuple[str, ...] = (), circumstances: Circumstances = NOWHERE
) -> FailureMatch | None:
    """Return the known failure that matches a message, with the message's values filled in, or None."""
    for failure, match in find_signs(message, frames):
        if circumstances.fits(failure.releases, failure.hardware, failure.phases):
            log_values = {name: value for name, value in match.groupdict().items() if value is not None}
            cause, fix = (_fill_in(words, failure, log_values, circumstances) for words in (failure.cause, failure.fix))
            return FailureMatch(failure, cause, fix, log_values)
    return None


def cut_after_sign(message: str) -> str:
    """Cut a long message after the sign that identifies its failure; return a short one unchanged."""
    if len(message) <= _SHORT:
        return message
    end = next((match.end() for _, match in find_signs(message)), len(message))
    return message if end >= len(message) else f"{message[:end]}…"


def find_root_cause(problems: Iterable[Problem]) -> Problem | None:
    """Return the problem that explains a failed start, or None.

    The first known cause wins; a general cause gives way to one that the same process logs within a second. Without a
    cause, the first unknown error or known consequence wins, else an error without a message.
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
    """Return the role of a logged problem; None if the problem is unknown."""
    if not problem.kind:
        return None
    return next((failure.role for failure, _ in find_signs(problem.text, problem.frames)), None)


def _compute_fitting_share(log_values: dict[str, str]) -> str:
    """Return the free share of the memory, less a margin; `less` if the message does not state it."""
    try:
        share = float(log_values["free"]) / float(log_values["total"])
    except (KeyError, ValueError, ZeroDivisionError):
        return "less"
    return f"{math.floor(share * _FREE_MARGIN * 100) / 100:g}" if _LEAST_SHARE <= share <= 1 else "less"


def _fill_in(words: str, failure: KnownFailure, log_values: dict[str, str], circumstances: Circumstances) -> str:
    """Fill the message's values into a text; words around a missing value are removed."""
    if "{" not in words:
        return words
    names = {name for sign in failure.signs for name in re.findall(r"\(\?P<(\w+)>", sign.sign)}
    circumstance_values = circumstances.advice_values | {"fitting_share": _compute_fitting_share(log_values)}
    filled = words.format_map(circumstance_values | dict.fromkeys(names, "") | log_values)
    return filled if names <= log_values.keys() else " ".join(_EMPTY_PARTS.sub("", filled).split()).replace(" ,", ",")


_BENIGN = (
    ("Enforce eager set, disabling torch.compile", "this is what eager mode means"),
    ("Inductor compilation was disabled by user settings", "follows from eager mode"),
    ("and failed to automatically increase with error current limit", "matters only to thousands of clients"),
    ("max_num_scheduled_tokens is set to",
     "room for drafted tokens is set aside; a larger max-num-batched-tokens shortens long prefills"),
    ("min_p and logit_bias parameters won't work with speculative decoding", "few requests use them"),
    ("Default vLLM sampling parameters have been overridden by the model's",
     "the model's own sampling parameters, as its authors advise; a comparison must set the temperature itself"),
    ("No FlashInfer autotune cache entries found", "nothing was tuned for these shapes; defaults are used"),
    ("JIT compilation during inference", "the first request of this shape waits for a kernel, later ones do not"),
    ("Using default MoE config. Performance might be sub-optimal",
     "vLLM has no tuned settings for this MoE shape and GPU; it works, perhaps a little slower"),
    ("Model Runner V2 requires Triton; using the V1 model runner", "the older runner works as well"),
    ("Triton is not installed", "vLLM on a CPU works without it"),
    ("is not found in LD_PRELOAD", "slower on a CPU, nothing else"),
    ("Speculative decoding on CPU without Intel OpenMP", "slower on a CPU, nothing else"),
    ("CPU backend doesn't allow to use `torch.set_num_threads`", "threads are bound already"),
    ("Async scheduling not supported with", "vLLM switches it off automatically"),
    ("No available shared memory broadcast block found in",
     "workers are busy, for instance compiling; they hang only if it persists after ready"),
    ("Address already in use. Retrying with a new port", "an internal port; vLLM tries the next one"),
    ("force killing remaining process", "vLLM kills its workers like this at every stop, also an intended one"),
    ("force killing sub process", "vLLM kills its workers like this at every stop, also an intended one"),
    ("resource_tracker: There appear to be", "logged at most stops"),
    ("destroy_process_group() was not called before program exit", "logged at most stops"),
    ("Compiling model again due to a load failure", "the cached compilation does not fit; only this start is slower"),
    ("Your GPU does not have native support for FP4 computation",
     "Marlin reads FP4 weights where a GPU has no FP4 arithmetic; on one that has, an alarm says so"),
    ("FutureWarning: ", "meant for vLLM's developers"),
    ("DeprecationWarning: ", "meant for vLLM's developers"),
    ("with an incorrect regex pattern",
     "transformers guesses by the tokenizer's shape; check it only if answers look wrong"),
    ("NUMA binding: Using MEMBIND policy", "says where memory is bound"),
)  # fmt: skip


def explain_benign_warning(text: str) -> str:
    """Return why a warning is harmless; empty if it is not known to be harmless."""
    return next((why for words, why in _BENIGN if words in text), "")
