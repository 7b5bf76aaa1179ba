"""The one planner: what is asked for and the GPUs that are here -> the plan of a launch, for every way to launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from dflash_tui.common.errors import UsageError
from dflash_tui.engines import inventory
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching import status
from dflash_tui.machine import gpus
from dflash_tui.machine.gpus import Gpu, GpuProbe
from dflash_tui.machine.hardware import TYPICAL, Hardware
from dflash_tui.planning import memory, recipe_loader, resolution
from dflash_tui.planning.memory import GpuMemory, LocalModel, MemoryEstimate
from dflash_tui.planning.plan import Plan, build_plan, count_gpus_needed
from dflash_tui.planning.recipe import EngineSpec, Recipe
from dflash_tui.planning.request import LaunchRequest, parse_settings
from dflash_tui.planning.resolution import ResolvedRecipe
from dflash_tui.runs import reservation
from dflash_tui.runs.reservation import GpuClaim

# What is known of the models on this machine, by name and revision.
LocalModels = Mapping[tuple[str, str], LocalModel]
_Resolve = Callable[[Hardware | None], ResolvedRecipe]


class PlannedLaunch(NamedTuple):
    """A plan, and what it was made of."""

    setup: ResolvedRecipe
    """The recipe for this hardware, with what the user changed."""
    plan: Plan
    """What a launch will do."""
    gpus: tuple[Gpu, ...] = ()
    """The GPUs that it takes; none on the CPU, and for a class that is not here."""
    memory: MemoryEstimate | None = None
    """The memory that it needs on each GPU, or on a typical one of a class that is not here; None on the CPU."""


def plan_launch(
    request: LaunchRequest,
    probe: GpuProbe,
    *,
    models: LocalModels | None = None,
    recipe: Recipe | None = None,
    port: int | None = None,
) -> PlannedLaunch:
    """Return the plan of what is asked for on the GPUs of `probe`.

    Args:
        request: What the user asked for.
        probe: The GPUs of this machine.
        models: What is known of the models on this machine, for the memory that they need.
        recipe: The recipe, where it was read already.
        port: The port when none is asked for, instead of the recipe's.

    Raises:
        UsageError: a name or a setting is wrong.
    """
    recipe = recipe or recipe_loader.find_recipe(request.recipe)
    engine = inventory.find_engine_by_name(request.engine) if request.engine else None
    spec = _describe_engine(engine) if engine else None
    if spec is None and request.vllm:
        spec = recipe_loader.engine_for_release(request.vllm)
    settings = parse_settings(request.settings)

    def resolve(hardware: Hardware | None) -> ResolvedRecipe:
        return resolution.resolve_recipe(
            recipe,
            hardware,
            profile=request.profile or "",
            variant=request.variant or "",
            engine=spec,
            settings=settings,
        )

    setup, cards = _choose_gpus(request.gpu, recipe, probe, resolve)
    plan = build_plan(
        setup,
        mode=request.mode,
        port=request.port or port,
        num_speculative_tokens=request.num_speculative_tokens,
        gpus=[(card.index, card.uuid) for card in cards],
        engine=Path(engine.folder) if engine else None,
        patchable=engine is None or engine.patchable,
        request=request,
    )
    return PlannedLaunch(setup, plan, cards, _estimate_memory(setup, plan, cards, models or {}))


def plan_launch_here(request: LaunchRequest, *, port: int | None = None) -> PlannedLaunch:
    """Return the plan of what is asked for on this machine as it is now; `port` is the one when none is asked for.

    Raises:
        UsageError: a name or a setting is wrong.
    """
    recipe = recipe_loader.find_recipe(request.recipe)
    planned = plan_launch(request, probe_for(recipe), recipe=recipe, port=port)
    models = find_local_models(planned.plan)
    return planned._replace(memory=_estimate_memory(planned.setup, planned.plan, planned.gpus, models))


def probe_for(recipe: Recipe) -> GpuProbe:
    """Return the GPUs that a launch of the recipe may use; for one on the CPU the driver is left alone."""
    return GpuProbe() if recipe.for_cpu else probe_launchable_gpus()


def probe_launchable_gpus() -> GpuProbe:
    """Return the GPUs that are visible here, each with who else is about to use it."""
    from dflash_tui.machine import nvml

    probe = nvml.probe_visible_gpus()
    claims = reservation.list_gpu_claims() if probe.gpus else []
    return replace(probe, gpus=tuple(_mark_claimed(card, claims) for card in probe.gpus)) if claims else probe


def _mark_claimed(card: Gpu, claims: Sequence[GpuClaim]) -> Gpu:
    """Return the GPU with the first of `claims` that covers it; a plan that names no GPU may take any."""
    text = next((claim.text for claim in claims if not claim.plan.gpus or card.uuid in claim.plan.gpus), "")
    return replace(card, claimed=text) if text else card


def find_local_models(plan: Plan) -> dict[tuple[str, str], LocalModel]:
    """Return what is known of the plan's models that are on this machine; the hub is not asked."""
    from dflash_tui.engines.hub import model_lookup

    availability = {
        (model.name, model.revision): model_lookup.find_local_model(model.name, model.revision) for model in plan.models
    }
    return {name: model_lookup.read_local_model(model) for name, model in availability.items() if model}


