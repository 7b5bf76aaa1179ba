"""Checks of memory: whether the launch fits, by the arithmetic of `fit`, and what takes memory that it needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dflash_tui.common.formatting import format_gib, format_number
from dflash_tui.launch.preflight.check import Check, Situation, fail_check, pass_check, warn_check
from dflash_tui.machine import system
from dflash_tui.planning.memory import MemoryEstimate

_DEMO_BYTES = 3 << 30  # measured: 2.2 GiB for the demo with 1 GiB of KV cache
_MAX_SWAP = 1 << 30
_MAX_PAGE_CACHE = 8 << 30
# What CUDA takes before vLLM looks at what is free: 0.51 GiB on an H200.
_CUDA_CONTEXT_BYTES = 1 << 29
# Shorter requests than that are of no use.
_MIN_MODEL_LEN = 4096
_SMALL_BATCHES: dict[str, int | float] = {"max_num_seqs": 4, "max_num_batched_tokens": 4096}
_NOTHING_FITS = "choose a smaller or quantized target (a variant, or --set target.model=…), or a GPU with more memory"


def check_memory(situation: Situation) -> Iterator[Check]:
    """Yield the checks of memory for a plan."""
    if situation.plan.on_cpu:
        available = system.read_system_memory().available
        said = f"{format_gib(available)} available, about {format_gib(_DEMO_BYTES)} wanted"
        yield (
            pass_check("memory", said)
            if available >= _DEMO_BYTES
            else warn_check("memory", said, "end what uses much of it")
        )
    elif fit := situation.fit():
        yield _check_gpu_memory(situation, fit)
        if fit.unified:
            yield from _check_unified_memory(situation, fit)
    yield from _check_orphans()


def _check_gpu_memory(situation: Situation, fit: MemoryEstimate) -> Check:
    kind = "unified memory" if fit.unified else "GPU memory"
    lacking = f" (without {', '.join(fit.unknown)}, whose size is unknown)" if fit.unknown else ""
    wanted = f"vLLM will take {format_gib(fit.budget)} ({fit.utilization:.0%} of {format_gib(fit.total)})"
    request = f"one request of {fit.max_model_len or 'unknown many'} tokens"
    if fit.certain > fit.budget:
        need = f"weights, drafter and the KV cache of {request} need {format_gib(fit.certain)}{lacking}"
        return fail_check(kind, f"{need}; {wanted}", _suggest_settings(situation, fit))
    if _exceeds_free(fit):
        said = f"{wanted}, and {format_gib(fit.free)} are free"
        return fail_check(kind, said, f"end what uses the rest, or {_suggest_settings(situation, fit)}")
    if fit.kv_needed is not None and fit.kv_left < fit.kv_needed:
        left = f"it may not fit: by our estimate {format_gib(fit.kv_left)} are left for the KV cache"
        return warn_check(
            kind, f"{left}, and {request} takes {format_gib(fit.kv_needed)}", _suggest_settings(situation, fit)
        )
    if "weights" in fit.unknown:
        said = f"{wanted}; whether the weights fit beside {format_gib(fit.certain)} cannot be told without their size"
        return warn_check(kind, said, "the hub says it once it can be reached")
    room = f"about {format_gib(fit.kv_left)} for the KV cache"
    many = f": {format_number(fit.requests, 1)} times {request}" if fit.requests else ""
    return pass_check(kind, f"{wanted}; {room}{many}{lacking}")


def _exceeds_free(fit: MemoryEstimate) -> bool:
    return fit.budget + _CUDA_CONTEXT_BYTES > fit.free


def _suggest_settings(situation: Situation, fit: MemoryEstimate) -> str:
    """Return the settings with which it fits, by the same arithmetic; as long requests as possible are kept."""
    wanted = fit.max_model_len or 0
    share = int(100 * (fit.free - _CUDA_CONTEXT_BYTES) / fit.total) / 100
    base: dict[str, int | float] = {"gpu_memory_utilization": share} if _exceeds_free(fit) else {}
    for changes in (base, base | _SMALL_BATCHES):
        tried = situation.fit(**changes)
        if tried is None or _exceeds_free(tried):
            continue
        if tried.kv_needed is None and tried.certain <= tried.budget:
            return _format_settings(changes)
        length = min(tried.longest or 0, wanted)
        if length >= min(_MIN_MODEL_LEN, wanted) > 0:
            return _format_settings(changes | ({"max_model_len": length} if length < wanted else {}))
    return _NOTHING_FITS


def _format_settings(changes: Mapping[str, int | float]) -> str:
    return " ".join(f"--set {name.replace('_', '-')}={value}" for name, value in changes.items())


def _check_unified_memory(situation: Situation, fit: MemoryEstimate) -> Iterator[Check]:
    """What counts where the GPU has no memory of its own: page cache and swap."""
    memory = system.read_system_memory()
    if memory.cached > _MAX_PAGE_CACHE and fit.budget > fit.free - memory.cached:
        said = f"{format_gib(memory.cached)} of the unified memory hold file pages, and CUDA may not count them as free"
        give_back = f"dflash-tui doctor {situation.plan.recipe} --release-page-cache gives those of the models back"
        yield warn_check("page cache", said, give_back)
    if memory.swap_used > _MAX_SWAP:
        said = f"{format_gib(memory.swap_used)} in use; a GB10 that swaps stalls"
        yield warn_check("swap", said, "end what uses much memory, then sudo swapoff -a")


def _check_orphans() -> Iterator[Check]:
    lost = system.find_orphans()
    if not lost:
        yield pass_check("orphans", "no engine process without its server")
    for orphan in lost:
        found = f"{orphan.name} (pid {orphan.pid}) outlived its server and holds {format_gib(orphan.resident)}"
        yield warn_check("orphans", found, f"if nobody needs it: dflash-tui orphans {orphan.pid}")
