"""The report of an A/B: the answer first, what is needed to repeat it, and nothing in it that steers a reader."""

import re

import pytest
from markdown_it import MarkdownIt
from mdit_py_plugins.gfm_autolink import gfm_autolink_plugin
from msgspec.structs import replace

from dflash_tui.benchmark.prompts import TokenVariety
from dflash_tui.experiments.analysis import verdict
from dflash_tui.experiments.analysis.report import ExperimentReport
from dflash_tui.experiments.analysis.stats import Ratio
from dflash_tui.experiments.design import HostFacts
from dflash_tui.presentation import experiment_report, verdict_text
from dflash_tui.presentation import experiment_report as tables
from dflash_tui.presentation.report import Interval, Intervals, Meter, Table, escape_text, lay_out, to_terminal
from tests.support import boot_factories
from tests.support.boot_factories import modes
from tests.support.experiment_factories import a_boot, a_design, a_plan, boots
from tests.tui.conftest import HOSTILE


def a_report(speeds: tuple[float, ...] = (10.0, 18.5), **changes) -> ExperimentReport:
    design = a_design(**changes)
    made = list(boots(design, speeds, start=(40.0, 85.0)))
    made[1] = replace(made[1], cache="cold", ready=120.0)
    made[2] = replace(made[2], cache="cached", ready=61.0)
    return verdict.build_report(design, made)


@pytest.mark.parametrize(("network", "words"), [("", []), ("IB", ["RoCE"]), ("Socket", ["sockets"])])
def test_report_shows_link_that_nccl_used(network, words):
    design = a_design()
    host = HostFacts("spark-b", address="10.0.0.2", interface="eth0", devices=("rocep1s0f1",), network=network)
    measured = [replace(boot, hosts=(host,)) for boot in boots(design, (10.0, 18.5))]
    report = experiment_report.render_markdown(verdict.build_report(design, measured))
    [line, *_] = [line for line in report.splitlines() if "10.0.0.2 on eth0" in line]
    assert [word for word in ("RoCE", "sockets") if word in line] == words


def test_posted_report_fits_on_a_screen(snapshot):
    """What was compared, the answer, one table, the plot, conditions and commands, in at most 60 lines."""
    said = experiment_report.render_markdown(a_report(command="dflash-tui ab demo-cpu --vary n=0,7"))
    assert said.count("\n") <= 60
    assert re.sub(r"/\S+/(?=\S)", "/…/", said) == snapshot


def test_three_lines_come_first(snapshot):
    """The answer in words, two figures, what to do next; the statistics are behind `details`."""
    for speeds in ((10.0, 18.5), (10.0, 10.05)):
        lines = to_terminal(experiment_report.build_report(a_report(speeds))).splitlines()
        assert lines[:3] == snapshot
        assert not any(word in line for line in lines for word in ("Welch", "CV ", "drift"))
    assert "Welch" in to_terminal(experiment_report.build_report(a_report(), details=True))


@pytest.mark.parametrize(("others", "cause"), [(0.0, "boots of eager spread by"), (1.5, "other processes kept")])
def test_noise_is_reported_with_cause(others, cause):
    """An interval wider than a factor of 2 has no figure, neither in words nor in a picture."""
    design = modes()
    made = [
        replace(boot, others=others * (boot.number % 2))
        for boot in boot_factories.boots(design, [10.0, 90.0, 30.0, 40.0])
    ]
    said = to_terminal(experiment_report.build_report(verdict.build_report(design, made)))
    first, second, third, *_ = said.splitlines()
    assert "too noisy" in first
    assert cause in second
    assert "extend" in third
    assert "◆━" not in said
    assert "(0." not in said


def test_arm_without_cache_has_no_cached_start():
    """Each start of eager is like any other."""
    report = a_report()
    table = tables.build_arms_table(report.design, report.boots)
    assert [row[table.header.index("cached start")] for row in table.rows] == ["none", "1:01"]


def test_commands_have_no_secrets():
    report = a_report()
    first = replace(report.boots[0], env={"HF_TOKEN": "hf_abcdefghijklmnopqrst", "OMP_NUM_THREADS": "2"})
    said = experiment_report.render_markdown(replace(report, boots=(first, *report.boots[1:])))
    assert "hf_abcdefghijklmnopqrst" not in said
    assert "HF_TOKEN=[left out] OMP_NUM_THREADS=2 " in said


