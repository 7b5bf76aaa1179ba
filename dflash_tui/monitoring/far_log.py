"""The log of a rank on another host, by the copy that the keeper writes into the run folder."""

from __future__ import annotations

from dflash_tui.monitoring.run_reader import LONG_LOG_BYTES, TailReader
from dflash_tui.run_state.state import RunState
from dflash_tui.runs.run import FarRank, Run
from dflash_tui.vllm_output.log_reader import LogReader

# Of what a panel reads at once; a long log comes over several ticks.
_MOST_PIECES = 2


class FarLog:
    """Reads the log of one rank on another host, piece by piece, into a state of its own."""

    def __init__(self, run: Run, far: FarRank) -> None:
        self.far, self.state = far, RunState()
        path = run.folder / far.log_name
        self._tail = TailReader(lambda: path, LONG_LOG_BYTES)
        self._reader = LogReader(run.started_at, run.utc_offset)

    def read(self) -> bool:
        """Take in what was copied since the last time; return whether there was anything."""
        for piece in range(_MOST_PIECES):
            if not (data := self._tail.read()):
                return piece > 0
            for event in self._reader.feed(data):
                self.state.apply(event)
        return True
