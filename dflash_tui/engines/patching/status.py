"""The state of each patch in an engine, read from its files, our record and the wheel's own RECORD."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

import msgspec

from dflash_tui.common import private_files
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
    """The state of a patch in an engine; the values are those of `--json`."""

    NEEDED = "absent-needed"
    APPLIED = "applied-by-us"
    APPLIED_BY_OTHER = "applied-by-other"
    UPSTREAM = "upstream"
    NOT_APPLICABLE = "not-applicable"
    DRIFTED = "drifted"


# The states in which the source does what the patch is for.
IN_EFFECT = frozenset({PatchState.APPLIED, PatchState.APPLIED_BY_OTHER, PatchState.UPSTREAM})


class PatchStatus(msgspec.Struct, frozen=True):
    """A patch in an engine: its state, why, and for a drifted one how the source differs from what it expects."""

    name: str
    state: PatchState
    why: str = ""
    drift: str = ""


class FileCheck(msgspec.Struct, frozen=True):
    """The result of verifying one file: `found` says in what state it is."""

    path: str
    ok: bool
    found: str


def build_of_engine(engine: Engine) -> VllmBuild:
    """Return which vLLM the engine holds: distribution, version and CUDA."""
    build = patch_applicability.describe_build(
        engine.distribution, engine.vllm, engine.packages, read_torch_backend(engine)
    )
    try:
        return msgspec.structs.replace(build, editable=engine.source_tree is not None)
    except EngineError:  # its folders are gone
        return build


def read_torch_backend(engine: Engine) -> str:
    """Return what the engine's torch is built for (cu129, cpu); empty when that cannot be read."""
    try:
        version = private_files.read_file(engine.site_packages / "torch" / "version.py", 1 << 20)
        return patch_applicability.parse_torch_backend(version.decode())
    except (OSError, UnicodeDecodeError, EngineError):
        return ""


def find_patch_status(patch: Patch, engine: Engine, hardware: Hardware | None = None) -> PatchStatus:
    """Return the state of `patch` in `engine`, read from the files themselves; the version is a hint.

    That it is applied, by its exact text or in another form, comes first, whoever did it; then what the source does
    by itself; then whether this engine needs it; and last whether its edits fit.
    """
    build = build_of_engine(engine)
    touched = {path for path, entry in ledger.read_applied_entries(engine).items() if patch.name in entry.patches}
    base = UnpatchedFiles(engine, {*touched, *patch.paths, *(fingerprint.path for fingerprint in patch.fingerprints)})
    why = patch_applicability.explain_not_needed(patch, build, hardware)
    editions = base.editions(patch)
    if editions == dict.fromkeys(patch.paths, patch.digest):  # also where nobody needs it: it can be reverted
        return PatchStatus(patch.name, PatchState.APPLIED, why)
    if len(set(editions.values())) > 1:
        mixed = f"files have different editions of it; revert it first: dflash-tui patch revert --only {patch.name}"
        detail = "".join(f"{path} has edition {edition}\n" for path, edition in sorted(editions.items()))
        return PatchStatus(patch.name, PatchState.DRIFTED, mixed, detail)
    status = _find_applied(patch, engine, build, base, why) or _judge_absent(patch, build, base, why)
    notes = [
        status.why,
        "" if status.state is PatchState.NOT_APPLICABLE else patch_applicability.explain_caveat(patch, build),
    ]
    if status.state is PatchState.NEEDED and editions:
        older = patch.digest not in editions.values()
        notes.insert(1, "an older edition of it is applied" if older else "half of it is applied")
    return msgspec.structs.replace(status, why="; ".join(filter(None, notes)))


