"""Open the panel; it imports as little as the first frame needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_tui.cli.console import print_data
from dflash_tui.common import paths

if TYPE_CHECKING:
    from dflash_tui.monitoring.foreign_server import ForeignServer
    from dflash_tui.monitoring.recording import Player
    from dflash_tui.runs.run import Run
    from dflash_tui.tui.screens.playback import PlaybackScreen


def open_panel(
    run: Run | None = None,
    *,
    player: Player | None = None,
    foreign: ForeignServer | None = None,
    playback: PlaybackScreen | None = None,
) -> int:
    """Open the panel, with a run, a recording, a foreign server or two arms of an A/B if given.

    On exit print the commands for what still runs.
    """
    from dflash_tui.tui import app

    paths.runs_folder()  # raises if there is no home folder
    farewell, code = app.run_panel(run, player=player, foreign=foreign, playback=playback)
    if farewell:
        print_data(farewell)
    return code