def test_report_names_prompts_of_random_tokens():
    report = a_report()
    varied = tuple(replace(boot, token_variety=TokenVariety.RANDOM) for boot in report.boots)
    texts = [experiment_report.render_markdown(replace(report, boots=boots)) for boots in (report.boots, varied)]
    assert ["prompts of random tokens" in text for text in texts] == [False, True]


def test_a_sweep_names_its_plateau():
    plans = {str(n): a_plan("eager", n) for n in (2, 4, 6, 8, 12, 15)}
    design = a_design(plans, order=(0, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1, 0), vary="n", command="dflash-tui ab demo-cpu")
    made = boots(design, (10.0,) * 5 + (8.0,), al=(2.1, 2.6, 2.9, 3.1, 3.1, 3.2))
    said = experiment_report.render_markdown(verdict.build_report(design, made))
    assert said.index("recommended: n=8") < said.index("fastest measured") < said.index("| ■ D n=8 |")
    assert "★ n=8" in said
    assert said.count("\n") <= 60


def test_foreign_text_opens_nothing():
    report = a_report(recipe=f"`{HOSTILE}|", synthetic=f"{HOSTILE}\n# x")
    broken = replace(
        report.boots[3], engine=f"{HOSTILE} \x1b[31m| y |\n# z", versions={"a": "[c](https://evil.example)"}
    )
    judged = replace(report.comparisons[0], measure="| [m](https://evil.example)")
    said = experiment_report.render_markdown(replace(report, boots=(*report.boots[:3], broken), comparisons=(judged,)))
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
def test_foreign_text_becomes_no_link(text, renderer):
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


def test_boots_without_verdict_are_reported():
    """An experiment that is halted has figures, and says that it is not complete."""
    said = experiment_report.render_markdown(ExperimentReport(a_design(), (a_boot(0, 0),), (), complete=False))
    assert "**Not complete**: 1 of 4 boots are over." in said


def test_intervals_are_drawn_around_one():
    ratios = (Ratio(2.0, 1.5, 2.5), Ratio(0.9, 0.8, 1.0), Ratio(1.0, 0.0, float("inf")))
    drawn = Intervals(tuple(Interval("x", ratio) for ratio in ratios))
    lines = ["".join(span.text for span in line) for line in lay_out(drawn, 61)]
    right, left, wild, axis = (line[2:43] for line in lines)
    assert right.index("│") == 20 < right.index("━") < right.index("◆")
    assert left.index("◆") < 20
    assert left[20] == "┿"
    assert wild == "━" * 20 + "◆" + "━" * 20
    assert axis[20] == "1"
    assert all(len(line) <= 61 for line in lines)


def test_columns_without_room_follow_below():
    table = Table(("arm", "tok/s", "AL"), (("A", "10.0", "3.00"), ("B", "12.0", "3.01")), (1, 2))
    assert [["".join(span.text for span in line).split() for line in lay_out(table, width)] for width in (17, 14)] == [
        [["arm", "tok/s", "AL"], ["A", "10.0", "3.00"], ["B", "12.0", "3.01"]],
        [["arm", "tok/s"], ["A", "10.0"], ["B", "12.0"], ["arm", "AL"], ["A", "3.00"], ["B", "3.01"]],
    ]


def test_bars_take_room_that_is_left():
    table = Table((), (("a", Meter(1.0), "8"), ("b", Meter(0.5), "4"), ("c", Meter(None), "—")), (2,))
    lines = ["".join(span.text for span in line) for line in lay_out(table, 40)]
    assert [line.count("█") for line in lines] == [34, 17, 0]
    assert {len(line) for line in lines} == {40}
    assert next("".join(span.text for span in line).split() for line in lay_out(table, 8)) == ["a", "8"]


def test_report_figures_are_means_behind_ratio():
    """Geometric means, so that their quotient is the ratio above them; an interval of another level says which."""
    design = a_design({str(n): a_plan(tokens=n) for n in (2, 4, 7)}, (0, 1, 2, 2, 1, 0), "n")
    report = verdict.build_report(design, boots(design, (10.0, 18.5, 12.0)))
    one = report.comparisons[0]
    assert one.ratio is not None
    figures = re.findall(r"n=\d (\d+\.\d+)", verdict_text.format_figures(report, one))
    assert float(figures[1]) / float(figures[0]) == pytest.approx(one.ratio.ratio, rel=0.01)
    assert tables.build_intervals(one).intervals[-1].label == "all (98.3 % interval)"
    assert tables.build_intervals(a_report().comparisons[0]).intervals[-1].label == "all"
