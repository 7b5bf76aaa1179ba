"""Checks of memory: whether the launch fits, by the memory estimate, and what else uses memory that it needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from dflash_tui.common.formatting import GIB, format_gib, format_number
from dflash_tui.launch.preflight.check import Check, Situation, fail_check, list_local_files, pass_check, warn_check
from dflash_tui.machine import system
from dflash_tui.machine.orphans import find_orphans
from dflash_tui.planning.derivation import catalogue as catalogues
from dflash_tui.planning.memory import MemoryEstimate, read_bits
from dflash_tui.planning.recipes import resolution
from dflash_tui.planning.request import Advice, Hint, LaunchChanges, hint_setting

_DEMO_BYTES = 3 << 30  # measured: 2.2 GiB for the demo with 1 GiB of KV cache
_MAX_SWAP = 1 << 30
_MAX_PAGE_CACHE = 8 << 30
# What CUDA allocates before vLLM measures the free memory: 0.51 GiB on an H200.
_CUDA_CONTEXT_BYTES = 1 << 29
# A server for shorter requests is useless.
_MIN_MODEL_LEN = 4096
_SMALL_BATCHES: dict[str, int | float] = {"max_num_seqs": 4, "max_num_batched_tokens": 4096}
_NOTHING_FITS: Advice = (
    "choose a smaller or quantized target (a variant, or ",
    hint_setting("target.model", "…", is_example=True),
    "), or a GPU with more memory",
)


def check_memory(situation: Situation) -> Iterator[Check]:
    """Yield the checks of memory for a plan."""
    if situation.plan.on_cpu:
        available = system.read_system_memory().available
        finding = f"{format_gib(available)} available, about {format_gib(_DEMO_BYTES)} needed"
        yield (
            pass_check("memory", finding)
            if available >= _DEMO_BYTES
            else warn_check("memory", finding, "stop programs that use much of it")
        )
    elif fit := situation.fit():
        yield _check_gpu_memory(situation, fit)
        if fit.unified:
            yield from _check_unified_memory(situation, fit)
    yield from _check_orphans()


def _check_gpu_memory(situation: Situation, fit: MemoryEstimate) -> Check:
    kind = "unified memory" if fit.unified else "GPU memory"
    lacking = _list_unknown(fit)
    budget = f"vLLM will use {format_gib(fit.budget)} ({fit.utilization:.0%} of {format_gib(fit.total)})"
    request = f"one request of {fit.max_model_len or 'unknown many'} tokens"
    if fit.certain > fit.budget:
        need = f"weights, drafter and the KV cache of {request} need {format_gib(fit.certain)}{lacking}"
        return fail_check(kind, f"{need}; {budget}", _suggest_settings(situation, fit))
    if _exceeds_free(fit):
        finding = f"{budget}, and {format_gib(fit.free)} are free"
        return fail_check(kind, finding, ["stop what uses the rest, or ", *_suggest_settings(situation, fit)])
    if not fit.holds_request:
        estimate = f"it may not fit: by our estimate {format_gib(fit.kv_left)} are left for the KV cache"
        return warn_check(
            kind, f"{estimate}, and {request} takes {format_gib(fit.kv_needed)}", _suggest_settings(situation, fit)
        )
    if not fit.knows_weights:
        finding = f"{budget}; whether it fits is unknown without the size of the weights"
        return warn_check(kind, finding, "the size is known once the hub can be reached")
    room = f"about {format_gib(fit.kv_left)} for the KV cache"
    many = f": {format_number(fit.requests, 1)} times {request}" if fit.requests else ""
    return pass_check(kind, f"{budget}; {room}{many}{lacking}")


def _list_unknown(fit: MemoryEstimate) -> str:
    """Return by what the size of weights is a least, and which parts are left out; empty where all is known."""
    least = "".join(f" at least ({share.name}: {share.source})" for share in fit.shares if share.least)
    names = [name for name in fit.unknown if not (least and name == "weights")]
    return least + (f" (without {', '.join(names)}, whose size is unknown)" if names else "")


def _exceeds_free(fit: MemoryEstimate) -> bool:
    return fit.budget + _CUDA_CONTEXT_BYTES > fit.free


def _suggest_settings(situation: Situation, fit: MemoryEstimate) -> Advice:
    """Return the settings with which it fits, by the same estimate, with the longest possible requests."""
    max_len = fit.max_model_len or 0
    share = int(100 * (fit.free - _CUDA_CONTEXT_BYTES) / fit.total) / 100
    base: dict[str, int | float] = {"gpu_memory_utilization": share} if _exceeds_free(fit) else {}
    for changes in (base, base | _SMALL_BATCHES):
        tried = situation.fit(**changes)
        if tried is None or _exceeds_free(tried):
            continue
        if tried.kv_needed is None and tried.certain <= tried.budget:
            return _hint_settings(changes)
        length = min(tried.longest or 0, max_len)
        if length >= min(_MIN_MODEL_LEN, max_len) > 0:
            return _hint_settings(changes | ({"max_model_len": length} if length < max_len else {}))
    return _suggest_smaller_target(situation, min(fit.budget, fit.free - _CUDA_CONTEXT_BYTES))


def _suggest_smaller_target(situation: Situation, budget: int) -> Advice:
    """Return the largest target that fits: a variant, those for this class first, or one of the catalogue.

    Where none is known to fit, the variants are named whose size nobody knows.
    """
    variants = list(_list_other_targets(situation, budget))
    resolved = situation.resolved
    if fitting := [(resolved.hardware in resolved.recipe.variants[name].reported_on, size, name)
                   for name, size, fits in variants if size and fits]:  # fmt: skip
        _, size, name = max(fitting)
        return Hint(LaunchChanges(variant=name)), f" ({size:g} GB), or a GPU with more memory"
    catalogue, target = catalogues.load_catalogue(), situation.resolved.target.model
    pairs = catalogues.find_pairs(catalogue, target)
    fitting_models = [
        model for pair in pairs for model in catalogues.list_fitting_models(catalogue, pair, budget / GIB)
    ]
    smaller = [model for model in fitting_models if model.repo != target and model.size_gb]
    if smaller:
        best = max(smaller, key=lambda model: model.size_gb or 0)
        words = f" ({best.precision}, {best.size_gb:g} GB), or a GPU with more memory"
        return hint_setting("target.model", best.repo), words
    if unknown := [name for name, size, is_smaller in variants if size is None and is_smaller]:
        hints = [part for name in unknown for part in (" or ", Hint(LaunchChanges(variant=name)))]
        return *hints[1:], ", of unknown size, or a GPU with more memory"
    return _NOTHING_FITS


def _list_other_targets(situation: Situation, budget: int) -> Iterator[tuple[str, float | None, bool]]:
    """Yield the recipe's variants with another target: the name, the size of its files in GB, and whether it fits.

    Of one whose size nobody knows the last is whether it has weights of fewer bits, which may fit.
    """
    resolved = situation.resolved
    for name in (name for name, part in resolved.recipe.variants.items() if part.target):
        other = resolution.resolve_recipe(
            resolved.recipe, resolved.hardware, profile=resolved.profile, variant=name, method=resolved.method
        )
        if other.target.model != resolved.target.model and other.hosts == resolved.hosts:
            estimate = msgspec.structs.replace(situation, resolved=other, models=()).fit()
            fits = estimate is not None and estimate.certain <= budget
            bits = [read_bits(target.quantization) or 16 for target in (other.target, resolved.target)]
            yield name, other.target.size_gb, fits and (other.target.size_gb is not None or bits[0] < bits[1])


def _hint_settings(changes: Mapping[str, int | float]) -> Advice:
    settings = {name.replace("_", "-"): str(value) for name, value in changes.items()}
    return (Hint(LaunchChanges(settings=settings)),) if settings else ()


def _check_unified_memory(situation: Situation, fit: MemoryEstimate) -> Iterator[Check]:
    """Check page cache and swap, which matter where the GPU uses the memory of the system."""
    memory = system.read_system_memory()
    if memory.cached > _MAX_PAGE_CACHE and fit.budget > fit.free - memory.cached:
        finding = f"{format_gib(memory.cached)} of the unified memory is page cache, which CUDA may not count as free"
        # Without files of the models it is all of others, which only root can release.
        ours = f"release that of the models: dflash-tui doctor {situation.plan.recipe} --release-page-cache"
        release = ours if list_local_files(situation.models) else "release it: sudo sysctl vm.drop_caches=1"
        yield warn_check("page cache", finding, release)
    if memory.swap_used > _MAX_SWAP:
        finding = f"{format_gib(memory.swap_used)} in use; a GB10 stalls when it swaps"
        yield warn_check("swap", finding, "stop programs that use much memory, then sudo swapoff -a")


def _check_orphans() -> Iterator[Check]:
    orphans = find_orphans()
    if not orphans:
        yield pass_check("orphans", "no engine process outlived its server")
    for orphan in orphans:
        finding = f"{orphan.name} (pid {orphan.pid}) outlived its server and holds {format_gib(orphan.resident)}"
        yield warn_check("orphans", finding, f"if it is not needed, stop it: dflash-tui orphans {orphan.pid}")
