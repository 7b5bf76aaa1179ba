"""An engine of two small files that a patch changes as one, and what it looks like."""

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching import ledger, patcher
from dflash_tui.planning.patch_file import Patch

TEXTS = {"a/one.py": "x = 1\n", "b/two.py": "y = 1\n"}
Tree = dict[str, bytes]
Act = Callable[[Engine], object]


def tree(engine: Engine) -> Tree:
    """Every file of the environment; the record without its time."""
    root = Path(engine.folder)
    found = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    if record := ledger.read_ledger_or_none(engine):
        found["dflash-patches.json"] = msgspec.json.encode([replace(entry, at=0.0) for entry in record])
    return found


def copy_of(engine: Engine, folder: Path) -> Engine:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(engine.folder, folder)
    return replace(engine, folder=str(folder))


def acts(patch: Patch) -> dict[str, Act]:
    return {"apply": lambda engine: patcher.apply_patches([patch], engine), "revert": patcher.revert_patches}


def start(engine: Engine, both: Patch, act: str) -> tuple[Tree, Tree]:
    """Bring the engine to where `act` begins; return its files before and after it."""
    plain = tree(engine)
    patcher.apply_patches([both], engine)
    patched = tree(engine)
    if act == "apply":
        patcher.revert_patches(engine)
    return (plain, patched) if act == "apply" else (patched, plain)


def sources(found: Tree) -> Tree:
    """The Python files of a tree, compiled ones included."""
    return {path: data for path, data in found.items() if path.endswith((".py", ".pyc"))}
