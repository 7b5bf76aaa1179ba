"""What besides the arms may have made a difference: each in turn is found, and what was varied never is."""

from typing import Any

import pytest
from msgspec.structs import replace

from dflash_tui.benchmark.prompts import TokenVariety
from dflash_tui.experiments.analysis import verdict
from dflash_tui.experiments.analysis.confounds import find_confounds
from dflash_tui.experiments.analysis.report import Verdict
from dflash_tui.experiments.design import Boot, Conditions
from dflash_tui.planning.recipes.recipe import Mode
from tests.support.boot_factories import boots, design, modes, plan

LOAD = "not every boot sustained its load"
SPEEDS = [10.0, 12.0, 12.1, 10.1]
MAINS = Conditions(at=0.0, power="mains", clock_mhz=2000, temperature_c=60, throttle=(), foreign=(), load=1.0)


QUIET: dict[str, Any] = {"sampler": "FlashInfer", "generated": 1010.0, "others": 0.1, "inherited": {}}


def changed(measured: list[Boot], number: int = 1, **changes: Any) -> list[Boot]:
    """The boots with one of them changed."""
    return [replace(each, **changes) if each.number == number else each for each in measured]


def seen(**changes: Any) -> Conditions:
    return replace(MAINS, **changes)


def usual() -> list[Boot]:
    """Boots of eager and compile on a machine at rest, with nothing to complain of."""
    return boots(modes(), SPEEDS, before=MAINS, after=seen(throttle=("power cap",)), phases={"weights": 40.0}, **QUIET)


def first(name: str = "requests", **changes: Any) -> dict[str, Any]:
    """A boot's requests, the first of them changed."""
    one, *rest = usual()[1].requests
    return {name: (replace(one, **changes), *rest)}


REFUSED = [
    ({"argv": (*plan().argv, "--max-num-seqs", "4")}, "--max-num-seqs 4 instead of none"),
    ({"env": {"VLLM_USE_V2_MODEL_RUNNER": "1"}}, "VLLM_USE_V2_MODEL_RUNNER: none in boots 1, 3 and 4, 1 in boot 2"),
    ({"inherited": {"OMP_NUM_THREADS": "1"}}, "OMP_NUM_THREADS: none in boots 1, 3 and 4, 1 in boot 2"),
    ({"generated": 1400.0}, "boot 2: 400 tokens beside our 1000"),
    ({"versions": {"vllm": "0.32.0", "torch": "2.12.0"}}, "torch: 2.11.0 in boots 1, 3 and 4, 2.12.0 in boot 2"),
    ({"engine": "vllm 0.31.0"}, "vllm 0.31.0 in boot 2"),
    ({"patches": {"some": "sha"}}, "some: none in boots 1, 3 and 4, sha in boot 2"),
    ({"gpus": ("other",)}, "other in boot 2"),
    ({"driver": "590"}, "590 in boot 2"),
    ({"preemptions": 2.0}, "boot 2: 2 preemptions"),
    ({"prefix_queries": 1000.0, "prefix_hits": 970.0}, "boot 2: 97 %"),
    ({"after": seen(throttle=("thermal (hardware)",))}, "boot 2: thermal (hardware)"),
    ({"after": seen(hosts={"rank 1 on b": seen(throttle=("power brake",))})}, "boot 2: power brake"),
    ({"before": seen(foreign=("4711 blender",))}, "boot 2: 4711 blender"),
    ({"after": seen(power="battery")}, "boot 2"),
    (first(error="HTTP 500: out of memory"), "boot 2: 1 request, first HTTP 500: out of memory"),
    (first(steps=None), "boot 2: 1 of 5 requests (Q&A)"),
    (first(finish="stop"), "boot 2: 1 answer of 5 ended by themselves (Q&A)"),
]


@pytest.mark.parametrize(("change", "evidence"), REFUSED)
def test_difference_beyond_arms_refuses_verdict(change, evidence):
    """With one such boot there is no verdict, and the evidence says which boot and what."""
    before = changed(usual(), 0, prefix_queries=1000.0) if "prefix_hits" in change else usual()
    (found,) = verdict.judge_arms(modes(), changed(before, **change))
    assert found.word is Verdict.REFUSED
    assert evidence in "\n".join(each.evidence for each in found.confounds if each.refuses)


