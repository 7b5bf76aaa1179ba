"""The parsers of tool calls and of thoughts that a model's chat template and tokenizer ask for. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import msgspec
from packaging.version import Version

from dflash_tui.common import paths
from dflash_tui.planning.derivation.checkpoint import Checkpoint
from dflash_tui.planning.text_cache import load_table

_FILE = paths.PACKAGE_ROOT / "parser_forms.yaml"
# The flag of each kind of parser: what it reads, and a word without which a template has none of that.
_SUBJECTS = {"tool-call-parser": ("tool calls", "tool"), "reasoning-parser": ("thoughts", "think")}


class _Form(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A form in which models write, and the parser that reads it."""

    parser: str
    marks: tuple[str, ...]
    tokens: tuple[str, ...] = ()
    since: str = "0"


class ChosenParser(NamedTuple):
    """The parser of a kind that a model is served with."""

    flag: str
    """`tool-call-parser` or `reasoning-parser`."""
    name: str
    """Its name; empty where there is none for the model."""
    why: str
    """Why that one, or why none."""


def choose_parsers(target: Checkpoint, vllm: str) -> list[ChosenParser]:
    """Return the parser of each kind that reads what `target` writes, of those that the release `vllm` has."""
    return [ChosenParser(flag, *_choose(flag, target, vllm)) for flag in _SUBJECTS]


def _choose(flag: str, target: Checkpoint, vllm: str) -> tuple[str, str]:
    """Return the name of a parser, and why; without one an empty name, and why."""
    subject, word = _SUBJECTS[flag]
    if target.chat_template is None:
        return "", "its chat template is not known"
    template = target.chat_template.replace('\\"', '"').replace("\\n", "\n")
    form = next((form for form in _load_forms()[flag] if all(mark in template for mark in form.marks)), None)
    if form is None and word not in template.lower():
        return "", f"its chat template has no {subject}"
    if form is None or Version(vllm) < Version(form.since):
        return "", f"its chat template has {subject} in a form that no known parser of vLLM {vllm} reads"
    if target.tokens is not None and (missing := find_missing_tokens(flag, form.parser, target.tokens)):
        return "", f"{form.parser} needs {' and '.join(missing)}, which its tokenizer does not have"
    return form.parser, f"its chat template has {subject} in that form"


def find_missing_tokens(flag: str, parser: str, tokens: Collection[str]) -> list[str]:
    """Return the tokens that a known parser insists on and a tokenizer lacks."""
    form = next((form for form in _load_forms()[flag] if form.parser == parser), None)
    return [token for token in form.tokens if token not in tokens] if form else []


def _load_forms() -> dict[str, list[_Form]]:
    return load_table(_FILE, dict[str, list[_Form]])
