"""What every target asserts: errors are one of ours and act on no terminal, events are plain and finite."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from dflash_tui.common.sanitizer import escape_control_characters
from dflash_tui.events import AnyEvent, encode
from dflash_tui.run_state.state import RunState
from tests.support import escapes


@cache
def scratch_folder() -> Path:
    """Return a folder of this process for the files of targets."""
    return Path(tempfile.mkdtemp(prefix="dflash-fuzz-"))


def assert_plain(text: str) -> None:
    """A terminal acts on nothing in `text`."""
    assert text.isprintable() or not escapes.acting(text), text


def assert_prints_plain(text: str) -> None:
    """A terminal acts on nothing in `text` once a command has printed it."""
    assert_plain(escape_control_characters(text))


def assert_is_error(error: str, begin: str = "") -> None:
    """The error begins as it should, and can be written."""
    assert error.startswith(begin), error
    assert error.encode(errors="backslashreplace")


def assert_folds(events: Sequence[AnyEvent]) -> None:
    """The state of a run takes all `events`, and each is plain and at a time."""
    state = RunState()
    for event in events:
        state.apply(event)
        assert_prints_plain(encode(event).decode())
        assert math.isfinite(event.at), event


def assert_finite(figures: object) -> None:
    """No number in `figures` is negative, infinite or none."""
    parts = figures.values() if isinstance(figures, dict) else figures if isinstance(figures, list | tuple) else ()
    assert not isinstance(figures, float) or (math.isfinite(figures) and figures >= 0), figures
    for part in parts:
        assert_finite(part)
