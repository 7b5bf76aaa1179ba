"""What a timer may begin."""

from types import SimpleNamespace
from typing import Any, cast

from textual.worker import Worker

from dflash_tui.tui.widgets.basic import each_in_turn


def test_slow_periodic_work_is_not_restarted():
    """It would be cancelled by its successor each time, and the screen stand still."""
    begun: list[SimpleNamespace] = []

    def begin() -> Worker[Any]:
        begun.append(SimpleNamespace(is_finished=False))
        return cast("Worker[Any]", begun[-1])

    tick = each_in_turn(begin)
    tick()
    tick()
    assert len(begun) == 1
    begun[0].is_finished = True
    tick()
    assert len(begun) == 2
