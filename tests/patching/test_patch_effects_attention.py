"""What the patches for Gemma 4 on vLLM 0.20 do: which attention backends its own selector gives target and drafter."""

import pkgutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from dflash_tui.engines.patching import text_edits
from dflash_tui.planning import patch_file
from tests.patching.arms import MODELS, on
from tests.support.vllm_stubs import Load, vllm
from tests.support.wheels import Texts

pytestmark = pytest.mark.index
NOT_CAUSAL = "non-causal attention not supported"
GLOBAL_HEAD = 512  # of Gemma 4
SHAPE = {"hidden_size": 512, "num_heads": 4, "num_kv_heads": 2, "head_dim": 128}


class NoNvml:
    """Stands for pynvml where there is no driver."""

    def nvmlInit(self) -> None:  # noqa: N802
        raise OSError


class Engine(NamedTuple):
    """A vLLM on a GPU, with a target that is told to use Triton."""

    choose: Callable[[int], Any]  # the backend for heads of this size
    triton: Any
    asked: list[Any]  # what the selector has asked the platform for
    load: Load


@contextmanager
def engine(texts: Texts, method: str = "dflash") -> Iterator[Engine]:
    """Run the selector, the CUDA platform and the backends of a release; stubs are below them only."""
    config = SimpleNamespace(
        attention_config=SimpleNamespace(),
        cache_config=None,
        speculative_config=SimpleNamespace(method=method),
    )
    asked: list[Any] = []

    def choose(head_size: int) -> Any:
        return selector.get_attn_backend(head_size, selector.torch.bfloat16, None)

    class Attention:
        """As vLLM's: a layer that is given no backend asks the selector."""

        def __init__(self, _heads: int, head_size: int, _scale: float, attn_backend: Any = None, **_other: Any) -> None:
            self.attn_backend = attn_backend or choose(head_size)

    known = {
        "Attention": Attention,
        "extract_layer_index": lambda _prefix: 0,
        "get_current_vllm_config": lambda: config,
        "get_tensor_model_parallel_world_size": lambda: 1,
        "import_pynvml": NoNvml,
        "resolve_obj_by_qualname": pkgutil.resolve_name,
    }
    with vllm(texts, **known) as load:
        cuda, selector = load("platforms/cuda.py"), load("v1/attention/selector.py")
        config.attention_config.backend = cuda.AttentionBackendEnum.TRITON_ATTN

        class Platform(cuda.CudaPlatformBase):  # type: ignore[misc, name-defined]
            @classmethod
            def get_device_capability(cls, **_which: Any) -> Any:
                return cuda.DeviceCapability(12, 1)

            @classmethod
            def get_attn_backend_cls(cls, *args: Any, **kwargs: Any) -> Any:
                asked.append(kwargs["attn_selector_config"])
                return super().get_attn_backend_cls(*args, **kwargs)

        sys.modules["vllm.platforms"].current_platform = Platform  # type: ignore[attr-defined]
        triton = load("v1/attention/backends/triton_attn.py").TritonAttentionBackend
        yield Engine(choose, triton, asked, load)


@on("triton-non-causal", "dflash-selector-scope")
def test_target_that_needs_triton_gets_it(arms):
    """As published it is refused, for one reason only, and the server does not start; with either patch it starts."""
    with engine(arms.published) as published, pytest.raises(ValueError, match="TRITON_ATTN is not valid") as refused:
        published.choose(GLOBAL_HEAD)
    assert str(refused.value).endswith(f"Reason: ['{NOT_CAUSAL}']")
    with engine(arms.patched) as patched:
        assert patched.choose(GLOBAL_HEAD) is patched.triton


@on("triton-non-causal")
def test_triton_claims_to_support_non_causal(arms):
    """It is asked as before, and gives the other answer; what else it refuses it still refuses."""
    for texts, claim in ((arms.published, False), (arms.patched, True)):
        with engine(texts) as one:
            assert one.triton.supports_non_causal() is claim
            with pytest.raises(ValueError, match="head_size not supported") as refused:
                one.choose(16)
            assert one.asked[0].use_non_causal is True
            assert (NOT_CAUSAL in str(refused.value)) != claim


@on("dflash-selector-scope")
def test_target_is_not_asked_for_non_causal(arms):
    """The question goes, Triton claims nothing, and without DFlash there is no question in either arm."""
    asked = []
    for texts in arms:
        for method in ("dflash", "eagle3"):
            with engine(texts, method) as one:
                try:
                    one.choose(GLOBAL_HEAD)
                except ValueError:
                    assert method == "dflash"
                assert one.triton.supports_non_causal() is False
                asked += [config.use_non_causal for config in one.asked]
    assert asked == [True, False, False, False]


@pytest.mark.parametrize("partner", ["triton-non-causal", "dflash-selector-scope"])
@on("dflash-draft-flash-attn")
def test_drafter_uses_flash_attention_target_uses_triton(arms, partner):
    """Beside either patch of the target's: without it the drafter gets Triton, too, which is causal only."""
    target_config = SimpleNamespace(
        attention_bias=False,
        layer_types=["full_attention"],
        rms_norm_eps=1e-6,
        rope_parameters={"full_attention": {}},
    )
    for texts in arms:
        with engine({**texts, **text_edits.patch_texts([patch_file.load_patch(partner)], texts)}) as one:
            flash = one.load("v1/attention/backends/flash_attn.py").FlashAttentionBackend
            assert flash.supports_non_causal() is True
            drafting = one.load(f"{MODELS}/qwen3_dflash.py").DFlashQwen3Attention(**SHAPE, rope_parameters={})
            target = one.load(f"{MODELS}/gemma4.py").Gemma4Attention(
                target_config, **{**SHAPE, "head_dim": GLOBAL_HEAD}, max_position_embeddings=1024
            )
            assert drafting.attn.attn_backend is (flash if texts is arms.patched else one.triton)
            assert target.attn.attn_backend is one.triton
