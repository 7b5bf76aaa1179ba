"""Send the same prompts by turns with dflash-tui and with the engine's own `vllm bench serve`, and compare the figures.

`python tools/bench_beside_vllm.py [RUN] --rounds 8` in a clone prints a JSON line for each turn, then the ratios.
Who begins changes from turn to turn, so that what drifts on the machine meets both alike. Answers have their full
length, and no fillers keep the load up, as `vllm bench serve` has none.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import subprocess
import sys
import uuid
from contextlib import aclosing
from pathlib import Path
from typing import NamedTuple

import msgspec

from dflash_tui.benchmark import client, suites
from dflash_tui.benchmark.load import Load, LoadRecord
from dflash_tui.benchmark.prompts import Sampling, Suite
from dflash_tui.benchmark.result_files import ImportedMeasurement, load_imported_result
from dflash_tui.benchmark.server import Server
from dflash_tui.benchmark.summary import LevelSummary
from dflash_tui.cli.console import print_data, print_status
from dflash_tui.events import FILLER
from dflash_tui.experiments.analysis import stats
from dflash_tui.experiments.analysis.stats import BootLogs, PromptCell
from dflash_tui.runs import registry
from dflash_tui.runs.run import Run

_SCRIPT = Path(__file__).with_name("bench_serve.py")
# Options of `vllm serve` that say how the tokenizer is found.
_TOKENIZER_OPTIONS = ("--tokenizer", "--tokenizer-mode", "--trust-remote-code")


class Turn(NamedTuple):
    """What both measured of the same prompts."""

    ours: LevelSummary
    theirs: ImportedMeasurement


async def measure_ours(run: Run, suite: Suite, sampling: Sampling, streams: int) -> LevelSummary:
    """Return what dflash-tui measures of a suite."""
    server = Server.from_run(run)
    before, record = await client.read_counters(server), LoadRecord(Load(streams, refill=False))
    requests = client.send_suite(server, suite, sampling, rounds=suite.rounds(1, streams), record=record)
    async with aclosing(requests):
        done = [request async for request in requests if request.kind != FILLER]
    return LevelSummary.from_requests(server, done, before, await client.read_counters(server), suite, record=record)


def measure_theirs(run: Run, suite: Suite, sampling: Sampling, streams: int) -> ImportedMeasurement:
    """Return what `vllm bench serve` measures of a suite; its files stay in the run's folder."""
    seed, name = sampling.seed, f"vllm-bench-{uuid.uuid4().hex[:8]}"
    lines = [
        {"prompt": client.make_prompt_unique(prompt, number, seed),
         "output_tokens": client.answer_length(prompt, sampling.scale)}
        for prompt, number in client.order_requests(suite, suite.rounds(1, streams), seed)
    ]  # fmt: skip
    prompts, result = run.folder / f"{name}.jsonl", run.folder / f"{name}.json"
    prompts.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    extra = {"cache_salt": uuid.uuid4().hex} | ({"seed": seed} if sampling.seeded else {})
    heat = [] if sampling.temperature is None else ["--temperature", sampling.temperature]
    words = (
        Path(run.plan.argv[0]).parent / "python", _SCRIPT, "bench", "serve",
        "--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--base-url", run.url,
        "--model", run.plan.target, "--served-model-name", run.plan.served_name, *_list_tokenizer_options(run),
        "--dataset-name", "custom", "--dataset-path", prompts, "--custom-output-len", -1,
        "--skip-chat-template", "--disable-shuffle", "--ignore-eos", "--ready-check-timeout-sec", 0,
        "--save-result", "--result-dir", run.folder, "--result-filename", result.name, "--disable-tqdm",
        "--num-prompts", len(lines), "--max-concurrency", streams, "--extra-body", msgspec.json.encode(extra).decode(),
        *heat,
    )  # fmt: skip
    env = os.environ | run.plan.env | ({"OPENAI_API_KEY": run.api_key} if run.api_key else {})
    subprocess.run([str(word) for word in words], check=True, cwd=run.folder, env=env, stdout=sys.stderr)
    return load_imported_result(result).measured[0]


def _list_tokenizer_options(run: Run) -> list[str]:
    options: list[str] = []
    for word, after in zip(run.plan.argv, (*run.plan.argv[1:], ""), strict=True):
        if word.partition("=")[0] in _TOKENIZER_OPTIONS:
            options += [word] if "=" in word or after.startswith("--") or not after else [word, after]
    return options


def compare_turns(turns: list[Turn]) -> str:
    """Return how many times theirs our figures were, with the interval over the turns."""
    figures: dict[str, list[tuple[float | None, float | None]]] = {
        "output tok/s": [(turn.ours.tok_s, turn.theirs.tok_s) for turn in turns],
        "TTFT p50": [(_median(turn, "ttft"), turn.theirs.ttft) for turn in turns],
        "TPOT p50": [(_median(turn, "tpot"), turn.theirs.tpot) for turn in turns],
    }
    lines = []
    for name, values in figures.items():
        both = [(ours, theirs) for ours, theirs in values if ours and theirs]
        cells = [
            [BootLogs({PromptCell(str(turn)): [math.log(pair[side])] for turn, pair in enumerate(both)})]
            for side in (1, 0)
        ]
        if len(both) > 1 and (apart := stats.compare_arms(cells, 0, 1)):
            ratio = apart.ratio()
            low, mean, high = (f"{(value - 1) * 100:+.1f}" for value in (ratio.low, ratio.ratio, ratio.high))
            lines.append(f"{name}: {mean} % ({stats.LEVEL:.0%}: {low} to {high}), {len(both)} turns")
    return "\n".join(lines)


def _median(turn: Turn, name: str) -> float | None:
    found = getattr(turn.ours.figures, name, None)
    return found.median if found else None


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", metavar="RUN", nargs="?", help="the server (default: the only one)")
    parser.add_argument("--suite", default="quick")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    run, suite, turns = registry.find_listening_run(args.run), suites.load_suite(args.suite), list[Turn]()
    for number in range(args.rounds):
        sampling = Sampling(args.scale, args.seed + number, args.temperature, fixed=True)
        first = None if number % 2 == 0 else measure_theirs(run, suite, sampling, args.concurrency)
        ours = asyncio.run(measure_ours(run, suite, sampling, args.concurrency))
        turns.append(Turn(ours, first or measure_theirs(run, suite, sampling, args.concurrency)))
        print_data(msgspec.json.encode({"ours": turns[-1].ours, "theirs": turns[-1].theirs}).decode())
    print_status(compare_turns(turns))


if __name__ == "__main__":
    main()