def _find_applied(patch: Patch, engine: Engine, build: VllmBuild, base: UnpatchedFiles, why: str) -> PatchStatus | None:
    """Return that others have applied it, or that the source does it by itself; None when neither is so.

    The wheel's RECORD tells which: a file that is as published is upstream's work.

    Args:
        patch: The patch in question.
        engine: The engine in question.
        build: The engine's vLLM.
        base: The engine's files without our patches.
        why: Why the engine does not need the patch by its file; empty when it does.
    """
    if patch.distribution != build.distribution:
        return None
    upstream, fit = (
        source_probe.matches_fingerprint(patch.upstream, base.texts),
        text_edits.fit_edits(patch, base.texts),
    )
    if upstream and patch_applicability.has_reached_upstream(patch, build):
        return PatchStatus(patch.name, PatchState.UPSTREAM, why)
    upstream = upstream and not (fit is EditFit.ABSENT and _matches_any_use(patch))
    exact = fit is EditFit.PRESENT and text_edits.is_in_effect(patch, base.texts)
    other = bool(patch.by_others) and all(
        source_probe.matches_fingerprint(fingerprint, base.texts) for fingerprint in patch.by_others
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
        return PatchStatus(patch.name, PatchState.UPSTREAM, "the source has it") if upstream or not why else None
    form = "its exact text is there" if exact else "another form of it is there" if other else "the source has it"
    recorded = any(patch.name in entry.patches for entry in ledger.read_applied_entries(engine).values())
    author = "in a file that was modified since dflash-tui applied it" if recorded else "not applied by dflash-tui"
    reasons = [f"{form}, {author}", why]
    return PatchStatus(patch.name, PatchState.APPLIED_BY_OTHER, "; ".join(filter(None, reasons)))


def _matches_any_use(patch: Patch) -> bool:
    """Whether upstream's fingerprint is any use of a name in a file of the patch.

    The very text that it replaces says more: somebody uses the name for something else.
    """
    fingerprint = patch.upstream
    if fingerprint is None or fingerprint.path not in patch.paths:
        return False
    return not fingerprint.in_class and fingerprint.returns is None


def _judge_absent(patch: Patch, build: VllmBuild, base: UnpatchedFiles, why: str) -> PatchStatus:
    """Return whether the engine needs a patch that is not applied.

    Args:
        patch: The patch in question.
        build: The engine's vLLM.
        base: The engine's files without our patches.
        why: Why the engine does not need the patch by its file; empty when it does.
    """
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
    if fit is EditFit.ABSENT and _would_take_effect(patch, base):
        return PatchStatus(patch.name, PatchState.NEEDED)
    if fit is not EditFit.DRIFTED:
        undone = f"a later definition in {', '.join(patch.paths)} overrides what it changes"
        return PatchStatus(patch.name, PatchState.DRIFTED, undone)
    mismatch = f"the text it replaces is not found exactly once in {', '.join(patch.paths)}"
    reason = "; ".join(base.unreadable[path] for path in patch.paths if path in base.unreadable) or mismatch
    if patch_applicability.explain_caveat(patch, build):  # reinstalling would not help
        reason += f" (to launch without it: --set patches.{patch.name}=false)"
    return PatchStatus(
        patch.name, PatchState.DRIFTED, reason, text_edits.describe_drift(patch, base.texts, base.unreadable)
    )


def _would_take_effect(patch: Patch, base: UnpatchedFiles) -> bool:
    """Whether the patch would have an effect; what would not compile is refused when it is applied."""
    try:
        return text_edits.is_in_effect(patch, {**base.texts, **text_edits.patch_texts([patch], base.texts)})
    except PatchError:
        return True


def judge_by_source(names: Collection[str], engine: Engine, hardware: Hardware) -> dict[str, str]:
    """Return why the engine does not need each patch, empty for one that it needs or has; nothing for a release.

    A development build and a source tree may be others than their version says, so that their files are asked.
    """
    if build_of_engine(engine).release:
        return {}
    states = [find_patch_status(patch_file.load_patch(name), engine, hardware) for name in names]
    unneeded = {PatchState.UPSTREAM, PatchState.NOT_APPLICABLE}
    return {status.name: status.why or "upstream" if status.state in unneeded else "" for status in states}


def list_present_patches(engine: Engine) -> tuple[str, ...]:
    """Return the names of all known patches that are applied to the engine, whoever applied them."""
    patches, _ = patch_file.load_all_patches()
    states = [find_patch_status(patch, engine) for patch in patches if patch.distribution == engine.distribution]
    return tuple(status.name for status in states if status.state in {PatchState.APPLIED, PatchState.APPLIED_BY_OTHER})


def list_applied_patches(engine: Engine) -> tuple[str, ...]:
    """Return the names of the patches that we applied to the engine and that are still there."""
    base = UnpatchedFiles(engine, ledger.read_applied_entries(engine))
    return tuple(sorted({name for entry in base.ours.values() for name in entry.patches}))


def verify_files(engine: Engine, only: Collection[str] | None = None) -> list[FileCheck]:
    """Check every file that a known patch could touch, or those of `only`.

    A file is in order when it is as we left it, with an intact pristine copy, or as the wheel's RECORD has it.
    """
    patched_paths = {path for patch in patch_file.load_all_patches()[0] for path in patch.paths}
    record = ledger.read_applied_entries(engine)
    paths = patched_paths | set(record) if only is None else set(only)
    base, official = UnpatchedFiles(engine, paths), permissions.read_wheel_digests(engine)
    unfinished = transaction.find_unfinished_change(engine)
    checks = [FileCheck(engine.folder, ok=False, found=unfinished.message)] if unfinished else []
    for path, data in base.now.items():
        if data is not None:
            checks.append(_verify_file(engine, path, record.get(path), data, official.get(path)))
        elif path in record or path in official or (engine.vllm_package / path).is_symlink():
            checks.append(FileCheck(path, ok=False, found=base.unreadable[path]))
    return checks


def _verify_file(engine: Engine, path: str, entry: LedgerEntry | None, data: bytes, official: str | None) -> FileCheck:
    """Verify one file.

    Args:
        engine: The engine in question.
        path: The file, relative to the `vllm` package.
        entry: Our record of it, if any.
        data: Its bytes.
        official: Its SHA-256 by the wheel's RECORD, if any.
    """
    now = ledger.hash_bytes(data)
    if entry and now == entry.patched_sha256:
        if ledger.read_pristine_copy(engine, entry) is None:
            return FileCheck(path, ok=False, found="patched, but its pristine copy is missing or damaged")
        before = "" if official in {None, entry.pristine_sha256} else "; it was modified before that"
        return FileCheck(path, ok=True, found=f"patched with {', '.join(entry.patches)}{before}")
    if now == official:
        return FileCheck(
            path,
            ok=True,
            found="as published" + ("; the patches that dflash-tui applied to it are gone" if entry else ""),
        )
    if entry:
        return FileCheck(path, ok=False, found=f"modified since {', '.join(entry.patches)} was applied")
    if official is None:
        return FileCheck(path, ok=True, found="not listed in the wheel's RECORD")
    return FileCheck(path, ok=False, found="modified, not by dflash-tui")
