"""Experiments on the command line: `ab RECIPE`, `ab list | attach | play | stop | resume | extend | remove`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable

from dflash_tui.cli import experiment_lines
from dflash_tui.cli.commands.measurement import ab_play
from dflash_tui.cli.commands.server.peer_programs import find_cluster
from dflash_tui.cli.console import print_data, print_json, print_status, print_table
from dflash_tui.cli.datasets import ensure_dataset
from dflash_tui.cli.event_lines import PreparingLines
from dflash_tui.cli.requests import read_launch_request
from dflash_tui.cli.trust import confirm_trust
from dflash_tui.common.formatting import format_duration
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.common.ssh_host import name_program
from dflash_tui.event_json import encode
from dflash_tui.events import Preparing
from dflash_tui.experiments import builder, controller, runner, store, variation
from dflash_tui.experiments.builder import ExperimentRequest, build_experiment
from dflash_tui.experiments.design import Design
from dflash_tui.launch.session import TrustQuestion
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.resolution import ResolvedRecipe
from dflash_tui.presentation import experiment_text


def run_ab(args: argparse.Namespace) -> int:
    """`ab …`: begin an experiment, or do something with one."""
    actions = {
        "run": start,
        "list": list_all,
        "attach": attach,
        "play": ab_play.play,
        "stop": stop,
        "resume": resume,
        "extend": extend,
        "remove": remove,
    }
    return actions[args.action](args)


def start(args: argparse.Namespace) -> int:
    """`ab RECIPE`: say what will be done, do it in a process of its own, and follow that."""
    request = read_experiment_request(args)
    ensure_dataset(request.suite, as_json=args.json)
    cluster = find_cluster(request.launch, args, is_whole=not variation.is_of_hosts(request.vary))
    return begin_ab(args, *build_experiment(request, cluster=cluster))


def begin_ab(args: argparse.Namespace, design: Design, resolved_recipes: list[ResolvedRecipe]) -> int:
    """Say what an A/B will do, do it in a process of its own, and follow that to its report."""

    def describe(stopped: list[str]) -> str:
        return experiment_text.describe_experiment(design, builder.estimate_duration(design), stopped)

    return begin(args, design, resolved_recipes, describe)


def begin(
    args: argparse.Namespace,
    design: Design,
    resolved_recipes: list[ResolvedRecipe],
    describe: Callable[[list[str]], str],
) -> int:
    """Say what an experiment will do, do it in a process of its own, and follow that to its report.

    Args:
        args: how it is begun and followed.
        design: the experiment.
        resolved_recipes: the resolved recipe of each of its arms.
        describe: returns what it will do, given the runs that are stopped for it.
    """
    with experiment_lines.explain_detaching(design):
        begun = asyncio.run(controller.begin_experiment(design, resolved_recipes, _Terminal(args, design, describe)))
    if not begun:
        print_status("nothing was started")
        return 0
    return detach_or_follow(args, design)


class _Terminal:
    """What the beginning of an experiment asks and shows on the command line."""

    def __init__(self, args: argparse.Namespace, design: Design, describe: Callable[[list[str]], str]) -> None:
        self._args, self._design, self._describe = args, design, describe
        self._lines = PreparingLines(as_json=args.json)

    async def confirm(self, question: controller.ExperimentQuestion) -> bool:
        """Return what the options say, else what is typed.

        Raises:
            UsageError: nobody can be asked, or the answer is no.
        """
        match question:
            case TrustQuestion(recipe, plans):
                confirm_trust(recipe, plans, self._args)
            case controller.StopQuestion(runs):
                if not self._args.stop_running:
                    raise controller.build_disturbed_error(runs, "stop it first, or --stop-running stops it for you")
            case controller.BeginQuestion():
                return self._args.yes or self._args.json or not sys.stdin.isatty() or _ask_to_begin()
        return True

    def show(self, event: controller.ExperimentStep) -> None:
        """Print what the experiment will do, and each step towards it."""
        match event:
            case controller.CheckingArms() if self._args.json:
                print_json(experiment_text.Designed(time.time(), self._design))
            case controller.CheckingArms(in_the_way):
                print_status(self._describe([run.id for run in in_the_way]))
            case Preparing():
                self._lines(event)
            case controller.ServerStopped(run):
                print_status(f"{run.id} stopped")


def read_experiment_request(args: argparse.Namespace) -> ExperimentRequest:
    """Return what the options of `ab run` ask for.

    Raises:
        UsageError: there is no such recipe, or a setting is not of the form KEY=VALUE.
    """
    return ExperimentRequest(
        launch=read_launch_request(args),
        vary=args.vary,
        boots=args.boots,
        honest=args.honest,
        suite=args.suite or None,
        rounds=args.rounds,
        scale=args.scale,
        seed=args.seed,
        temperature=args.temperature,
        top_p=args.top_p,
        concurrency=tuple(args.concurrency),
        own_cache=not args.keep_cache,
        keep_answers=not args.no_answers,
        measures_start=args.measure == "start",
        cold=args.cold,
        fixed=args.fixed,
    )


def detach_or_follow(args: argparse.Namespace, design: Design) -> int:
    """Print how to follow an experiment, or follow it."""
    if args.detach:
        print_status(experiment_text.describe_experiment_commands(design, name_program()))
        if args.json:
            print_data(encode(experiment_text.Detached(time.time(), design.id)).decode())
        else:
            print_data(design.id)
        return 0
    return experiment_lines.follow_experiment(design, as_json=args.json, details=getattr(args, "details", False))


def _ask_to_begin() -> bool:
    try:
        answer = input("begin? [Y/n] ")
    except EOFError:
        return False
    return answer.strip().lower() in {"", "y", "yes"}


def list_all(args: argparse.Namespace) -> int:
    """`ab list`: print the experiments, newest last."""
    rows = []
    for design in store.list_experiments():
        progress = store.read_progress(store.experiment_folder(design.id))
        done, boots = sum(not boot.error for boot in progress.boots), len(progress.design.order)
        if args.json:
            fields = {"id": design.id, "recipe": design.recipe, "vary": design.vary, "status": progress.status}
            print_json(fields | {"boots_done": done, "boots": boots, "made_at": design.made_at})
        age = format_duration(time.time() - design.made_at)
        cells = (design.id, progress.status, design.vary, f"{done} of {boots}", age, _remark(design))
        rows.append(tuple(map(clean_line, cells)))
    for name, why in store.list_broken_experiments().items():
        print_status(f"! ignoring {store.experiment_folder(name)}: {why}")
    if not args.json:
        if rows:
            print_table(("EXPERIMENT", "STATUS", "VARIES", "BOOTS", "AGE", ""), rows, right=(3, 4))
        else:
            print_status("no experiment yet; `dflash-tui ab RECIPE` begins one")
    return 0


def _remark(design: Design) -> str:
    return f"({design.synthetic})" if design.synthetic else ""


def attach(args: argparse.Namespace) -> int:
    """`ab attach [ID]`: follow an experiment to its end; of one that is over, print the report."""
    design, details = store.find_experiment(args.experiment), getattr(args, "details", False)
    return experiment_lines.follow_experiment(design, as_json=args.json, details=details)


def stop(args: argparse.Namespace) -> int:
    """`ab stop [ID]`: end the driver and its server, or what a driver that was killed has left."""
    design = store.find_experiment(args.experiment)
    if controller.stop_driver(design):
        resuming = f"  resume: dflash-tui {design.command_word} resume {design.id}"
        print_status(f"{design.id} was stopped, no server of it is left\n{resuming}")
        return 0
    left = runner.find_leftover_servers(design)
    asyncio.run(runner.stop_leftover_servers(design))
    print_status(
        f"{design.id} was not running"
        + (f"; {', '.join(run.id for run in left)} was still running and was stopped" * bool(left))
    )
    return 0


def resume(args: argparse.Namespace) -> int:
    """`ab resume [ID]`: go on after the last boot that is over."""
    design = _find_trusted_experiment(args)
    with experiment_lines.explain_detaching(design):
        controller.resume_experiment(design)
    return detach_or_follow(args, design)


def extend(args: argparse.Namespace) -> int:
    """`ab extend [ID] --boots N`: add boots of each arm to an A/B that is over."""
    design = _find_trusted_experiment(args)
    with experiment_lines.explain_detaching(design):
        controller.extend_experiment(design, args.boots)
    return detach_or_follow(args, design)


def _find_trusted_experiment(args: argparse.Namespace) -> Design:
    """Return the experiment that is named, whose arms may be launched again."""
    design = store.find_experiment(args.experiment)
    recipe = recipe_loader.find_recipe(design.arms[0].request.recipe)
    arms = store.read_progress(store.experiment_folder(design.id)).design.arms
    confirm_trust(recipe, [arm.plan for arm in arms], args)
    return design


def remove(args: argparse.Namespace) -> int:
    """`ab remove ID`: delete an experiment."""
    design = store.find_experiment(args.experiment)
    is_finished = store.read_progress(store.experiment_folder(design.id)).finished
    store.remove_experiment(design)
    for left in [] if is_finished else asyncio.run(runner.remove_far_caches(design)):
        print_status(f"! its compile caches are left on {left}")
    print_status(f"{design.id} was deleted; its runs stay: dflash-tui ps --all")
    return 0
