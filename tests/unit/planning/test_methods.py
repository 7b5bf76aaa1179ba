"""Methods of speculation: what a recipe offers, what each comes to, and what is refused."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from dflash_tui.common.errors import RecipeError, UsageError
from dflash_tui.launch import planner
from dflash_tui.machine.gpus import GpuProbe
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.methods import Method
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.plan_builder import build_plan
from dflash_tui.planning.recipes import recipe_loader, resolution
from dflash_tui.planning.recipes.recipe import (
    Drafter,
    EngineSpec,
    HardwareLayer,
    MethodLayer,
    Recipe,
    RecipePart,
    Status,
    Target,
)
from dflash_tui.planning.recipes.resolution import resolve_recipe
from dflash_tui.planning.request import LaunchRequest

GEMMA = "gemma-4-26b-a4b"
RECIPE = Recipe(
    name="mine",
    title="a target with two methods",
    status=Status.REPORTED,
    engine=EngineSpec("0.33.0"),
    target=Target("owner/target", "mine"),
    drafter=Drafter("owner/drafter"),
    num_speculative_tokens=15,
    speculation={"attention_backend": "flash_attn"},
    oldest_vllm="0.26.0",
    flags={"who": "recipe"},
    differs={"num_speculative_tokens": "published with 8", "who": "as I say"},
    hardware={Hardware.H100: HardwareLayer(num_speculative_tokens=8, flags={"who": "hardware"})},
    variants={"other": RecipePart(drafter=Drafter("owner/other"), flags={"variant": True})},
    methods={Method.MTP: MethodLayer(num_speculative_tokens=3, speculation={"moe_backend": "triton"})},
)


def plan_of(method: Method | None = None, **settings: Any) -> Plan:
    return build_plan(resolve_recipe(RECIPE, Hardware.H100, method=method, settings=settings))


def speculation_of(plan: Plan) -> Mapping[str, Any]:
    config: dict[str, Any] = json.loads(plan.argv[plan.argv.index("--speculative-config") + 1])
    return config


def test_another_method_drafts_its_own_way():
    """Nothing of what the other layers say of drafting is left; what they say of the target is."""
    resolved = resolve_recipe(RECIPE, Hardware.H100, method=Method.MTP, variant="other")
    assert (resolved.drafter, resolved.oldest_vllm) == (None, None)
    assert resolved.flags == {"who": "hardware", "variant": True}
    assert resolved.differs == {"who": "as I say"}
    plan = build_plan(resolved)
    assert speculation_of(plan) == {"method": "mtp", "num_speculative_tokens": 3, "moe_backend": "triton"}
    assert (plan.drafter, [model.name for model in plan.models]) == ("", ["owner/target"])


def test_manual_setting_wins():
    settings: dict[str, Any] = {"n": 2, "drafter.model": "owner/assistant", "drafter.revision": "v2"}
    plan = plan_of(Method.MTP, **settings)
    expected = {"method": "mtp", "model": "owner/assistant", "revision": "v2"}
    assert speculation_of(plan) == expected | {"num_speculative_tokens": 2, "moe_backend": "triton"}


def test_none_is_the_baseline():
    def asked(**fields: Any) -> Plan:
        return planner.plan_launch(LaunchRequest(recipe=GEMMA, gpu="h100", **fields), GpuProbe()).plan

    none = asked(method=Method.NONE)
    assert (none.method, none.num_speculative_tokens, none.drafter) == (Method.NONE, 0, "")
    assert "--speculative-config" not in none.argv
    assert none.argv == asked(num_speculative_tokens=0).argv


@pytest.mark.parametrize(
    ("method", "vllm", "settings", "hint"),
    [
        (Method.DSPARK, "0.33.0", {}, "it offers dflash, mtp, ngram, suffix, none"),
        (Method.DSPARK, "0.24.0", {"drafter.model": "a/b", "n": 7}, "--vllm 0.25.0"),
        (Method.DSPARK, "0.33.0", {"drafter.model": "a/b"}, "--set n=N"),
        (Method.NGRAM, "0.33.0", {"drafter.model": "a/b"}, "omit"),
    ],
)
def test_impossible_method_is_refused_with_possible_alternative(method, vllm, settings, hint):
    with pytest.raises(UsageError) as refused:
        build_plan(
            resolve_recipe(RECIPE, method=method, engine=recipe_loader.engine_for_release(vllm), settings=settings)
        )
    assert refused.value.hint.startswith(hint)


def test_published_figures_belong_to_their_method():
    def speeds(method: Method | None) -> list[object]:
        resolved = resolve_recipe(recipe_loader.find_recipe(GEMMA), Hardware.H100, method=method)
        return [(band.tok_s and band.tok_s[0], bool(band.set_up)) for band in build_plan(resolved).expected]

    assert speeds(None) == [(306.4, False), (222.3, False), (264.2, True)]
    assert speeds(Method.MTP) == [(264.2, True), (306.4, True), (222.3, True)]  # published for 8 tokens, not for 4
    assert speeds(Method.NGRAM) == [(306.4, True), (264.2, True), (222.3, True)]
    assert speeds(Method.NONE)[0] == (306.4, False)


@pytest.mark.parametrize(
    "name", ["demo-cpu", GEMMA, "gemma-4-31b", "qwen3.5-27b", "qwen3.5-35b-a3b", "qwen3-coder-next"]
)
def test_every_offered_method_of_recipe_is_plannable(name):
    recipe = recipe_loader.find_recipe(name)
    for hardware in recipe.hardware or [Hardware.CPU]:
        for method in resolution.list_methods(recipe):
            plan = build_plan(resolve_recipe(recipe, hardware, method=method))
            assert plan.method is (Method.NONE if plan.num_speculative_tokens == 0 else method)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ("drafter: {model: a/b}\nmethod: ngram", "drafter"),
        ("", "title"),
        ("drafter: {model: a/b}\nmethods: {eagle3: {num_speculative_tokens: 3}}", "methods.eagle3"),
        ("drafter: {model: a/b}\nmethods: {eagle3: {drafter: {model: a/c}}}", "methods.eagle3"),
        ("drafter: {model: a/b}\nmethods: {ngram: {drafter: {model: a/c}}}", "methods.ngram.drafter"),
        ("drafter: {model: a/b}\nmethods: {dflash: {num_speculative_tokens: 3}}", "methods.dflash"),
        ("drafter: {model: a/b}\nmethods: {none: {}}", "methods.none"),
        ("drafter: {model: a/b}\nmethod: dflash2", "method"),
    ],
)
def test_missing_method_field_is_named_with_line(tmp_path, change, place):
    path = tmp_path / "mine.yaml"
    head = "title: x\nstatus: reported\nengine: {vllm: 0.33.0}\ntarget: {model: a/t, served_name: t}\n"
    path.write_text(f"{head}num_speculative_tokens: 3\n{change}\n")
    with pytest.raises(RecipeError) as refused:
        recipe_loader.load_recipe(path)
    assert f": {place}: " in str(refused.value)
