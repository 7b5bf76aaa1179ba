"""The report of an A/B: the verdict first, everything needed to repeat it, and nothing in it that steers a reader."""

import pytest
from markdown_it import MarkdownIt
from mdit_py_plugins.gfm_autolink import gfm_autolink_plugin
from msgspec.structs import replace

from dflash_tui.benchmark.stats import Ratio
from dflash_tui.experiments.analysis import verdict
from dflash_tui.experiments.analysis.report import ExperimentReport
from dflash_tui.experiments.design import HostFacts
from dflash_tui.presentation import experiment_markdown
from dflash_tui.presentation import experiment_tables as tables
from dflash_tui.presentation.intervals import axis_scale, draw_axis, draw_interval
from dflash_tui.presentation.markdown import escape_text
from tests.support.experiment_factories import a_boot, a_design, a_plan, boots
from tests.tui.conftest import HOSTILE


def a_report(speeds: tuple[float, ...] = (10.0, 18.5), **changes) -> ExperimentReport:
    design = a_design(**changes)
    made = list(boots(design, speeds, start=(40.0, 85.0)))
    made[1] = replace(made[1], cache="cold", ready=120.0)
    made[2] = replace(made[2], cache="cached", ready=61.0)
    return verdict.build_report(design, made)


@pytest.mark.parametrize(("network", "words"), [("", []), ("IB", ["RoCE"]), ("Socket", ["sockets"])])
def test_the_link_of_another_host_is_what_nccl_said_of_it(network, words):
    design = a_design()
    host = HostFacts("spark-b", address="10.0.0.2", interface="eth0", devices=("rocep1s0f1",), network=network)
    measured = [replace(boot, hosts=(host,)) for boot in boots(design, (10.0, 18.5))]
    report = experiment_markdown.render_experiment(verdict.build_report(design, measured))
    [line, *_] = [line for line in report.splitlines() if "10.0.0.2 on eth0" in line]
    assert [word for word in ("RoCE", "sockets") if word in line] == words


def test_the_label_and_the_verdict_come_first():
    said = experiment_markdown.render_experiment(a_report())
    places = [
        said.index(part)
        for part in (
            "not a real model's figures: hand-made toy weights",
            "**compile is faster than eager: 1.8",
            "## Arms",
            "## Start-up",
            "## How it was measured",
            "## Machine",
            "## What was launched",
            "## Every request",
        )
    ]
    assert places == sorted(places)
    for part in (
        ", cold start: ",
        "order A B B A",
        f"SHA-256 `{'5f' * 32}`",
        "shuffled from seed 7",
        "temperature 0;",
    ):
        assert part in said


def test_the_share_that_tokens_are_drawn_from_is_told():
    """Where one was asked for."""
    assert "temperature 0.6, top-p 0.95;" in experiment_markdown.render_experiment(
        a_report(temperature=0.6, top_p=0.95)
    )
    assert "top-p" not in experiment_markdown.render_experiment(a_report(temperature=0.6))


def test_the_command_that_begins_it_again_is_told():
    """As it was given; two runs side by side have none."""
    said = experiment_markdown.render_experiment(a_report(command="dflash-tui ab demo-cpu --vary n=0,7"))
    assert "\ndflash-tui ab demo-cpu --vary n=0,7\n" in said
    assert "To repeat it" not in experiment_markdown.render_experiment(a_report())


def test_an_arm_has_its_spread_and_how_many_boots():
    """Cold and cached starts stand apart, each with its own number of boots; eager has no cached start."""
    row = next(
        line
        for line in experiment_markdown.render_experiment(a_report()).splitlines()
        if line.startswith("| B compile | 2 |")
    )
    assert "2 boots)" in row
    assert "| 2:00 (1 boot) | 1:01 (1 boot) |" in row


