"""What `dflash-tui plan` says of every shipped recipe: some texts in full, and all plans that can be made.

`pytest tests/unit/planning/test_plan_files.py --update-plans` rewrites the texts; read the difference before you
keep it. A further text is an empty file RECIPE.CLASS.PROFILE[.VARIANT].txt in tests/data/plans.
"""

import json
import re
from itertools import product
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from dflash_tui.common import paths
from dflash_tui.common.errors import UsageError
from dflash_tui.machine import nvml
from dflash_tui.machine.gpus import GpuProbe
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning import patch_file
from dflash_tui.planning.methods import Method
from dflash_tui.planning.plan_builder import ChosenEngine, build_plan
from dflash_tui.planning.recipes import recipe_loader, resolution
from dflash_tui.planning.recipes.recipe import EngineSpec
from dflash_tui.presentation import plan_text
from tests import DATA
from tests.support import command_line
from tests.support.plans import plan_of, resolve

PLANS = DATA / "plans"
RECIPES = [path.stem for path in sorted(paths.bundled_folder("recipes").glob("[!_]*.yaml"))]


def list_choices(name: str) -> list[tuple[str, str, str, str]]:
    """Return recipe, class, profile and variant of each plan of a recipe."""
    recipe = recipe_loader.load_recipe(paths.bundled_folder("recipes") / f"{name}.yaml")
    classes = [hardware.value for hardware in recipe.hardware or [Hardware.CPU]]
    return [*product([name], classes, resolution.list_profiles(recipe), ["", *recipe.variants])]


CHOICES = {".".join(filter(None, choice)): choice for name in RECIPES for choice in list_choices(name)}
TEXTS = sorted(path.stem for path in PLANS.glob("*.txt"))


def described(words: list[str]) -> str:
    """What the command prints, with a name for each thing of this machine or of the table of releases."""
    made = command_line.planned(*words)
    text = plan_text.describe_plan(made)
    for value, name in (
        (made.plan.models_folder, "{models}"),
        (made.plan.engine_folder, f"{{engines}}/{made.resolved.engine.distribution}-{made.plan.vllm}"),
        (Path(made.plan.unpatched_folder).name, f"{made.resolved.engine.distribution}-{made.plan.vllm}"),
        (str(paths.cache_folder()), "{cache}"),
    ):
        text = text.replace(value, name) if value else text
    return re.sub(r"(?m)^(fetch|ready) .*\n", "", text) + "\n"  # they depend on this machine


@pytest.mark.parametrize("name", TEXTS)
def test_stored_plan_reads_back_equal(name, monkeypatch, pytestconfig):
    """A machine without a GPU plans for any; the whole text is compared, the command above all."""
    monkeypatch.setattr(nvml, "probe_gpus", GpuProbe)
    recipe, hardware, profile, variant = CHOICES[name]
    choice = ["--gpu", hardware, "--profile", profile, *(["--variant", variant] if variant else [])]
    text = described([recipe, *choice])
    path = PLANS / f"{name}.txt"
    if pytestconfig.getoption("--update-plans"):
        path.write_text(text)
    assert path.read_text() == text


def test_every_recipe_class_and_profile_has_snapshot():
    written = [CHOICES[name] for name in TEXTS]
    for place in range(3):
        assert {choice[place] for choice in written} == {choice[place] for choice in CHOICES.values()}


@pytest.mark.parametrize("recipe", RECIPES)
def test_planned_patches_fit_release_of_their_engine(recipe):
    """A plan's patches name the release and the distribution that its profile installs; the others say why not."""
    for name, hardware, profile, variant in list_choices(recipe):
        made = resolve(name, Hardware(hardware), profile=profile, variant=variant)
        plan = build_plan(made)
        where = (hardware, profile, variant)
        assert {*plan.patches, *plan.skipped_patches} == set(made.patches), where
        assert all(plan.skipped_patches.values()), where
        for patch in map(patch_file.load_patch, plan.patches):
            assert patch.distribution == made.engine.distribution, where
            assert SpecifierSet(patch.versions).contains(made.engine.vllm), where


