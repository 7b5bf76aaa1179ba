"""Files of questions as benchmarks publish them: mt-bench, Spec-Bench, SPEED-Bench, GSM8K, HumanEval, ShareGPT.

A file has a JSON object per line (`.jsonl`, also packed: `.jsonl.gz`) or a JSON array (`.json`). It may belong to
anybody and be anything: what is read of it has a bound, and what is wrong is said by file and line.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dflash_tui.benchmark.prompts import Prompt
from dflash_tui.common.errors import RecipeError
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.planning.field_types import PLAIN_TEXT

SUFFIXES = (".jsonl", ".jsonl.gz", ".json")
# ShareGPT has 640 MB, of which the first conversations are enough.
_MOST_BYTES, _MOST_QUESTIONS = 64 << 20, 2000
KIND_LIMIT = 24
# Some conversations of ShareGPT have hundreds of turns.
_MOST_TURNS = 10_000
# A value takes many times the bytes it has in JSON; there is a comma between two of them, in prose far fewer than this.
_MOST_COMMAS = 1 << 20
_Kind = Annotated[str, Meta(max_length=KIND_LIMIT, pattern=PLAIN_TEXT)]
_Prose = Annotated[str, Meta(min_length=1, max_length=8 << 20, pattern=r"\S")]
_Texts = Annotated[tuple[_Prose, ...], Meta(min_length=1, max_length=_MOST_TURNS)]
_Tokens = Annotated[int, Meta(ge=1, le=65_536)]
# What a JSON value is made of; a string without an end goes to the end of the text, so that each is looked at once.
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{},]', re.DOTALL)
_BETWEEN = re.compile(r"[ \t\r\n,]*")
# What is asked so that the number can be found in the answer; the mark is the one of the set's own answers.
_NUMBER = "\nThink step by step, and end with a line of the form: #### NUMBER"
_CODE = "Complete this Python function. Answer with the whole function in one block of code.\n\n"
# Conversations whose first question is shorter tell a drafter nothing, longer ones are documents.
_SHORTEST, _LONGEST = 16, 8192


class _Turn(msgspec.Struct):
    speaker: str = msgspec.field(name="from", default="")
    value: str = ""


class _Question(msgspec.Struct):
    """A line of any of the sets; of several turns the first is asked."""

    turns: _Texts | None = None
    prompt: _Prose | _Texts | None = None
    question: _Prose | None = None
    task_id: _Kind | None = None
    conversations: Annotated[tuple[_Turn, ...], Meta(max_length=_MOST_TURNS)] | None = None
    output_tokens: _Tokens | None = None
    category: _Kind = ""
    question_id: int | str | None = None
    kind: _Kind = ""


register_type(_Question)


def read_questions(path: Path) -> Iterator[Prompt]:
    """Yield the prompts of a file, each of a kind of its own.

    Raises:
        RecipeError: with `file:line: what was expected`.
    """
    kinds: set[str] = set()
    for number, data in _read_objects(path):
        try:
            prompt = _build_prompt(msgspec.convert(data, _Question), number)
            msgspec.json.encode(prompt)  # half a surrogate pair could not be sent
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise RecipeError(f"{path}:{number}: {clean_line(str(error))}") from None
        if prompt is None:
            continue
        if prompt.kind in kinds:
            raise RecipeError(f"{path}:{number}: question_id: {prompt.kind} is given twice")
        kinds.add(prompt.kind)
        yield prompt
        if len(kinds) == _MOST_QUESTIONS:
            return
    if not kinds:
        raise RecipeError(f"{path}: holds no prompt")


def format_questions(prompts: Iterable[Prompt]) -> bytes:
    """Return a file of JSON lines from which the same prompts are read."""
    lines = ({"kind": p.kind, "prompt": p.text, "output_tokens": p.max_tokens} for p in prompts)
    return msgspec.json.Encoder().encode_lines(lines)


def _build_prompt(entry: _Question, number: int) -> Prompt | None:
    """Return the prompt of an entry; None of a conversation that begins with no question.

    Raises:
        ValueError: it has none of the keys in which a question is.
    """
    if entry.conversations is not None:
        first = next((turn.value for turn in entry.conversations if turn.speaker in {"human", "user"}), "")
        fits = _SHORTEST <= len(first) <= _LONGEST and first.strip()
        return Prompt(f"sharegpt {number}", first, entry.output_tokens or 512) if fits else None
    if entry.question is not None:
        return Prompt(f"gsm8k {number}", entry.question + _NUMBER, entry.output_tokens or 512)
    texts = entry.turns or ((entry.prompt,) if isinstance(entry.prompt, str) else entry.prompt)
    if not texts:
        raise ValueError("expected `turns`, `prompt`, `question` or `conversations`")
    if entry.task_id:
        return Prompt(entry.task_id, f"{_CODE}```python\n{texts[0]}\n```", entry.output_tokens or 1024)
    identity = entry.question_id if isinstance(entry.question_id, int) else number
    kind = entry.kind or f"{(entry.category or 'prompt')[:16]} {identity}"[:KIND_LIMIT]
    return Prompt(kind, texts[0], entry.output_tokens or 2048)


def _read_objects(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield what a file holds, each with its line, or its place in an array."""
    try:
        with path.open("rb") as file:
            packed = path.suffix == ".gz"
            data = (gzip.GzipFile(fileobj=file) if packed else file).read(_MOST_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise RecipeError(f"{path}: {clean_line(why)}") from None
    cut = len(data) == _MOST_BYTES
    if path.suffix == ".json":
        yield from _read_array(path, data.decode(errors="replace"), cut=cut)
        return
    if cut and b"\n" in data:
        data = data[: data.rindex(b"\n")]
    for number, line in enumerate(io.BytesIO(data), 1):  # a list of empty lines takes ten times as much
        if line.strip():
            if line.count(b",") > _MOST_COMMAS:
                raise RecipeError(f"{path}:{number}: holds more than a question: over {_MOST_COMMAS:,} commas")
            try:
                yield number, msgspec.json.decode(line.decode(errors="replace"))
            except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
                raise RecipeError(f"{path}:{number}: {clean_line(str(error))}") from None


def _read_array(path: Path, text: str, *, cut: bool) -> Iterator[tuple[int, Any]]:
    """Yield the members of a JSON array, of which the end may not have been read."""
    decoder, place, number = json.JSONDecoder(), text.find("[") + 1, 0
    if not place or text[: place - 1].strip():
        raise RecipeError(f"{path}:1: expected a JSON array")
    while True:
        place = _BETWEEN.match(text, place).end()  # type: ignore[union-attr] # which matches nothing, too
        if text[place : place + 1] == "]":
            return
        number += 1
        if _has_too_many_commas(text, place):
            raise RecipeError(f"{path}: {number}. member: holds more than a question: over {_MOST_COMMAS:,} commas")
        try:
            value, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            if cut and number > 1:
                return
            raise RecipeError(f"{path}: {number}. member: {clean_line(str(error))}") from None
        yield number, value


def _has_too_many_commas(text: str, place: int) -> bool:
    """Whether the JSON value there holds more than a question may, by what is in it before it is read."""
    depth = commas = 0
    for token in _TOKEN.finditer(text, place):
        mark = text[token.start()]
        depth += (mark in "[{") - (mark in "]}")
        commas += mark == ","
        if depth <= 0 or commas > _MOST_COMMAS:
            break
    return commas > _MOST_COMMAS
