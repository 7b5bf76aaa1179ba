"""`engine`: list, install, inspect, adopt and remove the vLLM environments of this machine."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import time
from pathlib import Path

import msgspec

from dflash_tui.cli.console import print_data, print_json, print_status, print_table
from dflash_tui.cli.event_lines import PreparingLines
from dflash_tui.cli.json_lines import RemovedEngine
from dflash_tui.cli.requests import read_launch_request
from dflash_tui.cli.signals import cancelled_by_signals
from dflash_tui.cli.trust import confirm_trust
from dflash_tui.common import paths
from dflash_tui.common.formatting import format_gib
from dflash_tui.common.private_files import DiskCount
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.engines import inventory
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching import status
from dflash_tui.launch import preparation
from dflash_tui.launch.planner import PlannedLaunch, plan_launch_here
from dflash_tui.planning import patch_file


def engine(args: argparse.Namespace) -> int:
    """`engine list|install|inspect|remove|adopt`."""
    actions = {"list": print_engines, "install": install, "inspect": inspect, "remove": remove, "adopt": adopt}
    return actions[args.action](args)


def print_engines(args: argparse.Namespace) -> int:
    """Print the engines, ours and adopted ones, and what killed installations left."""
    rows, count = [], DiskCount()
    for engine in sorted(inventory.list_engines(), key=lambda engine: bool(engine.base)):
        measured = count.measure_folder(Path(engine.folder))  # of the user's, too: engines share its files
        size = None if engine.adopted else measured
        if args.json:
            print_data(json.dumps(msgspec.to_builtins(engine) | {"bytes": size, "patches": engine.patches}))
        kind = "adopted" if engine.adopted else time.strftime("%Y-%m-%d", time.localtime(engine.installed_at))
        rows.append(
            (
                f"{engine.distribution} {engine.vllm}",
                kind,
                format_gib(size),
                ", ".join(engine.patches) or "none",
                f"{engine.folder}{f', made from {Path(engine.base).name}' if engine.base else ''}",
            )
        )
    if not args.json:
        print_status("no engine yet; launching a recipe installs its own") if not rows else print_table(
            ("ENGINE", "INSTALLED", "SIZE", "PATCHES", "FOLDER"), rows, right=(2,)
        )
    for unused in inventory.list_unused_engines():
        print_status(f"! {unused.what}; {unused.hint}")
    for folder in inventory.list_leftovers():
        incomplete = f"is incomplete; `dflash-tui engine remove {folder.name}` removes it"
        print_status(f"! {folder} {'is being installed' if inventory.is_busy(folder) else incomplete}")
    return 0


def install(args: argparse.Namespace) -> int:
    """Install the engine of a recipe, and make the one with its patches."""
    planned = plan_launch_here(read_launch_request(args))
    confirm_trust(planned.resolved.recipe, [planned.plan], args)
    try:
        chosen = asyncio.run(_install(planned, as_json=args.json))
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM
    print_data(msgspec.json.encode(chosen).decode() if args.json else chosen.folder)
    return 0


async def _install(planned: PlannedLaunch, *, as_json: bool) -> Engine:
    report = PreparingLines(as_json=as_json)
    with cancelled_by_signals():
        engine = await preparation.install_engine(planned.resolved.engine, planned.plan, report)
        return await preparation.make_patched_engine(planned.plan, engine, report)


def inspect(args: argparse.Namespace) -> int:
    """Print what an engine holds, by its own Python, and the state of every patch in it."""
    chosen = inventory.find_engine_by_name(args.engine)
    contents = inventory.describe_environment(chosen.python)
    patches, unusable = patch_file.load_all_patches()
    states = [status.find_patch_status(patch, chosen) for patch in patches]
    if args.json:
        patched = {status_of_patch.name: status_of_patch.state.value for status_of_patch in states} | dict.fromkeys(
            unusable, "unusable"
        )
        more = {"patches": patched, "base": chosen.base}
        print_data(
            json.dumps(msgspec.to_builtins(contents) | {"folder": chosen.folder, "adopted": chosen.adopted} | more)
        )
        return 0
    named = ("torch", "transformers", "flashinfer-python", "triton", "huggingface_hub", "ray")
    parts = [(name, contents.packages[name]) for name in named if name in contents.packages]
    rows = [("folder", f"{chosen.folder}{' (adopted)' if chosen.adopted else ''}"), ("Python", contents.python)]
    rows += [("made from", chosen.base)] if chosen.base else []
    rows += [(contents.distribution, f"{contents.vllm}{'' if contents.dflash else ', without DFlash'}"), *parts]
    rows += [("packages", str(len(contents.packages)))]
    rows += [("patch", f"{status_of_patch.name}: {status_of_patch.state.value}") for status_of_patch in states]
    rows += [("patch", f"{name} is unusable: {clean_line(why)}") for name, why in unusable.items()]
    rows += [("drift", line) for line in _drift(chosen, contents)]
    print_data("\n".join(f"{label:<18} {value}" for label, value in rows))
    return 0


def remove(args: argparse.Namespace) -> int:
    """Delete an engine of ours, or forget an adopted one."""
    incomplete = paths.engines_folder() / args.engine
    if incomplete in {*inventory.list_leftovers(), *inventory.list_broken_engines()}:
        inventory.clear_leftover(incomplete)
        return _report_removal(args, str(incomplete), f"removed {incomplete}")
    chosen = inventory.find_engine_by_name(args.engine)
    inventory.remove_engine(chosen)
    forgotten = f"{chosen.folder} is no longer listed; nothing in it was changed"
    return _report_removal(args, chosen.folder, forgotten if chosen.adopted else f"removed {chosen.folder}")


def _report_removal(args: argparse.Namespace, folder: str, sentence: str) -> int:
    if args.json:
        print_json(RemovedEngine(folder))
    print_status(sentence)
    return 0


def adopt(args: argparse.Namespace) -> int:
    """Add an environment that the user made to the list."""
    chosen = inventory.adopt_engine(Path(args.folder))
    print_data(msgspec.json.encode(chosen).decode() if args.json else chosen.folder)
    print_status(f"{chosen.distribution} {chosen.vllm}, adopted, and never written to: a launch that needs patches "
                 f"makes an engine of its own from it. Use it with --engine {chosen.folder}")  # fmt: skip
    return 0


def _drift(chosen: Engine, contents: inventory.EnvironmentContents) -> list[str]:
    """Return which packages differ from those that were installed."""
    if chosen.adopted:
        return []
    then = dict(line.split("==", 1) for line in chosen.packages)
    now = {name.lower().replace("_", "-"): version for name, version in contents.packages.items()}
    changed = [
        f"{name} {version} was installed, now {now.get(name.lower().replace('_', '-'), 'gone')}"
        for name, version in then.items()
        if now.get(name.lower().replace("_", "-")) != version
    ]
    return sorted(changed)
