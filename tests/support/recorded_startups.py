"""Recorded starts as states and as history, for the tests of what is shown of a start."""

from dflash_tui.events import AnyEvent, Launched
from dflash_tui.monitoring.startup_history import RecordedStart
from dflash_tui.run_state.state import RunState
from dflash_tui.vllm_output.log_reader import LogReader
from tests.support import recordings
from tests.support.states import fold

COMPILED = "h200-vllm-0.26.0/g26-dflash-compile"
SILENT = "h200-vllm-0.26.0/tiny-qwen3-eager-flashinfer-jit"


def events(name: str, until: float = 1e9, base: float = 0.0) -> list[AnyEvent]:
    """Return the events of a recorded log up to a second after its launch, which is at `base`."""
    reader = LogReader(base, 0.0)
    begin = reader.feed(b"")  # as an observer reads an empty log
    return begin + [e for at, line in recordings.lines(name) if at <= until for e in reader.feed_line(line, base + at)]


def state(name: str, until: float = 1e9, *more: AnyEvent) -> RunState:
    """Return what is known of a recorded start at a second after its launch."""
    return fold(Launched(0.0, "run", "recipe", 1, 8000, "compile"), *events(name, until), *more)


def start(name: str, factor: float = 1.0, first_request: float | None = 3.0, mode: str = "compile") -> RecordedStart:
    """Return a recorded start as history has it, each of its times multiplied by `factor`."""
    done = state(name)
    assert done.up_at is not None
    return RecordedStart(
        run=f"{name}-{factor}",
        at=0.0,
        recipe="recipe",
        mode=mode,
        engine="vllm 0.26.0",
        setup="n=15",
        kind=(mode,),
        cache=done.startup.cache,
        phases={span.phase: span.seconds * factor for span in done.spans(done.up_at)},
        up=done.up_at * factor,
        first_request=None if first_request is None else first_request * factor,
    )
