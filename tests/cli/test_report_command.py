"""`report` and `report compare`: what a name means, which format, and what is refused."""

import json
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from dflash_tui.cli import main
from dflash_tui.cli.commands import report
from dflash_tui.experiments import run_report, store
from dflash_tui.experiments.analysis import verdict
from dflash_tui.experiments.analysis.report import ExperimentReport, Verdict
from dflash_tui.experiments.design import BootEnded, ExperimentFinished
from dflash_tui.experiments.run_report import RunReport
from dflash_tui.monitoring import recording
from tests.support.experiment_factories import BASE, a_design, a_plan, boots, told
from tests.support.recordings import RUNS
from tests.unit.presentation.test_experiment_report import a_report


@pytest.fixture
def finished() -> ExperimentReport:
    """An experiment that is over, in its folder."""
    report = a_report()
    store.write_json(store.create_experiment(report.design) / store.REPORT, report)
    return report


def test_report_finds_experiment_by_name_or_newest(finished, capsys):
    assert main.main(["report"]) == 0
    said = capsys.readouterr().out
    assert "**compile is faster than eager: 1.8" in said
    assert main.main(["report", finished.design.id[:12]]) == 0
    assert capsys.readouterr().out == said


def test_statistics_are_behind_details(finished, capsys):
    """`ab attach` ends with the answer; `--details` adds what it rests on."""
    for event in (*told(finished.design, finished.boots), ExperimentFinished(BASE + 2000)):
        store.append_event(store.experiment_folder(finished.design.id), event)
    assert main.main(["ab", "attach", finished.design.id]) == 0
    short = capsys.readouterr().out
    assert main.main(["ab", "attach", finished.design.id, "--details"]) == 0
    long = capsys.readouterr().out
    assert short.rstrip() in long
    assert [word in text for text in (short, long) for word in ("Welch", "P99")] == [False, False, True, True]


def test_json_report_keeps_all_samples_when_reread(finished, capsys, tmp_path):
    """The file is reported and judged on another machine."""
    path = tmp_path / "ab.json"
    assert main.main(["report", finished.design.id, "--format", "json", "-o", str(path)]) == 0
    assert msgspec.json.decode(path.read_bytes(), type=ExperimentReport) == finished
    assert main.main(["report", str(path)]) == 0
    assert "**compile is faster than eager: 1.8" in capsys.readouterr().out


def test_json_has_no_secrets(capsys):
    report = a_report()
    first = replace(report.boots[0], env={"HF_TOKEN": "hf_abcdefghijklmnopqrst"}, argv=("vllm", "--api-key", "letmein"))
    report = replace(report, boots=(first, *report.boots[1:]))
    store.write_json(store.create_experiment(report.design) / store.REPORT, report)
    assert main.main(["report", "--json"]) == 0
    said = capsys.readouterr().out
    assert "hf_abcdefg" not in said
    assert "letmein" not in said


BROKEN = [
    ("design.order", [0, 9], "design.order names arm 9"),
    ("comparisons.0.b", 7, "comparisons names arm 7"),
    ("sweep.recommended", 7, "the sweep has no point of arm 7"),
]


def written(report: ExperimentReport | RunReport, where: str, value: object, path: Path) -> str:
    """Write a report with another value in one place; return the file's name."""
    *folders, last = where.split(".")
    told = place = msgspec.to_builtins(report)
    for folder in folders:
        place = place[int(folder) if folder.isdigit() else folder]
    place[last] = value
    path.write_bytes(msgspec.json.encode(told))
    return str(path)


@pytest.mark.parametrize(("where", "value", "why"), BROKEN)
def test_file_naming_unknown_arms_is_refused(where, value, why, capsys, tmp_path):
    """The mistake is named with its place, in every format and side by side."""
    design = a_design({str(n): a_plan("eager", n) for n in (4, 8, 15)}, (0, 1, 2, 2, 1, 0), "n")
    report = verdict.build_report(design, boots(design, (10.0, 10.0, 8.0), al=(2.6, 3.1, 3.2)))
    assert report.sweep
    path = written(report, where, value, tmp_path / "ab.json")
    for words in (["report", path], ["report", path, "--format", "svg"], ["report", "compare", path, path]):
        assert main.main(words) == 2
        said = capsys.readouterr().err
        assert path in said
        assert why in said


def test_file_with_impossible_figures_is_refused(capsys, tmp_path):
    """Which a mean, a quantile or a date could not be made of."""
    path = written(a_report(), "boots.0.began", 1e18, tmp_path / "ab.json")
    for words in (["report", path], ["report", path, "--format", "vllm-bench"], ["report", "compare", path, path]):
        assert main.main(words) == 2
        assert path in capsys.readouterr().err


def test_running_experiment_has_figures_without_verdict(capsys):
    design = a_design()
    folder = store.create_experiment(design)
    store.append_event(folder, BootEnded(BASE + 99, boots(design, (10.0, 18.5))[0]))
    assert main.main(["report"]) == 0
    said = capsys.readouterr().out
    assert "**Not complete**: 1 of 4 boots are over." in said
    assert "in steps/s" not in said


def test_a_picture_is_drawn_of_both_kinds(finished, tmp_path):
    """The verdict of an A/B, and how a run stood at its end."""
    path = tmp_path / "ab.svg"
    assert main.main(["report", finished.design.id, "--format", "svg", "-o", str(path)]) == 0
    assert "compile&#160;is&#160;faster" in path.read_text()
    assert main.main(["report", "sample", "--format", "svg", "-o", str(path)]) == 0
    assert "smollm2-135m-instruct" in path.read_text()


