"""Remedies for a failure, as changes of the launch request that can be applied at once. Pure.

Numbers come from vLLM's own message or from the plan; without one the advice is only text in the diagnosis.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from packaging.version import Version

from dflash_tui.diagnosis.cause import UNKNOWN, Diagnosis
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import Mode, SetUp
from dflash_tui.planning.request import LaunchChanges
from dflash_tui.planning.serve_flags import RESERVED_FLAGS as _SET_BY_US
from dflash_tui.vllm_output.known_failures import find_fixing_release

# Free memory may shrink before the next launch.
_MARGIN = 0.98
_LEAST_SHARE, _MOST_SHARE, _SHARE_STEP = 0.05, 0.95, 0.05
_PATCHED = {"attention_causal", "attention_images", "attention_dtype", "spec_target", "kernel", "device_fault"}
_PINNED = {"architecture", "missing_module", "wrong_build", "driver_old", "spec_key", "arguments"}
_AGAIN = {"killed", "engine_killed", "worker_died", "terminated", "oom_killed", "hub_down", "gpu_fault", "open_files"}
_OF_MACHINE = {"killed", "terminated", "hub_down", "hub_offline", "gated", "port_in_use", "memory_taken"}
# Request fields that change the recipe's set-up; the others choose a machine, a port or one of its set-ups.
_CHANGES = ("mode", "method", "num_speculative_tokens", "set_up", "streams", "vllm", "engine")
_TRITON = {"attention_images", "attention_dtype", "attention", "device_fault", "crashed"}


class Remedy(msgspec.Struct, frozen=True):
    """A launch that may succeed after one that failed."""

    words: str
    """What is different, as text."""
    changes: LaunchChanges = LaunchChanges()
    """The changes of the request; empty to repeat the launch."""
    needs: str = ""
    """A variable to export first, such as HF_TOKEN; empty if none is needed."""


def propose_remedies(diagnosis: Diagnosis, plan: Plan, port: int | None = None) -> tuple[Remedy, ...]:
    """Return the remedies, the best first; `port` is the next free one."""
    kind = diagnosis.kind
    remedies = [*_undo(kind, plan), *_advised(diagnosis, plan)]
    if rule := _BY_KIND.get(kind):
        remedies += rule(diagnosis, plan)
    if kind == "port_in_use" and port:
        remedies.append(Remedy(f"use port {port}, which is free", LaunchChanges(port=port)))
    remedies += _by_hand(kind, plan)
    if kind in _TRITON and not plan.on_cpu and plan.num_speculative_tokens and "TRITON_ATTN" not in " ".join(plan.argv):
        remedies.append(Remedy("TRITON_ATTN for the drafter", _setting("speculation.attention_backend", "TRITON_ATTN")))
    if kind in {"device_fault", "crashed", UNKNOWN} and plan.mode is Mode.COMPILE:
        remedies.append(Remedy("eager mode, which compiles nothing", LaunchChanges(mode=Mode.EAGER)))
    if kind in {"device_fault", "spec_width", "spec_mask", "crashed", UNKNOWN} and plan.num_speculative_tokens:
        without = LaunchChanges(num_speculative_tokens=0)
        remedies.append(Remedy("without speculation, to see whether the drafter is the cause", without))
    if kind in _AGAIN:
        remedies.append(Remedy("launch again unchanged"))
    return tuple(
        remedy
        for place, remedy in enumerate(remedies)
        if all(remedy.changes != better.changes for better in remedies[:place])
    )


def _undo(kind: str, plan: Plan) -> Iterator[Remedy]:
    """Yield the launch without the user's changes, unless the machine is the cause."""
    request = plan.request
    if request is None or kind in _OF_MACHINE:
        return
    # The published set-up is the one to go back to.
    fields = tuple(name for name in _CHANGES if getattr(request, name) not in {None, SetUp.PUBLISHED})
    if names := [*(name.replace("_", "-") for name in fields), *request.settings]:
        changes = LaunchChanges(removed=fields, removed_settings=tuple(request.settings))
        yield Remedy(f"without what you changed: {', '.join(names)}", changes)


