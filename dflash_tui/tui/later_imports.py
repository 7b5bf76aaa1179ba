"""What the first paint of the panel is spared: modules of other screens, imported while nobody waits for them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from importlib import import_module

from dflash_tui.planning import patch_file, text_cache

# Each is imported where it opens something, too; this way a key press waits for none, and none is read from an
# installation that was upgraded meanwhile.
_LATER = (
    "monitoring.observer",
    "tui.dialogs.doctor",
    "tui.dialogs.drafters",
    "tui.dialogs.experiments",
    "tui.dialogs.new_experiment",
    "tui.dialogs.new_tune",
    "tui.dialogs.options",
    "tui.dialogs.patches",
    "tui.dialogs.peers",
    "tui.dialogs.remedies",
    "tui.dialogs.runs",
    "tui.dialogs.trust",
    "tui.farewell",
    "tui.palette",
    "tui.screens.experiment",
    "tui.screens.replay",
    "tui.screens.run",
    "tui.screens.verdict",
)


def import_later(is_cancelled: Callable[[], bool]) -> None:
    """Import the modules one by one, until `is_cancelled`; what there is by then is never collected, the rest is.

    All patches are read, and what they and our tables say is kept for the next start, which then reads no YAML.

    To look through it again and again took a twentieth of the time until the first frame, and would delay any key press
    by 40 ms.
    """
    for name in _LATER:
        if is_cancelled():
            return
        import_module(f"dflash_tui.{name}")
    patch_file.load_all_patches()
    text_cache.save_tables()
    gc.freeze()
    gc.enable()
