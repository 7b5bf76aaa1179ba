"""Data sets by name, as a suite of prompts: known ones of the hub, made-up ones of a length, contexts, and repetitions.

A known one is read from its users' own file, or from the copy that was made when it was fetched.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from dflash_tui.benchmark.prompts import Prompt, Suite, build_suite
from dflash_tui.common import paths
from dflash_tui.common.errors import UsageError

RANDOM, REPEAT, CONTEXTS = "random", "repeat", "contexts"
# As many as mt-bench has: a set of 1,319 questions takes hours where nobody asked for that.
DEFAULT_COUNT = 80
_MOST, _LONGEST, _MOST_TOKENS = 1000, 65_536, 8_000_000
_REPEATS = 8
# Sentences of the shipped contexts that make a thousand tokens, of Gemma's tokenizer, roughly.
_SENTENCES_PER_1K = 47.3
_SHORTEST_CONTEXT, _LONGEST_CONTEXT = 1, 400
# One token each in the vocabularies of Gemma, Qwen and Llama, with the space before it.
_WORDS = (
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state",
    "family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company", "system",
    "program", "question", "work", "government", "number", "night", "point", "home", "water", "room", "mother", "area",
    "money", "story", "fact", "month", "lot", "right", "study", "book", "eye", "job", "word", "business", "issue",
    "side", "kind", "head", "house", "service", "friend", "father", "power", "hour", "game", "line", "end",
)  # fmt: skip


class Dataset(NamedTuple):
    """A known data set: its repository on the hub (empty: it is on none), the file in it, and where it comes from."""

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


def own_dataset_file(name: str) -> Path:
    """Return the file in which users put a data set themselves; it wins over what is fetched."""
    return paths.user_suites_folder() / f"{name}.jsonl"


def fetched_dataset_file(name: str) -> Path:
    """Return the file that is written when a data set is fetched."""
    return paths.cache_folder() / "datasets" / f"{name}.jsonl"


def find_dataset_file(name: str) -> Path | None:
    """Return the file of a known data set that is on this machine, or None."""
    return next((file for file in (own_dataset_file(name), fetched_dataset_file(name)) if file.is_file()), None)


def name_missing_dataset(words: str) -> str | None:
    """Return the data set that has to be fetched before the suite called so can be loaded, or None."""
    name = words.removeprefix(f"{REPEAT}:").partition(":")[0]
    return name if name in DATASETS and find_dataset_file(name) is None else None


def build_missing_error(name: str) -> UsageError:
    """Return the error of a data set that is not on this machine."""
    dataset = DATASETS[name]
    fetch = (
        f"dflash-tui bench --dataset {name} fetches them once an engine is installed; or " if dataset.repository else ""
    )
    do = f"{fetch}put a file of JSON lines ({dataset.source}) there, or give its path: --dataset FILE"
    return UsageError(f"the prompts of {name} are not on this machine", evidence=str(own_dataset_file(name)), hint=do)


def choose_prompts(prompts: Sequence[Prompt], count: int | None) -> tuple[Prompt, ...]:
    """Return so many of the prompts, taken evenly; all where there are no more, or None."""
    if count is None or count >= len(prompts):
        return tuple(prompts)
    return tuple(prompts[place * len(prompts) // count] for place in range(count))


def parse_count(words: str, count: str) -> int | None:
    """Return the number after the name of a data set, `gsm8k:200`; None where none is given.

    Raises:
        UsageError: it is no number.
    """
    if not count:
        return None
    if not count.isdecimal() or not 1 <= int(count[:9]) <= 2 * _MOST:
        raise UsageError(f"{words}: expected NAME:N, N from 1 to {2 * _MOST}", hint="such as gsm8k:200")
    return int(count)


def build_random_suite(words: str) -> Suite:
    """Return the suite `random:IN,OUT` or `random:IN,OUT,N`: N prompts (20) of about IN tokens, answers of OUT.

    Raises:
        UsageError: it is not of that form, or too large.
    """
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


def parse_context_levels(words: str) -> tuple[int, ...]:
    """Return the thousands of tokens of `contexts:1k-128k` (doubled from one to the next) or `contexts:4k,32k`.

    Raises:
        UsageError: it is not of that form.
    """
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


def count_sentences(thousands: int) -> int:
    """Return how many sentences of the shipped contexts make so many thousand tokens."""
    return round(thousands * _SENTENCES_PER_1K)


def parse_repeated(words: str) -> str:
    """Return what `repeat:SUITE` repeats; empty for `repeat`.

    Raises:
        UsageError: it repeats what is repeated.
    """
    inner = words.partition(":")[2]
    if inner.partition(":")[0] == REPEAT:
        raise UsageError(f"{words[:80]}: this is repeated already", hint="such as repeat:quick")
    return inner


def repeat_suite(suite: Suite, words: str) -> Suite:
    """Return a suite whose texts are sent as they are, again and again, so that a prefix cache answers.

    A round sends few prompts several times.
    """
    times = -(-_REPEATS // suite.requests)
    prompts = tuple(replace(prompt, salted=False, repeat=prompt.repeat * times) for prompt in suite.prompts)
    return build_suite(words, prompts, in_order=suite.in_order, levels=suite.levels)
