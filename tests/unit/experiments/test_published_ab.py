"""What others concluded from their figures, and what can be said of them."""

from typing import Any

import pytest
import yaml

from dflash_tui.experiments.analysis import verdict
from dflash_tui.experiments.analysis.report import ExperimentReport, Verdict
from dflash_tui.presentation import verdict_text
from tests import DATA
from tests.support.boot_factories import boot, design, modes, plan, request

# A table says nothing of the machine and of the server meanwhile.
UNTOLD: dict[str, Any] = {"generated": None, "before": None, "after": None}
PUBLISHED: dict[str, Any] = yaml.safe_load((DATA / "published_ab.yaml").read_text())


def eager_compile() -> ExperimentReport:
    """The GB10 report: one cold and one warm request in one boot of each arm; AL was not published."""
    of, measured = modes((0, 1), temperature=None), []
    for number, name in enumerate(("eager", "compile")):
        found = PUBLISHED["eager_compile"][name]
        cold, warm = (
            request("Q", speed, 1.0, tokens=tokens, total=tokens / speed, steps=None, accepted=None, finish="")
            for speed, tokens in zip((found["first"], found["warm"]), found["tokens"], strict=True)
        )
        start = {"cache": "cold", "ready": found["ready_s"], "cold_request": cold}
        measured.append(boot(of, number, [warm], **start, **UNTOLD))
    return verdict.build_report(of, measured)


def test_one_percent_warm_difference_is_not_shown():
    """35.9 and 36.2 tok/s, one request each: no difference shown, suggestive only."""
    report = eager_compile()
    (found,) = report.comparisons
    print(verdict_text.format_headline(report, found), *verdict_text.list_details(report, found), sep="\n  ")
    assert (found.word, found.measure, found.suggestive, found.boots) == ("no difference shown", "tok/s", True, (1, 1))
    assert [each.what for each in found.confounds] == ["answers differ in length", "not known"]
    assert found.ratio is not None
    assert found.ratio.low < 1 < found.ratio.high
    assert found.ratio.ratio == pytest.approx(36.2 / 35.9)


def test_published_slow_start_never_pays_back():
    """Starts of 9.5 and 18 minutes and 75 s saved by the first request: not before 65,000 tokens, if ever.

    By the speeds alone it would be 100,000; nobody repeated a start, and starts vary.
    """
    report = eager_compile()
    (found,) = report.comparisons
    (even,) = found.break_even
    assert (even.by, even.cold, even.tokens, even.high) == (1, True, None, None)
    assert even.seconds == pytest.approx(1080 - 570 - 75, abs=1)
    assert even.low == pytest.approx(65_000, rel=0.02)
    assert (even.start_cv, even.start_df) == (0.10, None)
    told = "\n".join(map(str, verdict_text.list_details(report, found)))
    assert "never" in told
    assert "not before" in told


def runs(point: dict[str, Any], inner: float) -> list[float]:
    """Runs with the published mean, fastest and number; `inner` lays the rest at the ends (1) or in the middle (0)."""
    mean, best, count = point["mean"], point["best"], point["runs"]
    worst = point.get("worst", 2 * mean - best)
    middle = (count * mean - best - worst) / (count - 2)
    spread = inner * min(best - middle, middle - worst)
    between = {1: [middle], 3: [middle - spread, middle, middle + spread]}[count - 2]
    return [best, *between, worst]


@pytest.mark.parametrize("inner", [0.0, 0.5, 1.0])
def test_laptop_sweep_has_plateau_without_peak(inner):
    """n=6 and n=8 are not told apart, n=15 is worse, however the unpublished runs lie between the published ends.

    Of one boot each, what is within 10 % of the best is not decided.
    """
    points = PUBLISHED["sweep"]["points"]
    of = design("n", {str(p["n"]): plan(num_speculative_tokens=p["n"]) for p in points}, range(len(points)))
    measured = [
        boot(
            of,
            number,
            [request("Space Invaders", speed, 1.0, steps=None, accepted=None) for speed in runs(point, inner)],
            **UNTOLD,
        )
        for number, point in enumerate(points)
    ]
    report = verdict.build_report(of, measured)
    found = report.sweep
    assert found is not None
    print(*verdict_text.list_sweep_notes(report), sep="\n")
    plateau = {points[arm]["n"] for arm in found.plateau}
    assert plateau == {6, 8}
    assert {points[arm]["n"] for arm in found.open} <= {10, 11, 13}
    assert found.best is not None
    assert points[found.best]["n"] == 8
    assert found.recommended is not None
    assert points[found.recommended]["n"] == 6
    assert [points[point.arm]["n"] for point in found.points if not point.like_best][-4:] == [12, 15, 17, 20]
    six_to_eight = report.comparisons[0]
    assert (six_to_eight.word, six_to_eight.suggestive) == (Verdict.NO_DIFFERENCE, True)
