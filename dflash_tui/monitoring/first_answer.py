"""Compare the first greedy answer of a server with the earlier one of the same models on this machine.

vLLM does not compare hosts: if one has other weights, requests get HTTP 200 and noise, and no log mentions it.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
import unicodedata
from pathlib import Path

import msgspec

from dflash_tui.benchmark.sse import Answer
from dflash_tui.common import paths, private_files, untrusted_json
from dflash_tui.common.sanitizer import join_clean_lines
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.events import AnswerHeld
from dflash_tui.planning.plan import Plan
from dflash_tui.runs.run import Run

# Greedy answers diverge at near-ties, which rounding over several ranks flips; noise diverges at the first token.
_TOKENS_ALIKE, _CHARACTERS_ALIKE = 3, 8
_SCRIPTS_OF_NOISE, _REPEATS_OF_NOISE = 3, 8
_LONGEST = 200
# One answer may mix these.
_EAST_ASIAN = frozenset({"CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO"})
_SCRIPTS = frozenset({
    "LATIN", "GREEK", "CYRILLIC", "ARMENIAN", "GEORGIAN", "HEBREW", "ARABIC", "ETHIOPIC", "DEVANAGARI", "BENGALI",
    "GUJARATI", "GURMUKHI", "TAMIL", "TELUGU", "KANNADA", "MALAYALAM", "SINHALA", "THAI", "LAO", "KHMER", "MYANMAR",
    "TIBETAN", "MONGOLIAN",
})  # fmt: skip
# Flags of placement and capacity; any other flag may change the answer.
_PLACING = frozenset({
    "host", "port", "served-model-name", "api-key", "tensor-parallel-size", "pipeline-parallel-size", "nnodes",
    "node-rank", "master-addr", "master-port", "headless", "distributed-executor-backend",
    "distributed-timeout-seconds", "cpu-distributed-timeout-seconds", "disable-custom-all-reduce",
    "gpu-memory-utilization", "kv-cache-memory-bytes", "max-model-len", "max-num-seqs", "max-num-batched-tokens",
    "enforce-eager", "compilation-config", "speculative-config", "uvicorn-log-level",
})  # fmt: skip


class KeptFirstAnswer(msgspec.Struct, frozen=True):
    """The first greedy answer of some models, in the run `run` at `at` (seconds since the epoch)."""

    models: dict[str, str]
    """The weights of target and drafter."""
    engine: str
    """The vLLM release that served them."""
    flags: tuple[str, ...]
    """Other flags that may change the answer."""
    run: str
    at: float
    answer: Answer


register_type(KeptFirstAnswer)


def hold_answer(run: Run, answer: Answer) -> AnswerHeld | None:
    """Check the weights of a run by its first greedy answer; None on one host or with random weights.

    If no earlier answer is recorded, this one is, unless it looks like noise.
    """
    if not (answer.text or answer.tokens) or not run.models.get("target") or _is_made_up(run.plan):
        return None
    now = KeptFirstAnswer(run.models, run.engine, _list_flags(run.plan), run.id, time.time(), answer)
    record = _record_path(now)
    before = untrusted_json.read_own_json(record, KeptFirstAnswer)
    noise = "" if before or run.plan.synthetic else describe_noise(answer)
    if before is None and not noise:
        _write(record, now)
    if not run.far_ranks:
        return None
    verdict = AnswerHeld(time.time(), _quote(answer), noise=noise, record=str(record))
    if before is None:
        return verdict
    return msgspec.structs.replace(
        verdict,
        is_like_before=begins_alike(before.answer, answer),
        before=_quote(before.answer),
        run=before.run,
    )


def begins_alike(a: Answer, b: Answer) -> bool:
    """Whether two answers begin with the same tokens, or characters if the tokens of either are unknown."""
    if a.tokens and b.tokens:
        return a.tokens[:_TOKENS_ALIKE] == b.tokens[:_TOKENS_ALIKE]
    return a.text[:_CHARACTERS_ALIKE] == b.text[:_CHARACTERS_ALIKE]


def describe_noise(answer: Answer) -> str:
    """Return what makes an answer to `say hello` look like noise; empty if it looks sane."""
    if len(answer.tokens) >= _REPEATS_OF_NOISE and len({*answer.tokens}) == 1:
        return "one token repeated"
    names = {unicodedata.name(letter, "").partition(" ")[0] for letter in answer.text if letter.isalpha()}
    scripts = {"CJK" if name in _EAST_ASIAN else name for name in names if name in _SCRIPTS | _EAST_ASIAN}
    if len(scripts) >= _SCRIPTS_OF_NOISE:
        return f"letters of {len(scripts)} scripts"
    return ""


def _is_made_up(plan: Plan) -> bool:
    """Whether each rank has its own random weights, or acceptance is synthetic."""
    return plan.find_flag("load-format") == "dummy" or "synthetic" in (plan.find_flag("speculative-config") or "")


def _list_flags(plan: Plan) -> tuple[str, ...]:
    flags = list[list[str]]()
    for word in plan.argv:
        if word.startswith("--"):
            flags.append([])
        if flags:
            flags[-1].append(word)
    named = {flag[0].removeprefix("--").partition("=")[0]: " ".join(flag) for flag in flags}
    return tuple(sorted(text for name, text in named.items() if name not in _PLACING))


def _record_path(now: KeptFirstAnswer) -> Path:
    parts = msgspec.json.encode((now.models, now.engine, now.flags), order="sorted")
    return paths.state_folder() / "first-answers" / f"{hashlib.sha256(parts).hexdigest()[:12]}.json"


def _quote(answer: Answer) -> str:
    return join_clean_lines(answer.text)[:_LONGEST]


def _write(path: Path, record: KeptFirstAnswer) -> None:
    with contextlib.suppress(OSError):  # on a full disk the next launch has no answer to compare with
        private_files.ensure_private_folder(path.parent)
        private_files.replace_private_file(path, msgspec.json.encode(record))
