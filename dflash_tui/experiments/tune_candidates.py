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
_BACKENDS = ("flash_attn", "triton_attn", "flashinfer")
_DRAFTER_BACKEND = "speculation.attention_backend"
_DRAFT_SAMPLING, _REJECTION = "speculation.draft_sample_method", "speculation.rejection_sample_method"
_FIRST_WITH_DRAFTER_BACKEND = Version("0.21.0")
_FIRST_WITH_PROBABILISTIC, _FIRST_WITH_BLOCK = Version("0.22.0"), Version("0.26.0")
# There a probabilistic draft changes the distribution of answers (vllm#54282).
_WRONG_PROBABILISTIC = Version("0.28.0")
_RUNNER = "env.VLLM_USE_V2_MODEL_RUNNER"
_FIRST_WITH_V2, _ALWAYS_V2 = Version("0.24.0"), Version("0.29.0")
_FIRST_WITH_INSTANTTENSOR = Version("0.29.0")
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
    axis: str,
    best: Arm,
    arms: Sequence[Arm],
    worse: Sequence[Arm],
    plan: Callable[[LaunchRequest], PlannedLaunch],
) -> Proposal:
    """Return `best` with each value of an axis, given as `KEY=VALUE,VALUE`.

    A launch that is already among `arms`, the published one first, is no candidate, and neither is a value that made
    the arms in `worse`.
    """
    proposal = Proposal([], {})
    for value, changes in variation.parse_variation(axis, least=1).arms.items():
        if any(arm.request.with_changes(changes) == arm.request for arm in worse):
            continue
        request = best.request.with_changes(changes)
        name = name_setting(arms[0].request, request)
        try:
            planned = plan(request)
        except UsageError as error:
            proposal.left_out[f"{axis.partition('=')[0]}={value}"] = error.what
            continue
        asked = [name.partition(".")[2] for name in changes.settings if name.startswith("patches.")]
        skipped = planned.plan.skipped_patches
        if why := next((skipped[patch] for patch in asked if patch in skipped), ""):
            proposal.left_out[axis.partition("=")[0]] = why
            continue
        if missing := _list_missing_models(planned.plan, arms[0].plan):
            why = f"{', '.join(missing)} is not on this machine, and would be fetched on the budget"
            proposal.left_out[f"{axis.partition('=')[0]}={value}"] = why
            continue
        arm = Arm(name, request, planned.plan)
        alike = any(are_alike(arm, other) for other in (*arms, *(candidate.arm for candidate in proposal.candidates)))
        if not alike:
            proposal.candidates.append(Candidate(arm, planned.resolved))
    return proposal


def _list_missing_models(plan: Plan, published: Plan) -> list[str]:
    others = [model for model in plan.models if model not in published.models]
    here = planner.find_local_models(plan) if others else {}
    return [model.name for model in others if (model.name, model.revision) not in here]


def _name_part(name: str, value: str) -> str:
    if name.startswith("patches."):
        return name.replace("patches.", "patch." if value == "true" else "without patch.", 1)
    return f"{name}={value}"


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
            words.append(_name_part(name, value))
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
    axes += [] if plan.on_cpu else _list_runners(resolved)
    axes += _list_tokens(resolved, plan)
    axes += [] if plan.on_cpu else _list_backends(resolved, plan, left_out)
    axes += _list_sampling(resolved, plan, temperature, left_out)
    enough = [count for count in _SEQUENCES if count >= streams] or [streams]  # never fewer than are sent
    sequences = ",".join(map(str, enough[:_MOST_SEQUENCES]))
    axes += [] if plan.on_cpu else [f"max-num-seqs={sequences}", _list_loaders(resolved, left_out)]
    return Axes(tuple(axes), left_out)


def _list_modes(plan: Plan) -> str:
    """Return the modes; eager is tried on a CPU, or where it is the published mode."""
    if plan.on_cpu:  # which has no CUDA graphs
        return "mode=" + ",".join([Mode.COMPILE, Mode.EAGER])
    return "mode=" + ",".join([Mode.GRAPHS, Mode.COMPILE, *([Mode.EAGER] if plan.mode is Mode.EAGER else [])])


