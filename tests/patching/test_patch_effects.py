"""What patches do to the sources of published releases, executed with and without them."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from tests.patching.arms import CUTLASS, DFLASH, MODELS, RUNNER, UPSTREAM, on
from tests.support.vllm_stubs import Load, vllm
from tests.support.wheels import Texts

METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
pytestmark = pytest.mark.index


@on("qwen3-next-eagle3")
def test_qwen3_next_gives_its_hidden_states(arms):
    """What vLLM asks of a target is answered yes, and the layers that the drafter reads reach the inner model."""
    for texts in arms:
        with vllm(texts) as load:
            interfaces, models = load(f"{MODELS}/interfaces.py"), load(f"{MODELS}/qwen3_next.py")
            cls = models.Qwen3NextForCausalLM
            target = cls.__new__(cls)
            assert (interfaces.SupportsEagle3 in cls.__mro__) is (texts is arms.patched)
            assert interfaces.supports_eagle3(target) is (texts is arms.patched)
            assert interfaces.supports_lora(target)
            if texts is arms.patched:
                target.model = models.Qwen3NextModel.__new__(models.Qwen3NextModel)
                target.set_aux_hidden_state_layers((2, 12, 23))
                assert target.model.aux_hidden_state_layers == (2, 12, 23)


@dataclass
class Architecture:
    is_mm_prefix_lm: bool
    hidden_size: int = 2816


@dataclass
class Attending:
    backend: str | None = "TRITON_ATTN"
    use_non_causal: bool = False


@dataclass
class Kernels:
    moe_backend: str = "auto"


@dataclass
class Config:
    """The part of VllmConfig that a drafter's is made of; replacing a part keeps the other objects, as vLLM's does."""

    model_config: Any
    attention_config: Attending
    kernel_config: Kernels


def configured(texts: Texts, *, whole_images: bool, moe_backend: str | None) -> tuple[Config, Config]:
    """Return the configurations of target and drafter, the latter made by the proposer of a release."""
    target = Config(SimpleNamespace(model_arch_config=Architecture(whole_images)), Attending(), Kernels())
    with vllm(texts, replace=replace) as load:
        cls = load(DFLASH).DFlashProposer
        proposer = cls.__new__(cls)
        proposer.vllm_config, proposer.dflash_causal = target, False
        proposer.speculative_config = SimpleNamespace(moe_backend=moe_backend, attention_backend="FLASH_ATTN")
        return target, proposer._create_draft_vllm_config()


@pytest.mark.parametrize("moe_backend", [None, "triton"])
@on("gemma4-draft-mm-prefix")
def test_drafter_does_not_attend_to_whole_images(arms, moe_backend, tried):
    """Its wish for them goes and nothing else changes, as in the first release that has it; without a wish nothing."""
    for texts, wish in ((arms.published, True), (arms.patched, False), (tried[UPSTREAM], False)):
        target, draft = configured(texts, whole_images=True, moe_backend=moe_backend)
        assert draft.model_config.model_arch_config == Architecture(wish)
        assert draft.attention_config == Attending("FLASH_ATTN", use_non_causal=True)
        assert draft.kernel_config == Kernels(moe_backend or "auto")
        assert target.attention_config == Attending()
        target, draft = configured(texts, whole_images=False, moe_backend=moe_backend)
        assert draft.model_config.model_arch_config == Architecture(is_mm_prefix_lm=False)


@on("gemma4-draft-mm-prefix")
def test_the_target_still_attends_to_whole_images(arms, tried):
    """Both share one model configuration, so its wish goes, too, as upstream's does; the target has read it by then.

    Its runner reads it when it is made, before it loads the target and then the drafter, and nowhere else.
    """
    for texts in (arms.patched, tried[UPSTREAM]):
        target, _draft = configured(texts, whole_images=True, moe_backend=None)
        assert target.model_config.model_arch_config == Architecture(is_mm_prefix_lm=False)
        before, *after = texts[RUNNER].split("model_config.is_mm_prefix_lm")
        assert len(after) == 1
        assert before.rpartition("\nclass ")[2].startswith("GPUModelRunner(")
        assert before.rpartition("\n    def ")[2].startswith("__init__(")


def run_on(load: Load, kind: str, capability: tuple[int, int] | None) -> None:
    """Let vLLM run on a platform of this kind, with a GPU of this capability or with none."""
    interface = load("platforms/interface.py")

    class Platform(interface.Platform):  # type: ignore[misc, name-defined]
        _enum = interface.PlatformEnum[kind]

        @classmethod
        def get_device_capability(cls, **_which: Any) -> Any:
            return capability and interface.DeviceCapability(*capability)

    sys.modules["vllm.platforms"].current_platform = Platform()  # type: ignore[attr-defined]


def cutlass(texts: Texts, kind: str, capability: tuple[int, int] | None) -> tuple[bool, bool, bool]:
    """Return what vLLM says of CUTLASS: FP8, FP8 in blocks and groups, on a build with kernels for all newer GPUs."""
    ops = SimpleNamespace(
        cutlass_scaled_mm_supports_fp8=lambda number: number >= 89,
        cutlass_scaled_mm_supports_block_fp8=lambda number: number >= 90,
        cutlass_group_gemm_supported=lambda number: number >= 90,
    )
    with vllm(texts, _custom_ops=ops) as load:
        run_on(load, kind, capability)
        utils = load("model_executor/layers/quantization/utils/w8a8_utils.py")
        return (
            utils.cutlass_fp8_supported(),
            utils.cutlass_block_fp8_supported(),
            utils.cutlass_group_gemm_supported(),
        )


@on("gb10-cutlass-fp8")
def test_only_gb10_reports_no_cutlass_fp8(arms):
    """Both questions of FP8, on CUDA 12.1 alone; other GPUs, no GPU and other platforms answer as published."""
    assert cutlass(arms.published, "CUDA", (12, 1)) == (True, True, True)
    assert cutlass(arms.patched, "CUDA", (12, 1)) == (False, False, True)
    others = {(12, 0): (True,) * 3, (9, 0): (True,) * 3, (8, 9): (True, False, False), (8, 6): (False,) * 3}
    for texts in arms:
        assert {capability: cutlass(texts, "CUDA", capability) for capability in others} == others
        assert cutlass(texts, "CUDA", None) == (False, False, False)
        assert cutlass(texts, "ROCM", (12, 1)) == (False, False, False)


@on("gb10-cutlass-fp8-checkpoint")
def test_only_gb10_skips_cutlass_fp8_checkpoint_kernel(arms):
    """On CUDA 12.1 alone; other GPUs and platforms answer as published, and so do kernels for whole numbers."""
    machines = [("CUDA", (12, 1)), ("CUDA", (12, 0)), ("CUDA", (9, 0)), ("CUDA", (8, 9)), ("ROCM", (12, 1))]
    for texts, on_a_gb10 in ((arms.published, True), (arms.patched, False)):
        answers, others = [], []
        for kind, capability in machines:
            with vllm(texts) as load:
                run_on(load, kind, capability)
                kernels = load(CUTLASS)
                answers.append(kernels.CutlassFP8ScaledMMLinearKernel.is_supported()[0])
                others.append(kernels.CutlassInt8ScaledMMLinearKernel.is_supported()[0])
        assert answers == [on_a_gb10, True, True, True, False]
        assert others == [True, True, True, True, False]


def layers_read(texts: Texts, **drafter: Any) -> Any:
    """Return the layers whose hidden states a target hands to a drafter with this configuration."""
    with vllm(texts) as load:
        cls = load(RUNNER).GPUModelRunner
        runner = cls.__new__(cls)
        config = SimpleNamespace(hf_config=SimpleNamespace(**drafter))
        runner.speculative_config = SimpleNamespace(draft_model_config=config)
        return runner._get_eagle3_aux_layers_from_config()


@on("dflash-aux-layers")
def test_z_lab_drafter_gets_layers_it_names(arms):
    """Layer 1 is the second after the embedding; names in vLLM's own way, and none, are left as they are."""
    for texts, layers in ((arms.published, (1, 9, 17)), (arms.patched, (2, 10, 18))):
        named = {"target_layer_ids": [1, 9, 17], "mask_token_id": 3}
        assert layers_read(texts, dflash_config=named) == layers
        assert layers_read(texts, dflash_config=named, eagle_aux_hidden_state_layer_ids=[2, 10, 18]) == (2, 10, 18)
        assert layers_read(texts, dflash_config={"mask_token_id": 3}) is None
        assert layers_read(texts) is None


