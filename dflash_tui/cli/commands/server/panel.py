"""The panel: what `dflash-tui` alone opens, and `up`, `attach` and `replay` in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_tui.cli.console import print_data
from dflash_tui.common import paths

if TYPE_CHECKING:  # httpx alone costs 200 ms
    from dflash_tui.monitoring.foreign_server import ForeignServer
    from dflash_tui.monitoring.recording import Player
    from dflash_tui.runs.run import Run
    from dflash_tui.tui.screens.playback import PlaybackScreen


def panel(
    run: Run | None = None,
    *,
    player: Player | None = None,
    foreign: ForeignServer | None = None,
    playback: PlaybackScreen | None = None,
) -> int:
    """Open the panel, with a run, a recording, a foreign server or two arms of an A/B if given.

    Afterwards it prints how to come back to what goes on.
    """
    from dflash_tui.tui import app

    paths.runs_folder()  # without a home folder there is no panel
    farewell, code = app.run_panel(run, player=player, foreign=foreign, playback=playback)
    if farewell:
        print_data(farewell)
    return code