def _list_patches(resolved: ResolvedRecipe, plan: Plan, left_out: dict[str, str]) -> list[str]:
    """Return the patches that the plan does not have and that the release takes, experimental ones included."""
    patches = [patch for patch in patch_file.load_all_patches()[0] if patch.name not in plan.patches]
    mine = [patch for patch in patches if not patch.recipes or resolved.recipe.name in patch.recipes]
    names = [patch.name for patch in mine if patch.distribution == resolved.engine.distribution]
    with_patches = replace(resolved, patches=tuple(dict.fromkeys((*resolved.patches, *names))))
    skipped = patch_selection.select_patches(with_patches, patchable=True).skipped
    left_out |= {f"patch.{name}": skipped[name] for name in names if name in skipped}
    return [f"patch.{name}=on" for name in names if name not in skipped]


def _list_runners(resolved: ResolvedRecipe) -> list[str]:
    return [f"{_RUNNER}=1"] if _FIRST_WITH_V2 <= Version(resolved.engine.vllm) < _ALWAYS_V2 else []


def _list_tokens(resolved: ResolvedRecipe, plan: Plan) -> list[str]:
    """Return quarters of the most tokens that the drafter drafts, and 0."""
    most = (resolved.drafter.max_tokens if resolved.drafter else None) or plan.num_speculative_tokens
    values = dict.fromkeys((most, most * 3 // 4, most // 2, most // 4, 0))
    return ["n=" + ",".join(map(str, values))] if most else []


def _list_backends(resolved: ResolvedRecipe, plan: Plan, left_out: dict[str, str]) -> list[str]:
    values = ",".join(_BACKENDS)
    axes = [f"attention-backend={values}"]
    if Version(resolved.engine.vllm) < _FIRST_WITH_DRAFTER_BACKEND:
        left_out[_DRAFTER_BACKEND] = f"vLLM {resolved.engine.vllm} does not have it; {_FIRST_WITH_DRAFTER_BACKEND} does"
    elif plan.num_speculative_tokens:
        axes.append(f"{_DRAFTER_BACKEND}={values}")
    return axes


def _list_sampling(
    resolved: ResolvedRecipe, plan: Plan, temperature: float | None, left_out: dict[str, str]
) -> list[str]:
    if not plan.num_speculative_tokens:
        return []
    vllm = Version(resolved.engine.vllm)
    if temperature == 0:
        left_out[f"{_DRAFT_SAMPLING}, {_REJECTION}"] = (
            "they change nothing at temperature 0; --temperature 0.7 tries them"
        )
        return []
    axes = []
    if vllm == _WRONG_PROBABILISTIC:
        left_out[_DRAFT_SAMPLING] = f"answers are others than without drafts in vLLM {vllm} (vllm#54282)"
    elif vllm >= _FIRST_WITH_PROBABILISTIC:
        axes.append(f"{_DRAFT_SAMPLING}=probabilistic")
    else:
        left_out[_DRAFT_SAMPLING] = f"vLLM {vllm} does not have it; {_FIRST_WITH_PROBABILISTIC} does"
    if vllm >= _FIRST_WITH_BLOCK:
        axes.append(f"{_REJECTION}=block")
    else:
        left_out[_REJECTION] = f"vLLM {vllm} does not have it; {_FIRST_WITH_BLOCK} does"
    return axes


def _list_loaders(resolved: ResolvedRecipe, left_out: dict[str, str]) -> str:
    if Version(resolved.engine.vllm) >= _FIRST_WITH_INSTANTTENSOR:
        return f"{_LOADER}=fastsafetensors,instanttensor"
    left_out[f"{_LOADER}=instanttensor"] = (
        f"vLLM {resolved.engine.vllm} does not install it; {_FIRST_WITH_INSTANTTENSOR} does"
    )
    return f"{_LOADER}=fastsafetensors"
