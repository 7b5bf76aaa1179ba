"""`engine`: the vLLM environments of this machine, listed, installed, inspected, adopted, removed."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path

import msgspec

from dflash_tui.cli.console import print_data, print_status
from dflash_tui.cli.event_lines import PreparingLines
from dflash_tui.cli.requests import read_launch_request
from dflash_tui.common import paths
from dflash_tui.common.formatting import format_gib, format_table
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.engines import environments as engines
from dflash_tui.engines import inventory
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching import patcher, status, transaction
from dflash_tui.launch.planner import plan_launch_here
from dflash_tui.planning import patch_file


def engine(args: argparse.Namespace) -> int:
    """`engine list|install|inspect|remove|adopt`."""
    actions = {"list": listed, "install": install, "inspect": inspect, "remove": remove, "adopt": adopt}
    return actions[args.action](args)


def listed(args: argparse.Namespace) -> int:
    """Print the engines, ours and adopted ones, and what killed installs left."""
    rows = []
    for found in inventory.list_engines():
        size = None if found.adopted else inventory.measure_engine_size(found)
        patched = status.list_applied_patches(found)
        if args.json:
            print_data(json.dumps(msgspec.to_builtins(found) | {"bytes": size, "patches": patched}))
        kind = "adopted" if found.adopted else time.strftime("%Y-%m-%d", time.localtime(found.installed_at))
        patched_text = ", ".join(patched) or "none"
        rows.append((f"{found.distribution} {found.vllm}", kind, format_gib(size), patched_text, found.folder))
    if not args.json:
        print_status("no engine yet; launching a recipe installs its own") if not rows else print_data(
            format_table(("ENGINE", "MADE", "SIZE", "PATCHES", "FOLDER"), rows, right=(2,))
        )
    for folder in inventory.list_leftovers():
        clears = f"was left half-way; `dflash-tui engine remove {folder.name}` clears it"
        print_status(f"! {folder} {'is being installed' if inventory.is_busy(folder) else clears}")
    return 0


def install(args: argparse.Namespace) -> int:
    """Build the engine of a recipe."""
    made = plan_launch_here(read_launch_request(args))
    folder = Path(made.plan.engine_folder)
    spec = made.setup.engine
    if found := inventory.find_any_engine(folder):
        print_status(f"{found.distribution} {found.vllm} is installed")
    else:
        found = asyncio.run(engines.install_engine(spec, folder, PreparingLines(as_json=args.json)))
    if made.plan.patches and found.patchable:
        done = patcher.apply_patches(
            [patch_file.load_patch(name) for name in made.plan.patches], found, made.plan.hardware
        )
        print_status(f"patches applied now: {', '.join(done.names) or 'none, they are in already'}")
    print_data(msgspec.json.encode(found).decode() if args.json else found.folder)
    return 0


def inspect(args: argparse.Namespace) -> int:
    """Print what an engine holds, by its own Python, and how every shipped patch stands in it."""
    found = inventory.find_engine_by_name(args.engine)
    held = inventory.describe_environment(found.python)
    patches, unusable = patch_file.load_all_patches()
    stand = [status.find_patch_status(patch, found) for patch in patches]
    left = transaction.find_unfinished_change(found)
    if args.json:
        patched = {one.name: one.state.value for one in stand} | dict.fromkeys(unusable, "unusable")
        known = {"patches": patched, "trouble": left.message if left else ""}
        print_data(json.dumps(msgspec.to_builtins(held) | {"folder": found.folder, "adopted": found.adopted} | known))
        return 0
    named = ("torch", "transformers", "flashinfer-python", "triton", "huggingface_hub", "ray")
    parts = [(name, held.packages[name]) for name in named if name in held.packages]
    rows = [("folder", f"{found.folder}{' (adopted)' if found.adopted else ''}"), ("Python", held.python)]
    rows += [(held.distribution, f"{held.vllm}{'' if held.dflash else ', without DFlash'}"), *parts]
    rows += [("packages", str(len(held.packages)))]
    rows += [("patch", f"{one.name}: {one.state.value}") for one in stand]
    rows += [("patch", f"{name} is unusable: {clean_line(why)}") for name, why in unusable.items()]
    rows += [("trouble", left.message)] if left else []
    rows += [("drift", line) for line in _drift(found, held)]
    print_data("\n".join(f"{label:<18} {value}" for label, value in rows))
    return 0


def remove(args: argparse.Namespace) -> int:
    """Delete an engine of ours, or forget an adopted one."""
    half = paths.engines_folder() / args.engine
    if half in inventory.list_leftovers():
        inventory.clear_leftover(half)
        print_status(f"removed what was left in {half}")
        return 0
    found = inventory.find_engine_by_name(args.engine)
    ours = status.list_applied_patches(found)
    inventory.remove_engine(found)
    if not found.adopted:
        print_status(f"removed {found.folder}")
    else:
        print_status(f"{found.folder} is no longer listed; {_stays(ours)}")
    return 0


def _stays(patches: tuple[str, ...]) -> str:
    """Return what forgetting an environment leaves in it."""
    if not patches:
        return "nothing in it was changed"
    return (
        f"{', '.join(patches)} stay applied; to revert them, adopt it again and use `dflash-tui patch revert --engine`"
    )


def adopt(args: argparse.Namespace) -> int:
    """Use an environment that the user made."""
    found = inventory.adopt_engine(Path(args.folder), patch=args.patch)
    print_data(msgspec.json.encode(found).decode() if args.json else found.folder)
    leave = "recipes may patch it" if found.patchable else "it is not patched"
    print_status(f"{found.distribution} {found.vllm}, adopted; {leave}. Use it with --engine {found.folder}")
    return 0


def _drift(found: Engine, held: inventory.EnvironmentContents) -> list[str]:
    """Return what differs from what was installed."""
    if found.adopted:
        return []
    then = dict(line.split("==", 1) for line in found.packages)
    now = {name.lower().replace("_", "-"): version for name, version in held.packages.items()}
    changed = [
        f"{name} {version} was installed, now {now.get(name.lower().replace('_', '-'), 'gone')}"
        for name, version in then.items()
        if now.get(name.lower().replace("_", "-")) != version
    ]
    return sorted(changed)
