"""States of runs, as events and logs lead to them."""

from collections.abc import Iterable

from dflash_tui.events import AnyEvent, Launched
from dflash_tui.run_state.state import RunState
from dflash_tui.vllm_output.log_reader import LogReader

LAUNCHED = Launched(0.0, "run", "toy", 1, 8000, "eager")


def fold(*events: AnyEvent) -> RunState:
    """Return the state of a run after these events."""
    state = RunState()
    for event in events:
        state.apply(event)
    return state


def read_log(log: str | bytes) -> list[AnyEvent]:
    """Return the events of a log."""
    return LogReader(0.0, 0.0).feed(log.encode() if isinstance(log, str) else log)


def read_lines(lines: Iterable[tuple[float, str]]) -> list[AnyEvent]:
    """Return the events of lines with the seconds since the launch at which they came."""
    reader = LogReader(0.0, 0.0)
    return [event for at, line in lines for event in reader.feed_line(line, at)]
