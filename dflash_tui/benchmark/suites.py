"""Prompt suites by name: prompt files, known data sets, random prompts, context lengths and repetitions.

A file of questions has the format in which benchmarks publish them (mt-bench, Spec-Bench, SPEED-Bench, GSM8K,
HumanEval, ShareGPT): a JSON object per line (`.jsonl`, also `.jsonl.gz`) or a JSON array (`.json`). An object may also
be a recorded session: OpenAI's `messages` and `tools`, of which every answer becomes a prompt.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from dflash_tui.benchmark.prompts import Prompt, Suite, build_suite, name_kind
from dflash_tui.common import paths, yaml_loader
from dflash_tui.common.errors import RecipeError, UsageError
from dflash_tui.common.formatting import suggest_nearest
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.events import OURS
from dflash_tui.planning.field_types import PLAIN_TEXT

RANDOM, REPEAT, CONTEXTS, MAP, AGENTS = "random", "repeat", "contexts", "map", "agents"
SHORT_KINDS = "code,JSON,questions,prose,agent"
"""The kinds of `map` that fit a short context."""
SUFFIXES = (".jsonl", ".jsonl.gz", ".json")
KIND_LIMIT = 24
# With room for the number of the turn.
_SESSION_LIMIT = KIND_LIMIT - 4
# The size of mt-bench; all 1,319 questions of GSM8K take hours.
_DEFAULT_COUNT = 80
_MOST, _LONGEST, _MOST_TOKENS = 1000, 65_536, 8_000_000
_REPEATS = 8
_TURNS_OF_A_MAP = 4
# With fewer kinds of prompt an error names them.
_MOST_KINDS = 20
# Sentences of the shipped contexts per thousand tokens, roughly, with Gemma's tokenizer.
_SENTENCES_PER_1K = 47.3
_SHORTEST_CONTEXT, _LONGEST_CONTEXT = 1, 400
# ShareGPT has 640 MB; its first conversations are enough.
_MOST_BYTES, _MOST_QUESTIONS = 64 << 20, 2000
_BETWEEN = re.compile(r"[ \t\r\n,]*")
# Characters of a conversation's first question: shorter ones say little about a drafter, longer ones are documents.
_SHORTEST_QUESTION, _LONGEST_QUESTION = 16, 8192
# GSM8K's own answers end in this form.
_NUMBER = "\nThink step by step, and end with a line of the form: #### NUMBER"
_CODE = "Complete this Python function. Answer with the whole function in one block of code.\n\n"
# Each is one token, with the space before it, in the vocabularies of Gemma, Qwen and Llama.
_WORDS = (
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state",
    "family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company", "system",
    "program", "question", "work", "government", "number", "night", "point", "home", "water", "room", "mother", "area",
    "money", "story", "fact", "month", "lot", "right", "study", "book", "eye", "job", "word", "business", "issue",
    "side", "kind", "head", "house", "service", "friend", "father", "power", "hour", "game", "line", "end",
)  # fmt: skip

_Kind = Annotated[str, Meta(max_length=KIND_LIMIT, pattern=PLAIN_TEXT)]
_Prose = Annotated[str, Meta(min_length=1, pattern=r"\S")]
_Tokens = Annotated[int, Meta(ge=1, le=65_536)]


class Dataset(NamedTuple):
    """A known data set: its repository on the hub (empty if none), the file in it, and its source."""

    repository: str
    file: str
    source: str


DATASETS = {
    "mt-bench": Dataset("HuggingFaceH4/mt_bench_prompts", "raw/question.jsonl", "FastChat, fastchat/llm_judge/data"),
    "spec-bench": Dataset("", "question.jsonl", "github.com/hemingkx/Spec-Bench, data/spec_bench"),
    "speed-bench": Dataset("nvidia/SPEED-Bench", "qualitative/*.parquet", "nvidia/SPEED-Bench on the hub"),
    "gsm8k": Dataset("openai/gsm8k", "main/test-*.parquet", "github.com/openai/grade-school-math, test.jsonl"),
    "humaneval": Dataset("openai/openai_humaneval", "*/test-*.parquet", "github.com/openai/human-eval, data"),
    "sharegpt": Dataset(
        "anon8231489123/ShareGPT_Vicuna_unfiltered", "ShareGPT_V3_unfiltered_cleaned_split.json", "the hub"
    ),
}


class _Context(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`count` sentences before the text, taken in rotation; `{n}` becomes the sentence's number, from 1.

    Without sentences those of `contexts` are taken.
    """

    sentences: Annotated[tuple[_Prose, ...], Meta(min_length=1)] | None = None
    count: Annotated[int, Meta(ge=1, le=20_000)]


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: Annotated[_Kind, Meta(min_length=1)]
    text: _Prose
    max_tokens: _Tokens
    repeat: Annotated[int, Meta(ge=1, le=1000)] = 1
    context: _Context | None = None
    follows: str = ""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    title: _Prose
    prompts: Annotated[tuple[_Entry, ...], Meta(min_length=1, max_length=1000)]
    in_order: bool = False
    levels: bool = False
    any_text: bool = False


