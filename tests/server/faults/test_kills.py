"""A few kill -9 over a life of real commands, servers and installs; tools/benchmarks/kills.py does a hundred."""

import subprocess
import sys

import pytest

from tests import ROOT

PHASES = ("install", "apply", "launch", "serve", "observe", "stop")


@pytest.mark.long
def test_lists_are_true_after_every_kill(tmp_path):
    """Whatever was interrupted is named or mended, nothing runs on unnoticed, and no part is taken for a whole."""
    only = [word for phase in PHASES for word in ("--only", phase)]
    argv = [sys.executable, "-m", "tools.benchmarks.kills", "--kills", "6", "--seed", "40", *only]  # each phase once
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, timeout=500, check=False)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
    assert "6 of 6 kills" in done.stdout
