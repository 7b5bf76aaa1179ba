"""`why` with the address of a real server that another program launched: `vllm serve` with three reasons to be slow."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import command_line
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.long, pytest.mark.timeout(900)]
URL = "http://127.0.0.1:8764"
WORDS = "the river runs past the old mill and the miller counts sacks of grain while rain falls".split()  # noqa: SIM905


@pytest.fixture
def bare(with_engine, tmp_path) -> Iterator[Path]:
    """Serve the toy pair without dflash-tui and return the log."""
    plan = command_line.planned("toy").plan
    drafter = {"method": "dflash", "model": str(Path(plan.target).parent / "drafter"), "num_speculative_tokens": 15}
    words = ["--port", "8764", "--served-model-name", "toy", "--max-model-len", "1024", "--enforce-eager"]
    words += ["--num-gpu-blocks-override", "9", "--speculative-config", json.dumps(drafter)]
    log = tmp_path / "serve.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [plan.argv[0], "serve", plan.target, *words, "--no-enable-prefix-caching"],
            stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **plan.env}, start_new_session=True,
        )  # fmt: skip
    yield log
    server.terminate()
    server.wait(60)


def explain(*words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "dflash_tui", "why", *words, "--json"], capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


_ONE_REQUEST = "the KV cache holds 1 request at a time"


def ask(seed: int) -> None:
    prompt = " ".join(WORDS[(place * 7 + seed) % len(WORDS)] for place in range(150))
    asked = {"model": "toy", "prompt": prompt, "max_tokens": 400, "temperature": 1.5, "seed": seed, "ignore_eos": True}
    httpx.post(f"{URL}/v1/completions", json=asked, timeout=600).raise_for_status()


def test_a_server_of_another_program_is_explained(bare):
    """Too many drafts, and a KV cache for one request while others wait."""
    wait_until(lambda: b"Application startup complete" in bare.read_bytes(), 600)
    with ThreadPoolExecutor(4) as clients:
        for seed in range(200):
            clients.submit(ask, seed)
        wait_until(lambda: _count_steps() > 400, 300)
        wait_until(lambda: any(line.startswith(_ONE_REQUEST) for line in explain(URL)["warnings"]), 300)
        found = explain(URL)
        clients.shutdown(cancel_futures=True)
    assert (found["kind"], found["slow"], found["versions"]["vllm"]) == ("positions", True, "0.32.0")
    assert "num_speculative_tokens=" in found["fix"][0]
    assert explain(str(bare))["kind"] == "positions"


def _count_steps() -> float:
    lines = httpx.get(f"{URL}/metrics", timeout=60).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:spec_decode_num_drafts_total"))
