"""Where a copied model lies on the host that gets it: in a folder beside its place until all of it is there."""

from __future__ import annotations

import shutil
from pathlib import Path

from dflash_tui.common import paths, private_files
from dflash_tui.common.errors import DflashError
from dflash_tui.engines import model_hub
from dflash_tui.peers.messages import CopyManifest, RoomFound


def describe_room(number: int, manifest: CopyManifest, *, begins: bool = False) -> RoomFound:
    """Return what of a model is here, and the room for the rest, as the answer to a command.

    Args:
        number: the id of the command.
        manifest: the files of the model.
        begins: whether the copy begins now, so that the folder for it is made.

    Raises:
        OSError: the folder cannot be made, or the disk cannot be read.
    """
    folder, work = _find_folders(manifest)
    if begins and manifest.revision is None:
        private_files.ensure_private_folder(work)
    elif begins:
        work.mkdir(parents=True, exist_ok=True)
    has_all = _is_done(manifest, folder)
    offsets: list[int | None] = []
    data = set[str]()
    for file in manifest.files:
        is_here = has_all or file.data in data or file.size in {_size(folder / file.name), _size(folder / file.data)}
        offsets.append(None if is_here else min(_size(work / file.data) or 0, file.size))
        data.add(file.data)
    free = shutil.disk_usage(paths.find_existing(work)).free
    return RoomFound(number, tuple(offsets), free, has_all, str(work), shutil.which("rsync") is not None)


def finish_copy(manifest: CopyManifest) -> None:
    """Give the files that came the places that a launch looks for them in.

    Raises:
        DflashError: some of them are not whole.
        OSError: they cannot be moved.
    """
    folder, work = _find_folders(manifest)
    if manifest.revision is None:
        if any(_size(work / file.name) != file.size for file in manifest.files):
            raise DflashError(f"{manifest.folder} did not arrive whole", hint="run the same command again")
        if not folder.exists():
            work.rename(folder)
    else:
        files = [path for path in sorted(work.rglob("*")) if path.is_symlink() or path.is_file()]
        for path in files:
            target = folder / path.relative_to(work)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
        if any(_size(folder / file.name) != file.size for file in manifest.files):
            raise DflashError(f"{manifest.folder} did not arrive whole", hint="run the same command again")
        if manifest.revision != manifest.version:  # a branch, by which a start without the hub finds the commit
            ref = folder / "refs" / manifest.revision
            ref.parent.mkdir(parents=True, exist_ok=True)
            ref.write_text(manifest.version)
    shutil.rmtree(work, ignore_errors=True)


def _find_folders(manifest: CopyManifest) -> tuple[Path, Path]:
    """Return the folder of a model, and the one on the same disk that its files are copied into."""
    if manifest.revision is None:
        models = paths.models_folder()
        return models / manifest.folder, models / f".{manifest.folder}.{manifest.version}.copy"
    folder = model_hub.hub_cache_folder() / manifest.folder
    return folder, folder / ".dflash-tui.copy"


def _is_done(manifest: CopyManifest, folder: Path) -> bool:
    if manifest.revision is None:
        return folder.is_dir() or bool(manifest.path and model_hub.find_local_folder(manifest.path))
    if any(_size(folder / file.name) != file.size for file in manifest.files):
        return False
    ref = folder / "refs" / manifest.revision
    return manifest.revision == manifest.version or (ref.is_file() and ref.read_text().strip() == manifest.version)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None
