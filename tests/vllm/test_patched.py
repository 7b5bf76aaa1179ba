"""What a patch of the demo does to a real server: measured with it and without it."""

import json
import subprocess
import sys
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dflash_tui.runs import registry

pytestmark = [pytest.mark.vllm, pytest.mark.long, pytest.mark.chain("installs")]
PORT = "8761"
PATCH, OTHER = "cpu-expand-kernel", "cpu-fork"


def dflash(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dflash_tui", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def wait_until_warm() -> None:
    """Watch the run as somebody who attaches to it does, until it has answered a request."""
    words = [sys.executable, "-m", "dflash_tui", "attach", "--plain", "--json", "--every", "1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as attached:
        assert attached.stdout
        for line in attached.stdout:
            if json.loads(line).get("health") == "warm":
                break
        attached.terminate()


def accepted() -> tuple[float, list[float]]:
    """Steps and accepted tokens by position, of the server's own counters."""
    families = list(text_string_to_metric_families(httpx.get(f"http://127.0.0.1:{PORT}/metrics", timeout=120).text))
    samples = [sample for family in families for sample in family.samples]
    named = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    places = sorted((int(s.labels["position"]), s.value) for s in samples if s.name == named)
    steps = sum(s.value for s in samples if s.name == "vllm:spec_decode_num_drafts_total")
    return steps, [value for _, value in places]


def measured(rounds: int, *words: str) -> tuple[float, list[float]]:
    """Launch, send the prompts at temperature 0.7, stop; return acceptance length and the share of each position.

    The requests of one round share a seed, so that one is a small sample of what is sampled.
    """
    dflash("up", "toy", "--port", PORT, "--detach", *words)
    wait_until_warm()
    before, places = accepted()
    for seed in range(rounds):
        bench = dflash("bench", "--temperature", "0.7", "--scale", "0.2", "--seed", str(seed), "--json")
        assert not [r for r in map(json.loads, bench.stdout.splitlines()) if r.get("error")]
    after, moved = accepted()
    shares = [(now - then) / (after - before) for then, now in zip(places, moved, strict=True)]
    return 1 + sum(shares), shares


def state() -> str:
    lines = dflash("patch", "status", "toy", "--json").stdout.splitlines()
    states: dict[str, Any] = {patch["name"]: patch["state"] for patch in map(json.loads, lines)}
    return str(states[PATCH])


def test_patch_alone_makes_sampled_drafts_count(with_own_engine):
    """With it at least four tokens a step; without it nothing beyond the first; both engines are there."""
    dflash("engine", "install", "toy")
    assert state() == "applied-by-us"
    length, _ = measured(4)
    assert length >= 4
    [run] = registry.list_runs()
    assert run.patches == (PATCH, OTHER)
    dflash("stop")
    assert run.plan.unpatched_folder in dflash("patch", "revert", "toy").stdout
    assert "✗" not in dflash("patch", "verify", "--engine", run.plan.unpatched_folder).stdout
    length, shares = measured(1, "--set", f"patches.{PATCH}=false")  # a step for each token, and none may accept
    # Drafts are sampled: one of 496 steps had a second token once. With the patch it is more than every second step.
    assert max(shares[1:]) < 0.01
    assert length < 2
    assert registry.list_runs()[-1].patches == (OTHER,)
    dflash("stop")