def _estimate_memory(
    setup: ResolvedRecipe, plan: Plan, cards: tuple[Gpu, ...], models: LocalModels
) -> MemoryEstimate | None:
    typical = TYPICAL.get(plan.hardware)
    total = typical.memory_total if typical else 0
    elsewhere = GpuMemory(plan.hardware, total, total, typical.unified) if typical else None
    known = [models.get((model.name, model.revision)) for model in plan.models]
    return memory.estimate_plan_memory(setup, plan, memory.smallest_gpu_memory(cards) or elsewhere, known)


def _describe_engine(engine: Engine) -> EngineSpec:
    """Return what an engine that was chosen by hand holds."""
    packages = engine.packages or (f"{engine.distribution}=={engine.vllm}",)
    return EngineSpec(
        vllm=engine.vllm,
        packages=packages,
        torch_backend=status.read_torch_backend(engine),
        stands_in="" if engine.distribution == "vllm" else engine.distribution,
    )


def _choose_gpus(
    wanted: str | None, recipe: Recipe, probe: GpuProbe, resolve: _Resolve
) -> tuple[ResolvedRecipe, tuple[Gpu, ...]]:
    """Return the recipe for the class that is planned for, and as many GPUs of that class as the server takes.

    They are fewer where there are not as many: the checks before a launch say so.

    Raises:
        UsageError: there are no such GPUs, they are of several classes, or of another number than the server takes.
    """
    if recipe.for_cpu:
        return resolve(Hardware.CPU), ()
    if wanted in set(Hardware):
        return _choose_of_class(Hardware(wanted), probe, resolve)
    if wanted is not None:
        return _choose_named(wanted, recipe, probe, resolve)
    classes = dict.fromkeys(card.hardware for card in probe.gpus if not card.trouble)
    choices = [_choose_of_class(hardware, probe, resolve) for hardware in classes]
    return max(choices, key=lambda choice: _rank(recipe, *choice), default=None) or (resolve(None), ())


def _rank(recipe: Recipe, setup: ResolvedRecipe, cards: tuple[Gpu, ...]) -> tuple[bool, bool, int]:
    """Return what a choice of GPUs is preferred by: enough of them, a class that the recipe knows, free memory."""
    enough = len(cards) >= count_gpus_needed(setup.flags)
    return enough, setup.hardware in recipe.hardware, min(map(gpus.free_memory, cards))


def _choose_of_class(hardware: Hardware, probe: GpuProbe, resolve: _Resolve) -> tuple[ResolvedRecipe, tuple[Gpu, ...]]:
    """Return the GPUs of a class with the most free memory; none of a class that is not here, for looking ahead."""
    setup = resolve(hardware)
    if all(card.hardware is not hardware for card in probe.gpus):
        return setup, ()
    usable = sum(card.hardware is hardware and not card.trouble for card in probe.gpus)
    count = max(1, min(count_gpus_needed(setup.flags), usable))
    return setup, gpus.choose_gpus(probe.gpus, hardware, count)


def _choose_named(
    wanted: str, recipe: Recipe, probe: GpuProbe, resolve: _Resolve
) -> tuple[ResolvedRecipe, tuple[Gpu, ...]]:
    """Return the GPUs of these names; to one alone come others of its class where the server takes more."""
    if not probe.gpus:
        classes = ", ".join(kind.value for kind in recipe.hardware) or "gb10, h100"
        raise UsageError(f"there is no GPU called '{wanted}'", hint=f"a class is planned for without one: {classes}")
    named = gpus.choose_gpus(probe.gpus, wanted, 1 + wanted.count(","))
    hardware = named[0].hardware
    if any(card.hardware is not hardware for card in named):
        classes = " and ".join(dict.fromkeys(card.hardware.value for card in named))
        raise UsageError(f"GPUs {wanted} are of several classes: {classes}", hint="a server takes GPUs of one class")
    setup = resolve(hardware)
    others = [card for card in probe.gpus if card.hardware is hardware and not card.trouble and card not in named]
    count = min(count_gpus_needed(setup.flags), len(named) + len(others))
    if len(named) == 1 and count > 1:
        return setup, named + gpus.choose_gpus(others, hardware, count - 1)
    return setup, named if len(named) == count else gpus.choose_gpus(probe.gpus, wanted, count)
