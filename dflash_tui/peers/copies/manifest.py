"""What is copied to another host, as both sides say it: the files of one model, and which place they get there."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from msgspec import Meta

from dflash_tui.common.errors import UsageError
from dflash_tui.engines.hub import cache, model_lookup
from dflash_tui.readings import Whole

MOST_FILES = 2000
# The longest line between two hosts has room for as many files with names of that length.
_LONGEST_NAME = 200
_Word = Annotated[str, Meta(max_length=300)]
FolderName = Annotated[str, Meta(max_length=120, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*\Z")]


class CopyFile(msgspec.Struct, frozen=True):
    """A file of a model."""

    name: _Word
    """Its path in the folder of the model."""
    size: Whole
    """Its bytes."""
    digest: Annotated[str, Meta(pattern=r"^(?:[0-9a-f]{40}|[0-9a-f]{64})?\Z")] = ""
    """Its blob in the hub's cache: the SHA-256 of a large file, the git object of a small one. Empty elsewhere, where
    the SHA-256 follows the last byte."""


class HubSnapshot(msgspec.Struct, frozen=True, tag="snapshot"):
    """A place in the hub's cache, in the layout of huggingface_hub."""

    repo: _Word
    revision: _Word
    commit: Annotated[str, Meta(pattern=r"^[0-9a-f]{40}\Z")]


class OwnFolder(msgspec.Struct, frozen=True, tag="folder"):
    """A place in our own folder of models."""

    name: FolderName
    version: Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z")]
    """A digest of names, sizes and times: what came of another version is not gone on with."""
    path: Annotated[str, Meta(max_length=4000)] = ""
    """The path that the user named: where the other host has a folder there, that is used."""


class Manifest(msgspec.Struct, frozen=True):
    """The files of one model and their place on the other host."""

    place: HubSnapshot | OwnFolder
    files: Annotated[tuple[CopyFile, ...], Meta(min_length=1, max_length=MOST_FILES)]


def require_safe(manifest: Manifest) -> None:
    """Raise when a name in it leads out of the place that it is for, or when no model is described.

    Raises:
        UsageError: with the name.
    """
    names = [file.name for file in manifest.files]
    wrong = [name for name in names if not cache.is_safe_name(name) or len(name) > _LONGEST_NAME]
    wrong += [name for name in set(names) if names.count(name) > 1]
    folders = {name[: match.start()] for name in names for match in re.finditer("/", name)}
    wrong += sorted(folders & set(names))
    if isinstance(manifest.place, HubSnapshot):
        place = manifest.place
        wrong += [] if model_lookup.is_repository(place.repo) else [place.repo]
        wrong += [] if cache.is_safe_name(place.revision) else [place.revision]
        wrong += [file.name for file in manifest.files if not file.digest]
    if wrong:
        raise UsageError("what is to be copied has a name that is not valid", evidence=repr(wrong[0])[:200])