class _Turn(msgspec.Struct):
    speaker: str = msgspec.field(name="from", default="")
    value: str = ""


class _Question(msgspec.Struct):
    """An entry of any data set; of several turns only the first is sent."""

    turns: Annotated[tuple[_Prose, ...], Meta(min_length=1)] | None = None
    prompt: _Prose | Annotated[tuple[_Prose, ...], Meta(min_length=1)] | None = None
    question: _Prose | None = None
    task_id: _Kind | None = None
    conversations: tuple[_Turn, ...] | None = None
    output_tokens: _Tokens | None = None
    category: _Kind = ""
    question_id: int | str | None = None
    kind: _Kind = ""
    messages: tuple[dict[str, Any], ...] = ()
    tools: tuple[dict[str, Any], ...] = ()


register_type(_File)
register_type(_Question)


def load_suite(words: str) -> Suite:
    """Return a suite by its name; raise DflashError if it is missing or invalid.

    `words` is one of
    * a path (it ends in .yaml, .jsonl, .jsonl.gz or .json, or has a slash)
    * a shipped suite, one of the user's own, or a data set: NAME, NAME:N for N of its prompts, or NAME:KIND,KIND
    * `contexts:1k-128k`, `random:IN,OUT[,N]`, and `repeat[:SUITE]`, whose texts are sent without a salt
    """
    if is_path(words) and not words.startswith(f"{REPEAT}:"):
        return _load_file(Path(words), None)
    name, _, argument = words.partition(":")
    if name == REPEAT:
        if argument.partition(":")[0] == REPEAT:
            raise UsageError(f"{words[:80]}: this is repeated already", hint="such as repeat:quick")
        return _repeat_suite(load_suite(argument) if argument else _load_repeated(), words)
    if name == RANDOM:
        return _build_random_suite(words)
    if name == CONTEXTS and argument:
        return _build_contexts(words)
    count = _parse_count(words, argument)
    if name in DATASETS:
        path = find_dataset_file(name)
        if path is None:
            raise build_missing_error(name)
        suite = _load_file(path, count or _DEFAULT_COUNT)
    else:
        suite = _load_file(_find_suite_file(name), count)
    return _select_kinds(suite, words, argument.split(",")) if argument and not count else suite


def is_path(words: str) -> bool:
    """Whether a suite's name is a path."""
    return words.endswith((".yaml", ".yml", *SUFFIXES)) or "/" in words


def make_absolute(words: str) -> str:
    """Return the name of a suite with an absolute path, which is valid in every working folder."""
    prefix = f"{REPEAT}:" if words.startswith(f"{REPEAT}:") else ""
    name = words.removeprefix(prefix)
    return prefix + (str(Path(name).absolute()) if is_path(name) else name)


def list_suite_files() -> dict[str, Path]:
    """Return the suite files by name, sorted; the user's files override shipped ones."""
    files: dict[str, Path] = {}
    for folder in (paths.suites_folder(), paths.user_suites_folder()):
        files |= {path.stem: path for end in ("yaml", "jsonl") for path in folder.glob(f"[!_.]*.{end}")}
    for name in DATASETS:
        if (path := find_dataset_file(name)) is not None:
            files.setdefault(name, path)
    return dict(sorted(files.items()))