def test_gb10_cuda12_build_gets_patch_or_variable(snapshot):
    """The patch where the environment may be patched, else the variable; the plan says which, and why."""
    built = EngineSpec(vllm="0.20.2", packages=("vllm==0.20.2+cu129", "torch==2.11.0+cu129"))
    made = resolve("gemma-4-31b", Hardware.GB10, profile="seed", engine=built)
    plan = build_plan(made)
    assert "gb10-cutlass-fp8" in plan.patches
    assert "VLLM_DISABLED_KERNELS" not in plan.env
    assert any("--set patches.gb10-cutlass-fp8=false --set env.VLLM_DISABLED_KERNELS=" in w for w in plan.warnings)
    without = build_plan(made, engine=ChosenEngine(Path("/engine"), patchable=False))
    assert "gb10-cutlass-fp8" not in without.patches
    assert without.env["VLLM_DISABLED_KERNELS"].startswith("CutlassFP8")
    assert without.skipped_patches["gb10-cutlass-fp8"].startswith("VLLM_DISABLED_KERNELS instead")
    on_cuda_13 = plan_of("gemma-4-31b", Hardware.GB10, profile="seed")
    assert on_cuda_13.skipped_patches["gb10-cutlass-fp8"] == snapshot
    by_hand = {"patches.gb10-cutlass-fp8": False}
    off = plan_of("gemma-4-31b", Hardware.GB10, profile="seed", engine=built, settings=by_hand)
    assert (off.disabled_patches, "gb10-cutlass-fp8" in off.patches) == (("gb10-cutlass-fp8",), False)


@pytest.mark.parametrize("vllm", ["0.25.1", "0.29.0", "0.30.0", "0.33.0"])
def test_hybrid_with_prefix_caching_keeps_last_block(vllm):
    """By a patch from 0.26 to 0.29, by a key that later releases have up to 0.32, and then by vLLM itself."""
    key, name = "disable_eagle_block_drop", "dflash-no-block-drop"
    recipe = "qwen3.5-35b-a3b", Hardware.GB10, vllm
    plan = plan_of(*recipe)
    [config] = [json.loads(word) for word in plan.argv if word.startswith('{"method"')]
    by_key = "0.30.0" <= vllm < "0.33.0"
    assert (name in plan.patches, config.get(key)) == ("0.26.0" <= vllm < "0.30.0", True if by_key else None)
    assert (name in plan.skipped_patches and key in plan.skipped_patches[name]) == by_key
    settings = {f"patches.{name}": False}
    plain = plan_of(*recipe, settings=settings)
    assert name not in plain.patches
    assert key not in " ".join(plain.argv)
    other = plan_of(*recipe, method=Method.NGRAM)
    assert name not in other.patches
    assert key not in " ".join(other.argv)


def test_experimental_patch_is_planned_only_by_name():
    """And the plan warns that it is one; a name that is none, or a value that is not a switch, is refused."""
    plan = plan_of("gemma-4-26b-a4b", Hardware.H200)
    assert "gemma4-dflash-embed-scale" not in {*plan.patches, *plan.skipped_patches}
    setting = {"patches.gemma4-dflash-embed-scale": True}
    plan = plan_of("gemma-4-26b-a4b", Hardware.H200, settings=setting)
    assert plan.patches == ("gemma4-dflash-embed-scale",)
    assert any("is experimental" in warning for warning in plan.warnings)
    with pytest.raises(UsageError, match="not 'maybe'"):
        resolve("demo-cpu", settings={"patches.cpu-expand-kernel": "maybe"})
    with pytest.raises(UsageError, match="did you mean 'cpu-expand-kernel'"):
        plan_of("demo-cpu", settings={"patches.cpu-expand-kernal": True})
