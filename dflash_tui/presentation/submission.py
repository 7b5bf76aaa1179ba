"""The files that Spark-Arena and club-3090 take, made of a report. Nothing is sent."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Any, NamedTuple

import msgspec
import yaml

from dflash_tui import __version__
from dflash_tui.common.errors import UsageError
from dflash_tui.common.formatting import UNKNOWN, pluralize
from dflash_tui.common.secrets import redact_argv, redact_variables
from dflash_tui.events import RequestDone
from dflash_tui.experiments.analysis.confounds import parse_argv_options
from dflash_tui.experiments.analysis.measures import median_speed
from dflash_tui.experiments.analysis.report import ExperimentReport
from dflash_tui.experiments.run_report import RunReport, Side, side_of_run, sides_of_report
from dflash_tui.machine.hardware import Hardware
from dflash_tui.presentation import verdict_text
from dflash_tui.presentation.report import Section, Table, escape_text, format_ratio, to_markdown

ARENA, CLUB = FORMS = ("spark-arena", "club-3090")
_RANDOM, _KINDS = "random ", ("narrative", "code")
# The columns of llama-benchy, which Spark-Arena reads; times are in milliseconds.
_COLUMNS = ("t_s", "t_s_req", "peak_ts", "peak_ts_req", "ttfr", "est_ppt", "e2e_ttft")
_HEADER = ("model", "test_name", *(f"{column}_{part}" for column in _COLUMNS for part in ("mean", "std")))
_CELLS = ("Compose", "Rig", "KV", "Max ctx", "Narr / Code TPS", "PP", "Peak VRAM", "Date", "Notes")
_SEND_CLUB = "dflash-tui bench --suite club-3090 --temperature 0.6 --top-p 0.95 --top-k 20 --warm-up 3 --rounds 5"


class Submission(NamedTuple):
    """The files of one launch by their names in its folder, and the fields that are unknown and left out."""

    folder: str
    files: dict[str, str]
    unknown: tuple[str, ...]


class _Launch(NamedTuple):
    """One launch with its measured requests, and sentences for the free fields."""

    side: Side
    requests: list[RequestDone]
    notes: list[str]


def build_submissions(form: str, report: ExperimentReport | RunReport) -> list[Submission]:
    """Return a submission of each launch of a report; raise UsageError if a field that it needs is unknown."""
    launches = list(_list_launches(report))
    problems = dict.fromkeys(why for launch in launches for why in _find_problems(form, launch))
    if problems or not launches:
        evidence = "\n  ".join(problems) or "the launches of running servers are unknown"
        raise UsageError(f"nothing was written for {form}", evidence=evidence)
    return [(_build_arena if form == ARENA else _build_club)(launch) for launch in launches]


def list_possible_files(report: ExperimentReport | RunReport) -> dict[str, str]:
    """Return the files of all forms that the report suffices for, by their paths."""
    files = dict[str, str]()
    for form in FORMS:
        with suppress(UsageError):
            for name, texts, _ in build_submissions(form, report):
                files |= {f"{name}/{file}": text for file, text in texts.items()}
    return files


def _list_launches(report: ExperimentReport | RunReport) -> Iterator[_Launch]:
    sides = list(sides_of_report(report).values()) if isinstance(report, ExperimentReport) else [side_of_run(report)]
    for place, side in enumerate(sides):
        good = [boot for boot in side.boots if boot.requests and not boot.error]
        requests = [done for boot in good for done in boot.requests if not done.error]
        speeds = ", ".join(f"{speed:.2f}" for boot in good if (speed := median_speed(boot)))
        notes = [f"{pluralize(len(good), 'boot')}, median tok/s of each: {speeds}"]
        if isinstance(report, ExperimentReport):
            pairs = [pair for pair in report.comparisons if place in {pair.a, pair.b}]
            notes += [
                f"{verdict_text.format_headline(report, pair)}, ratio {format_ratio(pair.ratio)}" for pair in pairs
            ]
        if lengths := [length for done in requests if (length := done.acceptance_length)]:
            notes.append(f"acceptance length {fmean(lengths):.2f} with the bonus token")
        notes += [f"patches of dflash-tui: {', '.join(side.plan.patches)}"] if side.plan.patches else []
        if side.plan.argv:
            yield _Launch(side, requests, [*notes, f"measured by dflash-tui {__version__}"])


def _find_problems(form: str, launch: _Launch) -> Iterator[str]:
    plan, requests = launch.side.plan, launch.requests
    kinds, streams = {done.kind for done in requests}, {done.streams for done in requests}
    if plan.synthetic or plan.on_cpu:
        yield f"not the figures of a real model on a GPU: {plan.synthetic or 'measured on the CPU'}"
    if not requests:
        yield "no request was measured"
    elif form == CLUB and (kinds != {*_KINDS} or streams != {1}):
        yield f"club-3090 compares answers to its two prompts, one at a time: {_SEND_CLUB}"
    elif form == ARENA and not all(kind.startswith(_RANDOM) for kind in kinds):
        yield "Spark-Arena compares prompts of one length: --suite random:2048,128 --fixed sends such"
    elif form == ARENA and (len({done.tokens for done in requests}) > 1 or not all(d.prompt_tokens for d in requests)):
        yield "the answers are not of one length (--fixed makes them so), or the length of the prompts is unknown"
    if form == ARENA and plan.hardware is not Hardware.GB10:
        yield f"Spark-Arena takes figures of a DGX Spark, not of {plan.hardware.value}"
    if form == ARENA and Path(plan.target).is_absolute():
        yield "the model is a folder of this machine, and its repository is unknown"


def _build_arena(launch: _Launch) -> Submission:
    (side, requests, notes), plan = launch, launch.side.plan
    levels, tg = sorted({done.streams for done in requests}), requests[0].tokens
    pp, table = round(median(done.prompt_tokens for done in requests)), io.StringIO()
    writer = csv.DictWriter(table, _HEADER)
    writer.writeheader()
    for streams in levels:
        of_level = [done for done in requests if done.streams == streams and done.ttft]
        reads = {"t_s_req": [done.prompt_tokens / (done.ttft or 1) for done in of_level]}
        reads["e2e_ttft"] = [1000 * (done.ttft or 0) for done in of_level]
        writes = {"t_s_req": [done.decode_tok_s for done in of_level if done.decode_tok_s]}
        for name, figures in ((f"pp{pp}", reads), (f"tg{tg}", writes)):
            row: dict[str, Any] = {
                "model": plan.target,
                "test_name": f"{name} (c{streams})" if max(levels) > 1 else name,
            }
            for column, values in (figures | ({"t_s": figures["t_s_req"]} if streams == 1 else {})).items():
                row |= {f"{column}_mean": fmean(values), f"{column}_std": pstdev(values)} if values else {}
            writer.writerow(row)
    exact = all(done.finish == "length" for done in requests)
    metadata = {
        "recipe": {"name": plan.recipe, "type": "dflash-tui", "hf_model": plan.target, "runtime_full": "vllm"},
        "timing": {"start": _format_date(side.boots[0].began)},
        "cluster": {"node_count": len(plan.cluster.hosts) if plan.cluster else 1},
        "benchmark": {"framework": "dflash-tui", "profile": side.design.suite if side.design else None,
                      "args": {"pp": [pp], "tg": [tg], "depth": [0], "concurrency": levels, "exact_tg": exact}},
        "runtime_info": {"vllm": plan.vllm},
        "dflash_tui": {"boots": len(side.boots), "notes": [*notes, "pp is the prompt's tokens by the seconds of TTFT"]},
    }  # fmt: skip
    text = msgspec.json.format(msgspec.json.encode(metadata)).decode() + "\n"
    files = {"recipe.yaml": _build_recipe(launch), "benchmark.csv": table.getvalue(), "metadata.json": text}
    unknown = ("container", "cluster_id", "peak_ts", "ttfr", "est_ppt", *["t_s of several streams"] * (max(levels) > 1))
    return Submission(_name_folder(ARENA, side), files, unknown)


def _build_recipe(launch: _Launch) -> str:
    """Return the launch as a recipe of sparkrun, whose command takes the values from `defaults`."""
    plan, words, defaults = launch.side.plan, ["vllm serve {model}"], dict[str, str]()
    for flag, value in {**parse_argv_options(redact_argv(plan.argv)), "--port": str(plan.port)}.items():
        key = flag[2:].replace("-", "_").replace("tensor_parallel_size", "tensor_parallel")
        if flag.startswith("--"):
            words.append(f"{flag} '{{{key}}}'" if value else flag)
            defaults |= {key: value} if value else {}
    env = {name: value for name, value in redact_variables(plan.env).items() if not value.startswith("/")}
    about = {"description": f"{plan.title}. {'; '.join(launch.notes)}"}
    recipe = {"recipe_version": "2", "model": plan.target, "runtime": "vllm", "metadata": about, "defaults": defaults}
    return yaml.safe_dump(recipe | {"env": env, "command": " \\\n  ".join(words) + "\n"}, sort_keys=False, width=120)


def _build_club(launch: _Launch) -> Submission:
    (side, requests, notes), plan = launch, launch.side.plan
    after = next((boot.after for boot in side.boots if boot.after), None)
    cards = next((boot.gpus for boot in side.boots if boot.gpus), ()) or (plan.hardware.value,) * max(1, len(plan.gpus))
    watts = f", {after.power_limit_w / after.cards:.0f} W/card" if after and after.power_limit_w else ""
    rig = f"{len(cards)}× {', '.join(dict.fromkeys(cards))}{watts}"
    tps = (fmean(done.tokens / done.total for done in requests if done.kind == kind) for kind in _KINDS)
    remarks = [*notes, *sorted({done.sampling for done in requests if done.sampling}), "prompts begin with a tag"]
    row = (f"dflash-tui {plan.recipe}", f"@your-handle ({rig})", plan.find_flag("kv-cache-dtype") or "auto",
           str(plan.context or UNKNOWN), " / ".join(f"{speed:.2f}" for speed in tps), UNKNOWN, UNKNOWN,
           _format_date(side.boots[0].began)[:10], "; ".join(remarks))  # fmt: skip
    driver = next((boot.driver for boot in side.boots if boot.driver), "")
    about = f"**Rig**: {escape_text(f'{rig}, driver {driver or UNKNOWN}, vLLM {plan.vllm or UNKNOWN}')}"
    table = to_markdown([Section("", (Table(_CELLS, (row,)),))])
    unknown = ["handle", "PP", "peak VRAM", "soak", "verify-stress", *["driver"] * (not driver), *["W"] * (not watts)]
    files = {"ISSUE-body.md": f"{about}\n\n**Proposed BENCHMARKS.md row**:\n\n{table}\n"}
    return Submission(_name_folder(CLUB, side), files, tuple(unknown))


def _format_date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _name_folder(form: str, side: Side) -> str:
    return "-".join(f"{form} {side.name}".replace("/", " ").split())
