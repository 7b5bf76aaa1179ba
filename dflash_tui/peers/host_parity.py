"""What has to be the same on every host of a server, and where it is not: vLLM compares nothing itself.

Another model or release gets ready and dies at the first request; other weights give HTTP 200 and noise, with nothing
in any log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec.structs import replace

from dflash_tui.common.formatting import truncate
from dflash_tui.engines import inventory, model_hub
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.launch.preflight.check import Check, fail_check, pass_check
from dflash_tui.peers.messages import HostSide
from dflash_tui.planning import patch_file
from dflash_tui.planning.plan import PlannedModel

_WORDS = {
    "vllm": ("the engine", "install the same release of dflash-tui on both, then: dflash-tui engine install RECIPE"),
    "patches": ("the patches", "install the same release of dflash-tui on both"),
    "setup": ("the recipe", "copy the recipe's file to both, or install the same release of dflash-tui"),
    "target": ("the target's files", "remove them there, so that they are copied, fetched or built again"),
    "drafter": ("the drafter's files", "remove them there, so that they are copied, fetched or built again"),
}


def describe_side(planned: PlannedLaunch) -> HostSide:
    """Return what a launch on this machine is made of; the folders that things lie in may differ between hosts."""
    plan, resolved = planned.plan, planned.resolved
    engine = inventory.find_planned_engine(plan)
    python = engine.site_packages.parent.name if engine else ""
    shared = (
        resolved.flags,
        resolved.speculation,
        resolved.env,
        plan.mode,
        plan.method,
        plan.num_speculative_tokens,
        [_leave_folder_out(model) for model in plan.models] or (Path(plan.target).name, Path(plan.drafter).name),
        plan.vllm,
    )
    texts = [msgspec.json.encode(patch_file.load_patch(name)) for name in sorted(plan.patches)]
    return HostSide(
        vllm=f"{engine.distribution} {engine.vllm}, {python}" if engine else "",
        patches=f"{', '.join(sorted(plan.patches)) or 'none'} ({_digest(b''.join(texts))})",
        setup=_digest(msgspec.json.encode(shared, order="sorted")),
        target=model_hub.describe_model(plan, plan.target),
        drafter=model_hub.describe_model(plan, plan.drafter) if plan.drafter else "none",
    )


def compare_hosts(near: HostSide, far: HostSide, host: str) -> Iterator[Check]:
    """Yield a check for each thing that has to be the same; what one side does not know yet is left out."""
    for name, (what, fix) in _WORDS.items():
        here, there = getattr(near, name), getattr(far, name)
        if not here or not there:
            continue
        if here == there:
            yield pass_check(host, f"{what}: the same on both")
        else:
            finding = f"{what}: not the same, {truncate(there, 100)} there and {truncate(here, 100)} here"
            yield fail_check(host, finding, f"on {host}: {fix}")


def _leave_folder_out(model: PlannedModel) -> PlannedModel:
    """Return a model of a folder without its path, which differs between hosts: its files are compared."""
    is_folder = model_hub.find_local_folder(model.name) or not model_hub.is_repository(model.name)
    return replace(model, name="") if is_folder else model


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