def _find_suite_file(name: str) -> Path:
    files = list_suite_files()
    if name not in files:
        near = suggest_nearest(name, [*files, *DATASETS])
        hint = near or f"there are: {', '.join(files)}, {RANDOM}:IN,OUT, {REPEAT}; or give a file"
        raise UsageError(f"no suite of prompts called '{name}'", hint=hint)
    return files[name]


def own_dataset_file(name: str) -> Path:
    """Return the path of a data set that the user provides; it overrides a fetched one."""
    return paths.user_suites_folder() / f"{name}.jsonl"


def fetched_dataset_file(name: str) -> Path:
    """Return the path to which a data set is fetched."""
    return paths.cache_folder() / "datasets" / f"{name}.jsonl"


def find_dataset_file(name: str) -> Path | None:
    """Return the file of a known data set on this machine, or None."""
    return next((file for file in (own_dataset_file(name), fetched_dataset_file(name)) if file.is_file()), None)


def name_missing_dataset(words: str) -> str | None:
    """Return the data set that the suite `words` needs and this machine lacks, or None."""
    name = words.removeprefix(f"{REPEAT}:").partition(":")[0]
    return name if name in DATASETS and find_dataset_file(name) is None else None


def build_missing_error(name: str) -> UsageError:
    """Return the error for a data set that is not on this machine."""
    dataset = DATASETS[name]
    fetch = (
        f"dflash-tui bench --dataset {name} fetches them once an engine is installed; or " if dataset.repository else ""
    )
    do = f"{fetch}put a file of JSON lines ({dataset.source}) there, or give its path: --dataset FILE"
    return UsageError(f"the prompts of {name} are not on this machine", evidence=str(own_dataset_file(name)), hint=do)


