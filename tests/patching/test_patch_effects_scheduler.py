"""What the patches of the scheduler do: the release's own scheduler hands out blocks of the KV cache, on no GPU."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from tests.patching.arms import KEYED, SCHEDULER, SPECULATION, on
from tests.support.vllm_stubs import vllm
from tests.support.wheels import Texts

pytestmark = pytest.mark.index
BLOCK, DRAFTED = 16, 8
PLENTY = 4096


class Settings:
    """A part of vLLM's configuration: what is not given is off."""

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class Drafting(Settings):
    """The speculative-config of a drafter with this method."""

    def __init__(self, method: str, *, drops_block: bool = True) -> None:
        super().__init__(method=method, num_speculative_tokens=DRAFTED, max_num_new_slots_for_drafting=DRAFTED + 1)
        self.drops_block = drops_block

    def use_eagle(self) -> bool:
        return self.method in {"dflash", "eagle3"}

    def use_eagle_block_drop(self) -> bool:
        return self.drops_block

    needs_eagle_block_drop = use_eagle_block_drop

    def uses_draft_model(self) -> bool:
        return self.method == "draft_model"

    def use_dflash(self) -> bool:
        return self.method == "dflash"

    def use_dspark(self) -> bool:
        return False

    def use_multi_module_mtp(self) -> bool:
        return False


KNOWN = {
    "KV_FETCH_STAGES": (),
    "ConstantList": lambda tokens: tokens,
    "StructuredOutputRequest": SimpleNamespace(from_sampling_params=lambda _params: None),
    "envs": Settings(),
    "length_from_prompt_token_ids_or_embeds": lambda tokens, _embeds: len(tokens),
    "record_function_or_nullcontext": nullcontext,
}


class Engine(NamedTuple):
    """A scheduler and the modules that its requests and caches are made of."""

    scheduler: Any
    interface: Any
    requests: Any
    hasher: Any

    def begin(self, name: str, tokens: int) -> Any:
        """Return a new request whose prompt has this many tokens."""
        request = self.requests.Request(
            request_id=name,
            prompt_token_ids=list(range(tokens)),
            sampling_params=Settings(max_tokens=10),
            pooling_params=None,
            block_hasher=self.hasher,
        )
        self.scheduler.add_request(request)
        return request

    def blocks(self, request: Any) -> int:
        """Return how many blocks the first kind of layers has for a request."""
        return len(self.scheduler.kv_cache_manager.get_block_ids(request.request_id)[0])

    def prefill(self, request: Any) -> int:
        """Schedule a request until its prompt is done, and forget it; return how much of it was cached before."""
        hits = self.scheduler.schedule().scheduled_new_reqs[0].num_computed_tokens
        for _ in range(50):
            if request.num_computed_tokens >= request.num_prompt_tokens:
                break
            self.scheduler.schedule()
        assert request.num_computed_tokens == request.num_prompt_tokens
        self.scheduler.kv_cache_manager.free(request)
        self.scheduler.running.clear()
        return int(hits)


@contextmanager
def engine(texts: Texts, speculation: Drafting | None, *, hybrid: bool = False) -> Iterator[Engine]:
    """Run the scheduler of a release and its KV cache; what is below them is stubbed.

    A hybrid has layers of full attention and of Mamba, and a drafter with full attention; its prefixes are cached.
    """
    with vllm(texts, **KNOWN) as load:
        scheduling, interface = load(SCHEDULER), load("v1/kv_cache_interface.py")
        hashing = load("v1/core/kv_cache_utils.py")
        vars(hashing).update(NONE_HASH=bytes(32))
        shape = {"block_size": BLOCK, "head_size": 8, "dtype": None}
        specs = [interface.FullAttentionSpec(num_kv_heads=2, **shape)]
        if hybrid:
            state = {"shapes": ((1,),), "dtypes": (None,), "num_speculative_blocks": DRAFTED}
            specs.append(interface.MambaSpec(block_size=BLOCK, mamba_cache_mode="align", **state))
            specs.append(interface.FullAttentionSpec(num_kv_heads=4, **shape))
        groups = [interface.KVCacheGroupSpec([str(number)], spec) for number, spec in enumerate(specs)]
        scheduler = scheduling.Scheduler(
            vllm_config=configuration(speculation, "align" if hybrid else "none"),
            kv_cache_config=interface.KVCacheConfig(num_blocks=1000, kv_cache_tensors=[], kv_cache_groups=groups),
            structured_output_manager=None,
            block_size=BLOCK,
            mm_registry=SimpleNamespace(supports_multimodal_inputs=lambda _config: False),
        )
        hasher = hashing.get_request_block_hasher(BLOCK, lambda value: hashlib.sha256(repr(value).encode()).digest())
        yield Engine(scheduler, interface, load("v1/request.py"), hasher if hybrid else None)


