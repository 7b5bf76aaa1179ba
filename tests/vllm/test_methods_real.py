"""Methods of speculation beside DFlash on real vLLM: they draft, they are counted, and they answer alike."""

import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dflash_tui.runs import registry
from dflash_tui.runs.run import Run
from tests.support import command_line

pytestmark = [pytest.mark.vllm, pytest.mark.long]
PROMPT = "Count from one to nine, then do it again."


def launched(port: int, *words: str) -> Run:
    command = [sys.executable, "-m", "dflash_tui", "up", "demo-cpu", "--port", str(port), "--detach", "--wait", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return registry.list_runs()[-1]


def answer(run: Run) -> str:
    asked = {"model": run.plan.served_name, "prompt": PROMPT, "max_tokens": 96, "temperature": 0, "ignore_eos": True}
    text: str = httpx.post(f"{run.url}/v1/completions", json=asked, timeout=300).json()["choices"][0]["text"]
    return text


def count(run: Run, name: str) -> float:
    """Read a counter without the product's own parser."""
    text = httpx.get(f"{run.url}/metrics", timeout=120).text
    return sum(s.value for f in text_string_to_metric_families(text) for s in f.samples if s.name == f"vllm:{name}")


def test_each_method_drafts_and_answers_alike(with_engine, tmp_path):
    """The target drafts for itself: vLLM takes a drafter whose path holds `dflash` for another kind."""
    target = command_line.planned("demo-cpu").plan.target
    itself = shutil.copytree(Path(target), Path("/tmp") / tmp_path.name / "target", dirs_exist_ok=True)
    methods = {
        "ngram": ["--set", "speculation.prompt_lookup_max=3", "--set", "speculation.prompt_lookup_min=1"],
        "draft_model": ["--set", f"drafter.model={itself}", "--set", "n=3"],
    }
    answers = {}
    try:
        for port, (method, words) in enumerate(methods.items(), 8741):
            run = launched(port, "--method", method, *words)
            answers[method] = answer(run)
            drafted = count(run, "spec_decode_num_draft_tokens_total")
            assert (run.plan.method.value, run.launched.method) == (method, method)
            assert drafted > 0
            stopped = subprocess.run([sys.executable, "-m", "dflash_tui", "stop", run.id], check=False)
            assert stopped.returncode == 0
    finally:
        shutil.rmtree(itself.parent, ignore_errors=True)
    assert answers["ngram"] == answers["draft_model"]
