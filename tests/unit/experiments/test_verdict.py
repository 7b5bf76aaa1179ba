"""What is said of arms: the measure, the word, the cause, and when a later start has paid back."""

from collections.abc import Sequence

import msgspec
import pytest
from msgspec.structs import replace

from dflash_tui.experiments import store
from dflash_tui.experiments.analysis import answers, verdict
from dflash_tui.experiments.analysis.report import Comparison, ExperimentReport, Verdict
from dflash_tui.experiments.design import Boot, Design
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.recipe import Mode
from tests.support.boot_factories import KINDS, boot, boots, design, modes, plan, request


def only(of: Design, measured: Sequence[Boot]) -> Comparison:
    """The one comparison of an experiment of two arms."""
    (found,) = verdict.judge_arms(of, measured)
    return found


def against(vary: str, **changes: object) -> Design:
    """The usual plan against one with changes."""
    return design(vary, {"a": plan(), "b": plan(**changes)}, (0, 1, 1, 0))


@pytest.mark.parametrize(
    ("of", "measure"),
    [
        (modes(), "steps/s"),
        (against("env.X", env={"X": "1"}), "steps/s"),
        (against("max-num-seqs", argv=(*plan().argv, "--max-num-seqs", "4")), "steps/s"),
        (against("identical"), "steps/s"),
        (against("n", num_speculative_tokens=4), "tok/s"),
        (against("spec", num_speculative_tokens=0, drafter=""), "tok/s"),
        (against("patch.x", patches=("x",)), "tok/s"),
        (against("drafter.model", drafter="other"), "tok/s"),
        (against("profile", profile="seed"), "tok/s"),
        (against("speculation.x", argv=(*plan().argv, "--speculative-config", '{"x": 1}')), "tok/s"),
    ],
    ids=lambda value: value.vary if isinstance(value, Design) else value,
)
def test_steps_are_judged_if_arms_draft_alike(of, measure):
    """What changes drafts, or how they are accepted, makes steps of another worth."""
    assert only(of, boots(of, [10.0, 12.0, 12.1, 10.1])).measure == measure


def test_a_plain_server_is_judged_on_tokens():
    """Without speculation a step is a token: there is one ratio."""
    bare = plan(num_speculative_tokens=0, drafter="")
    of = design("mode", {"eager": bare, "compile": replace(bare, mode=Mode.COMPILE)}, (0, 1, 1, 0))
    found = only(of, boots(of, [10.0, 12.0, 12.1, 10.1], [1.0] * 4))
    assert (found.measure, found.steps_s, found.al, found.word) == ("tok/s", None, None, Verdict.FASTER)


def test_cause_names_only_factors_that_help():
    """Steps/s and AL that both grow are both named; more drafts that make steps slower owe it to AL alone."""
    of = against("n", num_speculative_tokens=4)
    assert only(of, boots(of, [10.0, 15.0, 15.1, 10.1], [2.0, 3.0, 3.0, 2.0])).cause == "both"
    assert only(of, boots(of, [10.0, 8.0, 8.1, 10.1], [2.0, 4.0, 4.0, 2.0])).cause == "AL"


def test_mode_changing_acceptance_is_judged_on_tokens():
    """An arm whose drafts are suddenly worth nothing is not faster for its steps."""
    found = only(modes(), boots(modes(), [10.0, 12.0, 12.1, 10.1], [3.0, 1.0001, 1.0001, 3.0]))
    assert (found.measure, found.word, found.cause) == ("tok/s", Verdict.SLOWER, "AL")


def test_concurrency_levels_are_compared_one_by_one():
    """Requests at four streams are paired with those at four, and shown apart."""
    of = modes(concurrency=(1, 4))
    measured = [
        boot(of, n, [request(kind, speed / streams, streams=streams) for kind in KINDS for streams in (1, 4)])
        for n, speed in enumerate([10.0, 12.0, 12.1, 10.1])
    ]
    found = only(of, measured)
    assert found.word is Verdict.FASTER
    assert [(each.kind, each.streams) for each in found.prompts[:2]] == [("Q&A", 1), ("Q&A", 4)]
    assert all(each.ratio.low < 1.2 < each.ratio.high for each in found.prompts)
    assert found.prompts[0].a == pytest.approx(10.05, rel=1e-3)
    assert found.prompts[0].n == 4


