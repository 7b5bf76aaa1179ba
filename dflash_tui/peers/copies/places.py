"""Where the files of a copy lie on the host that gets them: under a temporary name until their hash was compared."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from pathlib import Path
from typing import BinaryIO, Protocol

from dflash_tui.common import paths, private_files
from dflash_tui.common.errors import DflashError
from dflash_tui.engines.hub import cache
from dflash_tui.peers.copies.manifest import CopyFile, HubSnapshot, Manifest, OwnFolder, require_safe


class Hash(Protocol):
    """What computes the digest of a file."""

    def update(self, data: bytes, /) -> None:
        """Take further bytes."""

    def hexdigest(self) -> str:
        """Return the digest in hexadecimal digits."""


class CopyPlace:
    """The files of one copy on the host that gets them."""

    root: Path
    """Nothing is written outside of it."""
    file_mode = 0o600
    """Who may read what is written there, before the umask."""

    def part_path(self, file: CopyFile) -> Path:
        """Return where the bytes of a file go before its hash was compared."""
        raise NotImplementedError

    def file_path(self, file: CopyFile) -> Path:
        """Return the name that it gets then."""
        raise NotImplementedError

    def lock_path(self) -> Path:
        """Return the file that is locked by who writes there."""
        raise NotImplementedError

    def has_file(self, file: CopyFile) -> bool:
        """Whether a file is there already, with its name and size."""
        return _has_size(self.file_path(file), file.size)

    def is_done(self) -> bool:
        """Whether the place was filled before, by a copy or otherwise."""
        return False

    def finish(self) -> None:
        """Give what came the place that a launch looks for it in."""
        raise NotImplementedError

    def ensure_folder(self, folder: Path) -> None:
        """Make a folder below the root, which no link may lead out of.

        Raises:
            DflashError: a link leads elsewhere.
            OSError: it cannot be made.
        """
        top = paths.resolve_links(self.root)
        if not paths.resolve_links(folder).is_relative_to(top):
            raise DflashError(
                f"{folder} leads out of {self.root} by a link", hint="remove the link, or the folder that it is in"
            )
        self._make(folder)

    def _make(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)  # the cache may be one of a group


class SnapshotPlace(CopyPlace):
    """A snapshot in the hub's cache: blobs by their hash, links to them, and the commit that the revision is."""

    file_mode = 0o644  # as huggingface_hub has them: the cache may be one of a group

    def __init__(self, place: HubSnapshot, files: tuple[CopyFile, ...]) -> None:
        self._place, self._files = place, files
        self.root = cache.hub_cache_folder()
        self._folder = cache.repository_folder(place.repo)
        self._snapshot = cache.snapshot_folder(place.repo, place.commit)

    def part_path(self, file: CopyFile) -> Path:
        """Return the name by which a download into the cache goes on, too."""
        return self._folder / "blobs" / f"{file.digest}.incomplete"

    def file_path(self, file: CopyFile) -> Path:
        """Return the blob."""
        return self._folder / "blobs" / file.digest

    def lock_path(self) -> Path:
        """Return a lock beside those of huggingface_hub."""
        return self.root / ".locks" / self._folder.name / "dflash-tui.lock"

    def has_file(self, file: CopyFile) -> bool:
        """Whether the snapshot or its blobs have it."""
        return _has_size(self._snapshot / file.name, file.size) or super().has_file(file)

    def is_done(self) -> bool:
        """Whether the snapshot has all files, and the revision is this commit."""
        commit = cache.read_cached_commit(self._place.repo, self._place.revision)
        whole = all(_has_size(self._snapshot / file.name, file.size) for file in self._files)
        return whole and commit == self._place.commit

    def finish(self) -> None:
        """Link the blobs into the snapshot, and write which commit the revision is, by which an offline start goes."""
        for file in self._files:
            link = self._snapshot / file.name
            if _has_size(link, file.size):
                continue
            self.ensure_folder(link.parent)
            up = "../" * (2 + file.name.count("/"))
            temporary = link.with_name(f".{link.name}.{os.getpid()}")
            temporary.symlink_to(f"{up}blobs/{file.digest}")
            temporary.replace(link)
        if self._place.revision != self._place.commit:
            ref = self._folder / "refs" / self._place.revision
            self.ensure_folder(ref.parent)
            temporary = ref.with_name(f".{ref.name}.{os.getpid()}")
            with open_part(temporary, self.file_mode) as out:
                out.write(self._place.commit.encode())
            temporary.replace(ref)


