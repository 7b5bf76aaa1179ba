"""Runs the engine's own `vllm bench serve` with the same prompts against the same server."""

from __future__ import annotations

import asyncio
import math
import os
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from dflash_tui.benchmark import imported_results, stats
from dflash_tui.benchmark.imported_results import ImportedResult
from dflash_tui.benchmark.sampling import Sampling
from dflash_tui.benchmark.stats import BootLogs, PromptCell, Ratio
from dflash_tui.benchmark.summary import LevelSummary
from dflash_tui.common import paths, private_files
from dflash_tui.common.errors import DflashError
from dflash_tui.common.sanitizer import clean_line, clean_text
from dflash_tui.common.secrets.own_secrets import own_secrets
from dflash_tui.events import Event
from dflash_tui.machine.process_environment import HUB_TOKEN_PLACES, PROXIES, build_helper_environment
from dflash_tui.runs.run import Run

# Options of `vllm serve` that say how the tokenizer is found.
_TOKENIZER_OPTIONS = ("--tokenizer", "--tokenizer-mode", "--trust-remote-code")
_IMPORT_PATIENCE = 300.0
_LOG_END = 1 << 16


class BenchPrompt(msgspec.Struct, frozen=True):
    """One line of the file of prompts, as vLLM's custom data set has it."""

    prompt: str
    output_tokens: int


class VllmBenchCompared(Event, frozen=True, tag="compared"):
    """What `vllm bench serve` measured in each of its turns, with `streams` requests under way at a time.

    The ratios are how many times theirs ours was, turn by turn; None before the second turn, and where one is unknown.
    """

    run: str
    synthetic: str
    streams: int
    theirs: tuple[ImportedResult, ...]
    tok_s: Ratio | None = None
    """Output tokens per second of all requests together."""
    ttft: Ratio | None = None
    """The median time to the first token."""
    tpot: Ratio | None = None
    """The median time per output token after it."""

    @classmethod
    def from_results(
        cls, run: Run, ours: Sequence[LevelSummary], theirs: Sequence[ImportedResult]
    ) -> VllmBenchCompared:
        """Return the turns of both, paired in their order."""
        measured = [result.measured[0] for result in theirs]
        figures = [turn.figures for turn in ours]
        return cls(
            time.time(),
            run.id,
            run.plan.synthetic,
            ours[0].streams,
            tuple(theirs),
            tok_s=_compare_turns([turn.tok_s for turn in ours], [turn.tok_s for turn in measured]),
            ttft=_compare_turns(
                [turn.ttft.median if turn and turn.ttft else None for turn in figures],
                [turn.ttft for turn in measured],
            ),
            tpot=_compare_turns(
                [turn.tpot.median if turn and turn.tpot else None for turn in figures],
                [turn.tpot for turn in measured],
            ),
        )


def _compare_turns(ours: Sequence[float | None], theirs: Sequence[float | None]) -> Ratio | None:
    """Return the ratio of ours to theirs over the turns that have both; None of fewer than two."""
    both = [(mine, other) for mine, other in zip(ours, theirs, strict=True) if mine and other]
    if len(both) < 2:
        return None
    arms = [
        [BootLogs({PromptCell(str(turn)): [math.log(pair[side])] for turn, pair in enumerate(both)})] for side in (1, 0)
    ]
    apart = stats.compare_arms(arms, 0, 1)
    return apart.ratio() if apart else None


async def run_vllm_bench(
    run: Run, asks: Iterable[BenchPrompt], sampling: Sampling, *, streams: int, patience: float
) -> ImportedResult:
    """Send requests in order with `vllm bench serve` and return its result; its files stay in the run's folder.

    The answers have their full length.

    Args:
        run: the server that answers.
        asks: the requests.
        sampling: its seed and temperature are theirs, too.
        streams: how many requests are under way at a time.
        patience: how many seconds the requests may take.

    Raises:
        DflashError: it fails or times out, with the end of its log, or the run's folder cannot be written.
    """
    name = f"vllm-bench-{uuid.uuid4().hex[:8]}"
    prompts, result, log = (run.folder / f"{name}{end}" for end in (".jsonl", ".json", ".log"))
    lines = [msgspec.json.encode(ask) for ask in asks]
    try:
        private_files.write_private_file(prompts, b"\n".join((*lines, b"")))
        private_files.write_private_file(log, b"")
    except OSError as error:
        raise DflashError(f"{run.folder} cannot be written", evidence=clean_line(str(error))) from None
    heat = [] if sampling.temperature is None else ["--temperature", str(sampling.temperature)]
    extra: dict[str, object] = {"cache_salt": uuid.uuid4().hex} | ({"seed": sampling.seed} if sampling.seeded else {})
    extra |= sampling.options
    argv = [
        *_build_command(run, prompts, result), *heat, "--extra-body", msgspec.json.encode(extra).decode(),
        "--num-prompts", str(len(lines)), "--max-concurrency", str(streams),
    ]  # fmt: skip
    # Its tokenizer may be one that the hub gives to its users only.
    env = build_helper_environment(*PROXIES, *HUB_TOKEN_PLACES, "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") | run.plan.env
    env |= {"VLLM_NO_USAGE_STATS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    env |= {"OPENAI_API_KEY": run.api_key} if run.api_key else {}
    with log.open("wb") as output:
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, env=env, cwd=run.folder
            )
        except OSError as error:
            raise DflashError("vllm bench serve could not be started", evidence=clean_line(str(error))) from None
        try:
            code = await asyncio.wait_for(process.wait(), _IMPORT_PATIENCE + patience)
        except TimeoutError:
            raise DflashError("vllm bench serve timed out", hint=f"its log: {log}") from None
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if code != 0 or not result.exists():
        raise DflashError("vllm bench serve failed", evidence=_last_log_line(log), hint=f"its log: {log}")
    return imported_results.load_imported_result(result)


def _build_command(run: Run, prompts: Path, result: Path) -> list[str]:
    """Return the command. Its prompts go to the chat endpoint as ours do, where the server applies the template."""
    words = (
        Path(run.plan.argv[0]).parent / "python", paths.engine_script("bench_serve.py"), "bench", "serve",
        "--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--base-url", run.url,
        "--model", run.plan.target, "--served-model-name", run.plan.served_name, *_tokenizer_options(run.plan.argv),
        "--dataset-name", "custom", "--dataset-path", prompts, "--custom-output-len", -1,
        "--skip-chat-template", "--disable-shuffle", "--ignore-eos", "--ready-check-timeout-sec", 0,
        "--save-result", "--result-dir", result.parent, "--result-filename", result.name, "--disable-tqdm",
    )  # fmt: skip
    return [str(word) for word in words]


def _tokenizer_options(argv: tuple[str, ...]) -> list[str]:
    """Return the options of the server that its tokenizer needs."""
    options: list[str] = []
    for word, after in zip(argv, (*argv[1:], ""), strict=True):
        if word.partition("=")[0] in _TOKENIZER_OPTIONS:
            options += [word] if "=" in word or after.startswith("--") or not after else [word, after]
    return options


def _last_log_line(log: Path) -> str:
    """Return the last line that the benchmark wrote."""
    with log.open("rb") as file:
        start = max(0, os.fstat(file.fileno()).st_size - _LOG_END)
        file.seek(start)
        output = file.read().decode(errors="replace")
        first, *others = output.split("\n")
        lines = [own_secrets().hide_cut(clean_text(first), start=start > 0), *map(clean_line, others)]
    return next((line[:500] for line in reversed(lines) if line), "no output")
