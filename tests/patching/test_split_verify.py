"""What the patches of split verification compute: the release's own kernel in Triton's interpreter, against float64."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import uv
from msgspec.structs import replace

from dflash_tui.engines.patching import text_edits
from dflash_tui.planning import patch_file
from dflash_tui.planning.patch_file import Patch
from tests import ROOT
from tests.patching.arms import ATTENTION, TRIED
from tests.support import wheels

pytestmark = [pytest.mark.long, pytest.mark.index]  # no server: needs no turn among the tests that have one
TRITON = "triton==3.6.0"
KERNEL = "v1/attention/ops/triton_unified_attention.py"
SMALL = {"heads": 2, "kv_heads": 1}
# A row without a key in its last segment, and all scores so low that the other segments' sums vanish beside a zero.
FAR = [{"tokens": [16], "contexts": [context], "shift": -200.0, **SMALL} for context in (33, 130)]
CASES: list[dict[str, Any]] = [
    *({"tokens": [q], "contexts": [101], **SMALL} for q in (1, 8, 9, 16)),
    *({"tokens": [q], "contexts": [q], **SMALL} for q in (2, 16)),
    *({"tokens": [q], "contexts": [context], **SMALL} for q, context in ((2, 130), (16, 37))),
    {"tokens": [16, 1, 5, 9], "contexts": [101, 37, 64, 130], **SMALL},
    {"tokens": [16, 9], "contexts": [130, 37], "window": 24, **SMALL},
    *({"tokens": [16], "contexts": [101], "window": window, **SMALL} for window in (1, 64)),
    {"tokens": [16], "contexts": [101], "softcap": 30.0, **SMALL},
    {"tokens": [16], "contexts": [101], "sinks": True, "window": 24, **SMALL},
    {"tokens": [16], "contexts": [101], "head_size": 24, **SMALL},
    {"tokens": [16], "contexts": [101], "fp8": True, **SMALL},
    {"tokens": [9], "contexts": [101], "fp8": True, "window": 24, **SMALL},
    {"tokens": [16, 16], "contexts": [101, 48], "causal": False, **SMALL},
    {"tokens": [16], "contexts": [101], "segments": 64, **SMALL},
    {"tokens": [16], "contexts": [101], "padding": 32, **SMALL},
    *FAR,
]
# As many blocks as are split.
MOST_BLOCKS: dict[str, Any] = {"tokens": [2] * 8, "contexts": [5] * 8, "heads": 16, "kv_heads": 16, "segments": 2}
TOO_MANY: list[dict[str, Any]] = [
    {"tokens": [17], "contexts": [101], **SMALL},
    MOST_BLOCKS | {"tokens": [2] * 9, "contexts": [5] * 9},
    {"tokens": [1] * 17, "contexts": [37] * 17, **SMALL},
    {"tokens": [16], "contexts": [101], "scratch": 15, **SMALL},
]
NEWEST = ("triton-split-verify", "0.33.0")
SECOND = "triton-split-verify-2"
OTHERS = [
    (name, version) for name in TRIED if "split-verify" in name and name != SECOND for version in TRIED[name].releases
    if (name, version) != NEWEST
]  # fmt: skip
A_FEW: list[dict[str, Any]] = [
    {"tokens": [1], "contexts": [37], **SMALL},
    {"tokens": [9], "contexts": [37], "window": 24, **SMALL},
    {"tokens": [9], "contexts": [37], "fp8": True, **SMALL},
    {"tokens": [2] * 4, "contexts": [37] * 4, "heads": 4, "kv_heads": 4, "segments": 2},
    FAR[0],
]
SINGLE: list[dict[str, Any]] = [{"tokens": [1], "contexts": [101], "window": 24, "segments": 4, **SMALL}]
A_FEW_WINDOWS: list[dict[str, Any]] = [
    *SINGLE,
    {"tokens": [9], "contexts": [101], "window": 24, "segments": 4, "fp8": True, **SMALL},
    {"tokens": [9], "contexts": [37], **SMALL},
]
WINDOWS: list[dict[str, Any]] = [
    {"tokens": [16], "contexts": [130], "window": 24, "sinks": True, **SMALL},
    {"tokens": [9], "contexts": [130], "window": 24, "softcap": 30.0, **SMALL},
    {"tokens": [16, 1, 5], "contexts": [37, 64, 130], "window": 24, **SMALL},
    {"tokens": [9], "contexts": [37], "window": 512, **SMALL},
    {"tokens": [16], "contexts": [16], "window": 8, **SMALL},
]
# Two and one blocks of 64 and 32 rows, of which the last one is not full; a block of two requests' rows; padding.
LARGE: list[dict[str, Any]] = [
    {"tokens": [16], "contexts": [130], "heads": 8, "kv_heads": 1, "head_size": 512, "segments": 32},
    {"tokens": [9], "contexts": [101], "heads": 8, "kv_heads": 1, "head_size": 512, "softcap": 30.0},
    {"tokens": [16], "contexts": [130], "window": 24, "head_size": 256, "segments": 32, **SMALL},
    {"tokens": [9, 1, 16], "contexts": [37, 64, 130], "window": 24, "sinks": True, "head_size": 256, **SMALL},
    {"tokens": [2], "contexts": [101], "head_size": 256, "padding": 14, **SMALL},
    {"tokens": [16], "contexts": [101], "fp8": True, "head_size": 256, **SMALL},
    {"tokens": [16, 16], "contexts": [101, 48], "causal": False, "head_size": 256, **SMALL},
]


@pytest.fixture(scope="module")
def interpreted(demo_engine, tmp_path_factory):
    """Return what runs cases on the sources of a release: the engine's torch, and Triton beside it."""
    site = tmp_path_factory.mktemp("triton")
    install = ["pip", "install", "-q", "--python", str(demo_engine.python), "--target", str(site), "--no-deps", TRITON]
    subprocess.run([uv.find_uv_bin(), *install], check=True, cwd=site)

    def run(version: str, patches: list[Patch], cases: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
        texts = wheels.read("vllm", version, {*ATTENTION, *(path for patch in patches for path in patch.paths)})
        texts |= text_edits.patch_texts(patches, texts)
        # The interpreter computes in float32; the second edition takes larger blocks of two bytes alone.
        texts[KERNEL] = (texts[KERNEL] or "").replace("q.element_size() == 2", "q.element_size() == 4")
        for path in ATTENTION:
            (folder / Path(path).name).write_text(texts[path] or "")
        done = subprocess.run(
            [str(demo_engine.python), str(ROOT / "tests" / "support" / "split_verify.py"), str(folder)],
            input=json.dumps(cases),
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


def most(case: dict[str, Any]) -> float:
    """The largest error that is one of float32: scores far from zero cost digits, as they do without the split."""
    return 1e-4 if case.get("shift") else 5e-6 if case.get("softcap") else 2e-6


def check(interpreted, folder: Path, names: list[str], version: str, cases: list[dict[str, Any]]) -> list[int]:
    """Each case is split, right, and within its scratch; return how many segments of each have work."""
    results = interpreted(version, [patch_file.load_patch(each) for each in names], cases, folder)
    assert [result["split"] for result in results] == [True] * len(cases)
    wrong = [(case, each) for case, each in zip(cases, results, strict=True) if not each["error"] <= most(case)]
    assert wrong == []
    assert not any(result["spilled"] for result in results)
    return [result["busy"] for result in results]


@pytest.mark.parametrize("cases", [CASES[0::2], CASES[1::2], [MOST_BLOCKS]], ids=["even", "odd", "most blocks"])
def test_split_step_answers_like_unsplit_step(interpreted, tmp_path, cases):
    """Up to 16 tokens, several requests, windows, sinks, softcap, FP8."""
    check(interpreted, tmp_path, [NEWEST[0]], NEWEST[1], cases)


@pytest.mark.parametrize("edition", OTHERS, ids="-".join)
def test_an_earlier_edition_does_the_same(interpreted, tmp_path, edition):
    """A window, an FP8 cache and many blocks; an edition has the same kernel with other text around it."""
    check(interpreted, tmp_path, [edition[0]], edition[1], A_FEW)


def test_a_wider_step_is_not_split(interpreted, tmp_path):
    """More tokens than the limit, more blocks than the GPU has room for, or too little scratch take the old way."""
    name, version = NEWEST
    results = interpreted(version, [patch_file.load_patch(name)], TOO_MANY, tmp_path)
    assert [(result["split"], result["error"] <= 2e-6) for result in results] == [(False, True)] * len(TOO_MANY)
    assert not any(result["spilled"] for result in results)


def test_unpatched_engine_splits_no_speculation_step(interpreted, tmp_path):
    """And the answers are the same."""
    results = interpreted("0.26.0", [], A_FEW, tmp_path)
    assert [result["split"] for result in results] == [case["tokens"] == [1] for case in A_FEW]
    assert all(each["error"] <= most(case) for case, each in zip(A_FEW, results, strict=True))


def test_mended_reduction_keeps_low_scores_right(interpreted, tmp_path):
    """The split alone, without the edit of the reduction, is wrong there: the patch carries both."""
    patch = patch_file.load_patch("triton-split-verify-0.24")
    kernel = next(file for file in patch.files if file.path == KERNEL)
    alone = replace(patch, files=tuple(
        replace(file, edits=file.edits[:1]) if file is kernel else file for file in patch.files
    ))  # fmt: skip
    assert [result["error"] > 0.1 for result in interpreted("0.26.0", [alone], FAR, tmp_path)] == [True] * len(FAR)


@pytest.mark.parametrize("edition", [NEWEST, ("triton-split-verify-0.24", "0.25.0"), OTHERS[-1]], ids="-".join)
def test_window_fills_more_segments(interpreted, tmp_path, edition):
    """A layer without a window is cut as before."""
    name, version = edition
    whole = check(interpreted, tmp_path, [name], version, A_FEW_WINDOWS)
    cut = check(interpreted, tmp_path, [name, SECOND], version, A_FEW_WINDOWS)
    assert [more > fewer for more, fewer in zip(cut, whole, strict=True)] == [True, True, False]


def test_segments_of_window_answer_alike(interpreted, tmp_path):
    """With sinks, softcap, several lengths, and a window that is longer or shorter than the context."""
    check(interpreted, tmp_path, [NEWEST[0], SECOND], NEWEST[1], WINDOWS)


def test_window_alone_serves_single_tokens(interpreted, tmp_path):
    check(interpreted, tmp_path, [SECOND], "0.26.0", SINGLE)


@pytest.mark.parametrize("edition", [NEWEST, ("triton-split-verify-0.24", "0.26.0")], ids="-".join)
def test_larger_blocks_answer_alike(interpreted, tmp_path, edition):
    """On a Hopper GPU, with heads of 256 and 512."""
    check(interpreted, tmp_path, [edition[0], SECOND], edition[1], LARGE)