class FolderPlace(CopyPlace):
    """A folder of our own models, which is made beside its place and gets its name in one step."""

    def __init__(self, place: OwnFolder) -> None:
        self._place = place
        self.root = paths.models_folder()
        self._folder = self.root / place.name
        self._work = self.root / f".{place.name}.{place.version}.copy"

    def part_path(self, file: CopyFile) -> Path:
        """Return its name among those that are not whole."""
        return self._work / "parts" / file.name

    def file_path(self, file: CopyFile) -> Path:
        """Return its name among those that are."""
        return self._work / "files" / file.name

    def lock_path(self) -> Path:
        """Return the lock that a recipe's builder of the folder holds, too."""
        return self.root / f".{self._place.name}.lock"

    def is_done(self) -> bool:
        """Whether the folder is there, or one of the user's at the path that was named."""
        return self._folder.is_dir() or bool(self._place.path and cache.find_local_folder(self._place.path))

    def _make(self, folder: Path) -> None:
        private_files.ensure_private_folder(folder)

    def finish(self) -> None:
        """Give the folder its name."""
        if not self._folder.exists():
            (self._work / "files").rename(self._folder)
        shutil.rmtree(self._work, ignore_errors=True)


def find_place(manifest: Manifest) -> CopyPlace:
    """Return the place of a copy on this host.

    Raises:
        UsageError: a name leads out of it.
    """
    require_safe(manifest)
    if isinstance(manifest.place, HubSnapshot):
        return SnapshotPlace(manifest.place, manifest.files)
    return FolderPlace(manifest.place)


def measure_offsets(place: CopyPlace, files: tuple[CopyFile, ...]) -> tuple[int | None, ...]:
    """Return the byte that each file goes on from; None for what is there, or comes with another of the same hash."""
    if place.is_done():
        return (None,) * len(files)
    offsets: list[int | None] = []
    digests: set[str] = set()
    for file in files:
        is_same = bool(file.digest) and file.digest in digests
        offsets.append(None if is_same or place.has_file(file) else _measure_part(place.part_path(file), file.size))
        digests.add(file.digest)
    return tuple(offsets)


def measure_free(place: CopyPlace) -> int:
    """Return the free bytes of the disk that a copy is written to."""
    return shutil.disk_usage(paths.find_existing(place.root)).free


def count_missing(files: tuple[CopyFile, ...], offsets: tuple[int | None, ...]) -> int:
    """Return the bytes that are still to be sent."""
    return sum(file.size - offset for file, offset in zip(files, offsets, strict=True) if offset is not None)


def start_hash(file: CopyFile) -> Hash:
    """Return what computes the digest of a file as its name in the cache has it."""
    if len(file.digest) != 40:
        return hashlib.sha256()
    return hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)


def open_part(path: Path, mode: int) -> BinaryIO:
    """Open a file for reading and writing, made with `mode` if it is missing; a link or what is no file is not opened.

    Raises:
        OSError: it is no file, or cannot be opened.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.fdopen(os.open(path, flags, mode), "r+b", buffering=0)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a file", str(path))
    return file


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.is_file() and path.stat().st_size == size
    except OSError:
        return False


def _measure_part(path: Path, size: int) -> int:
    try:
        part_size = path.stat(follow_symlinks=False).st_size
    except OSError:
        return 0
    return part_size if part_size <= size else 0
