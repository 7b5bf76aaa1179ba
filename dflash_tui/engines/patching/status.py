"""How the patches of an engine stand, read from its files, its record and the wheel's own RECORD."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

import msgspec

from dflash_tui.common.errors import EngineError, PatchError
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching import ledger, permissions, source_probe, text_edits, transaction
from dflash_tui.engines.patching.ledger import LedgerEntry
from dflash_tui.engines.patching.text_edits import EditFit
from dflash_tui.engines.patching.unpatched_files import UnpatchedFiles
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning import patch_applicability, patch_file
from dflash_tui.planning.patch_applicability import VllmBuild
from dflash_tui.planning.patch_file import Patch


class PatchState(StrEnum):
    """How a patch stands in an engine."""

    NEEDED = "absent-needed"
    APPLIED = "applied-by-us"
    APPLIED_BY_OTHER = "applied-by-other"
    UPSTREAM = "upstream"
    NOT_APPLICABLE = "not-applicable"
    DRIFTED = "drifted"


THERE = frozenset({PatchState.APPLIED, PatchState.APPLIED_BY_OTHER, PatchState.UPSTREAM})


class PatchStatus(msgspec.Struct, frozen=True):
    """A patch in an engine: its state, why, and for a drifted one how the source differs from what it expects."""

    name: str
    state: PatchState
    why: str = ""
    drift: str = ""


class FileCheck(msgspec.Struct, frozen=True):
    """What verifying one file found."""

    path: str
    ok: bool
    found: str


def build_of_engine(engine: Engine) -> VllmBuild:
    """Return what a patch has to know of the engine."""
    return patch_applicability.describe_build(
        engine.distribution, engine.vllm, engine.packages, read_torch_backend(engine)
    )


def read_torch_backend(engine: Engine) -> str:
    """Return what the engine's torch is built for (cu129, cpu); empty when that cannot be read."""
    try:
        return patch_applicability.parse_torch_backend(
            (engine.site_packages / "torch" / "version.py").read_text(encoding="utf-8")
        )
    except (OSError, UnicodeDecodeError, EngineError):
        return ""


def find_patch_status(patch: Patch, engine: Engine, hardware: Hardware | None = None) -> PatchStatus:
    """Return how `patch` stands in `engine`, read from the files themselves; the version is a hint.

    What is in by its exact text or another form of it comes first, whoever did it; then what the source does by
    itself; then whether this engine needs it; and last whether its edits fit.
    """
    build = build_of_engine(engine)
    touched = {path for path, entry in ledger.read_applied_entries(engine).items() if patch.name in entry.patches}
    base = UnpatchedFiles(engine, {*touched, *patch.paths, *(sign.path for sign in patch.signs)})
    why = patch_applicability.explain_not_needed(patch, build, hardware)
    editions = base.editions(patch)
    if editions == dict.fromkeys(patch.paths, patch.digest):  # also where nobody needs it: it can be taken out
        return PatchStatus(patch.name, PatchState.APPLIED, why)
    if len(set(editions.values())) > 1:
        said = f"its editions are mixed; take it out first: dflash-tui patch revert --only {patch.name}"
        mixed = "".join(f"{path} has edition {edition}\n" for path, edition in sorted(editions.items()))
        return PatchStatus(patch.name, PatchState.DRIFTED, said, mixed)
    found = _there(patch, engine, build, base, why) or _absent(patch, build, base, why)
    notes = [
        found.why,
        "" if found.state is PatchState.NOT_APPLICABLE else patch_applicability.explain_caveat(patch, build),
    ]
    if found.state is PatchState.NEEDED and editions:
        notes.insert(1, "an older edition of it is in" if patch.digest not in editions.values() else "half of it is in")
    return msgspec.structs.replace(found, why="; ".join(filter(None, notes)))


def _there(patch: Patch, engine: Engine, build: VllmBuild, base: UnpatchedFiles, why: str) -> PatchStatus | None:
    """Return that it is in by other hands, or that the source does it by itself; None when neither is so.

    Who did it is told by the wheel's RECORD: a file that is as published is upstream's work.
    """
    if patch.distribution != build.distribution:
        return None
    upstream, fit = (
        source_probe.matches_fingerprint(patch.upstream, base.texts),
        text_edits.fit_edits(patch, base.texts),
    )
    if upstream and patch_applicability.has_reached_upstream(patch, build):
        return PatchStatus(patch.name, PatchState.UPSTREAM, why)
    upstream = upstream and not (fit is EditFit.ABSENT and _anywhere(patch))
    exact = fit is EditFit.PRESENT and text_edits.is_in_effect(patch, base.texts)
    other = bool(patch.by_others) and all(
        source_probe.matches_fingerprint(sign, base.texts) for sign in patch.by_others
    )
    if not (upstream or exact or other):
        return None
    own = patch.paths if exact or other or not patch.upstream else (patch.upstream.path,)
    published = base.as_published(engine, own)
    if published is None:  # an editable installation has no RECORD of its files
        published = upstream and (
            bool(patch_applicability.explain_caveat(patch, build)) or not patch_applicability.covers_build(patch, build)
        )
    if published:
        return PatchStatus(patch.name, PatchState.UPSTREAM, "its source has it") if upstream or not why else None
    form = "its text is in" if exact else "it is in, in another form" if other else "its source has it"
    recorded = any(patch.name in entry.patches for entry in ledger.read_applied_entries(engine).values())
    since = (
        "and its file was changed by somebody else since we brought it in"
        if recorded
        else "and we have no record of it"
    )
    said = [f"{form}, {since}", why]
    return PatchStatus(patch.name, PatchState.APPLIED_BY_OTHER, "; ".join(filter(None, said)))


