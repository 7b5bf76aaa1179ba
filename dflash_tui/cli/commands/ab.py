"""Experiments on the command line: `ab RECIPE`, `ab list`, `ab attach`, `ab stop`, `ab resume`, `ab remove`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from dflash_tui.cli import experiment_lines
from dflash_tui.cli.console import print_data, print_json, print_status
from dflash_tui.cli.event_lines import PreparingLines
from dflash_tui.cli.requests import read_launch_request
from dflash_tui.cli.trust import confirm_trust, confirm_trust_of_setups
from dflash_tui.common.formatting import format_duration, format_table
from dflash_tui.events import Preparing
from dflash_tui.experiments import controller, estimate, runner, store
from dflash_tui.experiments.builder import ExperimentRequest, build_experiment
from dflash_tui.experiments.design import Design
from dflash_tui.launch import preparation
from dflash_tui.planning import recipe_loader
from dflash_tui.planning.resolution import ResolvedRecipe
from dflash_tui.presentation import experiment_text
from dflash_tui.runs import lifecycle


def run_ab(args: argparse.Namespace) -> int:
    """`ab …`: begin an experiment, or do something with one."""
    actions = {"run": start, "list": list_all, "attach": attach, "stop": stop, "resume": resume, "remove": remove}
    return actions[args.action](args)


def start(args: argparse.Namespace) -> int:
    """`ab RECIPE`: say what will be done, do it in a process of its own, and follow that."""
    design, setups = build_experiment(read_experiment_request(args))
    confirm_trust_of_setups(setups, args)
    in_the_way = controller.find_disturbing_servers(design)
    if in_the_way and not args.stop_running:
        raise controller.build_disturbed_error(in_the_way, "stop it first, or --stop-running stops it for you")
    if args.json:
        print_json(experiment_text.Designed(time.time(), design))
    else:
        print_status(
            experiment_text.describe_experiment(
                design, estimate.estimate_duration(design, setups), [run.id for run in in_the_way]
            )
        )
    asyncio.run(controller.check_arms(design, setups))
    if not (args.yes or args.json) and sys.stdin.isatty() and not _confirm():
        print_status("nothing was started")
        return 0
    for each in in_the_way:
        asyncio.run(lifecycle.stop_server(each))
        print_status(f"{each.id} stopped")
    asyncio.run(_prepare_arms(design, setups, as_json=args.json))
    controller.start_experiment(design)
    return _detach_or_follow(args, design)


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
        concurrency=tuple(args.concurrency),
        own_cache=not args.keep_cache,
    )


async def _prepare_arms(design: Design, setups: list[ResolvedRecipe], *, as_json: bool) -> None:
    """Install, build and fetch what any arm needs while somebody watches: that takes minutes the first time."""
    lines, shown = PreparingLines(as_json=as_json), set[tuple[object, ...]]()

    def once(event: Preparing) -> None:
        if (said := (event.step, event.text, event.fraction)) not in shown:  # arms have an engine in common
            shown.add(said)
            lines(event)

    for arm, setup in zip(design.arms, setups, strict=True):
        await preparation.prepare_engine_and_models(setup, arm.plan, once)


def _detach_or_follow(args: argparse.Namespace, design: Design) -> int:
    if args.detach:
        print_status(experiment_text.describe_experiment_commands(design.id))
        print_data(design.id)
        return 0
    return experiment_lines.follow_experiment(design, as_json=args.json)


def _confirm() -> bool:
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
        done, boots = sum(not boot.error for boot in progress.boots), len(design.order)
        if args.json:
            fields = {"id": design.id, "recipe": design.recipe, "vary": design.vary, "status": progress.status}
            print_json(fields | {"boots_done": done, "boots": boots, "made_at": design.made_at})
        age = format_duration(time.time() - design.made_at)
        rows.append((design.id, progress.status, design.vary, f"{done} of {boots}", age, _remark(design)))
    for name, why in store.list_broken_experiments().items():
        print_status(f"! ignoring {store.experiment_folder(name)}: {why}")
    if not args.json:
        if rows:
            print_data(format_table(("EXPERIMENT", "STATUS", "VARIES", "BOOTS", "AGE", ""), rows, right=(3, 4)))
        else:
            print_status("no experiment yet; `dflash-tui ab RECIPE` begins one")
    return 0


def _remark(design: Design) -> str:
    return f"({design.synthetic})" if design.synthetic else ""


def attach(args: argparse.Namespace) -> int:
    """`ab attach [ID]`: follow an experiment to its end; of one that is over, print the report."""
    return experiment_lines.follow_experiment(store.find_experiment(args.experiment), as_json=args.json)


def stop(args: argparse.Namespace) -> int:
    """`ab stop [ID]`: end the driver and its server, or what a driver that was killed has left."""
    design = store.find_experiment(args.experiment)
    if controller.stop_driver(design):
        print_status(f"{design.id} was stopped, no server of it is left\n  resume: dflash-tui ab resume {design.id}")
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
    design = store.find_experiment(args.experiment)
    recipe = recipe_loader.find_recipe(design.arms[0].request.recipe)
    confirm_trust(recipe, [arm.plan.vllm for arm in design.arms], args)
    controller.resume_experiment(design)
    return _detach_or_follow(args, design)


def remove(args: argparse.Namespace) -> int:
    """`ab remove ID`: delete an experiment."""
    design = store.find_experiment(args.experiment)
    store.remove_experiment(design)
    print_status(f"{design.id} was deleted; its runs stay: dflash-tui ps --all")
    return 0
