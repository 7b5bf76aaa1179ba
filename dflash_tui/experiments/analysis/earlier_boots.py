"""The boots of earlier experiments that were launched and asked as an arm's were, and how far they spread; pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import variance
from typing import Any

from dflash_tui.benchmark import stats
from dflash_tui.benchmark.boot_spread import LINE_FROM
from dflash_tui.benchmark.earlier_spread import EarlierSpread
from dflash_tui.experiments.analysis.confounds import parse_argv_options
from dflash_tui.experiments.analysis.measures import STEPS, TOKENS, collect_measure, select_measured_boots
from dflash_tui.experiments.analysis.report import EarlierArm, ExperimentReport, Verdict
from dflash_tui.experiments.design import Boot, Design

# What was sent: boots that were asked something else spread otherwise.
_ASKED = ("digest", "rounds", "scale", "temperature", "top_p", "concurrency", "own_cache", "repeats", "fixed")
# What was launched, beside its flags, and on what.
_LAUNCHED = ("env", "inherited", "engine", "versions", "patches", "gpus", "driver", "sampler")


def measure_earlier_arms(
    design: Design, boots: Sequence[Boot], reports: Sequence[ExperimentReport]
) -> tuple[EarlierArm, ...]:
    """Return how far the boots of each arm spread in earlier experiments, by measure.

    That is asked of two arms of two boots or more, one of which has no more: three boots each need no help. Experiments
    that are not over, or whose verdict was refused, do not count.

    Args:
        design: the experiment.
        boots: its boots.
        reports: those of earlier experiments of the same machine.
    """
    counts = [len(select_measured_boots(boots, arm)) for arm in range(len(design.arms))]
    if len(counts) != 2 or design.tuning or design.measures_start or not 2 <= min(counts) < LINE_FROM:
        return ()
    sound = [report for report in reports if _is_sound(report) and _list_asked(report.design) == _list_asked(design)]
    spreads_by_arm = list[EarlierArm]()
    for arm in range(2):
        launch = _describe_launch(select_measured_boots(boots, arm)[0])
        alike = [of_arm for report in sound for of_arm in _select_alike(report, launch)] if launch else []
        spreads = {measure: _pool(alike, measure) for measure in (STEPS, TOKENS)}
        spreads_by_arm += [EarlierArm(arm, measure, spread) for measure, spread in spreads.items() if spread]
    return tuple(spreads_by_arm)


def _is_sound(report: ExperimentReport) -> bool:
    judged = report.comparisons and all(comparison.word is not Verdict.REFUSED for comparison in report.comparisons)
    return bool(judged) and report.complete and not report.tune


def _list_asked(design: Design) -> list[Any]:
    return [getattr(design, name) for name in _ASKED]


def _describe_launch(boot: Boot) -> list[Any]:
    """Return what a boot was launched with, but for its port; nothing where nobody recorded that."""
    if not (boot.argv and boot.versions):
        return []
    flags = {name: value for name, value in parse_argv_options(boot.argv).items() if name != "--port"}
    return [flags, *(getattr(boot, name) for name in _LAUNCHED)]


def _select_alike(report: ExperimentReport, launch: list[Any]) -> list[tuple[Design, int, list[Boot]]]:
    """Return the arms of an experiment that have boots of such a launch, with those boots."""
    arms = range(len(report.design.arms))
    boots = [
        [boot for boot in select_measured_boots(report.boots, arm) if _describe_launch(boot) == launch] for arm in arms
    ]
    return [(report.design, arm, of_arm) for arm, of_arm in zip(arms, boots, strict=True) if len(of_arm) > 1]


def _pool(arms: Sequence[tuple[Design, int, list[Boot]]], measure: str) -> EarlierSpread | None:
    """Return the variance of boots around the mean of their arm, averaged by degrees of freedom; None without any."""
    means = [stats.average_boots(collect_measure(design, boots, measure)[arm]) for design, arm, boots in arms]
    means = [logs for logs in means if len(logs) > 1]
    df = sum(len(logs) - 1 for logs in means)
    if not df:
        return None
    pooled = sum(variance(logs) * (len(logs) - 1) for logs in means) / df
    return EarlierSpread(pooled, boots=df + len(means), experiments=len(means))
