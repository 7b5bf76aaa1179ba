"""The two arms of a test of what a patch does: a release as published, and the same with the patch."""

from collections import defaultdict
from typing import NamedTuple

import pytest

from dflash_tui.planning import patch_file
from tests.support.wheels import Release, Texts

MODELS = "model_executor/models"
DFLASH = "v1/spec_decode/dflash.py"
RUNNER = "v1/worker/gpu_model_runner.py"
SELECTION = (
    "platforms/cuda.py",
    "platforms/interface.py",
    "v1/attention/backend.py",
    "v1/attention/backends/flash_attn.py",
    "v1/attention/backends/registry.py",
    "v1/attention/backends/triton_attn.py",
    "v1/attention/selector.py",
)
SCRATCH = "v1/attention/backends/triton_attn.py"
CUTLASS = "model_executor/kernels/linear/scaled_mm/cutlass.py"
SPECULATION = "config/speculative.py"
SCHEDULER = "v1/core/sched/scheduler.py"
CACHE = (
    "utils/math_utils.py",
    "v1/core/block_pool.py",
    "v1/core/kv_cache_coordinator.py",
    "v1/core/kv_cache_manager.py",
    "v1/core/kv_cache_utils.py",
    "v1/core/sched/interface.py",
    "v1/core/sched/output.py",
    "v1/core/sched/request_queue.py",
    "v1/core/single_type_kv_cache_manager.py",
    "v1/kv_cache_interface.py",
    "v1/kv_cache_layout.py",
    "v1/kv_cache_spec_registry.py",
    "v1/request.py",
)
ATTENTION = ("v1/attention/ops/triton_attention_helpers.py", "v1/attention/ops/triton_unified_attention.py")


class Tried(NamedTuple):
    """Releases that a patch is tried on, the ends of its range among them, and files to run beside its own."""

    releases: tuple[str, ...]
    beside: tuple[str, ...] = ()


TRIED = {
    "cpu-expand-kernel": Tried(("0.20.0", "0.32.0")),
    "cpu-fork": Tried(("0.20.0", "0.32.0")),
    "dflash-aux-layers": Tried(("0.20.0", "0.21.0")),
    "dflash-draft-flash-attn": Tried(("0.20.0", "0.20.2"), (f"{MODELS}/gemma4.py", *SELECTION)),
    "dflash-lookahead-block": Tried(("0.20.0", "0.22.1"), CACHE),
    "dflash-no-block-drop": Tried(("0.26.0", "0.27.1", "0.29.0"), CACHE),
    "dflash-selector-scope": Tried(("0.20.0", "0.20.2"), SELECTION),
    "gb10-cutlass-fp8": Tried(("0.20.0", "0.33.0"), ("platforms/interface.py",)),
    "gb10-cutlass-fp8-checkpoint": Tried(("0.20.0", "0.22.0", "0.30.0"), ("platforms/interface.py",)),
    "gemma4-dflash-embed-scale": Tried(("0.20.0", "0.26.0", "0.33.0")),
    "gemma4-draft-mm-prefix": Tried(("0.21.0", "0.23.0"), ("v1/spec_decode/llm_base_proposer.py", RUNNER)),
    "qwen3-next-eagle3": Tried(("0.20.0", "0.21.0", "0.23.0"), (f"{MODELS}/interfaces.py",)),
    "triton-non-causal": Tried(("0.20.0", "0.20.2"), SELECTION),
    "triton-split-verify": Tried(("0.33.0",), (*ATTENTION, SCRATCH)),
    "triton-split-verify-0.24": Tried(("0.24.0", "0.31.0"), ATTENTION),
    "triton-split-verify-0.32": Tried(("0.32.0",), ATTENTION),
    "triton-split-verify-2": Tried(("0.25.0", "0.33.0")),
}
UPSTREAM = ("vllm", "0.24.0")  # has gemma4-draft-mm-prefix by itself
KEYED = ("0.30.0", "0.32.0", "0.33.0")  # two with a key in place of dflash-no-block-drop, and one that needs neither


class Arms(NamedTuple):
    """The texts of one release."""

    published: Texts
    patched: Texts


def on(*names: str) -> pytest.MarkDecorator:
    """Run a test that asks for `arms` on each release that these patches are tried on."""
    cases = [(name, version) for name in names for version in TRIED[name].releases]
    return pytest.mark.parametrize("arms", cases, ids=map("-".join, cases), indirect=True)


def wanted() -> dict[Release, set[str]]:
    """Return the files to read of each release."""
    paths: dict[Release, set[str]] = defaultdict(set)
    for name, tried in TRIED.items():
        patch = patch_file.load_patch(name)
        for version in tried.releases:
            paths[patch.distribution, version] |= {*patch.paths, *tried.beside}
    paths[UPSTREAM] |= {DFLASH, *TRIED["gemma4-draft-mm-prefix"].beside}
    for version in KEYED:
        paths["vllm", version] |= {SPECULATION, SCHEDULER, *CACHE}
    return paths
