"""The parsers of tool calls and of thoughts that a model's chat template and tokenizer ask for. Pure."""

from __future__ import annotations

from typing import NamedTuple

from dflash_tui.common import paths
from dflash_tui.planning.advice import release_values
from dflash_tui.planning.derivation.checkpoint import Checkpoint
from dflash_tui.planning.text_cache import load_table

_FILE = paths.PACKAGE_ROOT / "parser_forms.yaml"
_Forms = dict[str, list[tuple[str, list[str]]]]
# The flag of each kind of parser: what it reads, and a word without which a template has none of that.
_SUBJECTS = {"tool-call-parser": ("tool calls", "tool"), "reasoning-parser": ("thoughts", "think")}


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
    parser = next(
        (name for name, marks in load_table(_FILE, _Forms)[flag] if all(mark in template for mark in marks)), ""
    )
    if not parser and word not in template.lower():
        return "", f"its chat template has no {subject}"
    takes = release_values.list_values(vllm).get(flag)
    if not parser or (takes and parser not in takes.choices):
        return "", f"its chat template has {subject} in a form that no known parser of vLLM {vllm} reads"
    if target.tokens is not None and (missing := release_values.find_missing_tokens(vllm, flag, parser, target.tokens)):
        return "", f"{parser} needs {' and '.join(missing)}, which its tokenizer does not have"
    return parser, f"its chat template has {subject} in that form"
