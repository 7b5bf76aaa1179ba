"""Disk use and shell completion: `disk` and `completion`."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import platformdirs
import shtab

from dflash_tui.cli.console import print_data, print_items, print_status, print_table
from dflash_tui.cli.parser import build_parser
from dflash_tui.common import paths
from dflash_tui.common.formatting import format_gigabytes
from dflash_tui.common.private_files import DiskCount
from dflash_tui.engines import inventory, model_hub
from dflash_tui.peers.transport import LINK
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.runs import registry
from dflash_tui.runs.run import Run

_SMALLEST = 1_000_000
_KINDS = ("engine", "model", "cache", "runs", "experiments", "program", "packages")
# Where each shell finds the script by itself.
_PLACES = {
    "bash": "~/.local/share/bash-completion/completions/dflash-tui",
    "zsh": "~/.zfunc/_dflash-tui (with fpath+=~/.zfunc before compinit in ~/.zshrc)",
    "fish": "~/.config/fish/completions/dflash-tui.fish",
}
_FILES = {"FILE", "RUN|FILE", "NAME|FILE", "RUN|FILE|-"}


class DiskItem(msgspec.Struct, frozen=True):
    """A folder that dflash-tui or its engines fill."""

    kind: str
    """engine, model, cache, runs, experiments, program or packages."""
    name: str
    """Its name within its kind."""
    bytes: int
    """Its disk usage; a file that an engine shares with uv's cache counts for the engine."""
    folder: str
    """Its path."""
    remove: str
    """The command that removes it."""
    used_by: tuple[str, ...] = ()
    """The running servers that use it."""


def disk(_args: argparse.Namespace) -> int:
    """Print the disk usage, the largest items of each kind first, with the commands that remove them."""
    items = sorted(_list_items(), key=lambda item: (_KINDS.index(item.kind), -item.bytes))
    print_items(items)
    rows = [*_list_rows(items)]
    if rows:
        rows.append(("total", "", format_gigabytes(sum(item.bytes for item in items)), ""))
    else:
        print_status("dflash-tui uses no disk space here")
    print_table(("WHAT", "NAME", "SIZE", "REMOVE WITH"), rows, right=(2,))
    place = paths.find_existing(paths.data_folder())
    print_status(f"{format_gigabytes(shutil.disk_usage(place).free)} free on the disk of {place}")
    return 0


def _list_rows(items: list[DiskItem]) -> Iterator[tuple[str, ...]]:
    for item in items:
        if item.bytes >= _SMALLEST:
            yield item.kind, item.name, format_gigabytes(item.bytes), _describe_removal(item)
    small_items = [item for item in items if 0 < item.bytes < _SMALLEST]
    if small_items:
        kinds = ", ".join(dict.fromkeys(item.kind for item in small_items))
        size = format_gigabytes(sum(item.bytes for item in small_items))
        yield "others", f"below {format_gigabytes(_SMALLEST)}: {kinds}", size, "see dflash-tui disk --json"


def _describe_removal(item: DiskItem) -> str:
    return f"dflash-tui stop {item.used_by[0]}, then {item.remove}" if item.used_by else item.remove


def _list_items() -> Iterator[DiskItem]:
    count = DiskCount()
    living = registry.list_living_runs()
    yield from _list_engines(count, living)
    yield from _list_models(count)
    folder = paths.cache_folder()
    yield DiskItem("cache", "compiled code", count.measure_folder(folder), str(folder), _format_removal(folder),
                   tuple(run.id for run in living))  # fmt: skip
    folder = paths.runs_folder()
    yield DiskItem("runs", "logs and samples", count.measure_folder(folder), str(folder), "dflash-tui runs prune")
    folder = paths.experiments_folder()
    yield DiskItem(
        "experiments", "A/Bs and tunes", count.measure_folder(folder), str(folder), "dflash-tui ab remove ID"
    )
    yield from _list_programs(count)
    folder = Path(os.environ.get("UV_CACHE_DIR") or platformdirs.user_cache_path("uv"))
    yield DiskItem("packages", "uv's cache", count.measure_folder(folder), str(folder), "uv cache clean")


def _list_engines(count: DiskCount, living: list[Run]) -> Iterator[DiskItem]:
    """Yield the installed engines and leftovers; adopted engines are for the user to remove."""
    engines = inventory.list_engines()
    for adopted in (engine for engine in engines if engine.adopted):
        count.measure_folder(Path(adopted.folder))  # counts files that installed engines share with it
    folders = [Path(engine.folder) for engine in engines if not engine.adopted]
    for folder in (*folders, *inventory.list_leftovers()):
        users = tuple(run.id for run in living if run.plan.engine_folder == str(folder))
        command = f"dflash-tui engine remove {shlex.quote(folder.name)}"
        yield DiskItem("engine", folder.name, count.measure_folder(folder), str(folder), command, users)


def _list_models(count: DiskCount) -> Iterator[DiskItem]:
    """Yield the models that recipes built or another host sent, and those in the shared cache of the hub."""
    own = paths.models_folder()
    for root, pattern in ((own, "[!.]*"), (own, ".*.copy"), (model_hub.hub_cache_folder(), "models--*")):
        for folder in sorted(root.glob(pattern)):
            name = folder.name.removeprefix("models--").replace("--", "/")
            yield DiskItem("model", name, count.measure_folder(folder), str(folder), _format_removal(folder))


def _list_programs(count: DiskCount) -> Iterator[DiskItem]:
    """Yield the copies of this program that other hosts installed here; a link to one is removed with it."""
    link = paths.data_folder() / LINK
    for folder in sorted(link.parent.glob(f"{LINK}-*")):
        if folder.is_dir() and not folder.is_symlink():
            links = (str(link),) if link.resolve() == folder.resolve() else ()
            command = shlex.join(["rm", "-r", *links, str(folder)])
            yield DiskItem("program", folder.name, count.measure_folder(folder), str(folder), command)


def _format_removal(folder: Path) -> str:
    return shlex.join(["rm", "-r", str(folder)])


def completion(args: argparse.Namespace) -> int:
    """`completion bash|zsh|fish`: print the script on stdout, and where it belongs on stderr."""
    print_data(_format_script(args.shell))
    note = "it completes the present recipes: write it again after adding one"
    print_status(f"write it to {_PLACES[args.shell]}; {note}")
    return 0


def _format_script(shell: str) -> str:
    parser = build_parser()
    # Only safe names: a shell runs the script, and would run code in a name.
    recipes = [name for name in recipe_loader.list_recipe_files() if recipe_loader.is_recipe_name(name)]
    for action in parser.list_actions():
        if action.metavar == "RECIPE":
            action.choices = recipes
        if action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined] # where shtab looks
        if action.metavar == "FOLDER":
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    return shtab.complete(parser, shell).rstrip()
