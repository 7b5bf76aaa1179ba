"""Fetch the data set that a suite is named after, where it is not on this machine yet."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dflash_tui.benchmark import datasets
from dflash_tui.cli.event_lines import PreparingLines
from dflash_tui.engines import inventory
from dflash_tui.engines.hub import dataset_download


def ensure_dataset(words: str | None, engine_folder: str = "", *, as_json: bool = False) -> None:
    """Fetch the data set that `words` names where nobody has yet, by an engine's huggingface_hub.

    Args:
        words: what the user calls the suite; None where they name none.
        engine_folder: of the engine to take; without it any that is installed.
        as_json: whether the progress is shown as lines of JSON.

    Raises:
        DflashError: it cannot be had.
    """
    if not words or (name := datasets.name_missing_dataset(words)) is None:
        return
    engine = (
        inventory.find_any_engine(Path(engine_folder)) if engine_folder else next(iter(inventory.list_engines()), None)
    )
    python = engine.python if engine else None
    asyncio.run(dataset_download.fetch_dataset(name, python, PreparingLines(as_json=as_json)))