def _advised(diagnosis: Diagnosis, plan: Plan) -> Iterator[Remedy]:
    """Yield the changes named in the recipe's own advice on the failure."""
    options = re.findall(r"--(num-speculative-tokens|profile|vllm|mode|variant) ([\w.-]+)", diagnosis.advice)
    fields: dict[str, Any] = {name.replace("-", "_"): value for name, value in options}
    for profile in re.findall(r"the ([\w.-]+) profile\b", diagnosis.advice):
        fields |= {"profile": profile} if profile != plan.profile else {}
    fields["settings"] = dict(re.findall(r"--set ([\w.-]+)=([^\s,;]+)", diagnosis.advice))
    try:
        changes = msgspec.convert(fields, LaunchChanges, strict=False)
    except msgspec.ValidationError:  # no valid value of an option
        return
    if changes:
        yield Remedy("as the recipe says", changes)


def _by_hand(kind: str, plan: Plan) -> Iterator[Remedy]:
    """Yield remedies that undo the user's choices, and those of other releases and patches."""
    request = plan.relaunch_request
    chosen = tuple(name for name in ("engine", "vllm") if getattr(request, name))
    fixed_in = find_fixing_release(kind)
    if (kind in _PINNED or fixed_in) and chosen:
        yield Remedy("the engine that the recipe pins", LaunchChanges(removed=chosen))
    if kind in _PATCHED and (disabled := tuple(f"patches.{name}" for name in plan.disabled_patches)):
        yield Remedy("with the patches that --set disabled", LaunchChanges(removed_settings=disabled))
    if fixed_in and plan.vllm and not plan.on_cpu and Version(plan.vllm) < Version(fixed_in):
        fixed = [vllm for vllm in recipe_loader.load_releases() if Version(vllm) >= Version(fixed_in)]
        if newer := min(fixed, key=Version, default=None):
            yield Remedy(f"vLLM {newer}", LaunchChanges(vllm=newer, removed=("engine",)))
    if plan.set_up is SetUp.FAST:
        yield Remedy("the published set-up", LaunchChanges(set_up=SetUp.PUBLISHED))
    models = tuple(name for name in ("target.model", "drafter.model") if name in request.settings)
    if kind in {"not_found", "hub_offline", "gated", "spec_width", "spec_mask", "architecture", "weights"} and models:
        other_method = ("method",) if "drafter.model" in models and request.method else ()
        yield Remedy("the recipe's own models", LaunchChanges(removed=other_method, removed_settings=models))


def _setting(name: str, value: str) -> LaunchChanges:
    return LaunchChanges(settings={name: value})


def _without(plan: Plan, name: str) -> LaunchChanges:
    """Return the change that removes a flag: a user's setting is dropped, a recipe's is set to null."""
    by_hand = name in plan.relaunch_request.settings
    return LaunchChanges(removed_settings=(name,)) if by_hand else _setting(name, "null")


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None


_Rule = Callable[[Diagnosis, Plan], Iterator[Remedy]]


def _use_free_memory(diagnosis: Diagnosis, plan: Plan) -> Iterator[Remedy]:
    free, total = (_number(diagnosis.log_values.get(name)) for name in ("free", "total"))
    if free and total and free <= total and (share := math.floor(free / total * _MARGIN * 100) / 100) >= _LEAST_SHARE:
        words = f"gpu-memory-utilization {share:g}, from the {free:g} of {total:g} GiB that vLLM found free"
        yield Remedy(words, _setting("gpu-memory-utilization", f"{share:g}"))
    elif (cache := _number(plan.env.get("VLLM_CPU_KVCACHE_SPACE"))) and cache > 1:
        yield Remedy("1 GiB of KV cache", _setting("env.VLLM_CPU_KVCACHE_SPACE", "1"))


def _fit_kv_cache(diagnosis: Diagnosis, plan: Plan) -> Iterator[Remedy]:
    if fits := int(diagnosis.log_values.get("fits", "0")):
        yield Remedy(f"max-model-len {fits}, which vLLM says fits", _setting("max-model-len", str(fits)))
    share = _number(plan.find_flag("gpu-memory-utilization"))
    if share and not plan.on_cpu and (more := round(min(_MOST_SHARE, share + _SHARE_STEP), 2)) > share:
        yield Remedy(f"gpu-memory-utilization {more:g}", _setting("gpu-memory-utilization", f"{more:g}"))


