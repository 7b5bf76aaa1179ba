"""The files of an engine without our patches, from their pristine copies."""

from __future__ import annotations

from collections.abc import Iterable

from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching import ledger, permissions
from dflash_tui.engines.patching.ledger import LedgerEntry
from dflash_tui.planning.patch_file import Patch


class UnpatchedFiles:
    """The files of an engine as they are without our patches: those that we changed from their pristine copies.

    Attributes, all by path:
        now: The bytes on the disk; None for a file that cannot be read.
        bytes: The bytes without our patches; None for a file that cannot be read.
        texts: The text without our patches; None for a file without any.
        ours: Our record of each file that is still as we left it.
        lost: The files of `ours` whose pristine copies are missing or damaged.
        unreadable: Why a file has no text.
    """

    def __init__(self, engine: Engine, paths: Iterable[str]) -> None:
        self.now: dict[str, bytes | None] = {}
        self.bytes: dict[str, bytes | None] = {}
        self.texts: dict[str, str | None] = {}
        self.ours: dict[str, LedgerEntry] = {}
        self.lost: set[str] = set()
        self.unreadable: dict[str, str] = {}
        record = ledger.read_applied_entries(engine)
        for path in sorted(paths):
            data = self.now[path] = self.bytes[path] = ledger.read_vllm_file(engine, path)
            entry = record.get(path)
            if entry and data is not None and ledger.hash_bytes(data) == entry.patched_sha256:
                before = ledger.read_pristine_copy(engine, entry)
                self.ours[path] = entry
                if before is None:
                    self.lost.add(path)
                else:
                    self.bytes[path] = before
            self.texts[path] = self._text(engine, path)

    def _text(self, engine: Engine, path: str) -> str | None:
        data = self.bytes[path]
        if data is None:
            self.unreadable[path] = ledger.explain_unreadable_file(engine, path)
            return None
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            self.unreadable[path] = f"{path} is not UTF-8 text (byte {error.start})"
            return None

    def editions(self, patch: Patch) -> dict[str, str]:
        """Return by file the digest of `patch` as we have applied it, those that it no longer names included."""
        entries = {path: entry for path, entry in self.ours.items() if patch.name in entry.patches}
        return {path: entry.digests.get(patch.name, patch.digest) for path, entry in entries.items()}

    def as_published(self, engine: Engine, paths: Iterable[str]) -> bool | None:
        """Whether the files without us are those of the wheel's RECORD; None when that does not say it of all."""
        official = permissions.read_wheel_digests(engine)
        pairs = [(official.get(path), self.bytes[path]) for path in paths]
        if any(there and data is not None and ledger.hash_bytes(data) != there for there, data in pairs):
            return False
        return True if all(there and data is not None for there, data in pairs) else None
