"""`tune`: its options arrive in the design, its command line begins it once more, and wrong words are refused."""

import shlex

import pytest
from msgspec.structs import replace

from dflash_tui.cli.commands.experiments import build_requested_tune, find_tune
from dflash_tui.cli.main import main
from dflash_tui.cli.parser import build_parser
from dflash_tui.common.errors import UsageError
from dflash_tui.experiments import store
from dflash_tui.experiments.design import Design
from tests.support.experiment_factories import a_design, written
from tests.support.tune_simulation import a_tune


def design_of(*words: str) -> Design:
    args = build_parser().parse_args(["tune", *words])
    return build_requested_tune(args)[0]


@pytest.mark.parametrize(("time", "seconds"), [("30m", 1800.0), ("1.5h", 5400.0)])
def test_a_budget_has_a_unit(time, seconds):
    design = design_of("demo-cpu", "--budget", time)
    assert design.tuning
    assert design.tuning.budget == seconds


def test_a_budget_that_is_none_is_refused(capsys):
    with pytest.raises(SystemExit):
        build_parser().parse_args(["tune", "demo-cpu", "--budget=30"])
    assert "--budget" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("demo-cpu", "--budget", "1h", "--vary", "n=7,3", "--vary", "env.X='a,b',c", "--name", "mine", "--seed", "3"),
        (
            "demo-cpu",
            "--mode",
            "compile",
            "--set",
            "max-model-len=2048",
            "--temperature",
            "0.7",
            "--concurrency",
            "1,2",
        ),
    ],
)
def test_tune_command_rebuilds_same_tune(words):
    """Whatever the defaults will be by then: all that is tried is named."""
    once = design_of(*words)
    again = design_of(*shlex.split(once.command)[2:])
    assert once.tuning
    assert again.tuning
    plain = {"id": "", "made_at": 0.0, "arms": ()}
    assert replace(again, **plain, tuning=replace(again.tuning, left_out={})) == replace(
        once, **plain, tuning=replace(once.tuning, left_out={})
    )


@pytest.mark.parametrize(
    "words", [(), ("--kinds", "code,prose", "--concurrency", "1,2", "--vary", "n=0,4", "--boots", "3")]
)
def test_map_command_rebuilds_same_map(words):
    """It is an A/B of speculation off and on, with each kind of prompt sent alone."""
    once = design_of("demo-cpu", "--map", *words)
    again = design_of(*shlex.split(once.command)[2:])
    plain = {"id": "", "made_at": 0.0, "arms": (), "command": ""}
    assert replace(again, **plain) == replace(once, **plain)
    assert once.by_kind
    assert once.arms[0].plan.num_speculative_tokens == 0
    suite, streams = ("map:code,prose", (1, 2)) if words else ("map:code,JSON,questions,prose,agent", (1, 4, 16))
    assert (once.suite, once.concurrency) == (suite, streams)
    assert store.count_measured_requests(once) == (2 * 2 * 4 if words else 5 * (4 + 8 + 32))


def test_a_map_varies_drafts_only():
    with pytest.raises(UsageError, match="drafted tokens"):
        design_of("demo-cpu", "--map", "--vary", "mode=eager,compile")
    with pytest.raises(UsageError, match="tune --map"):
        design_of("demo-cpu", "--kinds", "code")


@pytest.mark.parametrize("words", [("--budget", "30m"), ("--name", "mine")])
def test_a_map_refuses_options_of_tunes(words):
    with pytest.raises(UsageError, match="not for tune --map") as refused:
        design_of("demo-cpu", "--map", *words)
    assert "--boots" in str(refused.value.hint)


def test_a_tune_is_found_among_experiments(tmp_path, monkeypatch):
    """Without a name it is the newest tune, whatever A/Bs there are; an A/B is none."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(UsageError):
        find_tune(None)
    old, new = (replace(a_tune(600.0, ("n=1",)), id=f"2026112{day}-toy", made_at=float(day)) for day in (1, 2))
    ab = a_design(id="20261123-ab", made_at=9.0)
    for each in (old, new, ab):
        written(each, [])
    assert find_tune(None).id == new.id
    assert find_tune(old.id).id == old.id
    with pytest.raises(UsageError):
        find_tune(ab.id)
    assert main(["tune", "keep"]) == 2
    assert store.find_experiment().id == ab.id
