"""How the patches of an engine stand, read from its files, its record and the wheel's own RECORD."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import StrEnum

import msgspec

from dflash_tui.core.engine import Engine
from dflash_tui.core.hardware import Hardware
from dflash_tui.core.patching import commit, files, guard, store, text
from dflash_tui.core.patching.files import Patch
from dflash_tui.core.patching.store import Applied
from dflash_tui.core.patching.text import Fit


class State(StrEnum):
    """How a patch stands in an engine."""

    NEEDED = "absent-needed"
    APPLIED = "applied-by-us"
    APPLIED_BY_OTHER = "applied-by-other"
    UPSTREAM = "upstream"
    NOT_APPLICABLE = "not-applicable"
    DRIFTED = "drifted"


THERE = frozenset({State.APPLIED, State.APPLIED_BY_OTHER, State.UPSTREAM})


class Found(msgspec.Struct, frozen=True):
    """A patch in an engine: its state, why, and for a drifted one how the source differs from what it expects."""

    name: str
    state: State
    why: str = ""
    drift: str = ""


class Checked(msgspec.Struct, frozen=True):
    """What verifying one file found."""

    path: str
    ok: bool
    found: str


def build_of(engine: Engine) -> files.Build:
    """Return what a patch has to know of the engine."""
    return files.build_of(engine.distribution, engine.vllm, engine.packages)


def find(patch: Patch, engine: Engine, hardware: Hardware | None = None) -> Found:
    """Return how `patch` stands in `engine`, read from the files themselves."""
    upstream = {patch.upstream.path} if patch.upstream else set()
    base = Base(engine, {*patch.paths, *upstream})
    why = files.unneeded(patch, build_of(engine), hardware)
    edition = base.edition(patch)
    if edition == patch.digest:  # also where nobody needs it: it is in, and can be taken out
        return Found(patch.name, State.APPLIED, why)
    return _unneeded(patch, engine, base, why) if why else _in_range(patch, base, older=bool(edition))


def _unneeded(patch: Patch, engine: Engine, base: Base, why: str) -> Found:
    says_upstream = why.startswith("upstream")
    other_release = patch.distribution == engine.distribution and not files.covers(patch, build_of(engine))
    if other_release and text.has(patch.upstream, base.texts):
        return Found(patch.name, State.UPSTREAM, why if says_upstream else "its source has it")
    return Found(patch.name, State.NOT_APPLICABLE, f"for vLLM {patch.versions}" if says_upstream else why)


def _in_range(patch: Patch, base: Base, *, older: bool) -> Found:
    if text.has(patch.upstream, base.texts):
        return Found(patch.name, State.APPLIED_BY_OTHER, "the source has it, and the release as published does not")
    match text.fit(patch, base.texts):
        case Fit.ABSENT:
            return Found(patch.name, State.NEEDED, "an older edition of it is in" if older else "")
        case Fit.PRESENT:
            return Found(patch.name, State.APPLIED_BY_OTHER, "its text is in, and we have no record of it")
        case Fit.DRIFTED:
            said = f"the text it replaces is not exactly once in {', '.join(patch.paths)}"
            return Found(patch.name, State.DRIFTED, said, text.drift(patch, base.texts))


class Base:
    """The files of an engine as they are without us: ours from their pristine copies, unless those are `lost`."""

    def __init__(self, engine: Engine, paths: Iterable[str]) -> None:
        self.now: dict[str, bytes | None] = {}
        self.bytes: dict[str, bytes | None] = {}
        self.ours: dict[str, Applied] = {}
        self.lost: set[str] = set()
        record = store.manifest(engine)
        for path in sorted(paths):
            data = self.now[path] = self.bytes[path] = store.read(engine, path)
            entry = record.get(path)
            if entry and data is not None and store.sha256(data) == entry.patched_sha256:
                before = store.pristine(engine, entry)
                self.ours[path] = entry
                if before is None:
                    self.lost.add(path)
                else:
                    self.bytes[path] = before
        self.texts = {path: _text(data) for path, data in self.bytes.items()}

    def edition(self, patch: Patch) -> str:
        """Return the digest of `patch` as we have applied it to all its files; empty when we have not."""
        entries = [self.ours.get(path) for path in patch.paths]
        found = {e.digests.get(patch.name, patch.digest) if e and patch.name in e.patches else "" for e in entries}
        return found.pop() if len(found) == 1 else ""


def _text(data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return None


def present(engine: Engine) -> tuple[str, ...]:
    """Return the names of all known patches that are in the engine, whoever brought them in."""
    known = (files.load(name) for name in files.names())
    found = [find(patch, engine) for patch in known if patch.distribution == engine.distribution]
    return tuple(one.name for one in found if one.state in {State.APPLIED, State.APPLIED_BY_OTHER})


def applied(engine: Engine) -> tuple[str, ...]:
    """Return the names of the patches that we brought into the engine and that are still there."""
    base = Base(engine, store.manifest(engine))
    return tuple(sorted({name for entry in base.ours.values() for name in entry.patches}))


def verify(engine: Engine, only: Collection[str] | None = None) -> list[Checked]:
    """Return for every file that a known patch could touch (or those of `only`) whether it is what it should be.

    That is: as we left it, with an intact pristine copy that equals the wheel's RECORD; or as the RECORD has it.
    """
    known = {path for name in files.names() for path in files.load(name).paths}
    record = store.manifest(engine)
    wanted = known | set(record) if only is None else set(only)
    base, official = Base(engine, wanted), guard.recorded(engine)
    trouble = commit.trouble(engine)
    checked = [Checked(engine.folder, ok=False, found=trouble.said)] if trouble else []
    for path, data in base.now.items():
        if data is None:
            if path in record:
                checked.append(Checked(path, ok=False, found="it is gone"))
            continue
        checked.append(_checked(engine, path, record.get(path), data, official.get(path)))
    return checked


def _checked(engine: Engine, path: str, entry: Applied | None, data: bytes, official: str | None) -> Checked:
    now = store.sha256(data)
    if entry and now == entry.patched_sha256:
        if store.pristine(engine, entry) is None:
            return Checked(path, ok=False, found="as we left it, but its pristine copy is gone or damaged")
        own = "" if official in {None, entry.pristine_sha256} else "; it had been changed before us"
        return Checked(path, ok=True, found=f"as we left it, with {', '.join(entry.patches)}{own}")
    if now == official:
        return Checked(path, ok=True, found="as published" + ("; what we had changed is gone" if entry else ""))
    if entry:
        return Checked(path, ok=False, found=f"changed by somebody else since {', '.join(entry.patches)} went in")
    if official is None:
        return Checked(path, ok=True, found="the wheel's RECORD says nothing about it")
    return Checked(path, ok=False, found="changed by somebody else: not as published, and not by us")
