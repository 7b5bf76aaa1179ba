"""What is quoted of the output of programs: their last lines, of which no secret is shown."""

import subprocess
import sys
from pathlib import Path

import pytest

from dflash_tui.cli import experiment_lines
from dflash_tui.common.errors import DflashError
from dflash_tui.common.secrets import own_secrets
from dflash_tui.engines import engine_python, uv_process
from dflash_tui.experiments import store
from dflash_tui.launch.preflight import ray
from dflash_tui.presentation import markdown
from dflash_tui.runs.detached_process import DetachedProcess
from tests.support.planted import KEY


def explain_install(output: Path) -> str:
    progress = uv_process.InstallProgress("vLLM", (), 1, lambda _event: None)
    lines = output.read_bytes().decode().split("\n")
    return uv_process.build_install_error(progress, ["pip", "install"], lines, output / "lock").evidence


def write_program(output: Path) -> Path:
    """Write an engine's Python that fails with that output."""
    python = output.with_name("python")
    python.write_text(f"#!/bin/sh\ncat '{output}' >&2\nexit 1\n")
    python.chmod(0o755)
    return python


def explain_script(output: Path) -> str:
    with pytest.raises(DflashError) as failure:
        engine_python.run_script(write_program(output), "any.py", timeout=30)
    return failure.value.evidence


def explain_detached(output: Path) -> str:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        return DetachedProcess(process, output, 0).read_last_words()


@pytest.mark.parametrize(
    "quote_end",
    [
        explain_install, explain_script, explain_detached,
        lambda output: ray.read_ray_cluster(write_program(output)).error,
        lambda output: experiment_lines._last_log_line(output.parent),
        lambda output: markdown.escape_text(output.read_bytes().decode()),
    ],
    ids=["install", "script", "detached", "Ray", "experiment", "report"],
)  # fmt: skip
@pytest.mark.parametrize("line_end", "\r\v\f\x1c\x85\u2028", ids=ascii)
def test_a_key_is_known_where_python_would_end_a_line(line_end, quote_end, tmp_path, monkeypatch):
    """In what is quoted of a program's last lines."""
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    own_secrets.read_own_secrets()
    output = tmp_path / store.LOG
    output.write_text(f"error: it is {KEY[:9]}{line_end}{KEY[9:]} b\n", newline="", encoding="utf-8")
    quoted = quote_end(output)
    assert (KEY[:9] in quoted, KEY[9:15] in quoted, "it is" in quoted) == (False, False, True)