def _shorten_context(diagnosis: Diagnosis, _plan: Plan) -> Iterator[Remedy]:
    words = re.findall(r"=(\d+(?:\.\d+)?)", diagnosis.log_values.get("derived", ""))
    made_for = [number for number in map(_number, words) if number is not None]
    if made_for and (length := int(min(made_for))) > 0:
        yield Remedy(f"max-model-len {length}, the model's own limit", _setting("max-model-len", str(length)))


def _use_less_memory(_diagnosis: Diagnosis, plan: Plan) -> Iterator[Remedy]:
    for flag in ("max-num-batched-tokens", "max-num-seqs"):
        if (now := _number(plan.find_flag(flag))) and now >= 2:
            yield Remedy(f"{flag} {now / 2:.0f}, half the present value", _setting(flag, f"{now / 2:.0f}"))
    share = _number(plan.find_flag("gpu-memory-utilization"))
    if share and (less := round(share - _SHARE_STEP, 2)) >= _LEAST_SHARE:
        yield Remedy(f"gpu-memory-utilization {less:g}", _setting("gpu-memory-utilization", f"{less:g}"))


def _remove_argument(diagnosis: Diagnosis, plan: Plan) -> Iterator[Remedy]:
    name = diagnosis.log_values.get("flag", "").lstrip("-").partition("=")[0]
    following = plan.find_flag(name)
    if following is None or name in _SET_BY_US:
        return
    if name not in plan.relaunch_request.settings and (not following or following.startswith("--")):
        name = name.removeprefix("no-")  # how a switch is turned off
    yield Remedy(f"without {name}", _without(plan, name))


def _go_online(_diagnosis: Diagnosis, plan: Plan) -> Iterator[Remedy]:
    if "HF_HUB_OFFLINE" in plan.env:
        yield Remedy("with access to the hub: HF_HUB_OFFLINE unset", _without(plan, "env.HF_HUB_OFFLINE"))


def _raise_token_budget(_diagnosis: Diagnosis, plan: Plan) -> Iterator[Remedy]:
    for flag, factor in (("max-num-batched-tokens", 2.0), ("max-num-seqs", 0.5)):
        if (now := _number(plan.find_flag(flag))) and now >= 2:
            yield Remedy(f"{flag} {now * factor:.0f} instead of {now:.0f}", _setting(flag, f"{now * factor:.0f}"))


def _remove(flag: str) -> _Rule:
    def rule(_diagnosis: Diagnosis, plan: Plan) -> Iterator[Remedy]:
        if plan.find_flag(flag) is not None:
            yield Remedy(f"without {flag}", _without(plan, flag))

    return rule


def _set(name: str, value: str, words: str) -> _Rule:
    return lambda _diagnosis, _plan: iter((Remedy(words, _setting(name, value)),))


_BY_KIND: dict[str, _Rule] = {
    "memory_taken": _use_free_memory,
    "kv_cache": _fit_kv_cache,
    "max_len": _shorten_context,
    "out_of_memory": _use_less_memory,
    "oom_killed": _use_less_memory,
    "arguments": _remove_argument,
    "hub_offline": _go_online,
    "gated": lambda _diagnosis, _plan: iter((Remedy("with a token that may read the model", needs="HF_TOKEN"),)),
    "timeout": _set("env.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "600", "ten minutes until a step must end"),
    "ready_timeout": _set("env.VLLM_ENGINE_READY_TIMEOUT_S", "3600", "one hour until the engine must be ready"),
    "compile_cache": _set("env.VLLM_DISABLE_COMPILE_CACHE", "1", "without torch.compile's cache"),
    "ray_memory": _set("env.RAY_memory_monitor_refresh_ms", "0", "without Ray's memory monitor"),
    "token_budget": _raise_token_budget,
    "forked": _set("start.fork", "false", "with a spawned engine process"),
    "attention_head": _remove("attention-backend"),
    "attention_dtype": _remove("kv-cache-dtype"),
    "attention": _remove("attention-backend"),
    "parallel": _remove("tensor-parallel-size"),
}
