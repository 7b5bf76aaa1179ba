"""The plan that every launch starts from, by the options of `up`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

from dflash_tui.cli.parser import build_parser
from dflash_tui.common import yaml_loader
from dflash_tui.common.errors import UsageError
from dflash_tui.engines import inventory
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.hub import model_lookup
from dflash_tui.engines.patching import status
from dflash_tui.launch.preflight import check
from dflash_tui.machine import gpus, nvml
from dflash_tui.machine.gpus import Gpu, GpuProbe
from dflash_tui.machine.hardware import TYPICAL, Hardware
from dflash_tui.planning import plan as plans
from dflash_tui.planning import recipe_loader, request
from dflash_tui.planning import resolution as setups
from dflash_tui.planning.memory import GpuMemory, MemoryEstimate, smallest_gpu_memory
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipe import EngineSpec, Mode, Recipe
from dflash_tui.planning.resolution import ResolvedRecipe


class PlannedLaunch(NamedTuple):
    """A plan, its setup, and the GPUs it is for: none when it is planned for a class that is not here."""

    setup: ResolvedRecipe
    plan: Plan
    gpus: tuple[Gpu, ...]


def plan_launch(args: argparse.Namespace) -> PlannedLaunch:
    """Return the plan that the arguments ask for, on the GPUs of this machine or for the class that they name.

    Raises:
        UsageError: a name or a setting is wrong.
    """
    recipe = recipe_loader.find_recipe(args.recipe)
    found = inventory.find_engine_by_name(args.engine) if args.engine else None
    spec = _spec(found) if found else recipe_loader.engine_for_release(args.vllm) if args.vllm else None
    settings = parse_settings(args.settings or [])
    probe = GpuProbe() if recipe.for_cpu else nvml.probe_visible_gpus()
    hardware, cards = _where(args.gpu, recipe, probe)

    def resolve() -> ResolvedRecipe:
        return setups.resolve_recipe(
            recipe,
            hardware,
            profile=args.profile or "",
            variant=args.variant or "",
            engine=spec,
            settings=settings,
        )

    setup = resolve()
    usable = sum(not card.trouble for card in probe.gpus)
    if cards and (count := min(plans.count_gpus_needed(setup.flags), usable)) != len(cards):
        cards = gpus.choose_gpus(probe.gpus, args.gpu, count)
    plan = plans.build_plan(
        setup,
        mode=Mode(args.mode) if args.mode else None,
        port=args.port,
        num_speculative_tokens=args.num_speculative_tokens,
        gpus=[(card.index, card.uuid) for card in cards],
        engine=Path(found.folder) if found else None,
        patchable=found is None or found.patchable,
    )
    return PlannedLaunch(setup, msgspec.structs.replace(plan, asked=_asked(args)), cards)


def replan_launch(options: Mapping[str, str], changes: request.Changes | None = None) -> PlannedLaunch:
    """Return the plan that options of `up` lead to, as `core.again` has them, with `changes`.

    Raises:
        UsageError: the recipe is gone, or does not take one of them any more.
    """
    return plan_launch(build_parser().parse_args(request.line(options, changes)))


def _asked(args: argparse.Namespace) -> dict[str, str]:
    """Return the options of the plan, as `core.again` has them; the file of a recipe by its whole path."""
    is_file = recipe_loader.recipe_path(args.recipe) == Path(args.recipe)
    found = {"": str(Path(args.recipe).absolute()) if is_file else args.recipe}
    for name in ("profile", "variant", "mode", "port", "num_speculative_tokens", "gpu", "vllm", "engine"):
        if (value := getattr(args, name)) not in {None, ""}:
            found[f"--{name.replace('_', '-')}"] = str(value)
    for word in args.settings or []:
        key, _, value = word.partition("=")
        found[f"--set {key.strip().removeprefix('--')}"] = value
    return found


def _spec(engine: Engine) -> EngineSpec:
    """Return what an engine that was chosen by hand holds."""
    packages = engine.packages or (f"{engine.distribution}=={engine.vllm}",)
    return EngineSpec(
        vllm=engine.vllm,
        packages=packages,
        torch_backend=status.read_torch_backend(engine),
        stands_in="" if engine.distribution == "vllm" else engine.distribution,
    )


def _where(wanted: str | None, recipe: Recipe, probe: GpuProbe) -> tuple[Hardware | None, tuple[Gpu, ...]]:
    """Return the class to plan for and the GPUs; a class may be named that is not here, for looking ahead."""
    if recipe.for_cpu:
        return Hardware.CPU, ()
    here = {card.hardware for card in probe.gpus}
    if wanted in {kind.value for kind in Hardware} and Hardware(wanted) not in here:
        return Hardware(wanted), ()
    if wanted and not probe.gpus:
        classes = ", ".join(kind.value for kind in recipe.hardware) or "gb10, h100"
        raise UsageError(f"there is no GPU called '{wanted}'", hint=f"a class is planned for without one: {classes}")
    if wanted or any(not card.trouble for card in probe.gpus):
        cards = gpus.choose_gpus(probe.gpus, wanted, 1 + (wanted or "").count(","))
        return cards[0].hardware, cards
    return None, ()


def parse_settings(words: list[str]) -> dict[str, Any]:
    """Return the settings of `--set KEY=VALUE`; values are read as YAML, and `null` takes a key away.

    Names of models and values of variables are text as they stand: 1.10 is not 1.1, and true is not True.

    Raises:
        UsageError: one is not of that form.
    """
    found: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        key = key.strip().removeprefix("--")
        if not equals or not key:
            raise UsageError(f"--set {word}: expected KEY=VALUE", hint="for instance --set max-model-len=8192")
        try:
            as_it_is = key.startswith(("target.", "drafter.", "env.")) and value != "null"
            found[key] = value if as_it_is or not value else yaml_loader.parse_yaml_value(value)
        except yaml.YAMLError as error:
            raise UsageError(f"--set {key}: its value is not YAML", evidence=" ".join(str(error).split())) from None
    return found


def estimate_planned_memory(made: PlannedLaunch) -> MemoryEstimate | None:
    """Return the memory arithmetic of a plan, by the models that are here; None on the CPU.

    For a class that is not here it is about what is typical of it.
    """
    typical = TYPICAL.get(made.plan.hardware)
    total = typical.memory_total if typical else 0
    elsewhere = GpuMemory(made.plan.hardware, total, total, typical.unified) if typical else None
    models = [model_lookup.find_local_model(model.name, model.revision) for model in made.plan.models]
    return check.estimate_plan_memory(made.setup, made.plan, smallest_gpu_memory(made.gpus) or elsewhere, models)
