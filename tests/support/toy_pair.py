"""The recipe `toy`: demo-cpu with hand-made models of 0.7 MB that answer at once, as a recipe of the user's own."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml
from msgspec.structs import replace

from dflash_tui.common import paths
from dflash_tui.launch import recipe_trust
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import ModelBuild, Recipe, Target
from tests.support import command_line

NAME = "toy"
TITLE = "Demo on the CPU, real vLLM with a toy target and its DFlash drafter"
SYNTHETIC = "hand-made toy weights"
SCRIPT = Path(__file__).with_name("build_toy_pair.py")
_DEMO = "demo-cpu"


def describe_recipe(served_name: str = NAME) -> dict[str, Any]:
    """Return what the recipe's file says."""
    told: dict[str, Any] = yaml.safe_load(recipe_loader.list_shipped_files()[_DEMO].read_text())
    told |= {"title": TITLE, "synthetic": SYNTHETIC, "bench_scale": 0.5}
    told["target"] = {"model": "target", "served_name": served_name}
    told["build"] = {"script": told["build"]["script"], "size_mb": 2}
    return told


def load_demo() -> Recipe:
    """Return demo-cpu as if its models were these, for plans of stand-ins."""
    demo = recipe_loader.find_recipe(_DEMO)
    assert demo.build
    target, build = Target("target", served_name=_DEMO), ModelBuild(demo.build.script, 2)
    return replace(demo, title=TITLE, synthetic=SYNTHETIC, bench_scale=0.5, target=target, build=build)


def write_recipe(folder: Path | None = None) -> None:
    """Write the recipe into the user's folder of recipes and trust it, or into another home's."""
    path = (folder or paths.user_recipes_folder()) / f"{NAME}.yaml"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(describe_recipe(), sort_keys=False))
    if folder is None:
        recipe_trust.trust_contents(recipe_loader.find_recipe(NAME))


def build_models() -> Path:
    """Build the models where the plan has them, before the shipped script would; return their folder."""
    plan = command_line.planned(NAME).plan
    folder, python = Path(plan.models_folder), Path(plan.unpatched_folder) / "bin" / "python"
    if not folder.is_dir():
        temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        subprocess.run([python, SCRIPT, temporary], check=True, capture_output=True, timeout=600)
        _place(temporary, folder)
    return folder


def place_models(recipe: str) -> None:
    """Put a copy of the models where the plan of another recipe has them."""
    folder, own = (Path(command_line.planned(name).plan.models_folder) for name in (recipe, NAME))
    if not folder.is_dir():
        _place(shutil.copytree(own, folder.with_name(f".{folder.name}.{os.getpid()}")), folder)


def _place(temporary: Path, folder: Path) -> None:
    try:
        temporary.rename(folder)
    except OSError:  # another worker was first
        shutil.rmtree(temporary)
