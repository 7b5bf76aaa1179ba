"""Checks of the machine: GPU, memory, driver, other processes, power, compilers, disks."""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from dflash_tui.common.formatting import GIB, format_gib, format_number, pluralize
from dflash_tui.engines import model_hub
from dflash_tui.engines.environments import Engine
from dflash_tui.launch.preflight.check import (
    Check,
    Fix,
    Situation,
    fail_check,
    list_local_files,
    pass_check,
    warn_check,
)
from dflash_tui.machine import system
from dflash_tui.machine.gpus import Gpu
from dflash_tui.machine.hardware import Hardware
from dflash_tui.machine.processes import find_orphans
from dflash_tui.planning import patch_file
from dflash_tui.planning.cluster import count_gpus_per_host
from dflash_tui.planning.derivation import catalogue as catalogues
from dflash_tui.planning.memory import MemoryEstimate, read_bits
from dflash_tui.planning.recipes import resolution
from dflash_tui.planning.recipes.recipe import Mode
from dflash_tui.planning.request import Advice, Hint, LaunchChanges, hint_setting

# Two servers that start on one GPU measure its memory wrongly, and at least one fails.
HOW_TO_SHARE = "wait until that is ready (dflash-tui ps), stop it, or choose another GPU with --gpu"
_CPU_DEMO = "dflash-tui --recipe demo-cpu runs on the CPU"
_SLOW_DISK_RATE = 500e6  # bytes/s; an NVMe disk reads several GB/s, a USB 3 one 0.4
_MIN_FOREIGN_MEMORY = 256 << 20
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - only inspected
_MIN_SHARED_MEMORY = 32 << 20


def check_machine(situation: Situation, *, thorough: bool = False) -> list[Check]:
    """Return the checks of this machine for a plan; `thorough` ones read from the disk for a second or two."""
    return [
        *_check_gpus(situation),
        *check_memory(situation),
        *_check_shared_memory(),
        *check_logout(),
        *_check_compilers(situation),
        *_check_model_disk(situation, thorough=thorough),
        *_check_patch_files(),
    ]


def _check_gpus(situation: Situation) -> Iterator[Check]:
    probe, plan = situation.probe, situation.plan
    if plan.on_cpu and not situation.bare:
        yield pass_check("GPU", "none is needed on the CPU")
        return
    if not probe.gpus:
        if situation.bare:
            yield warn_check("GPU", probe.why_none, f"recipes for GPUs cannot start here; {_CPU_DEMO}")
        else:
            yield fail_check("GPU", probe.why_none, f"this recipe needs an NVIDIA GPU; {_CPU_DEMO}")
        return
    yield from _check_gpu_count(situation)
    for card in probe.gpus if situation.bare else situation.gpus:
        yield from _check_gpu(situation, card)
    yield _check_driver(probe.driver, plan.driver)
    if any(card.hardware is Hardware.GB10 for card in situation.gpus) and probe.driver.startswith("590."):
        finding = f"{probe.driver}: the 590 series was reported to hang while CUDA graphs are captured"
        fix: Fix = ["stay on 580, or launch eager: ", Hint(LaunchChanges(mode=Mode.EAGER))]
        yield warn_check("driver on GB10", finding, fix)


def _check_gpu_count(situation: Situation) -> Iterator[Check]:
    flags = situation.resolved.flags
    needed = count_gpus_per_host(situation.resolved)
    usable = sum(not card.trouble for card in situation.probe.gpus)
    if needed > usable and flags.get("distributed-executor-backend") != "ray":
        fix = hint_setting("tensor-parallel-size", usable) if usable else "check the GPUs: dflash-tui gpus"
        yield fail_check("GPU", f"the plan needs {needed}, and {pluralize(usable, 'GPU')} can be used here", fix)


