"""Checks of the machine: GPU, driver, who else uses it, power, compilers, disks."""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from dflash_tui.common.formatting import format_gib, pluralize
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.hub import cache
from dflash_tui.launch.preflight import memory
from dflash_tui.launch.preflight.check import Check, Situation, fail_check, list_local_files, pass_check, warn_check
from dflash_tui.machine import login_manager, system
from dflash_tui.machine.gpus import Gpu
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning import patch_file
from dflash_tui.planning.cluster import count_gpus_per_host
from dflash_tui.planning.recipes.recipe import Mode
from dflash_tui.planning.request import Hint, LaunchChanges, hint_setting

# Two that start on one GPU at the same time measure its memory wrongly, and one of them or both fail.
HOW_TO_SHARE = "wait until that is ready (dflash-tui ps), stop it, or choose another GPU with --gpu"
_CPU_DEMO = "dflash-tui --recipe demo-cpu runs on the CPU"
_SLOW_DISK_RATE = 500e6  # bytes/s; an NVMe disk reads several GB/s, a USB 3 one 0.4
_MIN_FOREIGN_MEMORY = 256 << 20
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the system's, which is only looked at
_MIN_SHARED_MEMORY = 32 << 20


def check_machine(situation: Situation, *, thorough: bool = False) -> list[Check]:
    """Return the checks of this machine for a plan; `thorough` ones read from the disk for a second or two."""
    checks = [*_check_gpus(situation), *memory.check_memory(situation)]
    return [
        *checks,
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
        yield (
            warn_check("GPU", probe.why_none, f"recipes for GPUs cannot start here; {_CPU_DEMO}")
            if situation.bare
            else fail_check("GPU", probe.why_none, f"this recipe needs an NVIDIA GPU; {_CPU_DEMO}")
        )
        return
    yield from _check_gpu_count(situation)
    for card in probe.gpus if situation.bare else situation.gpus:
        yield from _check_gpu(situation, card)
    yield _check_driver(probe.driver, plan.driver)
    if any(card.hardware is Hardware.GB10 for card in situation.gpus) and probe.driver.startswith("590."):
        finding = f"{probe.driver}: the 590 series was reported to hang while CUDA graphs are captured"
        yield warn_check(
            "driver on GB10", finding, ["stay on 580, or launch eager: ", Hint(LaunchChanges(mode=Mode.EAGER))]
        )


def _check_gpu_count(situation: Situation) -> Iterator[Check]:
    """Check the number of GPUs: each part of a split model needs one, here or in a Ray cluster."""
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
        why = ", ".join(card.throttle)
        yield warn_check(
            f"{name} clocks", f"throttled by {why}", "let it cool and check the power supply before measuring"
        )
    if card.hardware is Hardware.RTX_5090_LAPTOP and system.is_on_battery():
        yield warn_check(
            f"{name} power", "on battery", "connect it to power and select the performance mode before measuring"
        )


def _check_other_processes(card: Gpu, name: str) -> Iterator[Check]:
    """Warn about all processes that use the GPU before a launch, our own servers included."""
    heavy = [holder for holder in card.processes or () if holder.memory is None or holder.memory >= _MIN_FOREIGN_MEMORY]
    if heavy:
        finding = ", ".join(f"{h.name or 'a process'} (pid {h.pid}) {format_gib(h.memory)}" for h in heavy)
        yield warn_check(
            f"{name} is shared", finding, "stop what is not needed: it takes memory and distorts measurements"
        )


def _check_patch_files() -> Iterator[Check]:
    """Warn about invalid patch files; only recipes that name them are refused, when they are planned."""
    for name, why in patch_file.load_all_patches()[1].items():
        yield warn_check("patch file", f"{name} is not valid: {clean_line(why)}", "fix it, or remove it")


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
        yield warn_check("CUDA compiler", "no nvcc; FlashInfer needs it for kernels that it has no binaries of",
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
    """Whether the headers of the Python interpreter of the engine, or of ours without an engine, are installed."""
    if engine is None:
        return (Path(sysconfig.get_path("include")) / "Python.h").is_file()
    base, version = engine.python.resolve().parent.parent, engine.site_packages.parent.name
    return (base / "include" / version / "Python.h").is_file()


def _check_shared_memory() -> Iterator[Check]:
    """Check that there is room for what the processes of a server share; containers have 64 MiB unless told."""
    try:
        free, writable = shutil.disk_usage(_SHARED_MEMORY).free, os.access(_SHARED_MEMORY, os.W_OK, effective_ids=True)
    except OSError:
        free, writable = 0, False
    if not writable or free < _MIN_SHARED_MEMORY:
        finding = f"{format_gib(free)} free in {_SHARED_MEMORY}" if writable else f"{_SHARED_MEMORY} cannot be written"
        yield warn_check("shared memory", finding, "remove old files there, or start the container with --shm-size")


def check_logout() -> Iterator[Check]:
    """Check that a server lives on when the login ends that launched it, as over ssh."""
    risk = login_manager.read_logout_risk()
    if risk is None:
        return
    if risk.settings:
        finding = f"{' and '.join(risk.settings)} of systemd-logind would end a server with your last login"
        fix = f"loginctl enable-linger {risk.user}".strip()
        yield warn_check("logout", finding, f"{fix} (with sudo where it is refused), or stay logged in")
    else:
        yield pass_check("logout", f"a server outlives your login{' (lingering)' if risk.lingers else ''}")


def _check_model_disk(situation: Situation, *, thorough: bool) -> Iterator[Check]:
    files = list_local_files(situation.models)
    place = files[0].parent if files else cache.hub_cache_folder()
    disk = system.find_disk(Path(place))
    if disk.kind in {"usb", "network"}:
        slow = "a USB disk took 7 of 9.5 minutes of one published start"
        yield warn_check(
            "models' disk", f"{disk.kind} {disk.device}".strip(), f"move the models to an NVMe disk; {slow}"
        )
    if not thorough or not files:
        return
    if (speed := system.measure_read_speed(files)) is None:
        return
    finding = f"{speed / 1e9:.2f} GB/s read from {disk.device or 'it'}"
    yield (
        warn_check("disk speed", finding, "loading will take long; a local NVMe disk is faster")
        if speed < _SLOW_DISK_RATE
        else pass_check("disk speed", finding)
    )
