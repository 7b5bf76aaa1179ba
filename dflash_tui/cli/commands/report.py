"""Reports of runs and A/Bs: `report`."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec.structs import replace

from dflash_tui.benchmark import result_files
from dflash_tui.benchmark.result_files import ImportedResult, Measured, build_vllm_bench
from dflash_tui.cli.console import print_data, print_status
from dflash_tui.common import paths
from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.secrets import redact_argv, redact_secrets, redact_variables
from dflash_tui.experiments import run_report, store
from dflash_tui.experiments.analysis.measures import select_measured_boots
from dflash_tui.experiments.analysis.report import ExperimentReport, find_misplaced_arms
from dflash_tui.experiments.design import Boot, Design
from dflash_tui.experiments.run_report import RunReport, Side
from dflash_tui.monitoring import recording
from dflash_tui.planning.plan import decode_record, upgrade_record
from dflash_tui.presentation import benchmark_text, experiment_report, submission
from dflash_tui.runs import registry

_RUNS: msgspec.json.Decoder[RunReport] = msgspec.json.Decoder(RunReport)
_LIMIT = 32 << 20
_EXPORT = "vllm-bench"


def report(args: argparse.Namespace) -> int:
    """`report [NAME]` or `report compare A B`: print a report, or write it to the file of `-o`."""
    names, kind = args.names, "json" if args.json else args.format
    if names[:1] == ["compare"]:
        if len(names) != 3 or args.submit:
            raise UsageError(
                "report compare takes two names, and no --submit",
                hint="dflash-tui report compare RUN|AB|FILE RUN|AB|FILE",
            )
        text = _compare(names[1], names[2], kind)
    elif len(names) > 1:
        raise UsageError(f"one name, not {len(names)}", hint="dflash-tui report compare A B sets two side by side")
    else:
        loaded = load_report(names[0] if names else None)
        if isinstance(loaded, ImportedResult):
            raise UsageError(
                f"{names[0]} is a result of {loaded.source}",
                hint="report compare shows it next to a report of dflash-tui",
            )
        if args.submit:
            return _write_submissions(args.submit, loaded, paths.expand_home(args.output or "."))
        text = render_report(loaded, kind, names[0] if names else "")
    if args.output:
        write_whole_file(paths.expand_home(args.output), redact_secrets(text))
        print_status(f"written to {args.output}")
    else:
        print_data(text.rstrip("\n"))
    return 0


def _write_submissions(form: str, loaded: ExperimentReport | RunReport, folder: Path) -> int:
    for name, files, unknown in submission.build_submissions(form, loaded):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            write_whole_file(folder / name / file, redact_secrets(text))
            print_data(str(folder / name / file))
        print_status(f"unknown, and left out: {', '.join(unknown)}; nothing was sent")
    return 0


def write_whole_file(path: Path, text: str) -> None:
    """Write a text file; an error names it."""
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}", hint="create it first, or name another file")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        error.filename = str(path)
        raise


def _compare(first: str, second: str, kind: str) -> str:
    loaded = load_report(first), load_report(second)
    if kind == _EXPORT:
        raise UsageError(f"--format {kind} is for one run, not for two", hint="dflash-tui report RUN writes one")
    if isinstance(loaded[0], ImportedResult) or isinstance(loaded[1], ImportedResult):
        beside = benchmark_text.compare_imported((first, second), loaded)
        if kind == "svg":
            raise UsageError(
                "a comparison with an imported result cannot be drawn", hint="--format md shows the figures"
            )
        return msgspec.json.encode(beside).decode() if kind == "json" else benchmark_text.render_comparison(beside)
    reports = compare_reports(loaded[0], loaded[1])
    if kind == "svg" and len(reports) > 1:
        raise UsageError(f"the comparison needs {len(reports)} pictures", hint="--format md shows all of them")
    return "\n".join(render_report(report, kind, "") for report in reports)


def render_report(report: ExperimentReport | RunReport, kind: str, name: str) -> str:
    """Return a report in the format `kind`; `name` is the run to draw for svg."""
    if kind == _EXPORT:
        return _export(report)
    if kind == "json":
        return msgspec.json.encode(report).decode()
    if kind == "svg":
        from dflash_tui.tui import svg_export

        return svg_export.draw_experiment(report) if isinstance(report, ExperimentReport) else svg_export.draw_run(name)
    return (
        experiment_report.render_markdown(report)
        if isinstance(report, ExperimentReport)
        else benchmark_text.render_run(report)
    )


def _export(report: ExperimentReport | RunReport) -> str:
    """Return the requests of a run, or of each boot of an A/B, in the format of `vllm bench serve`."""
    if isinstance(report, ExperimentReport):
        if lines := export_boots(report):
            return lines
        raise UsageError(f"no boot of {report.design.id} measured a request")
    if not report.requests:
        raise UsageError(f"no request was measured on {report.run}", hint="dflash-tui bench sends some")
    synthetic = {"synthetic": report.plan.synthetic} if report.plan.synthetic else {}
    measured = Measured(report.run, report.plan.served_name, report.at, report.requests, metadata=synthetic)
    return msgspec.json.format(msgspec.json.encode(build_vllm_bench(measured)), indent=1).decode()


def load_report(name: str | None) -> ExperimentReport | RunReport | ImportedResult:
    """Return the report file, experiment or run called `name`; without a name the newest experiment, else run."""
    if name and (from_file := _load_file(name)):
        return from_file
    try:
        design = store.find_experiment(name)
    except UsageError:
        if name is None:
            return _report_newest_run()
        if name in store.list_broken_experiments():
            raise
    else:
        return redact_report(store.read_report_so_far(store.experiment_folder(design.id)))
    try:
        return run_report.build_run_report(recording.find_recording(name))[0]
    except UsageError as error:
        if name and paths.expand_home(name).exists():
            raise
        do = "dflash-tui ab list and dflash-tui ps --all show what there is"
        raise UsageError(f"no experiment and no run called '{name}'", evidence=error.what, hint=do) from None


def _report_newest_run() -> RunReport:
    if not registry.list_runs():
        hint = "dflash-tui up RECIPE --bench measures a run, dflash-tui ab RECIPE compares two settings"
        raise UsageError("no experiment and no run yet", hint=hint)
    return run_report.build_run_report(recording.find_recording(registry.find_run().id))[0]


def _load_file(name: str) -> ExperimentReport | RunReport | ImportedResult | None:
    """Return the report or benchmark result in a JSON file; None if `name` is not a JSON file."""
    path = paths.expand_home(name)
    if not path.is_file() or path.suffix != ".json":
        return None
    if path.stat().st_size > _LIMIT:
        raise DflashError(f"{path} is too large for a report")
    data = path.read_bytes()
    with contextlib.suppress(msgspec.MsgspecError):
        return _check_arms_named(path, store.decode_report(data))
    with contextlib.suppress(msgspec.MsgspecError):
        return decode_record(data, _RUNS, upgrade_record)
    return result_files.load_imported_result(path)


def _check_arms_named(path: Path, report: ExperimentReport) -> ExperimentReport:
    """Return a report from a file; raise UsageError if it refers to an arm that it lacks."""
    if why := find_misplaced_arms(report):
        hint = "write it again on the machine that measured it: dflash-tui report AB --json -o FILE"
        raise UsageError(f"{path} is not a valid report", evidence=why, hint=hint)
    return report


def compare_reports(
    first: ExperimentReport | RunReport, second: ExperimentReport | RunReport
) -> list[ExperimentReport]:
    """Return a report for each pair of arms with the same name; a run is compared with every arm."""
    ours, theirs = map(_sides_by_arm, (first, second))
    is_run = "" in ours or "" in theirs
    pairs = [(a, b) for name, a in ours.items() for other, b in theirs.items() if is_run or name == other]
    if not pairs:
        raise UsageError(
            "the two have no arm in common", hint="name two experiments whose arms have the same names, or two runs"
        )
    return [run_report.judge_sides(a, b) for a, b in pairs]


def _sides_by_arm(report: ExperimentReport | RunReport) -> dict[str, Side]:
    if isinstance(report, RunReport):
        return {"": run_report.side_of_run(report)}
    return run_report.sides_of_report(report)


def redact_report(report: ExperimentReport) -> ExperimentReport:
    """Return a report without secrets in commands and environments."""
    arms = tuple(
        replace(arm, plan=run_report.redact_plan(arm.plan), request=arm.request.without_secrets())
        for arm in report.design.arms
    )
    boots = tuple(replace(boot, argv=redact_argv(boot.argv), env=redact_variables(boot.env)) for boot in report.boots)
    return replace(report, design=replace(report.design, arms=arms), boots=boots)


def export_boots(report: ExperimentReport) -> str:
    """Return the measured boots, in their order, as lines of JSON; empty if there are none."""
    arms = range(len(report.design.arms))
    boots = sorted((boot for arm in arms for boot in select_measured_boots(report.boots, arm)), key=lambda b: b.number)
    lines = [
        msgspec.json.encode(build_vllm_bench(level)) for boot in boots for level in _list_levels(report.design, boot)
    ]
    return b"\n".join(lines).decode()


def _list_levels(design: Design, boot: Boot) -> Iterator[Measured]:
    """Yield the measurements of a boot at each level of concurrency."""
    arm, windows = design.arms[boot.arm], {window.streams: window for window in boot.windows if not window.kind}
    metadata = {"experiment": design.id, "varied": design.vary, "arm": arm.name, "boot": str(boot.number + 1)}
    for streams in dict.fromkeys(request.streams for request in boot.requests):
        window = windows.get(streams)
        yield Measured(
            boot.run,
            arm.plan.served_name,
            boot.began,
            tuple(request for request in boot.requests if request.streams == streams),
            # With one stream there are no fillers, and the busy time gives the same figure.
            output_tok_s=window.tok_s if window and streams != 1 else None,
            metadata=metadata | ({"synthetic": design.synthetic} if design.synthetic else {}),
        )