def _anywhere(patch: Patch) -> bool:
    """Whether upstream's sign is any use of a name in a file of the patch.

    The very text that it replaces says more: somebody uses the name for something else.
    """
    sign = patch.upstream
    return sign is not None and sign.path in patch.paths and not sign.in_class and sign.returns is None


def _absent(patch: Patch, build: VllmBuild, base: UnpatchedFiles, why: str) -> PatchStatus:
    """Return whether the engine needs what is not in."""
    fit = text_edits.fit_edits(patch, base.texts)
    if not why and fit is not EditFit.ABSENT and not patch_applicability.covers_build(patch, build):
        why = f"{patch_applicability.explain_out_of_range(patch)}; {patch_applicability.explain_caveat(patch, build)}"
    if why:
        # A release that upstream's release has been reached by, but whose source does not show it, is just another.
        return PatchStatus(
            patch.name,
            PatchState.NOT_APPLICABLE,
            patch_applicability.explain_out_of_range(patch) if why.startswith("upstream") else why,
        )
    if fit is EditFit.ABSENT and _works(patch, base):
        return PatchStatus(patch.name, PatchState.NEEDED)
    if fit is not EditFit.DRIFTED:
        undone = f"a later definition in {', '.join(patch.paths)} undoes what it does"
        return PatchStatus(patch.name, PatchState.DRIFTED, undone)
    misses = f"the text it replaces is not exactly once in {', '.join(patch.paths)}"
    said = "; ".join(base.unreadable[path] for path in patch.paths if path in base.unreadable) or misses
    if patch_applicability.explain_caveat(patch, build):  # reinstalling would not help
        said += f" (to launch without it: --set patches.{patch.name}=false)"
    return PatchStatus(
        patch.name, PatchState.DRIFTED, said, text_edits.describe_drift(patch, base.texts, base.unreadable)
    )


def _works(patch: Patch, base: UnpatchedFiles) -> bool:
    """Whether the patch would have an effect; what would not compile is refused when it is applied."""
    try:
        return text_edits.is_in_effect(patch, {**base.texts, **text_edits.patch_texts([patch], base.texts)})
    except PatchError:
        return True


def list_present_patches(engine: Engine) -> tuple[str, ...]:
    """Return the names of all known patches that are in the engine, whoever brought them in."""
    known, _ = patch_file.load_all_patches()
    found = [find_patch_status(patch, engine) for patch in known if patch.distribution == engine.distribution]
    return tuple(one.name for one in found if one.state in {PatchState.APPLIED, PatchState.APPLIED_BY_OTHER})


def list_applied_patches(engine: Engine) -> tuple[str, ...]:
    """Return the names of the patches that we brought into the engine and that are still there."""
    base = UnpatchedFiles(engine, ledger.read_applied_entries(engine))
    return tuple(sorted({name for entry in base.ours.values() for name in entry.patches}))


def verify_files(engine: Engine, only: Collection[str] | None = None) -> list[FileCheck]:
    """Return for every file that a known patch could touch (or those of `only`) whether it is what it should be.

    That is: as we left it, with an intact pristine copy that equals the wheel's RECORD; or as the RECORD has it.
    """
    known = {path for patch in patch_file.load_all_patches()[0] for path in patch.paths}
    record = ledger.read_applied_entries(engine)
    wanted = known | set(record) if only is None else set(only)
    base, official = UnpatchedFiles(engine, wanted), permissions.read_wheel_digests(engine)
    trouble = transaction.find_unfinished_change(engine)
    checked = [FileCheck(engine.folder, ok=False, found=trouble.said)] if trouble else []
    for path, data in base.now.items():
        if data is not None:
            checked.append(_checked(engine, path, record.get(path), data, official.get(path)))
        elif path in record or path in official or (engine.site_packages / "vllm" / path).is_symlink():
            checked.append(FileCheck(path, ok=False, found=base.unreadable[path]))
    return checked


def _checked(engine: Engine, path: str, entry: LedgerEntry | None, data: bytes, official: str | None) -> FileCheck:
    now = ledger.hash_bytes(data)
    if entry and now == entry.patched_sha256:
        if ledger.read_pristine_copy(engine, entry) is None:
            return FileCheck(path, ok=False, found="as we left it, but its pristine copy is gone or damaged")
        own = "" if official in {None, entry.pristine_sha256} else "; it had been changed before us"
        return FileCheck(path, ok=True, found=f"as we left it, with {', '.join(entry.patches)}{own}")
    if now == official:
        return FileCheck(path, ok=True, found="as published" + ("; what we had changed is gone" if entry else ""))
    if entry:
        return FileCheck(path, ok=False, found=f"changed by somebody else since {', '.join(entry.patches)} went in")
    if official is None:
        return FileCheck(path, ok=True, found="the wheel's RECORD says nothing about it")
    return FileCheck(path, ok=False, found="changed by somebody else: not as published, and not by us")
