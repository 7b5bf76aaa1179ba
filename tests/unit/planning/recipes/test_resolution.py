"""What a recipe's layers come to, and how a plan follows from it."""

import pytest
from msgspec.structs import replace

from dflash_tui.common.errors import UsageError
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.field_types import FlagValue
from dflash_tui.planning.methods import Method
from dflash_tui.planning.plan import Plan, format_command
from dflash_tui.planning.plan_builder import build_plan, engine_folder_for
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import (
    Drafter,
    EngineSpec,
    HardwareLayer,
    Mode,
    ModelConfig,
    PublishedFigures,
    Recipe,
    RecipePart,
    Status,
    Target,
    Trust,
)
from dflash_tui.planning.recipes.resolution import ResolvedRecipe, resolve_recipe
from tests.support.values import present

RECIPE = Recipe(
    name="mine",
    title="a pair",
    status=Status.REPORTED,
    why="as I say",
    link="https://example.org",
    target=Target(
        "owner/target", "mine", size_gb=54, gated=True, quantization="bf16", config=ModelConfig(head_dim=256)
    ),
    drafter=Drafter("owner/drafter", size_gb=1, config=ModelConfig(head_dim=128)),
    num_speculative_tokens=15,
    speculation={"attention_backend": "flash_attn", "from_recipe": 1},
    mode=Mode.COMPILE,
    modes={Mode.COMPILE: "as published"},
    flags={"who": "recipe", "only-recipe": 1, "taken": True},
    env={"WHO": "recipe", "TAKEN": "1"},
    patches=("triton-non-causal",),
    warnings=("recipe",),
    differs={"who": "recipe", "only": "recipe"},
    profiles={
        "seed": RecipePart(
            engine=EngineSpec("0.20.2"),
            flags={"who": "profile", "only-profile": 1},
            env={"WHO": "profile"},
            patches=("qwen3-next-eagle3", "triton-non-causal"),
            warnings=("profile",),
            differs={"who": "profile"},
            standing=Trust(Status.REPORTED, "by the profile"),
        ),
        "stock": RecipePart(engine=EngineSpec("0.33.0")),
    },
    hardware={
        Hardware.GB10: HardwareLayer(
            mode=Mode.EAGER,
            weights_gb=33,
            num_speculative_tokens=8,
            target=Target("owner/quantized", "mine", size_gb=17),
            flags={"who": "hardware", "only-hardware": 1, "taken": None},
            env={"WHO": "hardware", "TAKEN": None},
            speculation={"attention_backend": None, "from_hardware": 1},
            patches=("dflash-draft-flash-attn",),
            warnings=("hardware",),
            differs={"who": "hardware", "more": "hardware"},
            standing={"seed": Trust(Status.VERIFIED, "on this hardware")},
            expected=(
                PublishedFigures("a user", "seed", tok_s=(1, 2)),
                PublishedFigures("another", "stock", tok_s=(3, 4)),
            ),
        ),
        Hardware.H100: HardwareLayer(),
    },
    variants={
        "other": RecipePart(
            drafter=Drafter("owner/other"),
            num_speculative_tokens=3,
            flags={"who": "variant", "only-variant": 1},
            env={"WHO": "variant"},
            warnings=("variant",),
            standing=Trust(Status.BROKEN, "the variant is"),
        ),
        "plain": RecipePart(flags={"who": "variant"}),
    },
)


def layered(upto: int) -> ResolvedRecipe:
    """The recipe with its first `upto` layers: itself, hardware, profile, variant, by hand."""
    return resolve_recipe(
        RECIPE,
        Hardware.GB10 if upto > 1 else Hardware.H100,
        profile="seed" if upto > 2 else "stock",
        variant="other" if upto > 3 else "",
        settings={"who": "hand", "env.WHO": "hand", "n": 1} if upto > 4 else None,
    )


@pytest.mark.parametrize(
    ("upto", "who", "tokens"),
    [(1, "recipe", 15), (2, "hardware", 8), (3, "profile", 8), (4, "variant", 3), (5, "hand", 1)],
)
def test_each_layer_lies_over_the_ones_before(upto, who, tokens):
    """Recipe, hardware, profile, variant, by hand; what only one of them says stays."""
    made = layered(upto)
    assert (made.flags["who"], made.env["WHO"], made.num_speculative_tokens) == (who, who, tokens)
    names = ["only-recipe", "only-hardware", "only-profile", "only-variant"]
    assert [name in made.flags for name in names] == [upto > index for index in range(4)]


