"""`ab --vary stock,ours`: what the bare published command is, what is ours, and how the report says it."""

import pytest
from msgspec.structs import replace

from dflash_tui.common.errors import UsageError
from dflash_tui.experiments.analysis import verdict
from dflash_tui.experiments.analysis.report import Verdict
from dflash_tui.experiments.design import Design
from dflash_tui.planning.recipes.recipe import Mode
from dflash_tui.planning.startup_optimizations import OPTIMIZATIONS
from dflash_tui.presentation import experiment_report
from dflash_tui.presentation.report import to_terminal
from tests.support.boot_factories import boots
from tests.support.command_line import experiment

SPLIT = "patches.triton-split-verify=true"


def designed(*words: str) -> Design:
    return experiment(*words, "--vary", "stock,ours")[0]


def test_stock_arm_has_none_of_our_settings():
    """Neither mode, drafts, patch, variable nor speed flags; what is served is the same in both arms."""
    design = designed(
        "gemma-4-26b-a4b", "--gpu", "h200", "--vllm", "0.33.0", "--mode", "graphs", "--num-speculative-tokens", "7",
        "--set", SPLIT, "--set", "max-num-seqs=4", "--set", "env.VLLM_X=1", "--set", "load-format=dummy",
        "--set", "speculation.attention_backend=null", "--set", "max-model-len=65536", "--set", "target.model=/w",
    )  # fmt: skip
    bare, ours = (arm.plan for arm in design.arms)
    modes = experiment("gemma-4-26b-a4b", "--gpu", "h200", "--vllm", "0.33.0", "--vary", "mode=compile,eager")[0]
    published = modes.arms[0].plan
    assert [arm.name for arm in design.arms] == ["stock", "ours"]
    assert (bare.mode, bare.num_speculative_tokens, bare.patches) == (Mode.COMPILE, 15, ())
    assert (ours.mode, ours.num_speculative_tokens, ours.patches) == (Mode.GRAPHS, 7, ("triton-split-verify",))
    assert {*bare.argv} - {*published.argv} == {"/w", "--load-format", "dummy", "--max-model-len", "65536"}
    assert bare.env == {}
    assert bare.vllm == ours.vllm
    assert {"--max-num-seqs", "--load-format", "65536", "/w"} <= {*ours.argv}


@pytest.mark.parametrize(
    ("words", "mode", "patches", "suite"),
    [
        (("gemma-4-26b-a4b", "--gpu", "h200"), (Mode.COMPILE,) * 2, ((), ("triton-split-verify-0.24",)), "contexts"),
        (("gemma-4-26b-a4b", "--gpu", "h200", "--mode", "eager"), (Mode.COMPILE, Mode.EAGER), ((), ()), "contexts"),
        (
            ("gemma-4-31b", "--gpu", "gb10", "--profile", "seed"),
            (Mode.EAGER, Mode.GRAPHS),
            (("triton-non-causal", "dflash-draft-flash-attn"),) * 2,
            "field",
        ),
        (("demo-cpu",), (Mode.EAGER, Mode.EAGER), ((), ("cpu-expand-kernel", "cpu-fork")), "quick"),
    ],
)
def test_ours_arm_uses_named_or_planned_settings(words, mode, patches, suite):
    """The fast set-up, else graphs mode; stock keeps the patches without which its release does not run the pair."""
    design = designed(*words)
    assert tuple(arm.plan.mode for arm in design.arms) == mode
    for arm, known in zip(design.arms, patches, strict=True):  # a release may need more of them by now
        assert {*known} <= {*arm.plan.patches}
        assert bool(known) is bool(arm.plan.patches)
    assert (design.suite, design.temperature, design.order) == (suite, 0.0, (0, 1, 1, 0))


def test_stock_starts_like_plain_vllm():
    """Without the startup optimizations that a launch takes unasked, and those that were asked for."""
    bare, ours = (
        arm.plan for arm in designed("gemma-4-26b-a4b", "--gpu", "h200", "--set", "start.fastsafetensors=true").arms
    )
    assert {"fork", "startup-plan", "warm-up", "fastsafetensors"} <= {*ours.start}
    assert {*bare.start} <= {name for name, measure in OPTIMIZATIONS.items() if measure.is_fixed}
    assert not {name for measure in OPTIMIZATIONS.values() for name in measure.env} & {*bare.env}
    assert "fastsafetensors" not in bare.argv


def test_ours_equal_to_stock_is_refused_early():
    """Where the launch is the bare command itself."""
    off = ("patches.cpu-expand-kernel", "patches.cpu-fork", "start.cache-root", "start.modelinfos", "start.warm-up")
    words = [word for name in off for word in ("--set", f"{name}=false")]
    with pytest.raises(UsageError, match="same launch") as caught:
        designed("demo-cpu", *words)
    assert "--mode" in caught.value.hint


def test_report_describes_stock(snapshot):
    """Its command, what ours has beyond it, and both arms after each context."""
    design = replace(designed("gemma-4-26b-a4b", "--gpu", "h200", "--set", "max-model-len=65536"), id="", made_at=0.0)
    assert experiment_report.list_stock_rows(design) == snapshot
    report = verdict.build_report(design, boots(design, [10.0, 13.0, 13.1, 10.1]))
    markdown, text = (
        experiment_report.render_markdown(report),
        to_terminal(experiment_report.build_report(report, details=True)),
    )
    for rendered in (markdown, text):
        assert "vllm serve google/gemma-4-26B-A4B-it" in rendered
        assert "--max-num-seqs 8" in rendered
        assert "LongCode" in rendered
    assert report.comparisons[0].word is Verdict.FASTER
    assert experiment_report.list_stock_rows(replace(design, vary="mode")) == []