def test_two_real_runs_are_compared(capsys, snapshot):
    """Eager and compile on an H200, one launch each: the mode is what differs, and one boot is suggestive."""
    assert main.main(["report", "compare", str(RUNS / "h200-eager.zip"), str(RUNS / "h200-compile.zip")]) == 0
    said = capsys.readouterr().out
    assert "**compile is faster than eager: 5.0" in said
    assert "suggestive" in said
    assert [line for line in said.splitlines() if "between the launches" in line or "real model" in line] == snapshot


def test_runs_are_refused_like_boots(snapshot):
    """What a run records of its counters and its GPU refuses here, too; what it does not record is named."""
    eager, compiled = (
        run_report.build_run_report(recording.find_recording(str(RUNS / f"h200-{m}.zip")))[0]
        for m in ("eager", "compile")
    )
    assert compiled.rates
    assert compiled.conditions
    (usual,) = report.compare_reports(eager, compiled)[0].comparisons
    assert (usual.word, [each.what for each in usual.confounds if each.refuses]) == (Verdict.FASTER, [])
    (untold,) = [each.evidence for each in usual.confounds if each.what == "not recorded for a single run"]
    assert untold == snapshot
    hot = replace(compiled.conditions, throttle=("thermal (hardware)",))
    for changed, why in (
        (
            replace(compiled, rates=replace(compiled.rates, prefix_hit=0.97)),
            "the share of prefix hits differed between boots",
        ),
        (replace(compiled, rates=replace(compiled.rates, preemptions=3.0)), "requests were preempted"),
        (replace(compiled, conditions=hot), "the GPU was throttled"),
        (replace(compiled, conditions=replace(compiled.conditions, power_limit_w=350.0)), "the GPU had another power"),
    ):
        (found,) = report.compare_reports(eager, changed)[0].comparisons
        (said,) = [each.what for each in found.confounds if each.refuses]
        assert (found.word, said[: len(why)]) == (Verdict.REFUSED, why)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"patches": {"cpu-expand-kernel": "cd" * 32}}, "patches differ"),
        ({"argv": (*a_plan().argv, "--max-num-seqs", "4")}, "other flags than its arm"),
    ],
)
def test_further_difference_refuses_verdict(changed, why, capsys, tmp_path):
    """The same arms measured on another occasion: figures of both, and no verdict."""
    paths = []
    for number, more in enumerate(({"gpus": ("NVIDIA GB10",)}, {"gpus": ("NVIDIA GB10",)} | changed)):
        design = a_design(id=f"2026-{number}")
        made = [replace(boot, **more) for boot in boots(design, (10.0, 18.5))]
        paths.append(tmp_path / f"{number}.json")
        paths[-1].write_bytes(msgspec.json.encode(verdict.build_report(design, made)))
    assert main.main(["report", "compare", *map(str, paths)]) == 0
    said = capsys.readouterr().out
    assert f"**refused: {why}" in said
    assert said.count("# A/B of") == 2  # eager with eager, compile with compile
    assert "| 12.0 ±" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["report", "nothing"], "no experiment and no run called 'nothing'"),
        (["report", "compare", "sample"], "takes two names"),
    ],
)
def test_wrong_name_gives_hint(words, said, capsys):
    assert main.main(words) == 2
    assert said in capsys.readouterr().err


def test_foreign_benchmark_is_shown_but_not_judged(finished, capsys, tmp_path, monkeypatch, snapshot):
    """Nobody knows its flags, its prompts and its machine: figures of both, the label, and a refusal."""
    monkeypatch.chdir(tmp_path)
    path = Path("bench.json")
    path.write_text('{"completed": 10, "output_throughput": 51.5, "model_id": "x", "median_ttft_ms": 200, "failed": 1}')
    assert main.main(["report", "compare", finished.design.id, str(path)]) == 0
    said = capsys.readouterr().out
    assert [line for line in said.splitlines() if "refused" in line or "real model" in line] == snapshot
    assert "| 51.5 |" in said
    assert "eager: LongCode | 4 |" in said
    assert main.main(["report", str(path)]) == 2
    assert capsys.readouterr().err == snapshot


def test_a_run_is_exported_for_other_readers(capsys):
    assert main.main(["report", "sample", "--format", "vllm-bench"]) == 0
    assert isinstance(json.loads(capsys.readouterr().out), dict)
    assert main.main(["report", "compare", "sample", "sample", "--format", "vllm-bench"]) == 2


def test_ab_export_has_one_line_per_boot(finished, capsys, tmp_path):
    """As `vllm bench serve --append-result --metadata` writes it; read again it stands beside a run, with its label."""
    path = tmp_path / "ab.json"
    assert main.main(["report", finished.design.id, "--format", "vllm-bench", "-o", str(path)]) == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["arm"], line["boot"]) for line in lines] == [
        ("eager", "1"), ("compile", "2"), ("compile", "3"), ("eager", "4")
    ]  # fmt: skip
    for line, boot in zip(lines, finished.boots, strict=True):
        assert (line["completed"], line["max_concurrency"]) == (len(boot.requests), 1)
        assert line["total_output_tokens"] == sum(done.tokens for done in boot.requests)
        assert line["experiment"] == finished.design.id
    capsys.readouterr()
    assert main.main(["report", "compare", str(path), "sample", "--format", "json"]) == 0
    beside = json.loads(capsys.readouterr().out)
    assert [(one["what"], one["n"]) for one in beside["measured"][0]] == [
        (f"{line['arm']}, boot {line['boot']}", line["completed"]) for line in lines
    ]
    assert [one["tok_s"] for one in beside["measured"][0]] == pytest.approx(
        [line["output_throughput"] for line in lines]
    )
    assert finished.design.synthetic in beside["synthetic"]