def _check_gpu(situation: Situation, card: Gpu) -> Iterator[Check]:
    name, plan = f"GPU {card.index}", situation.plan
    if card.trouble:
        yield fail_check(name, card.trouble, "choose another GPU with --gpu, or restart the machine")
        return
    if not situation.bare and card.hardware is not plan.hardware:
        finding = f"the plan is for {plan.hardware.value}, but this is {card.name}, class {card.hardware.value}"
        yield fail_check(name, finding, ["plan for this GPU: ", Hint(LaunchChanges(gpu=str(card.index)))])
        return
    if card.claimed:
        yield fail_check(name, card.claimed, HOW_TO_SHARE)
    yield pass_check(name, f"{card.name}, class {card.hardware.value}, compute capability {card.capability}")
    if card.mig:
        disable = f"disable it: sudo nvidia-smi -i {card.index} -mig 0"
        yield warn_check(f"{name} MIG", "MIG is enabled, and vLLM sees one slice of the GPU", disable)
    yield from _check_power(card, name)
    yield from _check_other_processes(card, name)


def _check_driver(driver: str, least: str) -> Check:
    if not least:
        return pass_check("driver", driver or "unknown")
    major = driver.partition(".")[0]
    if not major.isdigit():
        return warn_check("driver", "its version is unknown", f"this engine needs {least} or newer (CUDA 13)")
    if int(major) < int(least):
        return fail_check("driver", f"{driver}; this engine is built for CUDA 13, which needs {least} or newer",
                    f"install driver {least} or newer (apt: nvidia-driver-{least}-open) and restart")  # fmt: skip
    return pass_check("driver", f"{driver}, {least} or newer is needed")


def _check_power(card: Gpu, name: str) -> Iterator[Check]:
    if card.throttle:
        fix = "let it cool and check the power supply before measuring"
        yield warn_check(f"{name} clocks", f"throttled by {', '.join(card.throttle)}", fix)
    if card.hardware is Hardware.RTX_5090_LAPTOP and system.is_on_battery():
        fix = "connect it to power and select the performance mode before measuring"
        yield warn_check(f"{name} power", "on battery", fix)


def _check_other_processes(card: Gpu, name: str) -> Iterator[Check]:
    heavy = [holder for holder in card.processes or () if holder.memory is None or holder.memory >= _MIN_FOREIGN_MEMORY]
    if heavy:
        finding = ", ".join(f"{h.name or 'a process'} (pid {h.pid}) {format_gib(h.memory)}" for h in heavy)
        fix = "stop unneeded programs: they take memory and distort measurements"
        yield warn_check(f"{name} is shared", finding, fix)


def _check_patch_files() -> Iterator[Check]:
    """Warn of invalid patch files; only plans that name them fail."""
    for name, why in patch_file.load_all_patches()[1].items():
        yield warn_check("patch file", f"{name} is not valid: {why}", "fix it, or remove it")


def _check_compilers(situation: Situation) -> Iterator[Check]:
    plan = situation.plan
    if plan.on_cpu and plan.mode is Mode.EAGER and not situation.bare:
        yield pass_check("compilers", "none needed: eager on the CPU compiles nothing")
        return
    yield _check_compiler(situation, "C compiler", "CC", ("gcc", "clang"))
    if plan.on_cpu and not situation.bare:
        yield _check_compiler(situation, "C++ compiler", "CXX", ("g++", "clang++"))
    if not _has_python_headers(situation.engine):
        yield fail_check("Python headers", "Python.h of the engine's Python is missing; Triton's kernels include it",
                   "apt install python3-dev")  # fmt: skip
    if plan.on_cpu and not situation.probe.gpus:
        return
    if nvcc := system.find_nvcc():
        yield pass_check("CUDA compiler", nvcc)
    else:
        yield warn_check("CUDA compiler", "no nvcc; FlashInfer needs it for kernels without shipped binaries",
                   "if the start fails because of it: install the CUDA toolkit, or "
                   "--set env.VLLM_USE_FLASHINFER_SAMPLER=0")  # fmt: skip