def test_the_rule_and_its_figures_are_stated():
    """The test with t and its degrees of freedom, the variation of each arm, and what each boot measured."""
    report = a_report()
    said = experiment_markdown.render_experiment(report)
    (one,) = report.comparisons
    assert one.test is not None
    (line,) = (line for line in said.splitlines() if "Welch" in line)
    assert all(
        figure in line for figure in (f"{abs(one.test.t):.3g}", f"{one.test.critical:.3g}", f"{one.test.df:.3g}")
    )
    (line,) = (line for line in said.splitlines() if "CV between boots" in line)
    assert all(f"{100 * (cv or 0.0):.1f} %" in line for cv in one.cvs)
    rows = [line for line in said.splitlines() if line.count("|") == 4 and line.startswith(("| 1 | A", "| 2 | B"))]
    assert [float(row.split("|")[3]) for row in rows] == pytest.approx(
        [each.value for each in one.figures[:2]], abs=0.01
    )


def test_an_arm_without_a_cache_has_no_cached_start():
    """Each start of eager is like any other: it stands once in the table and once among the bars."""
    report = a_report()
    row = next(line for line in experiment_markdown.render_experiment(report).splitlines() if "| A eager | 2 |" in line)
    assert row.count("42 s") + row.count("41 s") >= 1
    assert "| none |" in row  # which is not the same as an unknown one
    bars = [
        line for line in experiment_markdown.render_experiment(report).splitlines() if line.startswith("cached start")
    ]
    assert [bar.split()[2] for bar in bars] == ["B"]


def test_what_ran_is_told_without_secrets():
    """Command, environment, versions and the patches' hashes of each arm, and every request of every boot."""
    report = a_report()
    first = replace(report.boots[0], env={"HF_TOKEN": "hf_abcdefghijklmnopqrst", "OMP_NUM_THREADS": "2"})
    said = experiment_markdown.render_experiment(replace(report, boots=(first, *report.boots[1:])))
    assert "hf_abcdefghijklmnopqrst" not in said
    assert "HF_TOKEN=[left out] \\\nOMP_NUM_THREADS=2 \\\n" in said
    assert "--enforce-eager" in said
    assert "patches: `cpu-expand-kernel` `abababababab`" in said
    assert "vllm 0.32.0, torch 2.12.0" in said
    assert said.count("| length | `cc` |") == 4 * 11  # ten that count and the cold one, in each of four boots


def test_what_is_refused_still_shows_its_figures():
    """The reason stands in the verdict; both arms stand in the table."""
    report = a_report()
    other = [replace(boot, versions={"vllm": "0.31.0"}) if boot.arm else boot for boot in report.boots]
    said = experiment_markdown.render_experiment(verdict.build_report(report.design, other))
    assert "**refused: versions differ" in said
    assert "| A eager | 2 |" in said


def test_a_sweep_names_its_plateau():
    plans = {str(n): a_plan("eager", n) for n in (4, 8, 15)}
    design = a_design(plans, order=(0, 1, 2, 2, 1, 0), vary="n")
    said = experiment_markdown.render_experiment(
        verdict.build_report(design, boots(design, (10.0, 10.0, 8.0), al=(2.6, 3.1, 3.2)))
    )
    assert said.index("## Sweep") < said.index("## Verdict")
    assert said.index("recommended: n=8") < said.index("fastest measured")
    assert "recommended: n=8" in said
    assert "| B n=8 |" in said


def test_text_of_others_opens_nothing():
    """Errors and names of anybody, in a table and in a paragraph."""
    report = a_report(recipe=f"`{HOSTILE}|", synthetic=f"{HOSTILE}\n# x")
    broken = replace(report.boots[3], error=f"{HOSTILE} \x1b[31m| y |\n# z", cache="[c](https://evil.example)")
    judged = replace(report.comparisons[0], measure="| [m](https://evil.example)")
    said = experiment_markdown.render_experiment(
        replace(report, boots=(*report.boots[:3], broken), comparisons=(judged,))
    )
    assert "[c]" not in said
    assert "[m]" not in said
    assert "\x1b" not in said
    assert not any(line.startswith(("# x", "# z")) for line in said.splitlines())
    assert "\\[red\\]evil" in said


NO_WIDTH = "\u200b"
RENDERERS = {
    "CommonMark with GitHub's addresses": MarkdownIt("commonmark").use(gfm_autolink_plugin),
    "one that guesses addresses": MarkdownIt("gfm-like"),
}


