"""Several hosts: what a Ray cluster has to be, by the engine's own Ray, played by a program that says what it would.

What Ray 2 itself says was looked at by hand: no cluster, one of one host, with two GPUs, and without a vLLM.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dflash_tui.engines.environments import Engine
from dflash_tui.launch.preflight import runner
from dflash_tui.launch.preflight.check import Check, CheckLevel
from tests.support.preflight_situations import DESKTOP, engine_in, situation

RAY = {"distributed-executor-backend": "ray", "tensor-parallel-size": 2}


def node(host: str, gpus: int = 1, vllm: str = "0.33.0") -> dict[str, Any]:
    return {"host": host, "gpus": gpus, "vllm": vllm}


@pytest.fixture
def engine(tmp_path) -> Engine:
    return engine_in(tmp_path / "engine")


def says(engine: Engine, script: str) -> None:
    """Have the engine's Python run a shell script."""
    engine.python.unlink()
    engine.python.write_text(f"#!/bin/sh\n{script}\n")
    engine.python.chmod(0o755)


def checked(engine: Engine | None) -> Check:
    (found,) = runner.check_ray(situation("gemma-4-26b-a4b", DESKTOP, engine=engine, settings=RAY))
    assert found.fix or found.level is CheckLevel.OK
    return found


@pytest.mark.parametrize(
    ("answer", "level", "words"),
    [
        ({"nodes": [node("a"), node("b")]}, CheckLevel.OK, "2 hosts, 2 GPUs, vLLM 0.33.0"),
        ({"nodes": [node("a", 2), node("b", 0)]}, CheckLevel.OK, "2 hosts, 2 GPUs"),
        ({"nodes": [node("a")]}, CheckLevel.FAIL, "1 host, 1 GPU, vLLM 0.33.0; the launch needs 2 GPUs"),
        ({"nodes": [node("a"), node("b", vllm="0.32.0")]}, CheckLevel.FAIL, "vLLM 0.32.0, 0.33.0: every host"),
        ({"nodes": [node("a"), node("b", vllm="")]}, CheckLevel.FAIL, "vLLM 0.33.0, none: every host"),
        ({"error": "no Ray cluster runs"}, CheckLevel.FAIL, "no Ray cluster runs"),
    ],
)
def test_the_cluster_must_have_what_the_plan_needs(engine, answer, level, words):
    """GPUs for every part, and one vLLM everywhere."""
    says(engine, f"echo noise of an import; echo '{json.dumps(answer)}'")
    found = checked(engine)
    assert (found.level, words in found.finding) == (level, True), found
    if "every host" in words:
        assert "b " in found.fix


def test_an_engine_without_ray_says_so(engine):
    """Our script runs in an engine's Python; this one has none."""
    says(engine, f'exec {sys.executable} "$@"')
    assert "has no Ray" in checked(engine).finding


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo broken >&2; exit 1", "could not read the cluster: broken"),
        ("echo '[1]'", "could not read the cluster: no output"),
        ("exec sleep 30", "not answered"),
    ],
)
def test_a_ray_that_does_not_work(engine, monkeypatch, script, words):
    """What it said is evidence; one that hangs is not waited for."""
    if "sleep" in script:
        monkeypatch.setattr(runner, "_TIMEOUT", 0.5)
    says(engine, script)
    found = checked(engine)
    assert found.level is CheckLevel.FAIL
    assert words in found.finding


def test_an_engine_whose_python_is_gone(engine):
    """That is no traceback either."""
    engine.python.unlink()
    assert "No such file" in checked(engine).finding


def test_before_the_engine_is_there_nothing_is_asked():
    """It is installed by the launch."""
    found = checked(None)
    assert found.level is CheckLevel.WARN
    assert "engine install" in found.fix


def test_one_host_needs_no_ray(tmp_path):
    """Without that executor there is no check."""
    alone = situation("gemma-4-26b-a4b", DESKTOP, engine=engine_in(Path(tmp_path) / "engine"))
    assert list(runner.check_ray(alone)) == []
