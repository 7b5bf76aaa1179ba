"""The rounds of a tune against a truth that is known: what it finds at what budget, and how often it is wrong.

Boots of one setting differ by ±5 % (as two standard deviations), requests of one boot by 2.5 %, prompts by 8 %: as
published. The figures are printed; see them with `pytest -s`.
"""

import functools
import itertools
import math
from statistics import fmean
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from dflash_tui.experiments import store, tune_schedule
from dflash_tui.experiments.analysis import verdict
from dflash_tui.experiments.design import CONFIRM, BootEnded, RoundBegan
from dflash_tui.experiments.progress import fold_progress
from dflash_tui.planning.recipes.recipe import Mode
from tests.support import tune_simulation
from tests.support.experiment_factories import written
from tests.support.tune_simulation import Truth, a_tune, propose, run_tune
from tests.support.values import present

AXES = (
    "mode=graphs,compile",
    "patch.split=on",
    "n=8,12,4,2,0",
    "attention-backend=flash_attn,triton_attn,flashinfer",
    "max-num-seqs=2,4,8",
)
PLANTED = ("mode=graphs", "patches.split=true", "n=12")
TRUTH = Truth(
    {
        "mode=graphs": 2.0,
        "mode=compile": 1.8,
        "patches.split=true": 1.2,
        "n=12": 1.12,
        "n=4": 0.9,
        "n=2": 0.7,
        "n=0": 0.4,
        "attention-backend=triton_attn": 0.95,
    },
    failing=frozenset({"attention-backend=flashinfer"}),
)
BEST = math.prod(TRUTH.factors[part] for part in PLANTED)
BOOT = 60.0


class Rates(NamedTuple):
    """Shares of tunes that end with the planted best, claim to be faster, and state an interval that holds the truth.

    `share` is how much of the planted best's speed they end with.
    """

    won: float
    claimed: float
    held: float
    share: float


@functools.cache
def rates(truth_name: str, boots: int, seeds: int = 40) -> Rates:
    truth = {"planted": TRUTH, "nothing": Truth({})}[truth_name]
    won, claimed, held, share = [], [], [], []
    for seed in range(seeds):
        progress, _ = run_tune(a_tune(boots * BOOT, AXES), truth, seed)
        found = tune_schedule.judge_tune(progress)
        true = truth.factor(progress.design.arms[found.best].request)
        won.append(math.isclose(true, BEST))
        share.append(true / BEST)
        claimed.append(tune_schedule.is_faster(found))
        if found.confirmed and found.comparison and found.comparison.tok_s:
            held.append(found.comparison.tok_s.low <= true <= found.comparison.tok_s.high)
        assert progress.spent <= boots * BOOT
    rate = Rates(fmean(won), fmean(claimed), fmean(held or [1.0]), fmean(share))
    print(f"\n{truth_name}, {boots} boots: {rate}", end="")
    return rate


@pytest.mark.parametrize(("boots", "won", "share"), [(12, 0.4, 0.9), (20, 0.9, 0.98)])
def test_planted_best_is_found_within_budget(boots, won, share):
    """Two boots of each in the last round; the more boots there are before it, the more settings are tried."""
    rate = rates("planted", boots)
    assert rate.won >= won
    assert rate.share >= share
    assert rate.claimed >= 0.95


@pytest.mark.parametrize("boots", [12, 20])
def test_interval_of_best_holds_true_value(boots):
    """The best was chosen because it seemed fast: its interval is of boots after that."""
    assert rates("planted", boots).held >= 0.95 - 2 * math.sqrt(0.95 * 0.05 / 40)


@pytest.mark.parametrize("boots", [12, pytest.param(20, marks=pytest.mark.long)])
def test_equal_settings_rarely_yield_a_claim(boots):
    """Of all tunes among equals at most one in twenty says faster, however many settings it tries."""
    assert rates("nothing", boots, seeds=100).claimed <= 0.05


@pytest.mark.parametrize(("digest", "answers"), [("", "yes"), ("other", "no")])
def test_best_with_different_answers_is_not_kept(digest, answers):
    """Held against boots of one setting, as in an A/B: here those always answer alike."""
    progress, _ = run_tune(a_tune(12 * BOOT, ("mode=graphs",)), TRUTH, 1)
    boots = tuple(
        replace(boot, requests=tuple(replace(each, digests=(digest * boot.arm + each.kind,)) for each in boot.requests))
        for boot in progress.boots
    )
    found = tune_schedule.judge_tune(replace(progress, boots=boots))
    assert (found.answers, tune_schedule.is_faster(found)) == (answers, True)
    assert tune_schedule.is_worth_keeping(found) is (answers == "yes")


