"""Our plans against the commands that others published: every difference is explained, no explanation is stale."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import yaml

from dflash_tui.common import paths
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.cluster import build_rank_environment, build_rank_flags, build_unnamed_cluster
from dflash_tui.planning.plan_builder import build_plan
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import iterate_layers
from dflash_tui.planning.startup_optimizations import OPTIMIZATIONS
from tests import DATA
from tests.support.plans import resolve

PUBLISHED = DATA / "published.yaml"


class Published(msgspec.Struct, forbid_unknown_fields=True):
    """A published command, the recipe that stands for it, and where."""

    name: str
    source: str
    recipe: str
    classes: list[Hardware]
    profiles: list[str]
    vllm: str
    target: str
    n: int
    flags: dict[str, Any]
    drafter: str = ""
    method: str = "dflash"
    patches: list[str] = []
    env: dict[str, str] = {}
    speculation: dict[str, Any] = {}


ALL = msgspec.convert(yaml.safe_load(PUBLISHED.read_text()), list[Published])
# What every server over several hosts has.
_PAIR = build_unnamed_cluster(2)
OF_HOSTS = {*build_rank_flags(_PAIR, 0, {}), *build_rank_environment(_PAIR, 0, {}, on_cpu=False)}
# What every plan has beside what a recipe says.
OURS = {"host", "port", "served-model-name", "disable-access-log-for-endpoints"} | {
    name for optimization in OPTIMIZATIONS.values() for name in optimization.env
}
CASES = [
    (published, kind, profile) for published in ALL for kind in published.classes for profile in published.profiles
]


def theirs(published: Published) -> dict[str, Any]:
    """Everything the publication says, by the name under which a recipe would explain a difference."""
    return (
        published.flags
        | published.env
        | {f"speculation.{name}": value for name, value in published.speculation.items()}
        | dict.fromkeys(published.patches, "applied")
        | {"vllm": published.vllm, "num_speculative_tokens": published.n, "method": published.method}
        | {"target.model": published.target, "drafter.model": published.drafter}
    )


def options(words: Sequence[str]) -> dict[str, Any]:
    """Flags and their values, as YAML reads them; a switch is true, its `no-` form false."""
    found: dict[str, Any] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name = word.removeprefix("--").removeprefix("no-")
            found[name] = not word.startswith("--no-")
        else:
            found[name] = yaml.safe_load(word)
    return found


def ours(recipe: str, kind: Hardware, profile: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The same of our plan, read from its words, and what it explains."""
    made = resolve(recipe, kind, profile=profile)
    plan = build_plan(made)
    flags = options(plan.argv[3:])
    speculation = flags.pop("speculative-config")
    known = {"target.model": plan.argv[2], "drafter.model": speculation.pop("model", ""), "vllm": plan.vllm}
    known["method"] = speculation.pop("method")
    known["num_speculative_tokens"] = speculation.pop("num_speculative_tokens")
    return (
        flags
        | plan.env
        | {f"speculation.{name}": value for name, value in speculation.items()}
        | dict.fromkeys(plan.patches, "applied")
        | known,
        plan.skipped_patches | plan.deviations,
    )


def differences(published: Published, kind: Hardware, profile: str) -> set[str]:
    """The names of what is missing, added or different in our plan."""
    said, (made, _) = theirs(published), ours(published.recipe, kind, profile)
    return {name for name in said | made if said.get(name) != made.get(name)}


def explains(name: str, published: Published) -> set[str]:
    """What an explanation may be filed under: its own name; for a patch `patches` does, too."""
    is_patch = name in published.patches or (paths.bundled_folder("patches") / f"{name}.yaml").is_file()
    return {name, "patches"} if is_patch else {name}


def test_every_difference_is_explained():
    """By the recipe, under the name of the flag, variable, patch or part, or by what every plan of ours has."""
    unexplained = []
    for published, kind, profile in CASES:
        explained = ours(published.recipe, kind, profile)[1].keys() | OURS | OF_HOSTS
        unexplained += [
            (published.name, kind, profile, name)
            for name in differences(published, kind, profile)
            if not explains(name, published) & explained
        ]
    assert unexplained == []


@pytest.mark.parametrize("recipe", sorted({published.recipe for published in ALL}))
def test_no_explanation_is_stale(recipe):
    """Each explanation of each layer stands for a real difference on some class in some profile."""
    needed = {"": set[str]()}
    shown = set[tuple[str, str]]()
    for published in ALL:
        for kind in published.classes if published.recipe == recipe else ():
            for profile in published.profiles:
                found = {word for name in differences(published, kind, profile) for word in explains(name, published)}
                shown |= ours(recipe, kind, profile)[1].items()
                for part in ("", profile, kind.value):
                    needed[part] = needed.get(part, set()) | found
    for steps, layer in iterate_layers(recipe_loader.find_recipe(recipe)):
        part = str(steps[-1]) if steps else ""
        assert layer.differs.keys() <= needed.get(part, set()), part or recipe
        assert layer.differs.items() <= shown, f"{part}: another layer hides an explanation"


def test_every_shipped_recipe_has_its_publication():
    """All but the demo stand for a command that somebody published, on every class that somebody reported."""
    shipped = {path.stem for path in paths.bundled_folder("recipes").glob("[!_]*.yaml")} - {"demo-cpu"}
    assert {published.recipe for published in ALL} == shipped
    for published in ALL:
        known = recipe_loader.find_recipe(published.recipe)
        assert set(published.classes) <= set(known.hardware)
        assert set(published.profiles) == set(known.profiles)
