"""What is published of a shipped recipe is not refused by a check that needs no machine, or its plan says why."""

from collections.abc import Iterator

import pytest

from dflash_tui.common import paths
from dflash_tui.launch.preflight import machine, pair, runner
from dflash_tui.launch.preflight.check import CheckLevel, Situation
from dflash_tui.machine.hardware import TYPICAL, Hardware
from dflash_tui.planning.recipes import recipe_loader, resolution
from dflash_tui.planning.recipes.recipe import Status
from tests.support.preflight_situations import a_gpu, situation

RECIPES = [path.stem for path in sorted(paths.bundled_folder("recipes").glob("[!_d]*.yaml"))]


def list_situations() -> Iterator[tuple[str, Situation]]:
    """Yield a launch of each recipe on each class that it names, in each profile and variant, with its name."""
    for name in RECIPES:
        recipe = recipe_loader.find_recipe(name)
        for hardware in (kind for kind in recipe.hardware if kind in TYPICAL):
            for profile in resolution.list_profiles(recipe):
                for variant in ("", *recipe.variants):
                    made = situation(name, a_gpu(Hardware(hardware)), profile=profile, variant=variant)
                    yield " ".join(filter(None, (name, hardware, profile, variant))), made


SITUATIONS = dict(list_situations())
PUBLISHED = [
    name for name, made in SITUATIONS.items() if made.resolved.standing.status in {Status.REPORTED, Status.VERIFIED}
]
BROKEN = [name for name, made in SITUATIONS.items() if made.resolved.standing.status is Status.BROKEN]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_launch_is_not_refused(name):
    made = SITUATIONS[name]
    checks = [*pair.check_pair(made.resolved, made.plan), *runner._check_flags(made, thorough=False)]
    checks += [check for check in machine.check_memory(made) if check.name != "orphans"]
    assert [check.finding for check in checks if check.level is CheckLevel.FAIL] == []


@pytest.mark.parametrize("name", BROKEN)
def test_refused_launch_gives_reason(name):
    made = SITUATIONS[name]
    [check] = [check for check in pair.check_pair(made.resolved, made.plan) if check.name == "recipe"]
    assert made.resolved.standing.why.split(". ")[0] in check.finding
    assert check.fix


def test_refused_launch_names_its_fix(snapshot):
    made = SITUATIONS["gemma-4-26b-a4b rtx-5090-laptop seed"]
    [check] = [check for check in pair.check_pair(made.resolved, made.plan) if check.name == "recipe"]
    assert check.fix == snapshot
    laptop, settings = a_gpu(Hardware.RTX_5090_LAPTOP), {"kv-cache-dtype": None}
    mended = situation("gemma-4-26b-a4b", laptop, profile="seed", settings=settings)
    assert [check for check in pair.check_pair(mended.resolved, mended.plan) if check.level is CheckLevel.FAIL] == []
    [fits] = [check for check in machine.check_memory(mended) if check.name == "GPU memory"]
    assert fits.level is CheckLevel.OK