@pytest.mark.parametrize("renderer", RENDERERS)
@pytest.mark.parametrize(
    "text",
    [
        "https://evil.example/x www.evil.example @octocat",
        "ftp://evil.example WWW.evil.example octocat@evil.example",
        "[a](https://evil.example) <https://evil.example> &#64;octocat &commat;octocat #12 Q&A",
    ],
)
def test_text_of_others_becomes_no_link(text, renderer):
    """The same characters are shown, and nothing stands there that GitHub links or tells somebody about."""
    parser = RENDERERS[renderer]
    kinds = [token.type for token in parser.parseInline(text)[0].children or ()]
    assert "link_open" in kinds  # it would be one
    (line,) = parser.parseInline(escape_text(text))
    assert {token.type for token in line.children or ()} == {"text"}
    shown = "".join(token.content for token in line.children or ())
    assert shown.replace(NO_WIDTH, "") == text
    assert "@o" not in shown
    assert "#1" not in shown


def test_boots_without_a_verdict_are_told_too():
    """An experiment that is halted has figures, and says that it is not complete."""
    said = experiment_markdown.render_experiment(ExperimentReport(a_design(), (a_boot(0, 0),), (), complete=False))
    assert "**Not complete**: 1 of 4 boots are over." in said
    assert "## Verdict" not in said


def test_intervals_are_drawn_around_one():
    """On one scale, each end at its place, and never off the paper."""
    most = axis_scale([Ratio(2.0, 1.5, 2.5), Ratio(0.9, 0.8, 1.0)])
    right, left = (
        draw_interval(Ratio(2.0, 1.5, 2.5), most, 41),
        draw_interval(Ratio(0.9, 0.8, 1.0), most, 41),
    )
    assert right.index("│") == 20 < right.index("━") < right.index("◆")
    assert left.index("◆") < 20
    assert left[20] == "┿"
    wild = draw_interval(Ratio(1.0, 0.0, float("inf")), most, 41)
    assert wild == "━" * 20 + "◆" + "━" * 20
    assert all(len(line) == 41 for line in (right, left, wild, draw_axis(most, 41)))


def test_what_the_environment_had_beside_the_plan_is_told():
    """With secrets left out; where nobody recorded it, that is said."""
    design = a_design()
    first, *rest = boots(design, (10.0, 12.0))
    first = replace(first, inherited={"OMP_NUM_THREADS": "4"})
    told = experiment_markdown.render_experiment(ExperimentReport(design, (first, *rest), ()))
    assert "inherited environment: `OMP_NUM_THREADS=4`" in told
    assert "inherited environment: —" in told


def test_all_prompts_together_are_the_means_that_the_verdict_compares():
    """Geometric means, so that their quotient is the ratio beside them; an interval of another level says which."""
    design = a_design({str(n): a_plan(tokens=n) for n in (2, 4, 7)}, (0, 1, 2, 2, 1, 0), "n")
    one = verdict.build_report(design, boots(design, (10.0, 18.5, 12.0))).comparisons[0]
    row = tables.list_prompt_rows(one)[-1]
    assert row.a is not None
    assert row.b is not None
    assert one.ratio is not None
    assert row.b / row.a == pytest.approx(one.ratio.ratio, rel=0.01)
    assert one.test is not None
    assert row.name == f"all ({100 * one.test.level:.3g} % interval)" == "all (98.3 % interval)"
    assert tables.list_prompt_rows(a_report().comparisons[0])[-1].name == "all"


def test_a_cached_start_is_called_so_where_no_start_was_cold():
    """An arm that has a cache beside one that has none; of two arms without any, a start is a start."""
    design = a_design()
    made = boots(design, (10.0, 11.0), cache=("", "cached"), start=(40.0, 50.0))
    (line,) = (
        line
        for line in experiment_markdown.render_experiment(verdict.build_report(design, made)).splitlines()
        if "first answer: " in line
    )
    assert [word for word in ("cold", "cached") if word in line] == ["cached"]
