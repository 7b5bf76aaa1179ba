"""What of the models of a plan is whole on this host, and may be copied from here to another one."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from dflash_tui.common import paths
from dflash_tui.engines.hub import cache, model_lookup
from dflash_tui.peers.copies.manifest import MOST_FILES, CopyFile, HubSnapshot, Manifest, OwnFolder
from dflash_tui.planning.plan import Plan, PlannedModel

_BLOB = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_LONGEST_NAME = 80
ROLES = ("target", "drafter")


class CopySource(NamedTuple):
    """A model that is whole on this host."""

    title: str
    """What it is called for users."""
    roles: tuple[str, ...]
    """What it is for the server: target, drafter or both."""
    manifest: Manifest
    """What is said of it to the other host."""
    paths: tuple[Path, ...]
    """Where each file of the manifest is."""

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.size for file in self.manifest.files)


async def find_sources(plan: Plan) -> list[CopySource]:
    """Return the models of a plan that are whole here by what the hub says, or without it by their own index."""
    if plan.build_script:
        folder = Path(plan.models_folder)
        files = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
        built = _describe_folder(f"the models of {plan.recipe}", ROLES, folder.name, files)
        return [built] if built else []
    sources: list[CopySource] = []
    for role, model in zip(ROLES, plan.models, strict=False):
        source = _describe_local(role, model) or await _describe_cached(role, model)
        if source and all(source.manifest != other.manifest for other in sources):
            sources.append(source)
    return sources


def name_folders(plan: Plan) -> dict[str, str]:
    """Return by the name of each local folder among the models of a plan what its copy on another host is called."""
    sources = {model.name: _describe_local("", model) for model in plan.models}
    return {
        name: source.manifest.place.name
        for name, source in sources.items()
        if source and isinstance(source.manifest.place, OwnFolder)
    }


def _describe_local(role: str, model: PlannedModel) -> CopySource | None:
    """Return the source for a model that is named by its folder; the copy of a changed one is another one."""
    folder = cache.find_local_folder(model.name)
    if folder is None:
        return None
    files = cache.list_loaded_files(folder)
    word = re.sub(r"[^A-Za-z0-9_.+-]", "-", folder.name).lstrip(".+-")[:_LONGEST_NAME] or "model"
    name = f"{word}-{_digest_versions(files)}"
    return _describe_folder(model.name, (role,), name, files, path=model.name)


def _describe_folder(
    title: str, roles: tuple[str, ...], name: str, files: Mapping[str, Path], path: str = ""
) -> CopySource | None:
    if not files or len(files) > MOST_FILES or not all(map(cache.is_safe_name, files)):
        return None
    place = OwnFolder(name, _digest_versions(files), path)
    entries = tuple(CopyFile(file, at.stat().st_size) for file, at in files.items())
    return CopySource(title, roles, Manifest(place, entries), tuple(files.values()))


async def _describe_cached(role: str, model: PlannedModel) -> CopySource | None:
    """Return the source for a model in the hub's cache; None where it is not whole, or its blobs have other names."""
    availability = await model_lookup.look_up_model(model.name, model.revision)
    if not availability.complete or not availability.folder:
        return None
    folder = Path(availability.folder)
    files = cache.list_loaded_files(folder)
    blobs = {name: paths.resolve_links(path) for name, path in files.items()}
    if not blobs or len(blobs) > MOST_FILES or not all(_BLOB.fullmatch(blob.name) for blob in blobs.values()):
        return None
    place = HubSnapshot(model.name, model.revision, folder.name)
    entries = tuple(CopyFile(name, blob.stat().st_size, blob.name) for name, blob in blobs.items())
    return CopySource(model.name, (role,), Manifest(place, entries), tuple(blobs.values()))


def _digest_versions(files: Mapping[str, Path]) -> str:
    """Return a digest of names, sizes and times: it changes with what is in the files, without reading them."""
    stats = {name: path.stat() for name, path in files.items()}
    lines = [f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in stats.items()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