def test_null_takes_away():
    """A flag, a variable or a key of the speculation, by a layer or by hand; what is not there may be taken, too."""
    below, made = layered(1), layered(2)
    assert below.flags["taken"] is True
    assert below.env["TAKEN"] == "1"
    assert "taken" not in made.flags
    assert "TAKEN" not in made.env
    assert made.speculation == {"from_recipe": 1, "from_hardware": 1}
    by_hand = {"who": None, "env.WHO": None, "speculation.from_recipe": None, "nothing": None}
    made = resolve_recipe(RECIPE, Hardware.H100, settings=by_hand)
    assert not {"who", "nothing"} & set(made.flags)
    assert "WHO" not in made.env
    assert made.speculation == {"attention_backend": "flash_attn"}


def test_patches_warnings_and_differences_add_up():
    """In the order of the layers, a patch only once; the upper layer explains a difference."""
    made = layered(4)
    assert made.patches == ("triton-non-causal", "dflash-draft-flash-attn", "qwen3-next-eagle3")
    assert made.warnings == ("recipe", "hardware", "profile", "variant")
    assert made.differs == {"who": "profile", "only": "recipe", "more": "hardware"}


def test_model_warnings_disappear_with_their_model():
    """A variant or a setting with another target or drafter is not warned of the one below; nor is a plain launch."""
    recipe = recipe_loader.find_recipe("gemma-4-31b")
    plain = resolve_recipe(recipe, Hardware.GB10)
    target, drafter = present(set(plain.target.warnings)), present(set(plain.drafter.warnings if plain.drafter else ()))
    assert {*target, *drafter} <= set(build_plan(plain).warnings)
    assert not drafter & set(build_plan(plain, num_speculative_tokens=0).warnings)
    for other in (
        resolve_recipe(recipe, Hardware.GB10, variant="nvfp4"),
        resolve_recipe(recipe, Hardware.GB10, settings={"target.model": "a/b"}),
    ):
        assert not target & set(build_plan(other).warnings)
    for other in (
        resolve_recipe(recipe, Hardware.GB10, variant="z-lab"),
        resolve_recipe(recipe, Hardware.GB10, method=Method.MTP),
        resolve_recipe(recipe, Hardware.GB10, settings={"drafter.model": "a/b"}),
    ):
        assert not drafter & set(build_plan(other).warnings)


def test_model_without_config_inherits_architecture_only():
    """A quantized target has the architecture of the one it was made from, but no other property of it."""
    made = layered(4)
    assert made.target == Target("owner/quantized", "mine", size_gb=17, config=ModelConfig(head_dim=256))
    assert made.drafter == Drafter("owner/other", config=ModelConfig(head_dim=128))
    own = replace(RECIPE, variants={"own": RecipePart(drafter=Drafter("owner/own", config=ModelConfig(head_dim=64)))})
    assert (drafter := resolve_recipe(own, variant="own").drafter)
    assert drafter.config == ModelConfig(head_dim=64)


def test_models_by_hand_lose_recipe_models_facts():
    """Size, access, quantization, revision and figures are the recipe's models' only; the architecture stays."""
    changes = {"target.model": "me/target", "drafter.model": "me/drafter", "drafter.revision": "abc"}
    made = resolve_recipe(RECIPE, Hardware.GB10, profile="seed", settings=changes)
    assert made.target == Target("me/target", "mine", config=ModelConfig(head_dim=256))
    assert made.drafter == Drafter("me/drafter", revision="abc", config=ModelConfig(head_dim=128))
    assert build_plan(made).expected == ()
    assert [band.source for band in build_plan(layered(3)).expected] == ["a user", "another"]
    named = resolve_recipe(RECIPE, Hardware.GB10, profile="seed", settings={"target.served_name": "x"})
    assert named.target.size_gb == 17
    assert build_plan(named).expected