def _choose_prompts(prompts: Sequence[Prompt], count: int | None) -> tuple[Prompt, ...]:
    if count is None or count >= len(prompts):
        return tuple(prompts)
    return tuple(prompts[place * len(prompts) // count] for place in range(count))


def _select_kinds(suite: Suite, words: str, kinds: Sequence[str]) -> Suite:
    known = dict.fromkeys(name_kind(prompt.kind) for prompt in suite.prompts)
    if unknown := [kind for kind in kinds if kind not in known]:
        what = f"{words}: expected NAME:N, or kinds of its prompts, not '{unknown[0]}'"
        hint = f"its kinds: {', '.join(known)}" if len(known) < _MOST_KINDS else "such as gsm8k:200"
        raise UsageError(what, hint=hint)
    chosen = tuple(prompt for prompt in suite.prompts if name_kind(prompt.kind) in kinds)
    return build_suite(words, chosen, in_order=suite.in_order, levels=suite.levels, any_text=suite.any_text)


def _parse_count(words: str, count: str) -> int | None:
    if not count.isdecimal():
        return None
    if not 1 <= int(count[:9]) <= 2 * _MOST:
        raise UsageError(f"{words}: expected NAME:N, N from 1 to {2 * _MOST}", hint="such as gsm8k:200")
    return int(count)


def _load_file(path: Path, count: int | None) -> Suite:
    if path.name.endswith(SUFFIXES):
        prompts = tuple(read_questions(path))
        if sessions := list(dict.fromkeys(prompt.session for prompt in prompts if prompt.session)):
            prompts = tuple(prompt for prompt in prompts if prompt.session in sessions[:count])
        else:
            prompts = _choose_prompts(prompts, count)
        return build_suite(path.name.partition(".json")[0], prompts, in_order=bool(sessions))
    file = yaml_loader.load_yaml(path, _File)
    kinds = {*OURS}
    for index, entry in enumerate(file.prompts):
        if entry.kind in kinds:
            what = "is reserved" if entry.kind in OURS else "given twice"
            raise yaml_loader.build_file_error(path, ["prompts", index, "kind"], what)
        if entry.follows and not (file.in_order and entry.follows in kinds - {*OURS}):
            what = "expected the kind of an earlier prompt, in a file with `in_order: true`"
            raise yaml_loader.build_file_error(path, ["prompts", index, "follows"], what)
        kinds.add(entry.kind)
    prompts = tuple(
        Prompt(entry.kind, _build_text(entry), entry.max_tokens, entry.repeat, follows=entry.follows)
        for entry in file.prompts
    )
    if path == paths.suites_folder() / f"{MAP}.yaml":
        turns = _choose_prompts(load_suite(f"{AGENTS}:1").prompts, _TURNS_OF_A_MAP)
        prompts += tuple(replace(turn, kind=f"agent {number}") for number, turn in enumerate(turns, 1))
    chosen = _choose_prompts(prompts, count)
    return build_suite(path.stem, chosen, in_order=file.in_order, levels=file.levels, any_text=file.any_text)


def _build_text(entry: _Entry) -> str:
    if entry.context is None:
        return entry.text
    sentences = entry.context.sentences or _load_sentences()
    lines = (sentences[n % len(sentences)].replace("{n}", str(n + 1)) for n in range(entry.context.count))
    return "\n".join((*lines, "", entry.text))


def _build_random_suite(words: str) -> Suite:
    parts = words.partition(":")[2].split(",")
    numbers = [int(part) for part in parts if re.fullmatch(r"[1-9][0-9]{0,6}", part)]
    if len(numbers) != len(parts) or not 2 <= len(parts) <= 3:
        raise UsageError(f"{words}: expected random:IN,OUT[,N] in tokens", hint="such as random:1024,128")
    prompt_tokens, answer_tokens, count = (*numbers, 20)[:3]
    if answer_tokens > _LONGEST or count > _MOST or prompt_tokens * count > _MOST_TOKENS:
        most = f"at most {_LONGEST:,} tokens of answer, {_MOST:,} prompts, and {_MOST_TOKENS:,} tokens of all prompts"
        raise UsageError(f"{words}: these are too many", hint=most)
    prompts = []
    for place in range(count):
        rng = random.Random(f"{prompt_tokens} {answer_tokens} {place}")  # noqa: S311 - nothing secret
        prompts.append(Prompt(f"random {place + 1}", " ".join(rng.choices(_WORDS, k=prompt_tokens)), answer_tokens))
    return build_suite(words, tuple(prompts))


def _build_contexts(words: str) -> Suite:
    entry, prompts = _load_contexts_entry(), []
    for level in _parse_context_levels(words):
        context = _Context(count=round(level * _SENTENCES_PER_1K))
        prompts.append(Prompt(f"{level}k", _build_text(replace(entry, context=context)), entry.max_tokens))
    return build_suite(words, tuple(prompts), levels=True, any_text=True)


@lru_cache(maxsize=1)
def _load_contexts_entry() -> _Entry:
    return yaml_loader.load_yaml(paths.suites_folder() / f"{CONTEXTS}.yaml", _File).prompts[0]


def _load_sentences() -> tuple[str, ...]:
    context = _load_contexts_entry().context
    assert context and context.sentences  # noqa: S101, PT018 - the shipped file has them
    return context.sentences


def _parse_context_levels(words: str) -> tuple[int, ...]:
    text = words.partition(":")[2].lower()
    levels = [int(part) for part in re.findall(r"(?<!\d)(\d{1,3})k", text)]
    spanned = re.fullmatch(r"\d{1,3}k-\d{1,3}k", text)
    if spanned and levels[0] <= levels[1]:
        first, last = levels
        levels = [first << step for step in range(10) if first << step < last] + [last] if first else []
    elif not re.fullmatch(r"\d{1,3}k(,\d{1,3}k)*", text):
        levels = []
    if not levels or min(levels) < _SHORTEST_CONTEXT or max(levels) > _LONGEST_CONTEXT or len({*levels}) < len(levels):
        hint = "such as contexts:1k-128k, or contexts:4k,32k"
        raise UsageError(f"{words}: expected thousands of tokens from 1k to {_LONGEST_CONTEXT}k", hint=hint)
    return tuple(levels)


def _load_repeated() -> Suite:
    suite = _build_contexts(f"{CONTEXTS}:8k")
    return replace(suite, prompts=tuple(replace(prompt, max_tokens=128) for prompt in suite.prompts), levels=False)


def _repeat_suite(suite: Suite, words: str) -> Suite:
    times = -(-_REPEATS // suite.requests)
    prompts = tuple(replace(prompt, salted=False, repeat=prompt.repeat * times) for prompt in suite.prompts)
    return build_suite(words, prompts, in_order=suite.in_order, levels=suite.levels, any_text=suite.any_text)


def read_questions(path: Path) -> Iterator[Prompt]:
    """Yield the prompts of a file of questions, each with its own kind; raise RecipeError at an invalid line."""
    kinds: set[str] = set()
    for number, data in _read_objects(path):
        try:
            prompts = _build_prompts(msgspec.convert(data, _Question), number)
            msgspec.json.encode(prompts)  # fails on a lone surrogate, which could not be sent
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise RecipeError(f"{path}:{number}: {error}") from None
        for prompt in prompts:
            if prompt.kind in kinds:
                raise RecipeError(f"{path}:{number}: question_id: {prompt.kind} is given twice")
            kinds.add(prompt.kind)
            yield prompt
            if len(kinds) == _MOST_QUESTIONS:
                return
    if not kinds:
        raise RecipeError(f"{path}: holds no prompt")


def format_questions(prompts: Iterable[Prompt]) -> bytes:
    """Return prompts as JSON lines that `read_questions` reads back."""
    lines = ({"kind": p.kind, "prompt": p.text, "output_tokens": p.max_tokens} for p in prompts)
    return msgspec.json.Encoder().encode_lines(lines)


def _build_prompts(entry: _Question, number: int) -> tuple[Prompt, ...]:
    """Return the prompts of an entry: one per answer of a recorded session, else at most one."""
    if not entry.messages:
        prompt = _build_prompt(entry, number)
        return (prompt,) if prompt else ()
    session, tokens = (entry.kind or f"session {number}")[:_SESSION_LIMIT], entry.output_tokens or 512
    answered = [place for place, message in enumerate(entry.messages) if place and message.get("role") == "assistant"]
    if not answered:
        raise ValueError("expected `messages` with an answer (`role: assistant`) after the first")
    turns = []
    for turn, place in enumerate(answered, 1):
        before = entry.messages[:place]
        text = before[-1].get("content")
        turns.append(
            Prompt(f"{session} {turn}", f"{text}", tokens, session=session, messages=before, tools=entry.tools)
        )
    return tuple(turns)


def _build_prompt(entry: _Question, number: int) -> Prompt | None:
    """Return the prompt of an entry; None for a conversation without a usable first question."""
    if entry.conversations is not None:
        first = next((turn.value for turn in entry.conversations if turn.speaker in {"human", "user"}), "")
        fits = _SHORTEST_QUESTION <= len(first) <= _LONGEST_QUESTION and first.strip()
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
    try:
        with path.open("rb") as file:
            data = (gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file).read(_MOST_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise RecipeError(f"{path}: {(isinstance(error, OSError) and error.strerror) or error}") from None
    cut = len(data) == _MOST_BYTES
    if path.suffix == ".json":
        yield from _read_array(path, data.decode(errors="replace"), cut=cut)
        return
    if cut and b"\n" in data:
        data = data[: data.rindex(b"\n")]
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            try:
                yield number, msgspec.json.decode(line.decode(errors="replace"))
            except (msgspec.MsgspecError, RecursionError) as error:
                raise RecipeError(f"{path}:{number}: {error}") from None


def _read_array(path: Path, text: str, *, cut: bool) -> Iterator[tuple[int, Any]]:
    """Yield the members of a JSON array whose end may be `cut` off."""
    decoder, place, number = json.JSONDecoder(), text.find("[") + 1, 0
    if not place or text[: place - 1].strip():
        raise RecipeError(f"{path}:1: expected a JSON array")
    while True:
        place = _BETWEEN.match(text, place).end()  # type: ignore[union-attr] # it also matches the empty string
        if text[place : place + 1] == "]":
            return
        number += 1
        try:
            value, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            if cut and number > 1:
                return
            raise RecipeError(f"{path}: {number}. member: {error}") from None
        yield number, value