FLAGGED = [
    ({"after": seen(clock_mhz=1800, throttle=("power cap",))}, "the GPU's clock differed between boots"),
    ({"after": seen(temperature_c=80, throttle=("power cap",))}, "the GPU's temperature differed between boots"),
    ({"before": seen(load=6.0)}, "the machine's load differed between boots"),
    ({"others": 1.4}, "other processes kept CPU cores busy unequally"),
    (
        {"after": seen(throttle=("clocks set by the user",))},
        "the driver reported a limit of the GPU's clocks in some boots only",
    ),
    (first(tokens=300), "answers differ in length"),
    ({"doubt": "the first answer looks like noise"}, "the ranks may have different weights"),
    ({"error": "it died", "requests": ()}, "a boot of compile failed"),
    ({"phases": {"weights": 5.0, "drafter": 1.0}}, "the weights were not loaded equally fast at each start"),
]


@pytest.mark.parametrize(("change", "what"), FLAGGED)
def test_possible_confound_is_flagged_beside_verdict(change, what):
    """Drift, load, other lengths and a boot that failed are flagged; the verdict stands."""
    (found,) = verdict.judge_arms(modes(), changed(usual(), **change))
    assert found.word is not Verdict.REFUSED
    assert [each.what for each in found.confounds] == [what]


def test_boots_with_other_prompts_refuse_verdict():
    """Random tokens where other boots had the suite's text; boots of earlier releases did not check it."""
    for tokens, refused in ((TokenVariety.RANDOM, True), (TokenVariety.DIFFERENT, False)):
        (found,) = verdict.judge_arms(modes(), changed(usual(), token_variety=tokens))
        assert ("the prompts differ" in [each.what for each in found.confounds if each.refuses]) == refused


@pytest.mark.parametrize(("temperature", "refused"), [(None, True), (0.6, True), (0.0, False)])
@pytest.mark.parametrize("sampler", ["PyTorch, seed 0", ""], ids=["another", "not recorded"])
def test_differing_samplers_refuse_verdict_only_when_sampling(temperature, refused, sampler):
    (found,) = verdict.judge_arms(modes(temperature=temperature), changed(usual(), sampler=sampler))
    assert ("the samplers differ" in [each.what for each in found.confounds if each.refuses]) == refused


@pytest.mark.parametrize(("limits", "streams", "told"), [((8, None), 8, 0), ((8, None), 9, 1), ((8, 8), 9, 0)])
def test_requests_queued_in_one_arm_are_flagged(limits, streams, told):
    of = modes(concurrency=(1, streams))
    arms = tuple(
        replace(
            arm,
            plan=replace(arm.plan, argv=(*arm.plan.argv, *(("--max-num-seqs", str(most)) if most else ()))),
        )
        for arm, most in zip(of.arms, limits, strict=True)
    )
    (found,) = verdict.judge_arms(replace(of, arms=arms), usual())
    assert sum(each.evidence.endswith("9 are sent") for each in found.confounds) == told


@pytest.mark.parametrize(("finish", "refused"), [("length", False), ("stop", False), ("abort", True)])
def test_answers_may_end_at_model_stop_token(finish, refused):
    """That refuses nothing where it was asked for; an answer that the server broke off does."""
    (found,) = verdict.judge_arms(modes(fixed=False), changed(usual(), **first(finish=finish)))
    assert (found.word is Verdict.REFUSED) == refused


def test_one_token_answer_is_flagged_without_refusal():
    """It is told all the same: it is in no mean."""
    change = first(tokens=1, steps=None) | {"generated": 801.0}
    (found,) = verdict.judge_arms(modes(), changed(usual(), **change))
    assert found.word is not Verdict.REFUSED
    evidence = [each.evidence for each in found.confounds if each.what == "requests without a figure in steps/s"]
    assert evidence == ["boot 2: 1 of 5 requests (Q&A)"]