def test_level_without_steps_stays_in_verdict():
    """Where only single requests have steps, the arm that is six times slower at four streams is no faster one."""
    of = modes(concurrency=(1, 4))
    measured = []
    for n, speed in enumerate([10.0, 12.0, 12.1, 10.1]):
        alone = [request(kind, speed) for kind in KINDS]
        slow = speed / 6 if of.order[n] else speed
        crowded = [request(kind, slow, streams=4, steps=None, accepted=None) for kind in KINDS]
        measured.append(boot(of, n, [*alone, *crowded]))
    found = only(of, measured)
    assert (found.measure, found.word is Verdict.FASTER) == ("tok/s", False)


def starting(of: Design, speeds: Sequence[float], ready: dict[str, tuple[float, float]]) -> list[Boot]:
    """Boots of which the first of each arm starts cold; `ready` are the seconds of both arms."""
    seen: set[int] = set()
    found = []
    for each in boots(of, speeds):
        cache = "cached" if each.arm in seen else "cold"
        seen.add(each.arm)
        first = replace(each.requests[0], total=10.0 - 4.0 * each.arm)
        found.append(replace(each, cache=cache, ready=ready[cache][each.arm], cold_request=first))
    return found


def test_arm_without_cache_starts_alike_each_time():
    """Its starts stand beside the cold and the cached ones of the other arm; without any cache there is one kind."""
    of = modes()
    measured = starting(of, [10.0, 20.0, 20.1, 10.1], {"cold": (60, 160), "cached": (60, 80)})
    plain = [replace(b, cache="" if b.arm == 0 else b.cache) for b in measured]
    assert [(even.cold, even.seconds) for even in only(of, plain).break_even] == [(True, 96), (False, 16)]
    none = [replace(b, cache="") for b in measured]
    assert [(even.cold, even.seconds) for even in only(of, none).break_even] == [(False, 56)]


def test_recompiled_start_counts_as_cold():
    """And one that found only a part was a cached one: none of them is left out."""
    of = modes()
    measured = starting(of, [10.0, 20.0, 20.1, 10.1], {"cold": (60, 160), "cached": (60, 80)})
    words = {"cold": "recompiled", "cached": "partly cached"}
    other = [replace(b, cache=words[b.cache]) for b in measured]
    assert only(of, other) == only(of, measured)


def test_failed_first_request_leaves_out_break_even():
    """No break-even follows from a start of which nobody knows when it answered; it is told."""
    of = modes()
    measured = starting(of, [10.0, 20.0, 20.1, 10.1], {"cold": (60, 160), "cached": (60, 80)})
    failed = replace(measured[1].requests[0], error="HTTP 500")
    measured[1] = replace(measured[1], cold_request=failed)
    found = only(of, measured)
    assert [each.cold for each in found.break_even] == [False]
    assert [each.what for each in found.confounds] == ["the first request failed"]


def test_break_even_weights_prompts_by_seconds():
    """Nine short answers 1.4 times as fast save little where a long one takes most of the time: two sums of seconds."""
    of, tokens = modes(), {**{f"short{n}": 100 for n in range(9)}, "long": 2000}
    measured = [
        boot(of, n, [request(kind, 10.0 * (1.4 if arm and count == 100 else 1.0) * share, tokens=count)
                     for kind, count in tokens.items()], ready=60.0 + 120 * arm)
        for n, (arm, share) in enumerate(zip(of.order, (1.0, 1.0, 1.01, 1.01), strict=True))
    ]  # fmt: skip
    found = only(of, measured)
    assert found.word is Verdict.FASTER
    (even,) = found.break_even
    suite = sum(tokens.values())
    seconds = [
        sum(count / (30.0 * (1.4 if arm and count == 100 else 1.0)) for count in tokens.values()) for arm in (0, 1)
    ]
    assert even.tokens == pytest.approx(120 * suite / (seconds[0] - seconds[1]), rel=0.01)
    assert even.high is None or even.high > (even.tokens or 0)