def test_failed_setting_is_dropped_with_its_cause():
    progress, _ = run_tune(a_tune(60 * BOOT, AXES), TRUTH, 1)
    found = tune_schedule.judge_tune(progress)
    assert [why for name, why in found.dropped.items()] == ["attention-backend=flashinfer: out of memory"]
    assert len([boot for boot in progress.boots if boot.error]) == 1


def test_tune_ends_if_published_setting_fails():
    """It is tried twice, since everything is compared with it."""
    design = a_tune(30 * BOOT, AXES)
    (arm,) = design.arms
    broken = replace(arm, request=replace(arm.request, mode=Mode.GRAPHS))
    truth = Truth({}, failing=frozenset({"mode=graphs"}))
    progress, _ = run_tune(replace(design, arms=(broken,)), truth, 1)
    assert [bool(boot.error) for boot in progress.boots] == [True, True]
    assert tune_schedule.judge_tune(progress).tried == 0


@pytest.mark.parametrize("boots", [1, 2, 3])
def test_small_budget_ends_without_a_claim(boots):
    progress, _ = run_tune(a_tune(boots * BOOT, AXES), TRUTH, 1)
    found = tune_schedule.judge_tune(progress)
    assert progress.finished
    assert len(progress.boots) <= boots
    assert not tune_schedule.is_faster(found)
    assert set(found.left_out.values()) >= {tune_schedule.NO_ROOM}


@pytest.mark.parametrize("boots", [1, 6, 13, 22])
def test_interrupted_tune_resumes_to_same_end(boots):
    """What comes next follows from what happened alone, so a driver that was killed is no loss but of its boot."""
    design = a_tune(25 * BOOT, AXES)
    whole, _ = run_tune(design, TRUTH, 7)
    halfway, happened = run_tune(design, TRUTH, 7, boots=boots)
    resumed, _ = run_tune(design, TRUTH, 7, events=happened)
    assert (resumed.rounds, resumed.design) == (whole.rounds, whole.design)
    best = tune_schedule.judge_tune(halfway)
    assert best.tried <= len(halfway.boots)
    assert not (best.confirmed and halfway.rounds[-1].key != CONFIRM)


@pytest.mark.parametrize(
    ("axis", "name"),
    [
        ("load-format=fastsafetensors,instanttensor", "load-format=fastsafetensors"),
        ("start.fork=on,off", "start.fork=true"),
    ],
)
def test_start_only_settings_are_judged_by_starts(axis, name):
    """It leaves tok/s alone: what starts soonest is kept, by starts of its own round."""
    ready = {"load-format=fastsafetensors": 0.5, "load-format=instanttensor": 0.8, "start.fork=true": 0.7}
    truth = Truth(
        {"mode=graphs": 2.0},
        ready=lambda asked: (
            30.0 * math.prod(ready.get(f"{name}={value}", 1.0) for name, value in asked.settings.items())
        ),
    )
    progress, _ = run_tune(a_tune(30 * BOOT, ("mode=graphs", axis)), truth, 3)
    best = progress.design.arms[tune_schedule.judge_tune(progress).best]
    assert best.name == f"graphs {name}"


@pytest.mark.parametrize(("boots", "took", "pairs"), [(7, 40.0, 3), (7, 60.0, 2), (12, 30.0, 5)])
def test_last_rounds_continue_while_budget_lasts(boots, took, pairs):
    """On an H200 a budget of 23 minutes ended after 19 with one boot of each, which is no verdict."""
    times = itertools.chain([BOOT] * 2, itertools.repeat(took))
    progress, _ = run_tune(a_tune(boots * BOOT, ("mode=graphs",)), TRUTH._replace(took=lambda _: next(times)), 5)
    fresh = tune_schedule.select_boots_of_last_rounds(progress)
    assert [boot.arm for boot in fresh] == [0, 1, 1, 0, 0, 1, 1, 0, 0, 1][: 2 * pairs]
    found = tune_schedule.judge_tune(progress)
    assert found.comparison
    assert found.comparison.boots == (pairs, pairs)


@pytest.mark.parametrize("seed", range(3))
def test_the_last_rounds_stay_with_the_choice(seed):
    """Their own boots move the ranking of all arms, and how many there are is not up to what they show."""
    times = itertools.chain([BOOT] * 6, itertools.repeat(25.0))
    truth = Truth({"mode=graphs": 1.03, "mode=compile": 1.02}, took=lambda _: next(times))
    progress, _ = run_tune(a_tune(14 * BOOT, ("mode=graphs,compile",)), truth, seed)
    last = [began for began in progress.rounds if began.key == CONFIRM]
    if last[0].order:
        assert {began.field for began in last} == {last[0].field}
        assert all({*began.order} == {*began.field} for began in last)
        assert sum(len(began.order) for began in last) == 10


