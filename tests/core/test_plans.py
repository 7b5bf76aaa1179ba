"""What `dflash-tui plan` says of every shipped recipe, on each class of GPU that it names, in each profile.

`pytest tests/core/test_plans.py --update-plans` writes the texts anew; read the difference before you keep it.
"""

import re
from itertools import product
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from dflash_tui import planning
from dflash_tui.core import gpu, patches, paths, recipe_files, setup
from dflash_tui.core.gpu import Probe
from dflash_tui.core.hardware import Hardware
from dflash_tui.parser import build_parser

PLANS = Path(__file__).parents[1] / "data" / "plans"
CHOICES = [
    (name, hardware.value, profile, variant)
    for path in sorted(paths.bundled("recipes").glob("[!_]*.yaml"))
    for name, recipe in [(path.stem, recipe_files.load(path))]
    for hardware, profile, variant in product(
        recipe.hardware or [Hardware.CPU], setup.profiles(recipe), ["", *recipe.variants]
    )
]


def described(words: list[str]) -> str:
    """What the command prints, with a name for each thing of this machine or of the table of releases."""
    made = planning.planned(build_parser().parse_args(["plan", *words]))
    text = planning.describe(made)
    for value, name in (
        (made.plan.models_folder, "{models}"),
        (made.plan.engine_folder, f"{{engines}}/{made.setup.engine.distribution}-{made.plan.vllm}"),
        (str(paths.cache()), "{cache}"),
    ):
        text = text.replace(value, name) if value else text
    return re.sub(r"to install: ≈ .* to download, .* on disk", "to install", text) + "\n"


@pytest.mark.parametrize(("recipe", "hardware", "profile", "variant"), CHOICES)
def test_a_plan_reads_as_it_did(recipe, hardware, profile, variant, monkeypatch, pytestconfig):  # noqa: PLR0917
    """A machine without a GPU plans for any; the whole text is compared, the command above all."""
    monkeypatch.setattr(gpu, "probe", Probe)
    choice = ["--gpu", hardware, "--profile", profile, *(["--variant", variant] if variant else [])]
    text = described([recipe, *choice])
    path = PLANS / f"{'.'.join([recipe, hardware, profile, *([variant] if variant else [])])}.txt"
    if pytestconfig.getoption("--update-plans"):
        path.write_text(text)
    assert path.read_text() == text


def test_no_plan_is_left_over():
    """A text whose recipe, class, profile or variant is gone is gone, too."""
    names = {".".join([part for part in choice if part]) for choice in CHOICES}
    assert {path.stem for path in PLANS.glob("*.txt")} == names


@pytest.mark.parametrize(("recipe", "hardware", "profile", "variant"), CHOICES)
def test_a_patch_is_for_the_engine_that_it_is_asked_of(recipe, hardware, profile, variant):
    """A recipe's patches name the release and the distribution that its profile installs."""
    made = setup.resolve(recipe_files.find(recipe), Hardware(hardware), profile=profile, variant=variant)
    for name in made.patches:
        patch = patches.load(name)
        assert patch.distribution == made.engine.distribution
        assert SpecifierSet(patch.versions).contains(made.engine.vllm)
