"""The arguments of `ab` as a design: each arm planned as a launch of its own."""

from __future__ import annotations

import argparse
import shlex
import time
from pathlib import Path

from msgspec.structs import replace

from dflash_tui import __version__
from dflash_tui.benchmark import suites
from dflash_tui.common.errors import UsageError
from dflash_tui.experiments import store, variation
from dflash_tui.experiments.analysis import measures
from dflash_tui.experiments.design import Arm, Design
from dflash_tui.experiments.variation import Varied
from dflash_tui.launch import planner
from dflash_tui.planning import memory, request
from dflash_tui.planning.resolution import ResolvedRecipe
from dflash_tui.runs import lifecycle

# What of a plan makes a launch what it is.
LAUNCH_IDENTITY_FIELDS = ("argv", "env", "patches", "unpatched", "engine_folder", "models_folder", "gpus", "port")

# Tokens: `field` has a prompt of about nine thousand, and tokenizers differ.
_ROOM = 16_384


def build_experiment(args: argparse.Namespace) -> tuple[Design, list[ResolvedRecipe]]:
    """Return the experiment that the arguments ask for, and the setups of its arms.

    Raises:
        UsageError: a name, a value or a combination is wrong.
    """
    varied = variation.parse_variation(args.vary)
    boots = args.boots or (2 if args.honest else 1)
    if args.honest and boots < 2:
        raise UsageError("--honest needs at least two boots per arm", hint="leave --boots away, or --boots 2")
    made = planner.plan_launch(args)
    base = made.plan
    port = base.port if args.port else lifecycle.find_free_port(base.port)
    options = request.options(base, {"--port": str(port)})
    arms, setups = _arms(varied, options)
    name = args.suite or _suite(setups)
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
        rounds=args.rounds,
        scale=base.bench_scale if args.scale is None else args.scale,
        seed=args.seed,
        temperature=_temperature(arms) if args.temperature is None else args.temperature,
        concurrency=tuple(args.concurrency),
        own_cache=not args.keep_cache,
        synthetic="; ".join(dict.fromkeys(arm.plan.synthetic for arm in arms if arm.plan.synthetic)),
    )
    launch = request.line(options, None if args.port else {"--port": None})[1:]
    return replace(design, command=_command(design, launch, args.vary, boots)), setups


def _command(design: Design, launch: list[str], varied: str, boots: int) -> str:
    """Return the line that begins the experiment once more, whatever the defaults will be by then."""
    given = {
        "--vary": varied, "--boots": boots, "--rounds": design.rounds, "--suite": design.suite,
        "--scale": design.scale, "--seed": design.seed, "--temperature": design.temperature,
        "--concurrency": ",".join(map(str, design.concurrency)),
    }  # fmt: skip
    options = [str(word) for name, value in given.items() if value is not None for word in (name, value)]
    return shlex.join(["dflash-tui", "ab", *launch, *options, *([] if design.own_cache else ["--keep-cache"])])


def _suite(setups: list[ResolvedRecipe]) -> str:
    """Return the suite for who asks for none: `field`, or `quick` where a server of some arm takes no long context."""
    lengths = [length for setup in setups if (length := memory.read_max_model_len(setup)) is not None]
    return "quick" if min(lengths, default=_ROOM) < _ROOM else "field"


def _temperature(arms: tuple[Arm, ...]) -> float | None:
    """Return 0, where answers can be held against each other, or None, the model's own, where drafts are varied.

    How a drafter fares depends on the sampling, and a patch of the sampling does nothing at 0.
    """
    return None if any(measures.changes_drafting(arms[0], arm) for arm in arms) else 0.0


def _arms(varied: Varied, options: dict[str, str]) -> tuple[tuple[Arm, ...], list[ResolvedRecipe]]:
    arms, setups = list[Arm](), list[ResolvedRecipe]()
    for name, changes in varied.arms.items():
        try:
            made = planner.replan_launch(options, changes)
        except UsageError as error:
            raise UsageError(
                f"--vary {varied.key}: {name}: {error.what}", evidence=error.evidence, hint=error.hint
            ) from None
        arm = Arm(name, request.changed(options, changes), made.plan)
        if alike := next((one for one in arms if _alike(one, arm) and one.options != arm.options), None):
            what = f"--vary {varied.key}: {alike.name} and {name} come to the same launch"
            raise UsageError(what, hint=f"--vary {varied.key}={name},{name} compares a launch with itself")
        arms.append(arm)
        setups.append(made.setup)
    return tuple(arms), setups


def _alike(one: Arm, other: Arm) -> bool:
    return all(getattr(one.plan, name) == getattr(other.plan, name) for name in LAUNCH_IDENTITY_FIELDS)
