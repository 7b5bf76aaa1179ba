"""What two arms answered, side by side on the screen of their verdict."""

from textual.widgets import Static

from dflash_tui.benchmark.sse import Answer
from dflash_tui.experiments import store
from dflash_tui.experiments.analysis import verdict
from dflash_tui.experiments.analysis.answers import AnswerPair, PromptKey
from dflash_tui.experiments.design import KeptAnswer
from dflash_tui.tui.dialogs.answers import AnswersDialog, describe_blank, render_answers
from tests.support.experiment_factories import a_design, boots, told, written
from tests.tui.panel import app, shows, text, wait_for

ALIKE = "The wind came from the west before dawn. " * 12
HOSTILE = "[/] [red]evil"


def begun(*, kept: bool = True) -> str:
    """Write an A/B that is over, with its answers: the first prompt is answered alike, the second is not."""
    design = a_design()
    report = verdict.build_report(design, boots(design, (10.0, 18.5)))
    folder = written(design, told(design, report.boots), report)
    for boot in report.boots if kept else ():
        turned = f"So it is {HOSTILE}\x1b[31m" if boot.arm else "So it was"
        store.append_answer(folder, KeptAnswer(boot.run, "Q&A", 1, 0, Answer("Drafts are checked.", (1, 2))))
        store.append_answer(folder, KeptAnswer(boot.run, "Code", 1, 1, Answer(ALIKE + turned, cut=bool(boot.arm))))
    return design.id


def columns(panel) -> list[str]:
    return [str(panel.screen.query_one(f"#answer-{side}").query_one(Static).content) for side in "ab"]


async def test_answers_are_shown_side_by_side():
    """Prompt by prompt; what both begin with is folded, and shown whole on request."""
    identity, panel = begun(), app()
    async with panel.run_test(size=(120, 36)) as pilot:
        panel.show_experiment(identity)
        await wait_for(pilot, lambda: "▲ compile is faster" in text(panel))
        await pilot.press("a")
        await shows(pilot, "Q&A, round 1", "1 of 2", "the same text", "eager, boot 1", "compile, boot 2")
        assert columns(panel) == ["Drafts are checked."] * 2
        await pilot.press("d")
        await shows(pilot, "Code, round 2", f"from character {len(ALIKE + 'So it ') + 1} on", "characters alike]")
        a, b = columns(panel)
        assert "\x1b" not in text(panel)
        assert ("So it was" in a, f"So it is {HOSTILE}" in b, "[the rest was not kept]" in b) == (True, True, True)
        await pilot.press("space")
        assert columns(panel)[0] == f"{ALIKE}So it was"
        await pilot.press("right")
        await shows(pilot, "Q&A, round 1")
        await pilot.press("escape")
        await wait_for(pilot, lambda: not isinstance(panel.screen, AnswersDialog))


def test_invisible_answer_is_labelled():
    """As toy weights may give one; two empty boxes would look broken."""
    answer = "\n" * 12
    assert describe_blank(answer).startswith("[12 ")
    pair = AnswerPair(PromptKey("Code", 1, 0), (0, 1), Answer(answer), Answer(answer))
    assert all("[12 " in side.plain for side in render_answers(pair, whole=False))


async def test_missing_answers_are_reported():
    identity, panel = begun(kept=False), app()
    async with panel.run_test(size=(80, 24)) as pilot:
        panel.show_experiment(identity)
        await wait_for(pilot, lambda: "▲ compile is faster" in text(panel))
        await pilot.press("a")
        await wait_for(pilot, lambda: "no answers were kept" in text(panel))