def _check_compiler(situation: Situation, name: str, variable: str, names: tuple[str, ...]) -> Check:
    if compiler := system.find_compiler(variable, names):
        return pass_check(name, compiler)
    problem = f"{variable} is '{os.environ[variable]}', which is not a program" if os.environ.get(variable) else "none"
    fix = f"unset {variable}, or set it to a compiler" if os.environ.get(variable) else f"apt install {names[0]}"
    finding = f"{problem}; Triton and Inductor compile while the server starts"
    return warn_check(name, finding, fix) if situation.bare else fail_check(name, finding, fix)


def _has_python_headers(engine: Engine | None) -> bool:
    if engine is None:
        return (Path(sysconfig.get_path("include")) / "Python.h").is_file()
    base, version = engine.python.resolve().parent.parent, engine.site_packages.parent.name
    return (base / "include" / version / "Python.h").is_file()


def _check_shared_memory() -> Iterator[Check]:
    """Check the shared memory of a server's processes; containers have 64 MiB by default."""
    try:
        free, writable = shutil.disk_usage(_SHARED_MEMORY).free, os.access(_SHARED_MEMORY, os.W_OK, effective_ids=True)
    except OSError:
        free, writable = 0, False
    if not writable or free < _MIN_SHARED_MEMORY:
        finding = f"{format_gib(free)} free in {_SHARED_MEMORY}" if writable else f"{_SHARED_MEMORY} cannot be written"
        yield warn_check("shared memory", finding, "remove old files there, or start the container with --shm-size")


def check_logout() -> Iterator[Check]:
    """Check that a server survives the end of the login that launched it, as over ssh."""
    risk = system.read_logout_risk()
    if risk is None:
        return
    if risk.settings:
        finding = f"{' and '.join(risk.settings)} of systemd-logind would end a server with your last login"
        fix = f"loginctl enable-linger {risk.user}".strip()
        yield warn_check("logout", finding, f"{fix} (with sudo if refused), or stay logged in")
    else:
        yield pass_check("logout", f"a server outlives your login{' (lingering)' if risk.lingers else ''}")


def _check_model_disk(situation: Situation, *, thorough: bool) -> Iterator[Check]:
    files = list_local_files(situation.models)
    place = files[0].parent if files else model_hub.hub_cache_folder()
    disk = system.find_disk(Path(place))
    if disk.kind in {"usb", "network"}:
        fix = "move the models to an NVMe disk; a USB disk took 7 of 9.5 minutes of one published start"
        yield warn_check("models' disk", f"{disk.kind} {disk.device}".strip(), fix)
    if thorough and files and (speed := system.measure_read_speed(files)) is not None:
        finding = f"{speed / 1e9:.2f} GB/s read from {disk.device or 'it'}"
        if speed < _SLOW_DISK_RATE:
            yield warn_check("disk speed", finding, "loading will take long; a local NVMe disk is faster")
        else:
            yield pass_check("disk speed", finding)


_DEMO_BYTES = 3 << 30  # measured: 2.2 GiB for the demo with 1 GiB of KV cache
_MAX_SWAP = 1 << 30
_MAX_PAGE_CACHE = 8 << 30
# CUDA allocates this before vLLM measures the free memory: 0.51 GiB on an H200.
_CUDA_CONTEXT_BYTES = 1 << 29
# The shortest useful context.
_MIN_MODEL_LEN = 4096
_SMALL_BATCHES: dict[str, int | float] = {"max_num_seqs": 4, "max_num_batched_tokens": 4096}
_NOTHING_FITS: Advice = (
    "choose a smaller or quantized target (a variant, or ",
    hint_setting("target.model", "…", is_example=True),
    "), or a GPU with more memory",
)


