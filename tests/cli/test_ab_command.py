"""The grammar of `ab`, and what it says before and after."""

import shlex

import pytest
from msgspec.structs import replace

from dflash_tui.cli import main
from dflash_tui.cli.parser import build_parser
from dflash_tui.common.errors import UsageError
from dflash_tui.experiments import boot, builder, store
from dflash_tui.experiments.builder import DurationEstimate, ExperimentRequest
from dflash_tui.planning.request import LaunchRequest
from dflash_tui.presentation import experiment_text
from tests.support import toy_pair
from tests.support.command_line import experiment

TOY = ("--set", f"synthetic={toy_pair.SYNTHETIC}")


def parsed(*words: str):
    return build_parser().parse_args(["ab", *words])


def test_ab_recipe_is_short_for_run():
    """`ab RECIPE` and options before it begin an experiment; an action is an action."""
    assert vars(parsed("demo-cpu", "--honest")) == vars(parsed("run", "demo-cpu", "--honest"))
    assert parsed("--honest", "demo-cpu").recipe == "demo-cpu"
    assert parsed("demo-cpu").vary == "mode=eager,compile"
    assert parsed("demo-cpu", "--concurrency", "1,2,4").concurrency == (1, 2, 4)
    assert (parsed("list").action, parsed("attach", "x").experiment, parsed("stop").experiment) == ("list", "x", None)


def test_a_design_plans_each_arm_by_itself():
    """Arms differ in what is varied only; the options that lead to each are kept, the port among them."""
    design, resolved_recipes = experiment("demo-cpu", "--honest", "--set", "max-model-len=2048", *TOY)
    eager, compiled = design.arms
    assert (design.vary, design.order, design.honest, len(resolved_recipes)) == ("mode", (0, 1, 1, 0), True, 2)
    assert set(eager.plan.argv) ^ set(compiled.plan.argv) == {"--enforce-eager"}
    assert eager.request.settings["max-model-len"] == "2048"
    assert eager.request.port == eager.plan.port
    assert design.synthetic == toy_pair.SYNTHETIC
    assert len(experiment("demo-cpu", "--vary", "n=0,4,7")[0].order) == 3


@pytest.mark.parametrize(
    "words",
    [
        ("--honest", "--set", "max-model-len=2048", "--keep-cache"),
        ("--vary", "n=0,4,7", "--concurrency", "1,2", "--seed", "3", "--port", "8123", "--scale", "0.25"),
        ("--vary", 'env.A="x, y",z', "--boots", "3", "--rounds", "2", "--suite", "seed-q1q2", "--temperature", "0.6"),
        ("--vary", "start.warm-up=off,on", "--measure", "start", "--cold"),
    ],
)
def test_design_command_rebuilds_same_design(words):
    """As a shell reads it, with nothing left to a default; the id alone is another."""
    design, _ = experiment("demo-cpu", *words)
    program, *rest = shlex.split(design.command)
    again, _ = experiment(*rest[1:])
    assert (program, rest[0]) == ("dflash-tui", "ab")
    assert again.command == design.command
    assert {word for word in words if word != "--honest"} <= set(rest)
    assert replace(again, id="", made_at=0.0) == replace(design, id="", made_at=0.0)


def test_the_panel_takes_the_same_options():
    """By their names; a wrong name or value is an error."""
    asked = ExperimentRequest(LaunchRequest(recipe="demo-cpu"))
    typed = builder.build_experiment(builder.add_typed_options(asked, "rounds=2 concurrency=1,4 temperature=0.7"))[0]
    design, _ = experiment("demo-cpu", "--rounds", "2", "--concurrency", "1,4", "--temperature", "0.7")
    assert typed.command == design.command
    for words in ("round=2", "rounds=0", "own-cache=false"):
        with pytest.raises(UsageError):
            builder.add_typed_options(asked, words)


@pytest.mark.parametrize(
    ("words", "fixed"),
    [(("demo-cpu",), False), (("demo-cpu", *TOY), True), (("qwen3.5-27b", "--fixed"), True)],
)
def test_real_model_answers_end_by_themselves(words, fixed):
    """Toy and random weights have no end of their own, so that their answers are as long as was asked for."""
    assert experiment(*words, "--vary", "n=0,4")[0].fixed is fixed


def test_starts_use_filled_or_empty_caches():
    """A first boot of each arm fills them and is one more; arms that differ in a measure alone are two."""
    words = ("demo-cpu", "--vary", "start.modelinfos=on,off", "--measure", "start", "--boots", "3")
    filled, cold = experiment(*words)[0], experiment(*words, "--cold")[0]
    assert (filled.measures_start, filled.cold, cold.cold) == (True, False, True)
    assert (len(filled.order), len(cold.order)) == (8, 6)
    on, off = filled.arms
    assert (on.plan.argv, on.plan.env) == (off.plan.argv, off.plan.env)
    assert {*on.plan.start} ^ {*off.plan.start} == {"modelinfos"}
    assert store.count_measured_requests(filled) == 0


