"""Fetch the data set that a suite is named after, where it is not on this machine yet."""

from __future__ import annotations

import asyncio

from dflash_tui.benchmark import datasets
from dflash_tui.cli.event_lines import PreparingLines
from dflash_tui.engines import download


def ensure_dataset(words: str | None, *, as_json: bool = False) -> None:
    """Fetch the data set that `words` names where nobody has yet.

    Args:
        words: what the user calls the suite; None where they name none.
        as_json: whether the progress is shown as lines of JSON.

    Raises:
        DflashError: it cannot be had.
    """
    if words and (name := datasets.name_missing_dataset(words)) is not None:
        asyncio.run(download.fetch_dataset(name, PreparingLines(as_json=as_json)))