def test_a_refused_verdict_states_no_break_even():
    """What may not be said of the speed cannot pay anything back."""
    of = modes()
    measured = starting(of, [10.0, 20.0, 20.1, 10.1], {"cold": (60, 160), "cached": (60, 80)})
    measured[0] = replace(measured[0], preemptions=1.0)
    assert (only(of, measured).word, only(of, measured).break_even) == (Verdict.REFUSED, ())


def test_report_survives_json_and_knows_completeness():
    """All of it can be written and read again; a boot that is missing is seen."""
    of = modes()
    measured = boots(of, [10.0, 12.0, 12.1, 10.1])
    report = verdict.build_report(of, measured)
    assert report.complete
    assert report.sweep is None
    assert msgspec.json.decode(msgspec.json.encode(report), type=ExperimentReport) == report
    assert not verdict.build_report(of, measured[:3]).complete
    assert verdict.build_report(of, []).comparisons[0].word is Verdict.REFUSED


def three(names: tuple[str, str, str]) -> dict[str, Plan]:
    return {name: plan(num_speculative_tokens=n) for n, name in enumerate(names, 1)}


def test_every_arm_is_compared_with_the_first():
    """Of three arms there are two comparisons; an arm that failed refuses its own alone."""
    of = design("n", three(("1", "2", "3")), (0, 1, 2, 2, 1, 0))
    measured = boots(of, [10.0, 12.0, 10.1, 10.0, 12.1, 10.2])
    measured = [replace(b, error="died", requests=()) if b.arm == 2 else b for b in measured]
    found = verdict.judge_arms(of, measured)
    assert [(each.a, each.b, each.word) for each in found] == [(0, 1, Verdict.FASTER), (0, 2, Verdict.REFUSED)]


def test_single_boot_arms_borrow_spread_of_others():
    """Two arms that lost a boot each are still judged, by what the third one's boots differ by; only suggestive."""
    of = design("n", three(("4", "8", "12")), (0, 1, 2, 2, 1, 0))
    measured = boots(of, [10.0, 12.0, 13.0, 13.6, 12.1, 10.1])
    measured = [replace(b, error="died", requests=()) if b.number > 3 else b for b in measured]
    first, _ = verdict.build_report(of, measured).comparisons
    assert (first.boots, first.suggestive) == ((1, 1), True)
    assert first.cv == pytest.approx(0.032, abs=0.001)


def test_older_report_is_judged_again(tmp_path):
    """What earlier rules wrote into an experiment's folder is read; its words, also on answers, are those of today."""
    of = modes((0, 1, 1, 0) * 2)
    # 5 % apart in steps/s with boots 3 % apart: hidden by twice the variation before, shown by the interval.
    measured = boots(
        of, [speed * (1 + 0.015 * (-1) ** (n // 3)) for n, speed in enumerate([10.0, 10.7, 10.7, 10.0] * 2)]
    )
    report = answers.add_output_checks(verdict.build_report(of, measured), ())
    (one,) = report.comparisons
    old = msgspec.to_builtins(report)
    del old["rules"], old["comparisons"][0]["test"], old["comparisons"][0]["cvs"], old["comparisons"][0]["figures"]
    old["comparisons"][0]["word"] = "no difference shown"
    folder = tmp_path / of.id
    folder.mkdir()
    (folder / store.REPORT).write_bytes(msgspec.json.encode(old))
    again = store.read_report(folder)
    assert one.word is Verdict.FASTER
    assert one.outputs is not None
    assert again == report