def configuration(speculation: Drafting | None, mamba: str) -> Settings:
    """Return what the scheduler asks vLLM's configuration for."""
    return Settings(
        aux_output_config=Settings(),
        cache_config=Settings(
            num_gpu_blocks=1000, enable_prefix_caching=mamba != "none", block_size=BLOCK, mamba_cache_mode=mamba
        ),
        ec_manager_config=Settings(get_encoder_cache_manager_obj=lambda: None),
        max_in_flight_tokens=PLENTY,
        model_config=Settings(max_model_len=PLENTY),
        num_hash_lookahead_tokens=0,
        num_lookahead_tokens=DRAFTED + 1,
        num_prefill_lookahead_tokens=1,
        num_speculative_tokens=DRAFTED,
        observability_config=Settings(),
        parallel_config=Settings(
            data_parallel_index=0,
            decode_context_parallel_size=1,
            pipeline_parallel_size=1,
            prefill_context_parallel_size=1,
        ),
        scheduler_config=Settings(
            enable_chunked_prefill=True,
            long_prefill_token_threshold=0,
            max_num_batched_tokens=PLENTY,
            max_num_seqs=4,
            policy="fcfs",
            watermark=0,
        ),
        speculative_config=speculation,
    )


def reserve(texts: Texts, tokens: int, method: str = "dflash") -> int:
    """Return how many blocks a prompt of this many tokens has in its first step."""
    with engine(texts, Drafting(method)) as made:
        request = made.begin("a", tokens)
        made.scheduler.schedule()
        return made.blocks(request)


@on("dflash-lookahead-block")
def test_first_drafts_get_blocks_of_their_own(arms):
    """A prompt that fills its block gets another one for the drafts, and one more where the further token needs it."""
    just = BLOCK - DRAFTED - 1  # the prompt, the token that follows it, and the drafts fill the block
    prompts = (BLOCK, 2 * BLOCK, just, just + 1)
    assert [reserve(arms.published, tokens) for tokens in prompts] == [1, 2, 1, 1]
    assert [reserve(arms.patched, tokens) for tokens in prompts] == [2, 3, 1, 2]
    assert [reserve(arms.patched, tokens, "eagle3") for tokens in prompts] == [2, 3, 1, 1]


def reuse(texts: Texts, speculation: Drafting | None) -> list[int]:
    """Return how many tokens of a prompt are cached when it comes again, for prompts of 1 to 4 blocks and some."""
    with engine(texts, speculation, hybrid=True) as made:
        hits = []
        for blocks in range(1, 5):
            made.scheduler.reset_prefix_cache()
            tokens = blocks * BLOCK + 5
            made.prefill(made.begin(f"first {blocks}", tokens))
            hits.append(made.prefill(made.begin(f"again {blocks}", tokens)))
        return hits


@on("dflash-no-block-drop")
def test_hybrid_keeps_last_block_beside_dflash_drafter(arms):
    """All whole blocks are cached, as without a drafter; an EAGLE drafter still gives up the last one."""
    whole = [BLOCK * blocks for blocks in range(1, 5)]
    one_less = [hits - BLOCK for hits in whole]
    assert reuse(arms.published, Drafting("dflash")) == one_less
    for texts in arms:
        assert reuse(texts, None) == whole
        assert reuse(texts, Drafting("eagle3")) == one_less
    assert reuse(arms.patched, Drafting("dflash")) == whole


def drops_block(texts: Texts, *, disabled: bool) -> bool:
    """Return whether a release's own speculative-config of DFlash drops the last block."""
    with vllm(texts) as load:
        cls = load(SPECULATION).SpeculativeConfig
        config = cls.__new__(cls)
        config.method, config.disable_eagle_block_drop = "dflash", disabled
        return bool(config.use_eagle_block_drop())


def test_disable_eagle_block_drop_keeps_last_block(tried):
    """From 0.30 to 0.32 disable_eagle_block_drop keeps the last block, and from 0.33 on it is kept anyway."""
    whole = [BLOCK * blocks for blocks in range(1, 5)]
    kept = {}
    for version in KEYED:
        texts = tried["vllm", version]
        for disabled in (False, True):
            hits = reuse(texts, Drafting("dflash", drops_block=drops_block(texts, disabled=disabled)))
            assert hits in (whole, [hit - BLOCK for hit in whole])
            kept[version, disabled] = hits == whole
    assert [version for (version, disabled), all_kept in kept.items() if all_kept and not disabled] == ["0.33.0"]
    assert all(all_kept for (_, disabled), all_kept in kept.items() if disabled)
