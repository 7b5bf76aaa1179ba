"""Candidates of a tune: the best setting so far with one more thing varied, each planned as a launch of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec.structs import replace
from packaging.version import Version

from dflash_tui.common.errors import UsageError
from dflash_tui.experiments import variation
from dflash_tui.experiments.builder import are_alike
from dflash_tui.experiments.design import PUBLISHED, Arm
from dflash_tui.launch import planner
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.planning import patch_file, patch_selection
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.recipe import Mode
from dflash_tui.planning.recipes.resolution import ResolvedRecipe
from dflash_tui.planning.request import LaunchChanges, LaunchRequest

_FIELDS = tuple(name for name in LaunchChanges.__struct_fields__ if name in LaunchRequest.__struct_fields__)
_SHORT = {"num_speculative_tokens": "n", "mode": ""}
_LOADER = "load-format"
_START_MEASURE = "start."
_BACKENDS = "flash_attn,triton_attn,flashinfer"
_DRAFTER_BACKEND, _DRAFT_SAMPLING = "speculation.attention_backend", "speculation.draft_sample_method"
_REJECTION = "speculation.rejection_sample_method"
# What of speculation is tried with which values, and the first release that has it.
_OF_SPECULATION = {
    _DRAFTER_BACKEND: (_BACKENDS, "0.21.0"),
    _DRAFT_SAMPLING: ("probabilistic", "0.22.0"),
    _REJECTION: ("block", "0.26.0"),
}
# There a probabilistic draft changes the distribution of answers (vllm#54282).
_WRONG_PROBABILISTIC = Version("0.28.0")
_RUNNER = "env.VLLM_USE_V2_MODEL_RUNNER"
_FIRST_WITH_V2, _ALWAYS_V2 = Version("0.24.0"), Version("0.29.0")
_FIRST_WITH_INSTANTTENSOR = "0.29.0"
_SEQUENCES = (2, 4, 8, 16)
_MOST_SEQUENCES = 3


class Candidate(NamedTuple):
    """A setting that may be tried, and the recipe as it has it."""

    arm: Arm
    resolved: ResolvedRecipe


class Proposal(NamedTuple):
    """Settings that were not tried yet, and what cannot be tried and why."""

    candidates: list[Candidate]
    left_out: dict[str, str]


def propose_candidates(
    axis: str, best: Arm, arms: Sequence[Arm], plan: Callable[[LaunchRequest], PlannedLaunch]
) -> Proposal:
    """Return `best` with each value of an axis, given as `KEY=VALUE,VALUE`.

    A launch that is already among `arms`, the published one first, is no candidate.
    """
    proposal, key = Proposal([], {}), axis.partition("=")[0]
    for value, changes in variation.parse_variation(axis, least=1).arms.items():
        request = best.request.with_changes(changes)
        try:
            planned = plan(request)
        except UsageError as error:
            proposal.left_out[f"{key}={value}"] = error.what
            continue
        skipped, asked = planned.plan.skipped_patches, [name.removeprefix("patches.") for name in changes.settings]
        missing = _list_missing_models(planned.plan, arms[0].plan)
        if why := next((skipped[patch] for patch in asked if patch in skipped), ""):
            proposal.left_out[key] = why
        elif missing:
            why = f"{', '.join(missing)} is not on this machine, and would be fetched on the budget"
            proposal.left_out[f"{key}={value}"] = why
        else:
            arm = Arm(name_setting(arms[0].request, request), request, planned.plan)
            if not any(are_alike(arm, other) for other in (*arms, *(each.arm for each in proposal.candidates))):
                proposal.candidates.append(Candidate(arm, planned.resolved))
    return proposal


def _list_missing_models(plan: Plan, published: Plan) -> list[str]:
    others = [model for model in plan.models if model not in published.models]
    here = planner.find_local_models(plan) if others else {}
    return [model.name for model in others if (model.name, model.revision) not in here]


def name_setting(published: LaunchRequest, request: LaunchRequest) -> str:
    """Return a name for a setting: what it has that the published one has not, such as `graphs n=11`."""
    words = []
    for name in _FIELDS:
        value = getattr(request, name)
        if name != "settings" and value is not None and value != getattr(published, name):
            short = _SHORT.get(name, name)
            words.append(f"{short}={value}" if short else str(value))
    for name, value in request.settings.items():
        if published.settings.get(name) != value:
            patch = name.replace("patches.", "patch." if value == "true" else "without patch.", 1)
            words.append(patch if name.startswith("patches.") else f"{name}={value}")
    return " ".join(words) or PUBLISHED


class Axes(NamedTuple):
    """What is varied, the largest effects first, and what is left out and why."""

    axes: tuple[str, ...]
    left_out: dict[str, str]


def judges_starts(key: str) -> bool:
    """Whether what is varied changes how a server starts, and not how fast it answers."""
    return key == _LOADER or key.startswith(_START_MEASURE)


def list_axes(resolved: ResolvedRecipe, plan: Plan, *, temperature: float | None, streams: int) -> Axes:
    """Return what a tune of this launch varies; `streams` is the most requests under way at a time."""
    left_out: dict[str, str] = {}
    recipe = resolved.recipe
    methods = [f"method={','.join([recipe.method, *recipe.methods])}"] if recipe.methods else []
    axes = [_list_modes(plan), *methods, *_list_patches(resolved, plan, left_out)]
    if plan.on_cpu:
        left_out |= {
            f"attention-backend, {_DRAFTER_BACKEND}": "a CPU has one attention backend",
            "max-num-seqs": "it decides which CUDA graphs are captured, and a CPU has none",
            _LOADER: "the other loaders load onto a GPU",
        }
    vllm = Version(resolved.engine.vllm)
    if not plan.on_cpu:
        axes += [f"{_RUNNER}=1"] if _FIRST_WITH_V2 <= vllm < _ALWAYS_V2 else []
    # Quarters of the most tokens that the drafter drafts, and 0.
    if most := (resolved.drafter.max_tokens if resolved.drafter else None) or plan.num_speculative_tokens:
        axes.append("n=" + ",".join(map(str, dict.fromkeys((most, most * 3 // 4, most // 2, most // 4, 0)))))
    axes += [] if plan.on_cpu else [f"attention-backend={_BACKENDS}"]
    if plan.num_speculative_tokens:
        axes += _list_speculation(vllm, plan, temperature, left_out)
    if not plan.on_cpu:
        enough = [count for count in _SEQUENCES if count >= streams] or [streams]  # never fewer than are sent
        loaders = ["fastsafetensors"]
        if vllm >= Version(_FIRST_WITH_INSTANTTENSOR):
            loaders.append("instanttensor")
        else:
            why = f"vLLM {vllm} does not install it; {_FIRST_WITH_INSTANTTENSOR} does"
            left_out[f"{_LOADER}=instanttensor"] = why
        axes += [f"max-num-seqs={','.join(map(str, enough[:_MOST_SEQUENCES]))}", f"{_LOADER}={','.join(loaders)}"]
    return Axes(tuple(axes), left_out)


def _list_modes(plan: Plan) -> str:
    """Return the modes; eager is tried on a CPU, which has no CUDA graphs, or where it is the published mode."""
    eager = [Mode.EAGER] if plan.on_cpu or plan.mode is Mode.EAGER else []
    return "mode=" + ",".join([*([] if plan.on_cpu else [Mode.GRAPHS]), Mode.COMPILE, *eager])


def _list_patches(resolved: ResolvedRecipe, plan: Plan, left_out: dict[str, str]) -> list[str]:
    """Return the patches that the plan does not have and that the release takes, experimental ones included."""
    patches = [patch for patch in patch_file.load_all_patches()[0] if patch.name not in plan.patches]
    mine = [patch for patch in patches if not patch.recipes or resolved.recipe.name in patch.recipes]
    names = [patch.name for patch in mine if patch.distribution == resolved.engine.distribution]
    with_patches = replace(resolved, patches=tuple(dict.fromkeys((*resolved.patches, *names))))
    skipped = patch_selection.select_patches(with_patches, patchable=True).skipped
    left_out |= {f"patch.{name}": skipped[name] for name in names if name in skipped}
    return [f"patch.{name}=on" for name in names if name not in skipped]


def _list_speculation(vllm: Version, plan: Plan, temperature: float | None, left_out: dict[str, str]) -> list[str]:
    axes = []
    for key, (values, first) in _OF_SPECULATION.items():
        if key == _DRAFTER_BACKEND and plan.on_cpu:
            continue
        if key != _DRAFTER_BACKEND and temperature == 0:
            left_out[key] = "it changes nothing at temperature 0; --temperature 0.7 tries it"
        elif vllm < Version(first):
            left_out[key] = f"vLLM {vllm} does not have it; {first} does"
        elif key == _DRAFT_SAMPLING and vllm == _WRONG_PROBABILISTIC:
            left_out[key] = f"answers are others than without drafts in vLLM {vllm} (vllm#54282)"
        else:
            axes.append(f"{key}={values}")
    return axes
