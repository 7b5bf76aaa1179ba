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
from dflash_tui.cli.trust import confirm_patch_trust, confirm_trust
from dflash_tui.common import paths
from dflash_tui.common.formatting import format_gib
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.engines import installation, inventory
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching import patcher, status, transaction
from dflash_tui.launch.planner import plan_launch_here
from dflash_tui.planning import patch_file
from dflash_tui.planning.recipes.artifacts import EngineSpec


def engine(args: argparse.Namespace) -> int:
    """`engine list|install|inspect|remove|adopt`."""
    actions = {"list": print_engines, "install": install, "inspect": inspect, "remove": remove, "adopt": adopt}
    return actions[args.action](args)


def print_engines(args: argparse.Namespace) -> int:
    """Print the engines, ours and adopted ones, and what killed installations left."""
    rows = []
    for engine in inventory.list_engines():
        size = None if engine.adopted else inventory.measure_engine_size(engine)
        patches = status.list_applied_patches(engine)
        if args.json:
            print_data(json.dumps(msgspec.to_builtins(engine) | {"bytes": size, "patches": patches}))
        kind = "adopted" if engine.adopted else time.strftime("%Y-%m-%d", time.localtime(engine.installed_at))
        rows.append(
            (
                f"{engine.distribution} {engine.vllm}",
                kind,
                format_gib(size),
                ", ".join(patches) or "none",
                engine.folder,
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
    """Install the engine of a recipe, and apply its patches."""
    planned = plan_launch_here(read_launch_request(args))
    confirm_trust(planned.resolved.recipe, [planned.plan], args)
    folder = Path(planned.plan.engine_folder)
    spec = planned.resolved.engine
    if chosen := inventory.find_any_engine(folder):
        print_status(f"{chosen.distribution} {chosen.vllm} is installed")
    else:
        try:
            chosen = asyncio.run(_install(spec, folder, as_json=args.json))
        except asyncio.CancelledError:
            return 128 + signal.SIGTERM
    if planned.plan.patches and chosen.patchable:
        patches = [patch_file.load_patch(name) for name in planned.plan.patches]
        confirm_patch_trust(patches, chosen, args)  # one that is in it already may have changed
        outcome = patcher.apply_patches(patches, chosen, planned.plan.hardware)
        print_status(f"patches applied: {', '.join(outcome.names) or 'none, all already applied'}")
    print_data(msgspec.json.encode(chosen).decode() if args.json else chosen.folder)
    return 0


async def _install(spec: EngineSpec, folder: Path, *, as_json: bool) -> Engine:
    with cancelled_by_signals():
        return await installation.install_engine(spec, folder, PreparingLines(as_json=as_json))


def inspect(args: argparse.Namespace) -> int:
    """Print what an engine holds, by its own Python, and the state of every patch in it."""
    chosen = inventory.find_engine_by_name(args.engine)
    contents = inventory.describe_environment(chosen.python)
    patches, unusable = patch_file.load_all_patches()
    states = [status.find_patch_status(patch, chosen) for patch in patches]
    unfinished = transaction.find_unfinished_change(chosen)
    if args.json:
        patched = {status_of_patch.name: status_of_patch.state.value for status_of_patch in states} | dict.fromkeys(
            unusable, "unusable"
        )
        more = {"patches": patched, "trouble": unfinished.message if unfinished else ""}
        print_data(
            json.dumps(msgspec.to_builtins(contents) | {"folder": chosen.folder, "adopted": chosen.adopted} | more)
        )
        return 0
    named = ("torch", "transformers", "flashinfer-python", "triton", "huggingface_hub", "ray")
    parts = [(name, contents.packages[name]) for name in named if name in contents.packages]
    rows = [("folder", f"{chosen.folder}{' (adopted)' if chosen.adopted else ''}"), ("Python", contents.python)]
    rows += [(contents.distribution, f"{contents.vllm}{'' if contents.dflash else ', without DFlash'}"), *parts]
    rows += [("packages", str(len(contents.packages)))]
    rows += [("patch", f"{status_of_patch.name}: {status_of_patch.state.value}") for status_of_patch in states]
    rows += [("patch", f"{name} is unusable: {clean_line(why)}") for name, why in unusable.items()]
    rows += [("unfinished", unfinished.message)] if unfinished else []
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
    applied = status.list_applied_patches(chosen)
    inventory.remove_engine(chosen)
    forgotten = f"{chosen.folder} is no longer listed; {_describe_rest(applied)}"
    return _report_removal(args, chosen.folder, forgotten if chosen.adopted else f"removed {chosen.folder}")


def _report_removal(args: argparse.Namespace, folder: str, sentence: str) -> int:
    if args.json:
        print_json(RemovedEngine(folder))
    print_status(sentence)
    return 0


def _describe_rest(patches: tuple[str, ...]) -> str:
    """Return a sentence about the patches that stay in an environment that is no longer listed."""
    if not patches:
        return "nothing in it was changed"
    return (
        f"{', '.join(patches)} stay applied; to revert them, adopt it again and use `dflash-tui patch revert --engine`"
    )


def adopt(args: argparse.Namespace) -> int:
    """Add an environment that the user made to the list."""
    chosen = inventory.adopt_engine(Path(args.folder), patch=args.patch)
    print_data(msgspec.json.encode(chosen).decode() if args.json else chosen.folder)
    permission = "recipes may patch it" if chosen.patchable else "recipes may not patch it"
    print_status(f"{chosen.distribution} {chosen.vllm}, adopted; {permission}. Use it with --engine {chosen.folder}")
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