def test_known_model_by_hand_brings_its_facts():
    """Size, terms and quantization of that one, wherever the recipe names it; nothing of another revision of it."""
    known = Target("me/awq", "awq", size_gb=9.5, gated=False, licence="MIT", quantization="AWQ")
    layer = RecipePart(target=known, drafter=Drafter("me/small", max_tokens=3))
    recipe = replace(RECIPE, variants={**RECIPE.variants, "other": layer})
    settings = {"target.model": "me/awq", "drafter.model": "me/small"}
    made = resolve_recipe(recipe, Hardware.GB10, settings=settings)
    assert made.target == replace(known, served_name="mine", config=ModelConfig(head_dim=256))
    assert made.drafter == Drafter("me/small", max_tokens=3, config=ModelConfig(head_dim=128))
    other = resolve_recipe(recipe, Hardware.GB10, variant="other", settings={"drafter.model": "a/b"}).drafter
    assert other == Drafter("a/b", config=ModelConfig(head_dim=128))
    later = resolve_recipe(recipe, Hardware.GB10, settings={**settings, "target.revision": "v2"}).target
    assert (later.size_gb, later.licence, later.quantization, later.revision) == (None, "", "", "v2")


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (2, [("another", ""), ("a user", "seed profile, gb10")]),
        (3, [("a user", ""), ("another", "stock profile, gb10")]),
        (4, [("a user", "seed profile, no variant, gb10"), ("another", "stock profile, no variant, gb10")]),
    ],
)
def test_figures_of_other_setups_come_last_labelled(count, expected):
    """The profile's own first; nobody measured the variant, so all of its figures are of another set-up."""
    assert [(band.source, band.set_up) for band in build_plan(layered(count)).expected] == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"load-format": "dummy"}, "random weights (load-format dummy)"),
        ({"speculation.rejection_sample_method": "synthetic"}, "synthetic acceptance"),
        ({"synthetic": "made up", "load-format": "dummy"}, "made up; random weights (load-format dummy)"),
        ({}, ""),
    ],
)
def test_synthetic_figures_are_labelled(changes, expected):
    """Random weights and synthetic acceptance, in a recipe or by hand."""
    made = resolve_recipe(RECIPE, settings=changes)
    assert (made.synthetic, build_plan(made).synthetic) == (expected, expected)


@pytest.mark.parametrize(
    ("choice", "what", "do"),
    [
        ({"profile": "sed"}, "mine has no profile called 'sed'", "it has stock, seed"),
        ({"settings": {"port": 1}}, "port is set by dflash-tui itself", "--port"),
        ({"settings": {"env.HF_TOKEN": "hf_x"}}, "env.HF_TOKEN looks like a secret", "export HF_TOKEN in your shell"),
        ({"settings": {"hf-overrides": '{"token": "x"}'}}, "hf-overrides.token looks", "export"),
        ({"settings": {"n": 65}}, "<= 64, not 65", ""),
        ({"settings": {"max model len": 1}}, "matching regex", "as vLLM spells it"),
        ({"settings": {"chat-template": ""}}, "text in one line", ""),
        ({"settings": {"target.model": "--host"}}, "matching regex", "KEY=VALUE"),
        ({"settings": {"target.size_gb": 5}}, "target.size_gb cannot be set", "model, revision, served_name"),
        ({"settings": {"tensor-parallel-size": "two"}}, "a number of GPUs, not 'two'", ""),
    ],
)
def test_a_wrong_choice_is_named(choice, what, do):
    with pytest.raises(UsageError) as caught:
        resolve_recipe(RECIPE, **choice)
    assert what in caught.value.what
    assert do in caught.value.hint


def standing(hardware: Hardware, profile: str, variant: str = "", engine: EngineSpec | None = None) -> tuple[str, str]:
    found = resolve_recipe(RECIPE, hardware, profile=profile, variant=variant, engine=engine).standing
    return found.status.value, found.why


def test_standing_names_the_layer_that_decides_it(snapshot):
    """An engine by hand, then the variant, the hardware, a hardware nobody named, the profile, the recipe."""
    engine = EngineSpec("0.26.0")
    assert standing(Hardware.GB10, "seed", "other", engine) == ("experimental", snapshot)
    assert standing(Hardware.GB10, "seed", "other") == ("broken", "the variant is")
    assert standing(Hardware.GB10, "seed", "plain") == ("experimental", snapshot)
    assert standing(Hardware.GB10, "seed") == ("verified", "on this hardware")
    assert standing(Hardware.GB10, "stock") == ("reported", "as I say")
    assert standing(Hardware.H100, "seed") == ("reported", "by the profile")
    assert standing(Hardware.H200, "seed") == ("experimental", snapshot)
    assert resolve_recipe(RECIPE, Hardware.H100).standing.link == "https://example.org"