EXPAND = """
import json, sys, torch
library, *paths = sys.argv[1:]
torch.ops.load_library(library)

def expand(path, values, dtype, counts, replace_from, replace_to):
    names = {}
    exec(compile(open(path).read(), path, "exec"), names)
    output = torch.full((sum(counts) + 1,), -1, dtype=dtype)
    cumulated = torch.tensor(counts).cumsum(0).to(torch.int32)
    names["_expand_kernel_impl"](
        output, torch.tensor(values, dtype=dtype), cumulated, replace_from, replace_to, MAX_NUM_TOKENS=128
    )
    return [round(value, 6) for value in output.tolist()]

for path in paths:
    print(json.dumps([
        expand(path, [0.7, 0.0, 1.3], torch.float32, [3, 1, 2], 0, 1),
        expand(path, [0.7, 0.0, 1.3], torch.float32, [0, 2, 1], 0, 0),
        expand(path, [20, 50], torch.int32, [2, 1], 0, 0),
        expand(path, [20, 50], torch.int64, [2, 1], 0, 0),
    ]))
"""


class AnyPlatform:
    """Stands for the base of vLLM's platforms."""

    get_cpu_architecture = staticmethod(lambda: None)


@on("cpu-fork")
def test_cpu_forks_only_when_configured(arms, monkeypatch):
    """As published it spawns whatever is set; with the patch that is what it does when nothing is."""
    asked = {}
    config = MagicMock(model_config=None)
    config.device_config.device_type = "cpu"
    config.cache_config.enable_prefix_caching = config.scheduler_config.enable_chunked_prefill = False
    for texts in arms:
        with vllm(texts, Platform=AnyPlatform) as load:
            platform = load("platforms/cpu.py").CpuPlatform
            for method in ("fork", "spawn", ""):
                monkeypatch.setenv(METHOD, method) if method else monkeypatch.delenv(METHOD, raising=False)
                platform.check_and_update_config(config)
                asked[texts is arms.patched, method] = os.environ[METHOD]
    assert asked == {
        (False, "fork"): "spawn", (False, "spawn"): "spawn", (False, ""): "spawn",
        (True, "fork"): "fork", (True, "spawn"): "spawn", (True, ""): "spawn",
    }  # fmt: skip


@pytest.mark.vllm
@on("cpu-expand-kernel")
def test_sampling_parameters_reach_every_drafted_token(arms, demo_engine, tmp_path):
    """Temperatures (greedy ones replaced), top-p and top-k, run by the demo engine's torch and its C++ operator.

    As published only int64 is written at all, which no sampling parameter is.
    """
    paths = [tmp_path / "published.py", tmp_path / "patched.py"]
    for path, texts in zip(paths, arms, strict=True):
        path.write_text(texts["utils/cpu_triton_utils.py"])
    here = demo_engine.site_packages / "vllm"
    library = next(found for name in ("_C_AVX2", "_C") if (found := here / f"{name}.abi3.so").exists())
    command = [demo_engine.python, "-c", EXPAND, library, *paths]
    published, patched = map(json.loads, subprocess.check_output(command, text=True).splitlines())
    assert published == [[-1] * 7, [-1] * 4, [-1] * 4, [20, 20, 50, -1]]
    assert patched == [
        [0.7, 0.7, 0.7, 1.0, 1.3, 1.3, -1],
        [0.0, 0.0, 1.3, -1],
        [20, 20, 50, -1],
        [20, 20, 50, -1],
    ]