def test_harmless_difference_is_no_confound():
    """What eager brings with it, power caps in every boot and another port are no confounds."""
    ports = [replace(b, argv=tuple(w.replace("8000", f"800{b.number}") for w in b.argv)) for b in usual()]
    assert find_confounds(modes(), ports, 0, 1) == ()


def test_first_boot_load_is_no_confound():
    """Each later one follows a server of ours, whose load is no one else's."""
    assert find_confounds(modes(), changed(usual(), 0, before=seen(load=9.0)), 0, 1) == ()


def test_caches_of_their_own_are_no_difference():
    """Each arm has a compile cache of its own, wherever the plan has it."""
    own = [replace(b, env={"VLLM_CACHE_ROOT": f"/cache/{b.arm}"}) for b in usual()]
    assert find_confounds(modes(), own, 0, 1) == ()


def test_varied_setting_is_no_confound():
    """Another variable, patch, engine or flag in one arm is what was asked for."""
    on = plan(
        patches=("kernel",), env={"X": "1"}, engine_folder="/other", argv=(*plan().argv, "--max-num-seqs", "4"),
    )  # fmt: skip
    of = design("profile", {"stock": plan(), "seed": on}, (0, 1, 1, 0))
    varied = [
        replace(each, engine="vllm 0.26.0", versions={"vllm": "0.26.0"}) if each.arm else each
        for each in boots(of, SPEEDS)
    ]
    assert find_confounds(of, varied, 0, 1) == ()


def test_varied_patch_must_match_its_arm():
    """An arm without the patch that it is about measured something else; so did one with it that should not have it."""
    of = design("patch.kernel", {"on": plan(patches=("kernel",)), "off": plan()}, (0, 1, 1, 0))
    measured = boots(of, SPEEDS)
    assert find_confounds(of, measured, 0, 1) == ()
    (without,) = find_confounds(of, changed(measured, 0, patches={}), 0, 1)
    (with_it,) = find_confounds(of, changed(measured, 1, patches={"kernel": "sha"}), 0, 1)
    assert (without.evidence, with_it.evidence) == ("boot 1: without kernel", "boot 2: with kernel")


def test_unknown_conditions_are_flagged_without_refusal(snapshot):
    """A boot that could not say what it ran with is not held against the others; that nobody could look is told."""
    silent = changed(usual(), engine="", versions={}, gpus=(), driver="", before=None, after=None)
    silent = changed(silent, 3, generated=None)
    (told,) = find_confounds(modes(), silent, 0, 1)
    assert (told.what, told.refuses) == ("not known", False)
    assert told.evidence == snapshot


def test_redacted_secret_is_no_difference():
    """What was launched is kept without secrets, the plan has them."""
    keyed = plan(argv=(*plan().argv, "--api-key", "sk-1"), env={"HF_TOKEN": "hf_secret"})
    of = design("mode", {"eager": keyed, "compile": keyed}, (0, 1, 1, 0))
    kept = boots(of, SPEEDS, argv=(*plan().argv, "--api-key", "[left out]"), env={"HF_TOKEN": "[left out]"})
    assert find_confounds(of, kept, 0, 1) == ()


def test_a_secret_is_named_and_not_shown():
    """Of a token that differs only its name is in the evidence."""
    (found,) = find_confounds(modes(), changed(usual(), env={"HF_TOKEN": "hf_secret"}), 0, 1)
    assert "HF_TOKEN" in found.evidence
    assert "hf_secret" not in found.evidence


def test_an_arm_that_never_measured_is_refused(snapshot):
    """Without a boot there is nothing to compare, and its error is the evidence."""
    measured = [b if b.arm == 0 else replace(b, error="out of memory", requests=()) for b in usual()]
    (found,) = verdict.judge_arms(modes(), measured)
    assert (found.word, found.ratio, found.boots) == (Verdict.REFUSED, None, (2, 0))
    assert (found.confounds[0].what, found.confounds[0].evidence) == (snapshot, "out of memory")