def check_memory(situation: Situation) -> Iterator[Check]:
    """Yield the memory checks of a plan."""
    if situation.plan.on_cpu:
        available = system.read_system_memory().available
        finding = f"{format_gib(available)} available, about {format_gib(_DEMO_BYTES)} needed"
        if available < _DEMO_BYTES:
            yield warn_check("memory", finding, "stop programs that use much of it")
        else:
            yield pass_check("memory", finding)
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
        fix = ["stop programs that use the rest, or ", *_suggest_settings(situation, fit)]
        check = fail_check(kind, f"{budget}, and {format_gib(fit.free)} are free", fix)
        return msgspec.structs.replace(check, memory_taken=True)
    if not fit.holds_request:
        estimate = f"it may not fit: by our estimate {format_gib(fit.kv_left)} are left for the KV cache"
        finding = f"{estimate}, and {request} takes {format_gib(fit.kv_needed)}"
        return warn_check(kind, finding, _suggest_settings(situation, fit))
    if not fit.knows_weights:
        finding = f"{budget}; whether it fits is unknown without the size of the weights"
        return warn_check(kind, finding, "the size is known once the hub can be reached")
    room = f"about {format_gib(fit.kv_left)} for the KV cache"
    many = f": {format_number(fit.requests, 1)} times {request}" if fit.requests else ""
    return pass_check(kind, f"{budget}; {room}{many}{lacking}")


def _list_unknown(fit: MemoryEstimate) -> str:
    least = "".join(f" at least ({share.name}: {share.source})" for share in fit.shares if share.least)
    names = [name for name in fit.unknown if not (least and name == "weights")]
    return least + (f" (without {', '.join(names)}, whose size is unknown)" if names else "")


def _exceeds_free(fit: MemoryEstimate) -> bool:
    return fit.budget + _CUDA_CONTEXT_BYTES > fit.free


def _suggest_settings(situation: Situation, fit: MemoryEstimate) -> Advice:
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
    """Return advice with the largest target that fits: a variant, preferably for this class, or one of the catalogue.

    If none is known to fit, the variants of unknown size are named.
    """
    variants = list(_list_other_targets(situation, budget))
    resolved = situation.resolved
    if fitting := [(resolved.hardware in resolved.recipe.variants[name].reported_on, size, name)
                   for name, size, fits in variants if size and fits]:  # fmt: skip
        _, size, name = max(fitting)
        return Hint(LaunchChanges(variant=name)), f" ({size:g} GB), or a GPU with more memory"
    catalogue, target = catalogues.load_catalogue(), situation.resolved.target.model
    pairs = catalogues.find_pairs(catalogue, target)
    fitting_models = (
        model for pair in pairs for model in catalogues.list_fitting_models(catalogue, pair, budget / GIB)
    )
    if smaller := [model for model in fitting_models if model.repo != target and model.size_gb]:
        best = max(smaller, key=lambda model: model.size_gb or 0)
        words = f" ({best.precision}, {best.size_gb:g} GB), or a GPU with more memory"
        return hint_setting("target.model", best.repo), words
    if unknown := [name for name, size, is_smaller in variants if size is None and is_smaller]:
        hints = [part for name in unknown for part in (" or ", Hint(LaunchChanges(variant=name)))]
        return *hints[1:], ", of unknown size, or a GPU with more memory"
    return _NOTHING_FITS


def _list_other_targets(situation: Situation, budget: int) -> Iterator[tuple[str, float | None, bool]]:
    """Yield the variants with another target: the name, the size of its files in GB, and whether it fits.

    For a variant of unknown size, the last is whether its weights have fewer bits and so may fit.
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
    memory = system.read_system_memory()
    if memory.cached > _MAX_PAGE_CACHE and fit.budget > fit.free - memory.cached:
        finding = f"{format_gib(memory.cached)} of the unified memory is page cache, which CUDA may not count as free"
        # Without model files the page cache belongs to others, and only root can release it.
        ours = f"release the models' page cache: dflash-tui doctor {situation.plan.recipe} --release-page-cache"
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
        yield warn_check("orphans", finding, f"if it is not needed, stop it: dflash-tui stop --orphans {orphan.pid}")
