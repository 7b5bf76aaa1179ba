"""Prompt suites: files of prompts that are sent together, shipped or the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from dflash_tui.benchmark import datasets, question_files
from dflash_tui.benchmark.prompts import Prompt, Suite, build_suite
from dflash_tui.common import paths, yaml_loader
from dflash_tui.common.errors import UsageError
from dflash_tui.common.formatting import suggest_nearest
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.events import OURS
from dflash_tui.planning.field_types import PLAIN_TEXT

# A file of some kilobytes may ask for many long contexts.
_CONTEXT_LIMIT, _ALL_CONTEXTS_LIMIT = 8 << 20, 64 << 20
_Kind = Annotated[str, Meta(min_length=1, max_length=question_files.KIND_LIMIT, pattern=PLAIN_TEXT)]
_Prose = Annotated[str, Meta(min_length=1, pattern=r"\S")]


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
    follows: str = ""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    title: _Prose
    prompts: Annotated[tuple[_Entry, ...], Meta(min_length=1, max_length=1000)]
    in_order: bool = False
    levels: bool = False


register_type(_File)


def load_suite(words: str) -> Suite:
    """Return the suite called so: of a file, a data set, or made up.

    * a path (it ends in .yaml, .jsonl, .jsonl.gz or .json, or has a slash)
    * a shipped suite, one of the user's own, or a data set: NAME, or NAME:N for so many of its prompts
    * `contexts:1k-128k`, `random:IN,OUT[,N]`, and `repeat[:SUITE]`, whose texts are sent without a salt

    Raises:
        UsageError: there is no such suite, or a data set is not on this machine; the message says what to do.
        RecipeError: the file is not valid: `file:line: key: what was expected`.
    """
    if is_path(words) and not words.startswith(f"{datasets.REPEAT}:"):
        return _load_file(Path(words), None)
    name, _, count_text = words.partition(":")
    if name == datasets.REPEAT:
        inner = datasets.parse_repeated(words)
        return datasets.repeat_suite(load_suite(inner) if inner else _load_repeated(), words)
    if name == datasets.RANDOM:
        return datasets.build_random_suite(words)
    if name == datasets.CONTEXTS and count_text:
        return _build_contexts(words)
    count = datasets.parse_count(words, count_text)
    if name in datasets.DATASETS:
        path = datasets.find_dataset_file(name)
        if path is None:
            raise datasets.build_missing_error(name)
        return _load_file(path, count or datasets.DEFAULT_COUNT)
    return _load_file(_find_suite_file(name), count)


def is_path(words: str) -> bool:
    """Whether a suite is named by its file."""
    return words.endswith((".yaml", ".yml", *question_files.SUFFIXES)) or "/" in words


def make_absolute(words: str) -> str:
    """Return the name of a suite by which it is found from every folder."""
    prefix = f"{datasets.REPEAT}:" if words.startswith(f"{datasets.REPEAT}:") else ""
    name = words.removeprefix(prefix)
    return prefix + (str(Path(name).absolute()) if is_path(name) else name)


def _load_file(path: Path, count: int | None) -> Suite:
    if path.name.endswith(question_files.SUFFIXES):
        questions = tuple(question_files.read_questions(path))
        return build_suite(clean_line(path.name.partition(".json")[0]), datasets.choose_prompts(questions, count))
    file = yaml_loader.load_yaml(path, _File)
    kinds, size = {*OURS}, 0
    for index, entry in enumerate(file.prompts):
        if entry.kind in kinds:
            what = "is reserved" if entry.kind in OURS else "given twice"
            raise yaml_loader.build_file_error(path, ["prompts", index, "kind"], what)
        if entry.follows and not (file.in_order and entry.follows in kinds - {*OURS}):
            what = "expected the kind of a prompt before it, in a file with `in_order: true`"
            raise yaml_loader.build_file_error(path, ["prompts", index, "follows"], what)
        kinds.add(entry.kind)
        context_size = _bound_context(entry)
        size += context_size
        if context_size > _CONTEXT_LIMIT or size > _ALL_CONTEXTS_LIMIT:
            most = f"{_CONTEXT_LIMIT >> 20} MiB, or with those before it than {_ALL_CONTEXTS_LIMIT >> 20} MiB"
            what = f"may be larger than {most}"
            raise yaml_loader.build_file_error(path, ["prompts", index, "context"], what)
    prompts = tuple(
        Prompt(entry.kind, _build_text(entry), entry.max_tokens, entry.repeat, follows=entry.follows)
        for entry in file.prompts
    )
    chosen = datasets.choose_prompts(prompts, count)
    return build_suite(clean_line(path.stem), chosen, in_order=file.in_order, levels=file.levels)


def _build_contexts(words: str) -> Suite:
    """Return the shipped question after contexts of the lengths that are asked for."""
    file = yaml_loader.load_yaml(paths.suites_folder() / f"{datasets.CONTEXTS}.yaml", _File)
    entry = file.prompts[0]
    assert entry.context is not None  # noqa: S101 - the file is ours
    prompts = []
    for level in datasets.parse_context_levels(words):
        context = replace(entry.context, count=datasets.count_sentences(level))
        prompts.append(Prompt(f"{level}k", _build_text(replace(entry, context=context)), entry.max_tokens))
    return build_suite(words, tuple(prompts), levels=True)


def _load_repeated() -> Suite:
    """Return the prompt that is repeated where none is named: a context of 8 thousand tokens, a short answer."""
    suite = _build_contexts(f"{datasets.CONTEXTS}:8k")
    return replace(suite, prompts=tuple(replace(prompt, max_tokens=128) for prompt in suite.prompts), levels=False)


def list_suite_files() -> dict[str, Path]:
    """Return the suites' files by name, sorted; the user's own win over the shipped ones."""
    files: dict[str, Path] = {}
    for folder in (paths.suites_folder(), paths.user_suites_folder()):
        files |= {path.stem: path for path in folder.glob("[!_.]*.yaml")}
    for name in datasets.DATASETS:
        if (path := datasets.find_dataset_file(name)) is not None:
            files.setdefault(name, path)
    return dict(sorted(files.items()))


def _find_suite_file(name: str) -> Path:
    files = list_suite_files()
    if name not in files:
        synthetic = f"{datasets.RANDOM}:IN,OUT, {datasets.REPEAT}"
        near = suggest_nearest(name, [*files, *datasets.DATASETS])
        hint = near or f"there are: {', '.join(files)}, {synthetic}; or give a file"
        raise UsageError(f"no suite of prompts called '{name}'", hint=hint)
    return files[name]


def _build_text(entry: _Entry) -> str:
    if entry.context is None:
        return entry.text
    sentences = entry.context.sentences
    lines = (sentences[n % len(sentences)].replace("{n}", str(n + 1)) for n in range(entry.context.count))
    return "\n".join((*lines, "", entry.text))


def _bound_context(entry: _Entry) -> int:
    """Return how many bytes the context of a prompt may have, without its numbers."""
    context = entry.context
    return context.count * max(len(sentence.encode()) for sentence in context.sentences) if context else 0