@pytest.mark.parametrize(
    ("limits", "refuses"),
    [
        ((450, 575, 560, 460), True),
        ((450, 575, 450, 450), False),
        ((450, 560, 575, 550), False),
        ((575, 560, 570, 575), None),
        ((None, 560, 450, None), False),
        ((None, 560, None, 450), True),
    ],
)
def test_power_limit_split_by_arm_refuses_verdict(limits, refuses):
    """Every boot of one arm above every boot of the other is no chance; what changed otherwise is told."""
    of = modes()
    ends = [seen(power_limit_w=limit) for limit in limits]
    held = [replace(b, after=end) for b, end in zip(boots(of, SPEEDS), ends, strict=True)]
    found = [each.refuses for each in find_confounds(of, held, 0, 1) if "power limit" in each.what]
    assert found == ([] if refuses is None else [refuses])


def test_two_cards_may_draw_twice_as_much():
    """The sum of their limits is no other limit."""
    of = design("tensor-parallel-size", {"1": plan(), "2": plan(mode=Mode.COMPILE)}, (0, 1, 1, 0))
    ends = [seen(power_limit_w=700.0 * (1 + arm), cards=1 + arm) for arm in of.order]
    held = [replace(b, after=end) for b, end in zip(boots(of, SPEEDS), ends, strict=True)]
    assert find_confounds(of, held, 0, 1) == ()


def test_varied_number_of_gpus_is_no_difference():
    """An arm on two cards has two cards; within an arm another card still is one."""
    two = plan(gpus=("a", "b"), argv=(*plan().argv, "--tensor-parallel-size", "2"))
    of = design("tensor-parallel-size", {"1": plan(gpus=("a",)), "2": two}, (0, 1, 1, 0))
    measured = [replace(b, gpus=("H200",) * (b.arm + 1)) for b in boots(of, SPEEDS)]
    assert not find_confounds(of, measured, 0, 1)
    assert [each.what for each in find_confounds(of, changed(measured, 3, gpus=("L4",)), 0, 1)] == ["the GPU differs"]


def test_patch_sharing_varied_file_is_no_difference():
    """What a kept patch made of a file is another text where the varied one changes that file, too."""
    of = design("patch.a", {"on": plan(patches=("a", "b")), "off": plan(patches=("b",))}, (0, 1, 1, 0))
    with_both, alone = {"a": "x", "b": "x"}, {"b": "y"}
    measured = [replace(b, patches=alone if b.arm else with_both) for b in boots(of, SPEEDS)]
    assert not find_confounds(of, measured, 0, 1)
    assert find_confounds(of, changed(measured, 2, patches={"b": "z"}), 0, 1)[0].refuses


def test_run_patches_are_compared_by_name_only():
    """What its patches made is not recorded: the same names are no difference, a missing one is."""
    of = modes()
    measured = [replace(b, patches={"a": "" if b.arm else "x"}) for b in boots(of, SPEEDS)]
    assert "patches differ" not in [found.what for found in find_confounds(of, measured, 0, 1)]
    assert "patches differ" in [found.what for found in find_confounds(of, changed(measured, 1, patches={}), 0, 1)]


@pytest.mark.parametrize(("order", "refuses"), [((0, 1), True), ((0, 1, 1, 0), False)])
def test_foreign_processor_load_refuses_single_boot_verdict(order, refuses):
    """With two boots each their work is in the spread between boots; on a GPU it matters only where it is uneven."""
    arms = {name: plan(on_cpu=True, mode=mode) for name, mode in (("eager", Mode.EAGER), ("compile", Mode.COMPILE))}
    of = design("mode", arms, order)
    busy = boots(of, SPEEDS[: len(order)], others=0.8)
    (found,) = find_confounds(of, busy, 0, 1)
    assert (found.refuses, found.evidence[:24]) == (refuses, "boot 1: 0.8 cores, boot ")
    assert not find_confounds(of, boots(of, SPEEDS[: len(order)], others=0.3), 0, 1)
    assert not find_confounds(modes(order), boots(modes(order), SPEEDS[: len(order)], others=0.8), 0, 1)