def words(plan: Plan, flag: str) -> str:
    return plan.argv[plan.argv.index(flag) + 1]


def test_without_drafted_tokens_it_is_the_baseline():
    """No speculation, no drafter to fetch; everything else is the same."""
    with_it = build_plan(resolve_recipe(RECIPE))
    assert [model.name for model in with_it.models] == ["owner/quantized", "owner/drafter"]
    assert with_it.drafter == "owner/drafter"
    for baseline in (
        build_plan(resolve_recipe(RECIPE, settings={"n": 0})),
        build_plan(resolve_recipe(RECIPE), num_speculative_tokens=0),
        build_plan(resolve_recipe(replace(RECIPE, num_speculative_tokens=0, hardware={}))),
    ):
        assert "--speculative-config" not in baseline.argv
        assert (baseline.drafter, baseline.num_speculative_tokens) == ("", 0)
        assert [model.name for model in baseline.models][1:] == []
    assert len(with_it.argv) - len(build_plan(resolve_recipe(RECIPE, settings={"n": 0})).argv) == 2


def test_flags_become_words():
    """True is a switch, false its negation, a mapping JSON, a list several words; a dash keeps to its flag."""
    flags: dict[str, FlagValue] = {
        "a": True,
        "b": False,
        "c": {"x": 1},
        "d": ["p", "q r"],
        "e": 0.5,
        "f": -1,
        "g": "-x",
    }
    made = build_plan(replace(resolve_recipe(RECIPE), flags=flags))
    assert list(made.argv[-11:]) == [
        *("--a", "--no-b", "--c", '{"x": 1}', "--d", "p", "q r", "--e", "0.5"),
        *("--f=-1", "--g=-x"),
    ]
    assert "'q r'" in format_command(made)


@pytest.mark.parametrize(
    ("vllm", "expected"), [("0.20.2", "3,1"), ("0.24.0", "GPU-x,GPU-y"), ("0.33.0", "GPU-x,GPU-y")]
)
def test_a_server_sees_the_chosen_gpus_only(vllm, expected):
    """By UUID, or by the index of the PCI bus where vLLM knows no UUIDs."""
    made = replace(resolve_recipe(RECIPE), engine=EngineSpec(vllm, ("vllm",)))
    plan = build_plan(made, gpus=[(3, "GPU-x"), (1, "GPU-y")])
    assert plan.env["CUDA_VISIBLE_DEVICES"] == expected
    assert plan.env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert plan.gpus == ("GPU-x", "GPU-y")
    assert "CUDA_VISIBLE_DEVICES" not in build_plan(made).env


def test_another_engine_spec_has_another_folder():
    """Engines are keyed by everything that goes into them, and by nothing else."""
    spec = resolve_recipe(recipe_loader.find_recipe("demo-cpu")).engine
    assert engine_folder_for(spec) == engine_folder_for(replace(spec, download_mb=1))
    for change in (
        {"exclude_newer": "2026-01-01"},
        {"packages": (*spec.packages, "x")},
        {"overrides": ()},
        {"torch_backend": "cu130"},
        {"stands_in": ""},
        {"vllm": "0.32.1"},
        {"source_builds": True},
    ):
        assert engine_folder_for(replace(spec, **change)) != engine_folder_for(spec)


def test_other_target_drops_recipe_weights_and_quantization():
    """What a recipe knows of its own target's weights, and asks of them, does not hold; what is set by hand does."""
    recipe = recipe_loader.find_recipe("gemma-4-31b")

    def resolve(variant: str = "", **settings: object) -> tuple[float | None, object, str]:
        changes = {key.replace("_", "."): value for key, value in settings.items()}
        made = resolve_recipe(recipe, Hardware.GB10, variant=variant, settings=changes)
        return made.weights_gb, made.flags.get("quantization"), made.target.licence

    assert resolve() == (33, "fp8", "Gemma terms")
    assert resolve("nvfp4") == (None, None, "Gemma terms")
    assert resolve("vision") == (33, "fp8", "Gemma terms")
    assert resolve(target_model="me/mine") == (None, None, "")
    assert resolve(target_model="me/mine", quantization="fp8") == (None, "fp8", "")
