"""`verify --lossless`: what it asks for, what it prints, and what its exit code says."""

import pytest
from msgspec.structs import replace

from dflash_tui.cli.commands.experiments import raise_unless_alike, read_experiment_request
from dflash_tui.cli.main import main
from dflash_tui.cli.parser import build_parser
from dflash_tui.common.errors import DflashError, OutputDiffers, UsageError
from dflash_tui.experiments import builder, store
from dflash_tui.experiments.analysis import verdict
from dflash_tui.experiments.analysis.report import (
    ExperimentReport,
    FirstDifference,
    OutputComparison,
    OutputVerdict,
    TokenComparison,
)
from dflash_tui.experiments.design import AnswerCheck, Design, ExperimentFinished
from dflash_tui.presentation import experiment_report
from dflash_tui.presentation.report import to_terminal
from tests.support.experiment_factories import a_design, a_plan, boots, told, written

FIRST = FirstDifference("Code", 1, 2, (0, 1), 17, "def ", "merge(a)\n", "sort(\x1b[31ma)")


def designed(*words: str) -> Design:
    asked = read_experiment_request(build_parser().parse_args(["verify", "--lossless", "demo-cpu", *words]))
    return builder.build_experiment(asked)[0]


def reported(outputs: OutputComparison | None) -> ExperimentReport:
    of = a_design({"off": a_plan(tokens=0), "on": a_plan()}, vary="spec", checks_output=True)
    report = verdict.build_report(of, boots(of, (10.0, 10.0)))
    return replace(report, comparisons=(replace(report.comparisons[0], outputs=outputs),))


def test_it_boots_with_speculation_then_without():
    """Greedy, with the tokens named, and as many rounds as the prompts take."""
    design = designed("--prompts", "12")
    assert [(arm.name, arm.plan.num_speculative_tokens) for arm in design.arms] == [("off", 0), ("on", 7)]
    assert (design.order, design.temperature, design.rounds, design.suite) == ((1, 0), 0.0, 3, "quick")
    assert (design.checks_output, design.keep_answers, design.scale) == (True, True, 0.25)


def test_output_check_drafts_as_launch_names():
    """Of a launch with four drafted tokens it is asked whether four change anything."""
    for words in (("--num-speculative-tokens", "4"), ("--set", "n=4")):
        assert [arm.plan.num_speculative_tokens for arm in designed(*words).arms] == [0, 4]
    with pytest.raises(UsageError, match="same launch"):
        designed("--num-speculative-tokens", "0")


def test_exact_runs_both_servers_in_float32():
    for arm in designed("--exact").arms:
        assert arm.plan.argv[arm.plan.argv.index("--dtype") + 1] == "float32"


def test_exact_is_refused_for_a_gpu():
    with pytest.raises(UsageError, match="--exact"):
        read_experiment_request(build_parser().parse_args(["verify", "--lossless", "gemma-4-26b-a4b", "--exact"]))


@pytest.mark.parametrize(
    ("outputs", "error"),
    [
        (OutputComparison(OutputVerdict.ALIKE, prompts=20), None),
        (OutputComparison(OutputVerdict.DIFFERENT, prompts=20), OutputDiffers),
        (OutputComparison(OutputVerdict.UNKNOWN, "synthetic acceptance: such answers say nothing"), DflashError),
    ],
)
def test_the_exit_code_is_the_verdict(outputs, error):
    """0 for alike, 7 for different; what is not known is neither."""
    if error is None:
        raise_unless_alike(reported(outputs))
        return
    with pytest.raises(error) as caught:
        raise_unless_alike(reported(outputs))
    assert caught.value.exit_code == (7 if error is OutputDiffers else 1)


def test_only_the_answers_are_spoken_of(capsys, snapshot):
    """The verdict, its figures and the two answers that differ soonest, without what a terminal would act on."""
    worst = AnswerCheck("Co\x1b[31mde", 1, 2, 120, 9, gap=8.3125, place=57, rounding=0.25, positions=120)
    tokens = TokenComparison(12, 5, 3, 0, 2310, 0.5, 2290, worst)
    outputs = OutputComparison(
        OutputVerdict.DIFFERENT, prompts=20, boots=(1, 1), different=0.4, unit="token", first=FIRST, tokens=tokens
    )
    report = reported(outputs)
    written(report.design, told(report.design, report.boots), report)
    assert to_terminal(experiment_report.build_report(report)) == snapshot
    markdown = experiment_report.render_markdown(report)
    assert "merge(a)" in markdown
    assert "\x1b" not in markdown
    store.append_event(store.experiment_folder(report.design.id), ExperimentFinished(0.0))
    assert main(["report", report.design.id]) == 0
    assert "from token 17 on" in capsys.readouterr().out
    assert main(["ab", "attach", report.design.id]) == OutputDiffers.exit_code
    said = capsys.readouterr().out
    assert ("from token 17 on" in said, "tok/s" in said) == (True, False)
