"""docs/seeds.md: each of its commands plans, shows the figures that the page names, and says what the page says."""

import json
import re
import shlex

import pytest

from dflash_tui.benchmark import suites
from dflash_tui.common import paths
from dflash_tui.experiments.builder import estimate_duration
from dflash_tui.machine import nvml
from dflash_tui.machine.gpus import GpuProbe
from dflash_tui.planning.methods import Method
from dflash_tui.planning.recipes.recipe import Mode, Status
from dflash_tui.presentation import experiment_text, plan_text
from tests import ROOT
from tests.support import command_line

ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (ROOT / "docs" / "seeds.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and "`dflash-tui plan " in line
]
# Of each command: n, mode, method, vLLM, status.
LAUNCHES = {
    "gemma-4-31b --gpu gb10 --profile seed": (8, Mode.EAGER, Method.DFLASH, "0.20.2", Status.REPORTED),
    "gemma-4-31b --gpu gb10 --profile seed --method none": (0, Mode.EAGER, Method.NONE, "0.20.2", Status.REPORTED),
    "gemma-4-31b --gpu gb10": (8, Mode.EAGER, Method.DFLASH, "0.33.0", Status.EXPERIMENTAL),
    "gemma-4-26b-a4b --gpu h100": (15, Mode.COMPILE, Method.DFLASH, "0.26.0", Status.REPORTED),
    "gemma-4-26b-a4b --gpu rtx-5090-laptop --profile seed": (8, Mode.COMPILE, Method.DFLASH, "0.20.2", Status.BROKEN),
    "gemma-4-26b-a4b --gpu rtx-5090": (15, Mode.COMPILE, Method.DFLASH, "0.33.0", Status.EXPERIMENTAL),
    "qwen3.5-35b-a3b --gpu gb10 --profile seed": (15, Mode.COMPILE, Method.DFLASH, "0.20.2", Status.REPORTED),
    "qwen3-coder-next --gpu gb10 --profile seed": (15, Mode.EAGER, Method.DFLASH, "0.20.2", Status.REPORTED),
    "qwen3-coder-next --gpu gb10 --profile seed --mode compile":
        (15, Mode.COMPILE, Method.DFLASH, "0.20.2", Status.REPORTED),
}  # fmt: skip


def read_words(cell: str) -> list[str]:
    match = re.fullmatch(r"`dflash-tui plan (.*)`", cell)
    assert match, cell
    return shlex.split(match.group(1))


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_plan_shows_published_figures_of_system(row, monkeypatch):
    """Each number of the page is in what the plan says of published figures."""
    monkeypatch.setattr(nvml, "probe_gpus", GpuProbe)
    planned = command_line.planned(*read_words(row[1]))
    shown = " ".join([*map(plan_text.format_published, planned.plan.expected), str(planned.resolved.standing.why)])
    missing = [number for number in re.findall(r"\d+(?:\.\d+)?", row[2]) if not re.search(rf"\b{number}\b", shown)]
    assert not missing, shown


@pytest.mark.parametrize("command", LAUNCHES)
def test_system_plan_matches_its_published_launch(command, monkeypatch):
    monkeypatch.setattr(nvml, "probe_gpus", GpuProbe)
    assert any(read_words(row[1]) == shlex.split(command) for row in ROWS)
    plan = command_line.planned(*shlex.split(command)).plan
    assert plan.standing
    found = (plan.num_speculative_tokens, plan.mode, plan.method, plan.vllm, plan.standing.status)
    assert found == LAUNCHES[command]


def test_the_published_benchmark_is_one_command(monkeypatch):
    """80 prompts of mt-bench, one at a time, 2048 tokens at most, temperature 0, with and without speculation."""
    monkeypatch.setattr(nvml, "probe_gpus", GpuProbe)
    questions = [{"question_id": 81 + number, "category": "any", "turns": ["Why?", "And?"]} for number in range(80)]
    file = paths.user_suites_folder() / "mt-bench.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text("\n".join(map(json.dumps, questions)))
    page = (ROOT / "docs" / "seeds.md").read_text(encoding="utf-8")
    (words,) = re.findall(r"`dflash-tui ab (gemma-4-31b [^`]*mt-bench[^`]*)`", page)
    design, _ = command_line.experiment(*shlex.split(words), "--gpu", "gb10")
    prompts = suites.load_suite(design.suite).prompts
    assert {prompt.max_tokens * design.scale for prompt in prompts} == {2048}
    assert (len(prompts) * design.rounds, design.concurrency, design.temperature) == (80, (1,), 0.0)
    assert [arm.plan.num_speculative_tokens for arm in design.arms] == [8, 0]
    assert {arm.plan.profile for arm in design.arms} == {"seed"}
    takes = dict(experiment_text.list_design_rows(design, estimate_duration(design)))["takes"]
    assert re.match(r"at most .*\b11 h\b.*\bmeanaverage/", takes)
    assert words in (ROOT / "docs" / "gb10.md").read_text(encoding="utf-8")