@pytest.mark.parametrize(("words", "first", "kept"), [(("--cold",), False, False), ((), True, False)])
def test_cold_starts_find_empty_caches(words, first, kept):
    """At every boot, not only at the first of an arm, which fills them for the others."""
    measured = ("--vary", "start.warm-up=off,on", "--measure", "start")
    design, _ = experiment("demo-cpu", *measured, *words)
    compiled = store.experiment_folder(design.id) / "cache" / "0" / "vllm" / "compiled"
    compiled.parent.mkdir(parents=True)
    compiled.write_text("x")
    boot.prepare_cache(design, 0, first=first)
    assert compiled.exists() == kept


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--honest", "--boots", "1"), "at least two boots"),
        (("--cold",), "--cold only applies"),
        (
            ("--vary", "start.fork=on,off", "--measure", "start", "--set", "patches.cpu-fork=false"),
            "on: start.fork: the engine process is spawned",
        ),
        (("--vary", "profile=stock,nope"), "nope: demo-cpu has no profile"),
        (("--vary", "n=7,07"), "result in the same launch"),
        (("--suite", "nope"), "no suite"),
        (("--vary", "env.HF_TOKEN=a,b"), "secret"),
        (("--vary", 'model-loader-extra-config={"aws_secret_access_key": "a"},{}'), "secret"),
    ],
)
def test_mistake_is_reported_before_start(words, said):
    """With what was wrong and in which arm."""
    with pytest.raises(UsageError, match=said):
        experiment("demo-cpu", *words)


@pytest.mark.parametrize(
    ("words", "temperature"),
    [((), 0.0), (("--vary", "spec=on,off"), None), (("--vary", "spec=on,off", "--temperature", "0"), 0.0)],
)
def test_varied_drafts_use_model_default_temperature(words, temperature):
    """A patch of the sampling does nothing at 0, where answers can be held against each other."""
    assert experiment("demo-cpu", *words)[0].temperature == temperature


def test_top_p_is_sent_and_needs_temperature():
    """As a published sweep had it; at temperature 0, also where nobody asked for that, it would do nothing."""
    design, _ = experiment("demo-cpu", "--vary", "n=6,8", "--top-p", "0.95")
    assert boot.choose_sampling(design).top_p == design.top_p == 0.95
    assert boot.choose_sampling(replace(design, top_p=None)).top_p is None
    for words in ((), ("--temperature", "0")):
        with pytest.raises(UsageError):
            experiment("demo-cpu", "--vary", "mode=eager,compile", "--top-p", "0.95", *words)


def test_varied_prefix_cache_needs_repeated_prompts():
    """Texts that no cache answers would compare nothing, and in repeated ones uneven answers of it are the point."""
    words = ("--vary", "enable-prefix-caching=true,false")
    with pytest.raises(UsageError, match="made unique") as caught:
        experiment("demo-cpu", *words)
    assert "--dataset repeat" in caught.value.hint
    design, _ = experiment("demo-cpu", *words, "--dataset", "repeat:quick")
    assert (design.repeats, design.suite) == (True, "repeat:quick")
    again = parsed(*shlex.split(design.command)[2:])
    assert (again.suite, again.vary) == ("repeat:quick", words[1])


@pytest.mark.parametrize(
    ("words", "suite"),
    [
        (("--set", "max-model-len=8k"), "quick"),
        (("--set", "max-model-len=16K"), "field"),
        (("--set", "max-model-len=32768", "--vary", "max-model-len=32k,8K"), "quick"),
    ],
)
def test_default_suite_fits_servers_of_all_arms(words, suite):
    """By the shortest context of them, in whichever of vLLM's spellings; who names a suite gets that."""
    assert experiment("demo-cpu", *words)[0].suite == suite


def test_plan_counts_requests_of_all_streams():
    """Five prompts alone, and four times five that keep eight streams busy twice; what is due is the same number."""
    design, _ = experiment("demo-cpu", "--suite", "quick", "--concurrency", "1,8")
    assert store.count_measured_requests(design) == 25
    assert store.count_measured_requests(replace(design, rounds=5, concurrency=(8,))) == 25
    unknown = DurationEstimate(None, whole=False, source="")
    words = experiment_text.describe_experiment(design, unknown)
    assert "suite quick, at least" in words
    assert "1, 8 at a time, 25 requests" in words
    assert "1, 8 at a time; temperature 0" in experiment_text.describe_experiment(
        replace(design, digest="gone"), unknown
    )


def test_patch_is_disabled_in_one_arm():
    """`off` names it as disabled by --set, so that a launch takes it out of the engine."""
    design, _ = experiment("demo-cpu", "--vary", "patch.cpu-expand-kernel=on,off")
    assert [(arm.plan.patches, arm.plan.disabled_patches) for arm in design.arms] == [
        (("cpu-expand-kernel", "cpu-fork"), ()),
        (("cpu-fork",), ("cpu-expand-kernel",)),
    ]


@pytest.mark.parametrize(
    "estimate",
    [
        pytest.param(DurationEstimate(None, whole=False, source=""), id="unknown"),
        pytest.param(DurationEstimate(90.0, whole=True, source="by 4 earlier boots"), id="whole"),
    ],
)
def test_plan_shows_boots_duration_and_stopped_servers(estimate, snapshot):
    """Boots in their order, what is not known as such, and what will be stopped."""
    design, _ = experiment("demo-cpu", *TOY)
    words = experiment_text.describe_experiment(design, estimate, ["20261122-010203-demo-cpu"])
    rows = dict(line.split(maxsplit=1) for line in words.splitlines())
    assert {name: rows[name] for name in ("boots", "takes", "stops", "note")} == snapshot


def test_actions_without_experiment_give_hint(capsys):
    """A list of nothing says how to begin."""
    assert main.main(["ab", "list"]) == 0
    assert "dflash-tui ab RECIPE" in capsys.readouterr().err
    assert main.main(["ab", "attach"]) == 2
    assert main.main(["ab", "stop", "x"]) == 2
