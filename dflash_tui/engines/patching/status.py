"""How the patches of an engine stand, read from its files, its record and the wheel's own RECORD."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

import msgspec

from dflash_tui.common.errors import EngineError, PatchError
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching import ledger, permissions, source_probe, text_edits, transaction
from dflash_tui.engines.patching.ledger import Applied
from dflash_tui.engines.patching.text_edits import Fit
from dflash_tui.engines.patching.unpatched_files import Base
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning import patch_applicability, patch_file
from dflash_tui.planning.patch_applicability import Build
from dflash_tui.planning.patch_file import Patch


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


def build_of(engine: Engine) -> Build:
    """Return what a patch has to know of the engine."""
    return patch_applicability.build_of(engine.distribution, engine.vllm, engine.packages, torch_backend(engine))


def torch_backend(engine: Engine) -> str:
    """Return what the engine's torch is built for (cu129, cpu); empty when that cannot be read."""
    try:
        return patch_applicability.torch_backend(
            (engine.site_packages / "torch" / "version.py").read_text(encoding="utf-8")
        )
    except (OSError, UnicodeDecodeError, EngineError):
        return ""


def find(patch: Patch, engine: Engine, hardware: Hardware | None = None) -> Found:
    """Return how `patch` stands in `engine`, read from the files themselves; the version is a hint.

    What is in by its exact text or another form of it comes first, whoever did it; then what the source does by
    itself; then whether this engine needs it; and last whether its edits fit.
    """
    build = build_of(engine)
    touched = {path for path, entry in ledger.manifest(engine).items() if patch.name in entry.patches}
    base = Base(engine, {*touched, *patch.paths, *(sign.path for sign in patch.signs)})
    why = patch_applicability.unneeded(patch, build, hardware)
    editions = base.editions(patch)
    if editions == dict.fromkeys(patch.paths, patch.digest):  # also where nobody needs it: it can be taken out
        return Found(patch.name, State.APPLIED, why)
    if len(set(editions.values())) > 1:
        said = f"its editions are mixed; take it out first: dflash-tui patch revert --only {patch.name}"
        mixed = "".join(f"{path} has edition {edition}\n" for path, edition in sorted(editions.items()))
        return Found(patch.name, State.DRIFTED, said, mixed)
    found = _there(patch, engine, build, base, why) or _absent(patch, build, base, why)
    notes = [found.why, "" if found.state is State.NOT_APPLICABLE else patch_applicability.caveat(patch, build)]
    if found.state is State.NEEDED and editions:
        notes.insert(1, "an older edition of it is in" if patch.digest not in editions.values() else "half of it is in")
    return msgspec.structs.replace(found, why="; ".join(filter(None, notes)))


def _there(patch: Patch, engine: Engine, build: Build, base: Base, why: str) -> Found | None:
    """Return that it is in by other hands, or that the source does it by itself; None when neither is so.

    Who did it is told by the wheel's RECORD: a file that is as published is upstream's work.
    """
    if patch.distribution != build.distribution:
        return None
    upstream, fit = source_probe.seen(patch.upstream, base.texts), text_edits.fit(patch, base.texts)
    if upstream and patch_applicability.reached(patch, build):
        return Found(patch.name, State.UPSTREAM, why)
    upstream = upstream and not (fit is Fit.ABSENT and _anywhere(patch))
    exact = fit is Fit.PRESENT and text_edits.in_effect(patch, base.texts)
    other = bool(patch.by_others) and all(source_probe.seen(sign, base.texts) for sign in patch.by_others)
    if not (upstream or exact or other):
        return None
    own = patch.paths if exact or other or not patch.upstream else (patch.upstream.path,)
    published = base.as_published(engine, own)
    if published is None:  # an editable installation has no RECORD of its files
        published = upstream and (
            bool(patch_applicability.caveat(patch, build)) or not patch_applicability.covers(patch, build)
        )
    if published:
        return Found(patch.name, State.UPSTREAM, "its source has it") if upstream or not why else None
    form = "its text is in" if exact else "it is in, in another form" if other else "its source has it"
    recorded = any(patch.name in entry.patches for entry in ledger.manifest(engine).values())
    since = (
        "and its file was changed by somebody else since we brought it in"
        if recorded
        else "and we have no record of it"
    )
    said = [f"{form}, {since}", why]
    return Found(patch.name, State.APPLIED_BY_OTHER, "; ".join(filter(None, said)))