def test_nearly_equal_settings_get_two_rounds_only(monkeypatch):
    """Which of them is kept matters little; on an H200 a third round of two modes took a ninth of the budget."""
    monkeypatch.setattr(tune_simulation, "BETWEEN_BOOTS", 0.0)
    rounds = {}
    for factor in (0.98, 0.96):
        progress, _ = run_tune(a_tune(20 * BOOT, ("mode=graphs",)), Truth({"mode=graphs": factor}), 5)
        rounds[factor] = sum(began.key == "mode" for began in progress.rounds)
    assert rounds == {0.98: 2, 0.96: 3}


def test_failed_boot_in_last_round_ends_tune():
    progress, happened = run_tune(a_tune(7 * BOOT, ("mode=graphs",)), TRUTH, 5)
    failed = [
        replace(event, boot=replace(event.boot, took=1.0, error="no" * (event.boot.number == len(progress.boots) - 1)))
        for event in happened
        if isinstance(event, BootEnded)
    ]
    rounds = [event for event in happened if isinstance(event, RoundBegan)]
    assert (
        tune_schedule.plan_round(fold_progress(a_tune(7 * BOOT, ("mode=graphs",)), [*rounds, *failed]), propose) is None
    )


@pytest.mark.parametrize(
    ("budget", "axes", "cache", "tried"),
    [
        (840, AXES, "cold", True),
        (840, AXES, "cached", False),
        (750, ("mode=compile", "mode=graphs"), "cold", True),
        (680, ("mode=compile", "mode=graphs"), "cold", False),
    ],
)
def test_cold_first_boot_leaves_room_for_others(budget, axes, cache, tried):
    """As on an H200: 3:06 with 1:05 of compiling; the next one finds that, and a mode without it takes less anyway."""
    progress, happened = run_tune(a_tune(budget, axes), TRUTH, 0, boots=1)
    [ended] = [event for event in happened if isinstance(event, BootEnded)]
    first = replace(ended.boot, cache=cache, prepared=21.0, took=165.0, phases={"compile": 65.0})
    happened = [replace(event, boot=first) if event is ended else event for event in happened]
    following = present(tune_schedule.plan_round(fold_progress(progress.design, happened), propose))
    assert (following.event.key != CONFIRM) is tried


def test_setting_that_booted_on_retry_stays():
    """The first one may have met somebody who changed the engine; the report's table of boots has its error."""
    progress, _ = run_tune(a_tune(20 * BOOT, ("mode=graphs",)), TRUTH, 0)
    first = replace(progress.boots[0], error="another process applied a patch")
    found = tune_schedule.judge_tune(replace(progress, boots=(first, *progress.boots[1:])))
    assert found.dropped == {}
    failed = [replace(boot, error="no" * (boot.arm == 1)) for boot in progress.boots]
    assert [*tune_schedule.judge_tune(replace(progress, boots=tuple(failed))).dropped] == ["graphs"]


def test_first_verdict_budget_covers_all_its_rounds():
    """The cold boot that was, one of another setting, and two of each, which find what was compiled."""
    progress, _ = run_tune(a_tune(20 * BOOT, AXES), TRUTH, 0, boots=1)
    cold = replace(progress.boots[0], cache="cold", prepared=21.0, took=165.0, phases={"compile": 65.0})
    assert tune_schedule.reckon_verdict_budget([cold], spent=186.0) == 186 + 165 + 4 * 100


THREE_AXES = ("mode=graphs,compile", "n=8,12,0", "load-format=fastsafetensors")
THREE_TRUTHS = Truth({"mode=graphs": 2.0, "n=12": 1.1}, failing=frozenset({"mode=compile"}))


def test_rejudging_a_report_keeps_its_tune(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    design = a_tune(1200.0, THREE_AXES)
    progress, happened = run_tune(design, THREE_TRUTHS, 3)
    report = verdict.build_report(progress.design, progress.boots)
    report = replace(report, tune=tune_schedule.judge_tune(progress), rules=report.rules - 1)
    again = present(store.read_report(written(design, happened, report)))
    assert (again.rules, again.tune) == (report.rules + 1, report.tune)


def test_round_of_earlier_release_is_read():
    """It had the number of the pass through what is varied."""
    line = b'{"event":"round began","at":1.0,"key":"mode","turn":2,"field":[0,1],"order":[1]}'
    assert store.decode_event(line) == RoundBegan(1.0, "mode", (0, 1), (1,))
