"""An A/B whose answers were kept, with the moments at which their tokens came, as its folder holds it."""

from collections.abc import Callable

from dflash_tui.benchmark.sse import Answer, ArrivalMark
from dflash_tui.events import RequestDone
from dflash_tui.experiments import store
from dflash_tui.experiments.analysis import verdict
from dflash_tui.experiments.design import Design, KeptAnswer
from tests.support.experiment_factories import a_design, boots, told, written

TEXT = (
    "Speculative decoding lets a small drafter propose several tokens, which the target checks in one step.\n\n"
    "- A draft that the target would have written itself is kept, and the step has made several tokens.\n"
    "- The first one that it would not have written is replaced by its own, so the answer stays the same.\n\n"
)


def arrivals(done: RequestDone, at_once: int) -> tuple[ArrivalMark, ...]:
    """Return the marks of a request whose tokens came evenly, so many at once."""
    assert done.ttft is not None
    counts = [*range(1, done.tokens, at_once), done.tokens]
    gap = (done.total - done.ttft) / (len(counts) - 1)
    return tuple((int(1000 * (done.ttft + place * gap)), count) for place, count in enumerate(counts))


def begin_played(
    speeds: tuple[float, float] = (10.0, 18.5),
    *,
    design: Design | None = None,
    text: Callable[[int], str] = lambda _arm: TEXT * 6,
) -> str:
    """Write an A/B and return its name.

    Args:
        speeds: the steps per second of both arms.
        design: what was begun.
        text: what an arm answers.
    """
    design = design or a_design()
    made = boots(design, speeds)
    folder = written(design, told(design, made), verdict.build_report(design, made))
    for boot in made:
        for done in boot.requests:
            answer = Answer(text(boot.arm))
            store.append_answer(folder, KeptAnswer(boot.run, done.kind, 1, done.round, answer, arrivals(done, 4)))
    return design.id