def _anywhere(patch: Patch) -> bool:
    """Whether upstream's sign is any use of a name in a file of the patch.

    The very text that it replaces says more: somebody uses the name for something else.
    """
    sign = patch.upstream
    return sign is not None and sign.path in patch.paths and not sign.in_class and sign.returns is None


def _absent(patch: Patch, build: Build, base: Base, why: str) -> Found:
    """Return whether the engine needs what is not in."""
    fit = text_edits.fit(patch, base.texts)
    if not why and fit is not Fit.ABSENT and not patch_applicability.covers(patch, build):
        why = f"{patch_applicability.out_of(patch)}; {patch_applicability.caveat(patch, build)}"
    if why:
        # A release that upstream's release has been reached by, but whose source does not show it, is just another.
        return Found(
            patch.name, State.NOT_APPLICABLE, patch_applicability.out_of(patch) if why.startswith("upstream") else why
        )
    if fit is Fit.ABSENT and _works(patch, base):
        return Found(patch.name, State.NEEDED)
    if fit is not Fit.DRIFTED:
        undone = f"a later definition in {', '.join(patch.paths)} undoes what it does"
        return Found(patch.name, State.DRIFTED, undone)
    misses = f"the text it replaces is not exactly once in {', '.join(patch.paths)}"
    said = "; ".join(base.unreadable[path] for path in patch.paths if path in base.unreadable) or misses
    if patch_applicability.caveat(patch, build):  # reinstalling would not help
        said += f" (to launch without it: --set patches.{patch.name}=false)"
    return Found(patch.name, State.DRIFTED, said, text_edits.drift(patch, base.texts, base.unreadable))


def _works(patch: Patch, base: Base) -> bool:
    """Whether the patch would have an effect; what would not compile is refused when it is applied."""
    try:
        return text_edits.in_effect(patch, {**base.texts, **text_edits.patched([patch], base.texts)})
    except PatchError:
        return True


def present(engine: Engine) -> tuple[str, ...]:
    """Return the names of all known patches that are in the engine, whoever brought them in."""
    known, _ = patch_file.known()
    found = [find(patch, engine) for patch in known if patch.distribution == engine.distribution]
    return tuple(one.name for one in found if one.state in {State.APPLIED, State.APPLIED_BY_OTHER})


def applied(engine: Engine) -> tuple[str, ...]:
    """Return the names of the patches that we brought into the engine and that are still there."""
    base = Base(engine, ledger.manifest(engine))
    return tuple(sorted({name for entry in base.ours.values() for name in entry.patches}))


def verify(engine: Engine, only: Collection[str] | None = None) -> list[Checked]:
    """Return for every file that a known patch could touch (or those of `only`) whether it is what it should be.

    That is: as we left it, with an intact pristine copy that equals the wheel's RECORD; or as the RECORD has it.
    """
    known = {path for patch in patch_file.known()[0] for path in patch.paths}
    record = ledger.manifest(engine)
    wanted = known | set(record) if only is None else set(only)
    base, official = Base(engine, wanted), permissions.recorded(engine)
    trouble = transaction.trouble(engine)
    checked = [Checked(engine.folder, ok=False, found=trouble.said)] if trouble else []
    for path, data in base.now.items():
        if data is not None:
            checked.append(_checked(engine, path, record.get(path), data, official.get(path)))
        elif path in record or path in official or (engine.site_packages / "vllm" / path).is_symlink():
            checked.append(Checked(path, ok=False, found=base.unreadable[path]))
    return checked


def _checked(engine: Engine, path: str, entry: Applied | None, data: bytes, official: str | None) -> Checked:
    now = ledger.sha256(data)
    if entry and now == entry.patched_sha256:
        if ledger.pristine(engine, entry) is None:
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
