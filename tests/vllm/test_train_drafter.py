"""The training of the demo's drafter, on a CPU: what a toy target does is learned from its own answers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.support import toy_pair

pytestmark = [pytest.mark.vllm, pytest.mark.by_hand, pytest.mark.index, pytest.mark.timeout(1800)]
# speculators, and what it imports beyond an engine's own packages.
PACKAGES = (
    "speculators==0.9.0", "hs-connectors==0.9.0", "datasets==5.1.0", "dill", "multiprocess", "pandas", "pyarrow",
    "python-dateutil", "pytz", "six", "xxhash",
)  # fmt: skip
WORDS = (
    "--rows 8 --length 96 --batches 1 --pack 4 --anchors 32 --steps 100 --minutes 20 --layers 1 --taps 0 1 2 "
    "--mask-token 1023 --attention sdpa --answer-tokens 24"
)


def test_a_drafter_learns_its_target(with_engine, demo_engine, tmp_path):
    """The toy target repeats its last token, so at temperature 0 a trained drafter is right at every position."""
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", tmp_path / "packages"]
    subprocess.run([*install, *PACKAGES], check=True, timeout=900)
    script, target, out = ROOT / "tools" / "train_drafter" / "train.py", toy_pair.build_models() / "target", tmp_path
    env = os.environ | {"PYTHONPATH": str(tmp_path / "packages"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    argv = [demo_engine.python, script, target, out, *WORDS.split()]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=900, env=env)
    assert done.returncode == 0, done.stderr
    figures = json.loads((out / "figures.json").read_text())
    assert figures["acceptance_length"] > 6
    assert len(figures["by_position"]) == 7
    config = json.loads((out / "drafter" / "config.json").read_text())
    assert config["dflash_config"] == {"mask_token_id": 1023, "target_layer_ids": [0, 1, 2]}
    assert Path(out, "drafter", "model.safetensors").stat().st_size < 100_000
