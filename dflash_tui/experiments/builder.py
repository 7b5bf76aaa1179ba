"""An experiment as it is asked for -> its design: each arm planned as a launch of its own."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import msgspec
from msgspec.structs import replace

from dflash_tui import __version__
from dflash_tui.benchmark import suites
from dflash_tui.common.errors import UsageError
from dflash_tui.experiments import store, variation
from dflash_tui.experiments.analysis import measures
from dflash_tui.experiments.design import Arm, Design
from dflash_tui.experiments.variation import Varied
from dflash_tui.launch import planner
from dflash_tui.machine.gpus import GpuProbe
from dflash_tui.planning import memory, recipe_loader
from dflash_tui.planning.recipe import Recipe
from dflash_tui.planning.request import LaunchChanges, LaunchRequest
from dflash_tui.planning.resolution import ResolvedRecipe
from dflash_tui.runs import lifecycle

# What of a plan makes a launch what it is.
LAUNCH_IDENTITY_FIELDS = (
    "argv",
    "env",
    "patches",
    "disabled_patches",
    "engine_folder",
    "models_folder",
    "gpus",
    "port",
)

# Tokens: `field` has a prompt of about nine thousand, and tokenizers differ.
_ROOM = 16_384


class ExperimentRequest(msgspec.Struct, frozen=True):
    """What the user asked to compare. A field that is None is left to the recipe, or to what is varied."""

    launch: LaunchRequest
    """What all arms have in common."""
    vary: str = variation.DEFAULT
    """What is varied, as `KEY=VALUE,VALUE`."""
    boots: int | None = None
    """Boots per arm; without it two of an honest experiment, else one."""
    honest: bool = False
    """Whether to launch each arm at least twice, so that the spread between boots is known."""
    suite: str | None = None
    """The prompts: a suite's name or file; without it one that all servers take."""
    rounds: int = 1
    """How often a boot sends each prompt."""
    scale: float | None = None
    """How many times their usual length answers have."""
    seed: int = 0
    """What shuffles the order of the prompts."""
    temperature: float | None = None
    """The sampling temperature; without it 0, or the model's own where drafts are varied."""
    concurrency: tuple[int, ...] = (1,)
    """Requests at a time, one level after the other."""
    own_cache: bool = True
    """Whether each arm has a compile cache of its own, empty at its first boot."""


def build_experiment(request: ExperimentRequest) -> tuple[Design, list[ResolvedRecipe]]:
    """Return the experiment that is asked for, and the recipe as each of its arms has it.

    Raises:
        UsageError: a name, a value or a combination is wrong.
    """
    varied = variation.parse_variation(request.vary)
    boots = request.boots or (2 if request.honest else 1)
    if request.honest and boots < 2:
        raise UsageError("--honest needs at least two boots per arm", hint="leave --boots away, or --boots 2")
    recipe = recipe_loader.find_recipe(request.launch.recipe)
    probe = planner.probe_for(recipe)  # once: all arms are planned for the same GPUs
    base = planner.plan_launch(request.launch, probe, recipe=recipe).plan
    port = request.launch.port or lifecycle.find_free_port(base.port)
    arms, setups = _plan_arms(varied, request.launch.with_changes(LaunchChanges(port=port)), probe, recipe)
    name = request.suite or _choose_suite(setups)
    now, suite = time.time(), suites.load_suite(name)
    design = Design(
        id=store.make_experiment_id(base.recipe, now),
        made_at=now,
        version=__version__,
        recipe=base.recipe,
        vary=varied.key,
        arms=arms,
        order=variation.order_boots(len(arms), boots),
        suite=str(Path(name).absolute()) if name not in suites.list_suite_files() else name,
        digest=suite.digest,
        rounds=request.rounds,
        scale=base.bench_scale if request.scale is None else request.scale,
        seed=request.seed,
        temperature=_choose_temperature(arms) if request.temperature is None else request.temperature,
        concurrency=request.concurrency,
        own_cache=request.own_cache,
        synthetic="; ".join(dict.fromkeys(arm.plan.synthetic for arm in arms if arm.plan.synthetic)),
    )
    return replace(design, command=_format_command(design, request, boots)), setups


def _format_command(design: Design, request: ExperimentRequest, boots: int) -> str:
    """Return the line that begins the experiment once more, whatever the defaults will be by then."""
    values = {
        "--vary": request.vary, "--boots": boots, "--rounds": design.rounds, "--suite": design.suite,
        "--scale": design.scale, "--seed": design.seed, "--temperature": design.temperature,
        "--concurrency": ",".join(map(str, design.concurrency)),
    }  # fmt: skip
    options = [str(word) for name, value in values.items() if value is not None for word in (name, value)]
    cache = [] if design.own_cache else ["--keep-cache"]
    return shlex.join(["dflash-tui", "ab", *request.launch.to_argv(), *options, *cache])


def _choose_suite(setups: list[ResolvedRecipe]) -> str:
    """Return the suite for who asks for none: `field`, or `quick` where a server of some arm takes no long context."""
    lengths = [length for setup in setups if (length := memory.read_max_model_len(setup)) is not None]
    return "quick" if min(lengths, default=_ROOM) < _ROOM else "field"


def _choose_temperature(arms: tuple[Arm, ...]) -> float | None:
    """Return 0, where answers can be held against each other, or None, the model's own, where drafts are varied.

    How a drafter fares depends on the sampling, and a patch of the sampling does nothing at 0.
    """
    return None if any(measures.changes_drafting(arms[0], arm) for arm in arms) else 0.0


def _plan_arms(
    varied: Varied, common: LaunchRequest, probe: GpuProbe, recipe: Recipe
) -> tuple[tuple[Arm, ...], list[ResolvedRecipe]]:
    """Return the arms, each planned with what it changes of the `common` request, and the recipe as each has it."""
    arms, setups = list[Arm](), list[ResolvedRecipe]()
    for name, changes in varied.arms.items():
        request = common.with_changes(changes)
        try:
            planned = planner.plan_launch(request, probe, recipe=recipe)
        except UsageError as error:
            raise UsageError(
                f"--vary {varied.key}: {name}: {error.what}", evidence=error.evidence, hint=error.hint
            ) from None
        arm = Arm(name, request, planned.plan)
        if alike := next((one for one in arms if _are_alike(one, arm) and not name.startswith(f"{one.name} (")), None):
            what = f"--vary {varied.key}: {alike.name} and {name} come to the same launch"
            raise UsageError(what, hint=f"--vary {varied.key}={name},{name} compares a launch with itself")
        arms.append(arm)
        setups.append(planned.setup)
    return tuple(arms), setups


def _are_alike(one: Arm, other: Arm) -> bool:
    return all(getattr(one.plan, name) == getattr(other.plan, name) for name in LAUNCH_IDENTITY_FIELDS)
