"""Prompt suites: files of prompts that are sent together, shipped or the user's own."""

from __future__ import annotations

import difflib
import hashlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from dflash_tui.common import paths, private_files, yaml_loader
from dflash_tui.common.errors import RecipeError, UsageError
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.events import PROBE, WARM_UP
from dflash_tui.planning.recipe import PLAIN_TEXT

_CONTEXT_LIMIT = 8 << 20
MT_BENCH = "mt-bench"
_KIND_LIMIT = 24
_Kind = Annotated[str, Meta(min_length=1, max_length=_KIND_LIMIT, pattern=PLAIN_TEXT)]
_Prose = Annotated[str, Meta(min_length=1, pattern=r"\S")]


class Prompt(msgspec.Struct, frozen=True):
    """A prompt: its kind, the text, how many tokens the answer may have, and how often a round sends it."""

    kind: str
    text: str
    max_tokens: int
    repeat: int = 1


class Suite(msgspec.Struct, frozen=True):
    """Prompts that are sent together, each kind once; `digest` is the SHA-256 of all but the name.

    `in_order` says that the order is part of it and is never shuffled.
    """

    name: str
    prompts: tuple[Prompt, ...]
    digest: str
    in_order: bool = False

    @property
    def requests(self) -> int:
        """How many requests a round sends."""
        return sum(prompt.repeat for prompt in self.prompts)

    def rounds(self, least: int, streams: int) -> int:
        """Return how many rounds are sent with so many requests under way: enough to keep its streams busy twice."""
        return max(least, math.ceil(2 * streams / self.requests)) if streams > 1 else least


class _Context(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`count` sentences that go before the text, taken in turn; `{n}` in one is its number, from 1."""

    sentences: Annotated[tuple[_Prose, ...], Meta(min_length=1)]
    count: Annotated[int, Meta(ge=1, le=20_000)]


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: _Kind
    text: _Prose
    max_tokens: Annotated[int, Meta(ge=1, le=65_536)]
    repeat: Annotated[int, Meta(ge=1, le=1000)] = 1
    context: _Context | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    title: _Prose
    prompts: Annotated[tuple[_Entry, ...], Meta(min_length=1, max_length=1000)]
    in_order: bool = False


register_type(_File)


def load_suite(name_or_path: str) -> Suite:
    """Return the suite called so, or the one in the file when that is a path (ends in .yaml or .jsonl, or has a slash).

    The questions of mt-bench are not shipped; they are read where their users have put them.

    Raises:
        UsageError: there is no such suite; the message names the nearest one.
        RecipeError: the file is not valid: `file:line: key: what was expected`.
    """
    path = _find_suite_file(name_or_path)
    if path.suffix == ".jsonl":
        return build_suite(clean_line(path.stem), tuple(_read_jsonl(path)), in_order=False)
    file = yaml_loader.load_yaml(path, _File)
    kinds = {WARM_UP, PROBE}
    for index, entry in enumerate(file.prompts):
        if entry.kind in kinds:
            what = "is reserved" if entry.kind in {WARM_UP, PROBE} else "given twice"
            raise yaml_loader.build_file_error(path, ["prompts", index, "kind"], what)
        kinds.add(entry.kind)
        if _exceeds_context_limit(entry):
            what = f"may be larger than {_CONTEXT_LIMIT >> 20} MiB"
            raise yaml_loader.build_file_error(path, ["prompts", index, "context"], what)
    prompts = tuple(Prompt(entry.kind, _build_text(entry), entry.max_tokens, entry.repeat) for entry in file.prompts)
    return build_suite(clean_line(path.stem), prompts, in_order=file.in_order)


def build_suite(name: str, prompts: tuple[Prompt, ...], *, in_order: bool = False) -> Suite:
    """Return a suite of `prompts` with its digest."""
    content = msgspec.json.encode((prompts, in_order))
    return Suite(name, prompts, hashlib.sha256(content).hexdigest(), in_order)


def list_suite_files() -> dict[str, Path]:
    """Return the suites' files by name, sorted; the user's own win over the shipped ones."""
    files: dict[str, Path] = {}
    for folder in (paths.suites_folder(), paths.user_suites_folder()):
        files |= {path.stem: path for path in folder.glob("[!_.]*.yaml")}
    if _mt_bench_file().is_file():
        files.setdefault(MT_BENCH, _mt_bench_file())
    return dict(sorted(files.items()))


def _mt_bench_file() -> Path:
    return paths.user_suites_folder() / f"{MT_BENCH}.jsonl"


class _Line(msgspec.Struct):
    """A question of mt-bench or Spec-Bench, of which the first turn is asked, or a line of vLLM's custom data set."""

    turns: Annotated[tuple[_Prose, ...], Meta(min_length=1)] | None = None
    prompt: _Prose | None = None
    output_tokens: Annotated[int, Meta(ge=1, le=65_536)] = 2048
    category: _Kind = "prompt"
    question_id: int | None = None


register_type(_Line)


def _read_jsonl(path: Path) -> Iterator[Prompt]:
    """Yield the prompts of a file of JSON lines, each of a kind of its own.

    Raises:
        RecipeError: with `file:line: what was expected`.
    """
    try:
        text = private_files.read_file(path, _CONTEXT_LIMIT, follow=True).splitlines()
    except OSError as error:
        raise RecipeError(f"{path}: {error.strerror or error}") from None
    kinds: set[str] = set()
    for number, line in enumerate(text, 1):
        if not line.strip():
            continue
        try:
            entry = msgspec.json.decode(line, type=_Line)
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            raise RecipeError(f"{path}:{number}: {clean_line(str(error))}") from None
        kind = f"{entry.category[:16]} {number if entry.question_id is None else entry.question_id}"[:_KIND_LIMIT]
        if kind in kinds:
            raise RecipeError(f"{path}:{number}: question_id: {kind} is given twice")
        kinds.add(kind)
        question = entry.turns[0] if entry.turns else entry.prompt
        if question is None:
            raise RecipeError(f"{path}:{number}: expected `turns` or `prompt`")
        yield Prompt(kind, question, entry.output_tokens)
    if not kinds:
        raise RecipeError(f"{path}: holds no prompt")


def _find_suite_file(name: str) -> Path:
    if name.endswith((".yaml", ".yml", ".jsonl")) or "/" in name:
        return Path(name)
    known = list_suite_files()
    if name not in known and name == MT_BENCH:
        do = "put its question.jsonl (FastChat, fastchat/llm_judge/data/mt_bench) there, or give its path: --suite FILE"
        raise UsageError("the questions of mt-bench are not on this machine", evidence=str(_mt_bench_file()), hint=do)
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(known)}; or give a file"
        raise UsageError(f"no suite of prompts called '{name}'", hint=hint)
    return known[name]


def _build_text(entry: _Entry) -> str:
    if entry.context is None:
        return entry.text
    sentences = entry.context.sentences
    lines = (sentences[n % len(sentences)].replace("{n}", str(n + 1)) for n in range(entry.context.count))
    return "\n".join((*lines, "", entry.text))


def _exceeds_context_limit(entry: _Entry) -> bool:
    context = entry.context
    return context is not None and context.count * max(map(len, context.sentences)) > _CONTEXT_LIMIT
