"""Startup optimizations that failed with an engine: remembered, so that its next launch does without them."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

import msgspec

from dflash_tui.common import paths, private_files, untrusted_json
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.common.untrusted_json import register_type

_LONGEST = 300


class FailedMeasures(msgspec.Struct, frozen=True):
    """What failed with one engine."""

    folder: str
    """The engine's folder."""
    why: dict[str, str]
    """By the measure's name, what happened."""


register_type(FailedMeasures)


def read_failed_measures(folder: Path) -> dict[str, str]:
    """Return the measures that failed with the engine in `folder`, and how."""
    record = untrusted_json.read_own_json(_record_path(folder), FailedMeasures)
    return dict(record.why) if record and record.folder == str(folder) else {}


def remember_failed_measure(folder: Path, name: str, why: str) -> None:
    """Have the next launches of the engine in `folder` do without a measure; one asked for by name is tried again."""
    _write(folder, read_failed_measures(folder) | {name: clean_line(why)[:_LONGEST]})


def forget_failed_measure(folder: Path, name: str) -> None:
    """Have the next launches take a measure again, since it worked."""
    measures = read_failed_measures(folder)
    if measures.pop(name, None) is not None:
        _write(folder, measures)


def _write(folder: Path, why: dict[str, str]) -> None:
    data = msgspec.json.encode(FailedMeasures(str(folder), why))
    with contextlib.suppress(OSError):  # a full disk costs the next launch a try
        private_files.ensure_private_folder(_record_path(folder).parent)
        private_files.replace_private_file(_record_path(folder), data)


def _record_path(folder: Path) -> Path:
    return paths.state_folder() / "failed-measures" / f"{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}.json"
