"""Begin, follow and end experiments: `ab`, `tune` and `verify --lossless`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from dflash_tui.cli.commands.hosts import reach_peers
from dflash_tui.cli.commands.report import write_whole_file
from dflash_tui.cli.console import (
    ask_yes,
    can_ask,
    is_json,
    print_data,
    print_items,
    print_json,
    print_result,
    print_status,
    print_table,
    terminal_width,
)
from dflash_tui.cli.event_lines import PreparingLines, print_event
from dflash_tui.cli.json_lines import print_written_file
from dflash_tui.cli.panel import open_panel
from dflash_tui.cli.requests import confirm_trust, ensure_dataset, read_launch_request, report_slowness
from dflash_tui.common import paths, private_files
from dflash_tui.common.errors import DflashError, OutputDiffers, ServerFailed, UsageError
from dflash_tui.common.formatting import format_duration, has_terminal, name_commands, name_program
from dflash_tui.common.sanitizer import join_last_lines
from dflash_tui.common.secrets import redact_secrets
from dflash_tui.common.untrusted_json import LineBuffer
from dflash_tui.events import Preparing
from dflash_tui.experiments import builder, controller, runner, store, tune_schedule, tuner, variation
from dflash_tui.experiments.analysis.report import ExperimentReport, OutputComparison, OutputVerdict
from dflash_tui.experiments.builder import ExperimentRequest, build_experiment
from dflash_tui.experiments.design import Design, Happened
from dflash_tui.experiments.progress import Progress, extend_design, join_requests
from dflash_tui.launch.session import TrustQuestion
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.resolution import ResolvedRecipe
from dflash_tui.planning.request import LaunchChanges, LaunchRequest
from dflash_tui.presentation import experiment_text
from dflash_tui.presentation.experiment_report import build_report
from dflash_tui.presentation.report import Section, to_terminal

_INTERVAL = 0.2
_LARGEST_LOG = 64 << 20


def ab_run(args: argparse.Namespace) -> int:
    """`ab RECIPE` and `verify --lossless`: print the design, run it in a driver process, and follow it."""
    request = read_experiment_request(args)
    ensure_dataset(request.suite)
    if variation.is_of_servers(request.vary):
        with report_slowness("a server"):
            planned = build_experiment(request)
        return _begin(args, *planned)
    launch = reach_peers(request.launch, args, is_whole=not variation.is_of_hosts(request.vary))
    return _begin(args, *build_experiment(replace(request, launch=launch)))


def _begin(args: argparse.Namespace, design: Design, resolved_recipes: list[ResolvedRecipe]) -> int:
    with explain_detaching(design):
        begun = asyncio.run(controller.begin_experiment(design, resolved_recipes, _Terminal(args, design)))
    if not begun:
        print_status("nothing was started")
        return 0
    return detach_or_follow(args, design)


class _Terminal:
    """Asks and prints for the beginning of an experiment on the command line."""

    def __init__(self, args: argparse.Namespace, design: Design) -> None:
        self._args, self._design = args, design
        self._lines = PreparingLines()

    async def confirm(self, question: controller.ExperimentQuestion) -> bool:
        """Answer a question from the options, else ask on the terminal."""
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
        """Print the design of the experiment, and each step before it begins."""
        match event:
            case controller.CheckingArms() if self._args.json:
                print_json(experiment_text.Designed(time.time(), self._design))
            case controller.CheckingArms(in_the_way):
                estimate, stopped = builder.estimate_duration(self._design), [run.id for run in in_the_way]
                print_status(experiment_text.describe_experiment(self._design, estimate, stopped))
            case Preparing():
                self._lines(event)
            case controller.ServerStopping(run, is_over=True):
                print_status(f"{run.id} stopped")


def read_experiment_request(args: argparse.Namespace) -> ExperimentRequest:
    """Return the request of `ab run`, `tune run` or `verify --lossless`, whose options are named as its fields."""
    named = {name: value for name, value in vars(args).items() if name in ExperimentRequest.__struct_fields__}
    vary, launch = getattr(args, "vary", ""), None
    if variation.is_of_servers(vary) and not (args.recipe or args.target):
        args.recipe = variation.split_servers(vary, "")[1]
        launch = None if args.recipe else LaunchRequest(recipe="")
    launch = launch or read_launch_request(args)
    if getattr(args, "exact", False):
        if not recipe_loader.find_recipe(launch.recipe).for_cpu:
            what = f"--exact is for recipes of the CPU, and {launch.recipe} is for GPUs"
            raise UsageError(what, hint="leave --exact out: rounding is measured then")
        launch = launch.with_changes(LaunchChanges(settings={"dtype": "float32"}))
    return ExperimentRequest(launch, **named)


def detach_or_follow(args: argparse.Namespace, design: Design) -> int:
    """Follow an experiment; with --detach print how to follow it."""
    if args.detach:
        print_status(experiment_text.describe_experiment_commands(design, name_program()))
        print_result(experiment_text.Detached(time.time(), design.id), design.id)
        return 0
    return follow_experiment(design, details=getattr(args, "details", False))


def _ask_to_begin() -> bool:
    try:
        answer = input("begin? [Y/n] ")
    except EOFError:
        return False
    return answer.strip().lower() in {"", "y", "yes"}


def ab_list(_args: argparse.Namespace) -> int:
    """`ab list`: print the experiments, newest last."""
    rows = []
    for design in store.list_experiments():
        progress = store.read_progress(store.experiment_folder(design.id))
        done, boots = sum(not boot.error for boot in progress.boots), len(progress.design.order)
        fields = {"id": design.id, "recipe": design.recipe, "vary": design.vary, "status": progress.status}
        print_items([fields | {"boots_done": done, "boots": boots, "made_at": design.made_at}])
        age = format_duration(time.time() - design.made_at)
        remark = f"({design.synthetic})" if design.synthetic else ""
        cells = (design.id, progress.status, design.vary, f"{done} of {boots}", age, remark)
        rows.append(cells)
    for name, why in store.list_broken_experiments().items():
        print_status(f"! ignoring {store.experiment_folder(name)}: {why}")
    print_table(("EXPERIMENT", "STATUS", "VARIES", "BOOTS", "AGE", ""), rows, right=(3, 4))
    if not rows:
        print_status("no experiment yet; `dflash-tui ab RECIPE` starts one")
    return 0


def ab_attach(args: argparse.Namespace) -> int:
    """`ab attach [ID]`: follow an experiment to its end, and print the report."""
    design, details = _find_experiment(args), getattr(args, "details", False)
    return follow_experiment(design, details=details)


def ab_stop(args: argparse.Namespace) -> int:
    """`ab stop [ID]`: stop the driver and its server, or the servers that a killed driver left."""
    design = _find_experiment(args)
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


def ab_resume(args: argparse.Namespace) -> int:
    """`ab resume [ID]`: continue after the last boot that ended."""
    design = _find_trusted_experiment(args)
    with explain_detaching(design):
        controller.resume_experiment(design)
    return detach_or_follow(args, design)


def ab_extend(args: argparse.Namespace) -> int:
    """`ab extend [ID] --boots N`: add boots to each arm of an A/B that has ended."""
    design = _find_trusted_experiment(args)
    with explain_detaching(design):
        controller.extend_experiment(design, args.boots)
    return detach_or_follow(args, design)


def _find_trusted_experiment(args: argparse.Namespace) -> Design:
    design = _find_experiment(args)
    arms = store.read_progress(store.experiment_folder(design.id)).design.launched
    if arms:
        confirm_trust(recipe_loader.find_recipe(arms[0].request.recipe), [arm.plan for arm in arms], args)
    return design


def ab_remove(args: argparse.Namespace) -> int:
    """`ab remove ID`: delete an experiment."""
    design = store.find_experiment(args.experiment)
    is_finished = store.read_progress(store.experiment_folder(design.id)).finished
    store.remove_experiment(design)
    for left in [] if is_finished else asyncio.run(runner.remove_far_caches(design)):
        print_status(f"! its compile caches remain on {left}")
    print_status(f"{design.id} was deleted; its runs stay: dflash-tui ps --all")
    return 0


def ab_play(args: argparse.Namespace) -> int:
    """`ab play [ID]`: play two arms in the panel; with --svg write a picture."""
    report = store.read_report_so_far(store.experiment_folder(store.find_experiment(args.experiment).id))
    arm, prompt = args.arm or "", args.prompt or ""
    if args.svg:
        from dflash_tui.tui import svg_export

        path = paths.expand_home(args.svg)
        write_whole_file(path, redact_secrets(svg_export.draw_playback(report, arm, prompt)))
        print_written_file(path)
        return 0
    if not has_terminal():
        raise UsageError("ab play needs a terminal", hint="without one: --svg FILE")
    from dflash_tui.tui.screens.playback import PlaybackScreen

    return open_panel(playback=PlaybackScreen(report, arm, prompt))


tune_attach, tune_stop, tune_resume = ab_attach, ab_stop, ab_resume


def _find_experiment(args: argparse.Namespace) -> Design:
    return find_tune(args.experiment) if args.command == "tune" else store.find_experiment(args.experiment)


def tune_run(args: argparse.Namespace) -> int:
    """`tune RECIPE`: print what will be tried, run it in a driver process, and follow it."""
    ensure_dataset(args.suite or None)
    return _begin(args, *build_requested_tune(args))


def build_requested_tune(args: argparse.Namespace) -> tuple[Design, list[ResolvedRecipe]]:
    """Return the tune, or with --map the A/B, of the options of `tune run`."""
    args.concurrency = args.concurrency or (tuner.STREAMS_OF_A_MAP if args.map else (1,))
    if not args.map and (args.kinds or args.boots):
        raise UsageError("--kinds and --boots are for tune --map", hint="a tune plans its boots by --budget")
    if args.map and (args.budget or args.name):
        raise UsageError("--budget and --name are not for tune --map", hint="a map plans --boots, and writes no recipe")
    request = read_experiment_request(args)
    request = replace(request, launch=reach_peers(request.launch, args))
    if args.map:
        return tuner.build_map(request, axes=args.axes, kinds=args.kinds)
    return tuner.build_tune(request, budget=args.budget or tuner.DEFAULT_BUDGET, axes=args.axes, name=args.name)


def tune_keep(args: argparse.Namespace) -> int:
    """`tune keep [ID]`: write the best setting so far as a recipe."""
    design = find_tune(args.experiment)
    progress = store.read_progress(store.experiment_folder(design.id))
    best = tune_schedule.judge_tune(progress)
    if design.tuning is None or not best.best:
        raise UsageError(
            f"{design.id}: {experiment_text.format_best(progress.design, best)}", hint="there is nothing to keep"
        )
    path = tuner.keep_best(progress, best, args.name or design.tuning.save_as, overwrite=args.overwrite)
    print_status(experiment_text.format_best(progress.design, best))
    print_written_file(path)
    return 0


def find_tune(name: str | None) -> Design:
    """Return the tune called `name`; without a name the running one, else the newest."""
    if name is not None:
        design = store.find_experiment(name)
        if design.tuning is None:
            raise UsageError(f"{design.id} is an A/B, not a tune", hint=f"dflash-tui ab attach {design.id}")
        return design
    tunes = [design for design in store.list_experiments() if design.tuning]
    if not tunes:
        raise UsageError("no tune yet", hint="dflash-tui tune RECIPE starts one")
    driven = (tune for tune in reversed(tunes) if store.find_driver(store.experiment_folder(tune.id)))
    return next(driven, tunes[-1])


def follow_experiment(design: Design, *, details: bool = False) -> int:
    """Print events until the driver ends, then the report; Ctrl-C stops only the watching."""
    folder = store.experiment_folder(design.id)
    with explain_detaching(design):
        for event in join_requests(_watch_events(folder)):
            design = extend_design(design, event)
            if is_json():
                print_event(event)
            elif line := experiment_text.format_event(design, event):
                print_status(line)
    if (step := store.read_progress(folder).step) and not is_json() and can_ask() and ask_yes(f"{step}. Is it done?"):
        controller.resume_experiment(design)
        return follow_experiment(design, details=details)
    return _report_end(folder, design, details=details)


@contextlib.contextmanager
def explain_detaching(design: Design) -> Iterator[None]:
    """On Ctrl-C print that the experiment continues, if it does, and its commands."""
    try:
        yield
    except KeyboardInterrupt:
        if controller.is_driven(design):
            print_status("\ndetached; the experiment continues in the background")
            if design.tuning:
                print_status(_describe_best(store.experiment_folder(design.id)))
            print_status(experiment_text.describe_experiment_commands(design, name_program()))
        raise


def _watch_events(folder: Path) -> Iterator[Happened]:
    position, buffer = 0, LineBuffer(store.LONGEST_EVENT)
    while True:
        driven = store.find_driver(folder) is not None
        for piece in store.read_event_pieces(folder, position):
            position += len(piece)
            for line in buffer.feed(piece):
                if event := store.decode_event(line):
                    yield event
        if not driven:
            return
        time.sleep(_INTERVAL)


def _report_end(folder: Path, design: Design, *, details: bool) -> int:
    progress, report = store.read_progress(folder), store.read_report(folder)
    if progress.finished and report:
        _print_report(progress, report, details=details)
        if progress.design.tuning and not any(not boot.error for boot in progress.boots):
            raise _build_start_error(progress, design.arms[0].name)
        if progress.without and not progress.design.tuning:
            raise _build_start_error(progress, ", ".join(progress.without))
        if design.checks_output:
            raise_unless_alike(report)
        return 0
    if progress.design.tuning:
        print_status(_describe_best(folder))
    resume = f"dflash-tui {design.command_word} resume {design.id}"
    if progress.step:
        what = f"{design.id} waits for you: {progress.step}"
        raise DflashError(what, evidence="\n  ".join(progress.halted.splitlines()[1:]), hint=f"then {resume}")
    why = progress.halted or _last_log_line(folder) or "the driver exited without logging an error"
    raise DflashError(
        f"{design.id} ended early",
        evidence=why,
        hint=resume,
    )


def _build_start_error(progress: Progress, names: str) -> ServerFailed:
    failed = [boot for boot in progress.boots if boot.error]
    what = f"{names} did not start"
    hint = f"dflash-tui why {failed[-1].run}" if progress.design.launched else ""
    return ServerFailed(what, evidence=failed[-1].error, hint=hint)


def raise_unless_alike(report: ExperimentReport) -> None:
    """Raise OutputDiffers if speculation changes answers, DflashError if that is unknown."""
    outputs = next((comparison.outputs for comparison in report.comparisons if comparison.outputs), None)
    outputs = outputs or OutputComparison(OutputVerdict.UNKNOWN, "no answers were compared")
    if outputs.verdict is OutputVerdict.DIFFERENT:
        do = "the panel shows all answers (3, then a); where a patch is applied, try --set patches.NAME=false"
        raise OutputDiffers(f"{report.design.recipe}: speculation changes answers by more than rounding", hint=do)
    if outputs.verdict is OutputVerdict.UNKNOWN:
        raise DflashError("whether speculation changes answers is unknown", evidence=outputs.why)


def _describe_best(folder: Path) -> str:
    progress = store.read_progress(folder)
    outcome = experiment_text.list_outcome(progress.design, progress.boots, tune_schedule.judge_tune(progress))
    return to_terminal([Section("", tuple(outcome))])


def _print_report(progress: Progress, report: ExperimentReport, *, details: bool) -> None:
    if is_json():
        print_event(experiment_text.Reported(time.time(), report))
        return
    sections = build_report(report, details=details)
    if report.tune:
        sections[1:2] = [Section("settings", tuple(experiment_text.list_setting_parts(progress)))]
    print_data(name_commands(to_terminal(sections, terminal_width())))


def _last_log_line(folder: Path) -> str:
    try:
        log = private_files.read_file(folder / store.LOG, _LARGEST_LOG)
    except OSError:
        return ""
    return join_last_lines(log.decode(errors="replace"), 1)
