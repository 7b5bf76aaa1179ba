"""The flags and parsers of shipped recipes, against the sources of the release that each plan installs."""

import re

import pytest
from packaging.version import Version

from dflash_tui.common import paths
from dflash_tui.planning.derivation import pair as parser_forms
from dflash_tui.planning.methods import Method
from dflash_tui.planning.recipes import recipe_loader, resolution
from tests.support import vllm_flags, wheels

REGISTRIES = {"tool-call-parser": "tool_parsers", "reasoning-parser": "reasoning"}
RECIPES = [path.stem for path in sorted(paths.bundled_folder("recipes").glob("[!_d]*.yaml"))]


def list_flags(name: str) -> dict[str, dict[str, object]]:
    """Return by release the flags that a recipe gives it, on any class, in any profile and variant, by any method."""
    recipe = recipe_loader.find_recipe(name)
    flags = dict[str, dict[str, object]]()
    for hardware in recipe.hardware:
        for profile in resolution.list_profiles(recipe):
            for variant in ("", *recipe.variants):
                for method in (recipe.method, *recipe.methods):
                    resolved = resolution.resolve_recipe(
                        recipe, hardware, profile=profile, variant=variant, method=Method(method)
                    )
                    flags.setdefault(resolved.engine.vllm, {}).update(resolved.flags)
    return flags


def read_parsers(version: str) -> dict[str, set[str]]:
    """Return by flag the names of the parsers that a release registers, from its wheel."""
    with wheels.opened("vllm", version) as wheel:
        names = {
            flag: [name for name in wheel.namelist() if re.fullmatch(rf"vllm/(?:.+/)?{folder}/__init__\.py", name)]
            for flag, folder in REGISTRIES.items()
        }
        texts = {flag: "".join(wheel.read(name).decode() for name in files) for flag, files in names.items()}
    return {flag: set(re.findall(r'"(\w+)":\s*\(', text)) for flag, text in texts.items()}


@pytest.mark.index
@pytest.mark.long
@pytest.mark.parametrize("version", ["0.20.2", "0.33.0"])
def test_flags_and_parsers_exist_in_release_wheel(version):
    with wheels.skip_if_unreachable():
        flags, parsers = vllm_flags.read_flags(version), read_parsers(version)
    given = {name: found for name in RECIPES if (found := list_flags(name).get(version))}
    assert given
    for name, found in given.items():
        assert {flag.partition(".")[0] for flag in found} - flags - {"revision"} == set(), name
        for flag, names in parsers.items():
            assert len(names) > 10
            assert found.get(flag, next(iter(names))) in names, name
    for flag, forms in parser_forms._load_forms().items():
        of_release = {form.parser for form in forms if Version(form.since) <= Version(version)}
        assert of_release == {form.parser for form in forms} & parsers[flag]
