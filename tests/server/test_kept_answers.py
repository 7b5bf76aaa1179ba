"""Answers that an experiment keeps and compares, on an engine that is a process and nothing more."""

import pytest

from dflash_tui.benchmark.sse import Answer
from dflash_tui.experiments import store
from dflash_tui.experiments.analysis.report import OutputVerdict
from dflash_tui.experiments.design import KeptAnswer
from tests import DATA
from tests.support import command_line, fake_engine
from tests.support.driven import read_report
from tests.support.fake_runs import free_port

SUITE = DATA / "two-prompts.yaml"
HELLO = "Hello there, this is speculative."


@pytest.fixture
def port() -> int:
    return free_port(18_600)


def dflash(*words: str, code: int = 0) -> str:
    return command_line.run(*words, "--suite", str(SUITE), "--yes", code=code).stdout


@pytest.mark.long
@pytest.mark.usefixtures("nothing_left")
def test_verify_output_sets_exit_code(port):
    """A server that answers one character too many with speculation is caught; one that does not is let through."""
    fake_engine.make(port, {7: ["adds=!"]})
    out = dflash("verify", "--lossless", fake_engine.RECIPE, "--prompts", "6", "--scale", "1", code=7)
    assert "from token 34 on" in out
    assert "tok/s" not in out
    design = store.find_experiment()
    folder = store.experiment_folder(design.id)
    report = read_report(design)
    (outputs,) = [each.outputs for each in report.comparisons]
    assert outputs
    assert outputs.tokens
    assert (outputs.tokens.faults, outputs.tokens.unscored) == (6, 0)
    assert (outputs.verdict, outputs.different) == (OutputVerdict.DIFFERENT, 1.0)
    kept = store.read_answers(folder)
    texts = {each.answer.text for each in kept}
    assert (len(kept), texts) == (2 * 6, {HELLO, f"{HELLO}!"})
    assert (folder / "answers.jsonl").stat().st_mode & 0o777 == 0o600
    assert dflash(
        "verify", "--lossless", fake_engine.RECIPE, "--prompts", "6", "--scale", "1", "--num-speculative-tokens", "4"
    )


@pytest.mark.long
@pytest.mark.usefixtures("nothing_left")
def test_answers_are_kept_by_default(port):
    """Those that count, each once; with --no-answers none."""
    fake_engine.make(port)
    dflash("ab", fake_engine.RECIPE, "--vary", "n=7,4")
    design = store.find_experiment()
    folder = store.experiment_folder(design.id)
    kept, boots = store.read_answers(folder), store.read_progress(folder).boots
    measured = [(boot.run, done.kind, done.round) for boot in boots for done in boot.requests]
    assert [(each.run, each.kind, each.round) for each in kept] == measured
    assert not kept[0].answer.tokens
    dflash("ab", fake_engine.RECIPE, "--vary", "n=7,4", "--no-answers")
    assert store.read_answers(store.experiment_folder(store.find_experiment().id)) == []


def test_answers_have_a_limit(monkeypatch, tmp_path):
    """One more than there is room for is left out, and what is no answer in the file is nobody's."""
    monkeypatch.setattr(store, "MOST_ANSWERS", 500)
    one = KeptAnswer("run", "Code", 1, 0, Answer("x" * 150))
    assert [store.append_answer(tmp_path, one) for _ in range(3)] == [True, True, False]
    with (tmp_path / "answers.jsonl").open("ab") as file:
        file.write(b'{"run": 5}')
    assert store.read_answers(tmp_path) == [one, one]
