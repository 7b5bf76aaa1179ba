"""The state of each patch in an engine, by its files and the wheel's RECORD; dependencies between patches."""

from __future__ import annotations

import hashlib
import re
from base64 import urlsafe_b64decode
from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import msgspec

from dflash_tui.common import paths, private_files
from dflash_tui.common.errors import EngineError, PatchError
from dflash_tui.engines.environments import PATCHED_IN_PLACE, Engine
from dflash_tui.engines.patching import text_edits
from dflash_tui.engines.patching.text_edits import EditFit
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning import patch_file
from dflash_tui.planning.patch_file import Patch, VllmBuild
from dflash_tui.planning.plan import Plan

_LARGEST = 64 << 20
_RECORDED = re.compile(r"^vllm/([^,\n]+),sha256=([\w-]{43})=*,", re.MULTILINE)


class EngineFiles(NamedTuple):
    """Files of an engine, by path relative to the `vllm` package."""

    texts: dict[str, str | None]
    """Their texts; None for a file that is not readable text."""
    digests: dict[str, str]
    """Their SHA-256, without files that cannot be read."""
    unreadable: dict[str, str]


def resolve_vllm_file(engine: Engine, path: str) -> Path:
    """Return the path of a file in the engine's `vllm` package; raise PatchError if it leads out of the package."""
    package = paths.resolve_links(engine.vllm_package)
    there = package / path
    if paths.resolve_links(there) != there or not there.is_relative_to(package):
        raise PatchError(f"{path} leads out of the engine's vllm package", evidence=str(paths.resolve_links(there)))
    return there


def read_files(engine: Engine, names: Iterable[str]) -> EngineFiles:
    """Read the files of the engine's `vllm` package at the relative paths `names`."""
    files = EngineFiles({}, {}, {})
    for path in sorted(names):
        files.texts[path] = None
        try:
            data = private_files.read_file(resolve_vllm_file(engine, path), _LARGEST)
            files.digests[path] = hashlib.sha256(data).hexdigest()
            files.texts[path] = data.decode()
        except PatchError as error:
            files.unreadable[path] = error.what
        except FileNotFoundError:
            files.unreadable[path] = f"{path} does not exist"
        except OSError as error:
            files.unreadable[path] = f"{path} cannot be read: {error.strerror}"
        except UnicodeDecodeError as error:
            files.unreadable[path] = f"{path} is not UTF-8 text (byte {error.start})"
    return files


def read_wheel_digests(engine: Engine) -> dict[str, str]:
    """Return the hexadecimal SHA-256 of each file of the `vllm` package by the wheel's RECORD."""
    name = re.sub(r"[-_.]+", "_", engine.distribution)
    for record in engine.site_packages.glob(f"{name}-*.dist-info/RECORD"):
        try:
            text = private_files.read_file(record, _LARGEST).decode(errors="replace")
        except OSError:
            continue
        return {path: urlsafe_b64decode(f"{digest}=").hex() for path, digest in _RECORDED.findall(text)}
    return {}


class PatchState(StrEnum):
    """The state of a patch in an engine; `--json` prints these values."""

    NEEDED = "absent-needed"
    APPLIED = "applied-by-us"
    APPLIED_BY_OTHER = "applied-by-other"
    UPSTREAM = "upstream"
    NOT_APPLICABLE = "not-applicable"
    DRIFTED = "drifted"


# States in which the source has the patch's effect.
IN_EFFECT = frozenset({PatchState.APPLIED, PatchState.APPLIED_BY_OTHER, PatchState.UPSTREAM})


class PatchStatus(msgspec.Struct, frozen=True):
    """A patch in an engine: its state, the reason, and for a drifted patch how the source differs."""

    name: str
    state: PatchState
    why: str = ""
    drift: str = ""


class FileCheck(msgspec.Struct, frozen=True):
    """The result of verifying one file; `found` describes its state."""

    path: str
    ok: bool
    found: str


def build_of_engine(engine: Engine) -> VllmBuild:
    """Return the engine's build of vLLM: distribution, version and CUDA."""
    build = patch_file.describe_build(engine.distribution, engine.vllm, engine.packages, read_torch_backend(engine))
    return msgspec.structs.replace(build, editable=engine.source_tree is not None)


def read_torch_backend(engine: Engine) -> str:
    """Return the backend of the engine's torch (cu129, cpu); empty if it cannot be read."""
    try:
        version = private_files.read_file(engine.site_packages / "torch" / "version.py", 1 << 20)
        return patch_file.parse_torch_backend(version.decode())
    except (OSError, UnicodeDecodeError, EngineError):
        return ""


def find_patch_status(patch: Patch, engine: Engine, hardware: Hardware | None = None) -> PatchStatus:
    """Return the state of `patch` in `engine`, read from the files themselves; the version is a hint.

    Checked in this order: whether it is applied, by its exact text or in another form; whether the source already has
    its effect; whether this engine needs it; whether its edits fit.
    """
    build = build_of_engine(engine)
    why = patch_file.explain_not_needed(patch, build, hardware)
    if edition := engine.patch_digests.get(patch.name):
        if edition == patch.digest:
            return PatchStatus(patch.name, PatchState.APPLIED, why)
        other = f"this engine was made with another edition of it; one is made from {engine.base} with this one"
        return PatchStatus(patch.name, PatchState.DRIFTED, other)
    files = read_files(engine, {*patch.paths, *(fingerprint.path for fingerprint in patch.fingerprints)})
    state, reason = _judge_source(patch, engine, build, files.texts, why)
    caveat, drift = patch_file.explain_caveat(patch, build), ""
    if state is PatchState.DRIFTED:
        reason = "; ".join(files.unreadable[path] for path in patch.paths if path in files.unreadable)
        reason = reason or f"the text it replaces is not found exactly once in {', '.join(patch.paths)}"
        # Reinstalling would not help.
        reason += f" (to launch without it: --set patches.{patch.name}=false)" if caveat else ""
        drift = text_edits.describe_drift(patch, files.texts, files.unreadable)
    notes = [reason, caveat if state is not PatchState.NOT_APPLICABLE else ""]
    return PatchStatus(patch.name, state, "; ".join(filter(None, notes)), drift)


def _judge_source(
    patch: Patch, engine: Engine, build: VllmBuild, texts: text_edits.Texts, why: str
) -> tuple[PatchState, str]:
    """Return the state of a patch by the source, and the reason.

    `why` is the patch file's reason why the engine does not need the patch; empty if it needs it.
    """
    if patch.distribution != build.distribution:
        return PatchState.NOT_APPLICABLE, why
    fit, upstream = text_edits.fit_edits(patch, texts), text_edits.matches_fingerprint(patch.upstream, texts)
    caveat, is_covered = patch_file.explain_caveat(patch, build), patch_file.covers_build(patch, build)
    if upstream and patch_file.has_reached_upstream(patch, build):
        return PatchState.UPSTREAM, why
    if fit is EditFit.ABSENT and patch.upstream and patch.upstream.path in patch.paths:
        upstream = False  # the name may have another purpose there
    if upstream and (caveat or not is_covered):
        return PatchState.UPSTREAM, "the source has it"
    other = bool(patch.by_others) and all(text_edits.matches_fingerprint(mark, texts) for mark in patch.by_others)
    if upstream or other or fit is EditFit.PRESENT:
        form = "its exact text" if fit is EditFit.PRESENT else "another form of it" if other else "it"
        in_place = (Path(engine.folder) / PATCHED_IN_PLACE).exists()
        author = "applied by an earlier dflash-tui" if in_place else "not applied by dflash-tui"
        return PatchState.APPLIED_BY_OTHER, f"the source has {form}, {author}{why and f'; {why}'}"
    if not why and fit is EditFit.DRIFTED and not is_covered:
        why = f"{patch_file.explain_out_of_range(patch)}; {caveat}"
    if why:  # past upstream's release, a source that does not show the change is out of range
        return PatchState.NOT_APPLICABLE, patch_file.explain_out_of_range(patch) if why.startswith("upstream") else why
    return PatchState.NEEDED if fit is EditFit.ABSENT else PatchState.DRIFTED, ""


def judge_patches(names: Collection[str], engine: Engine, hardware: Hardware) -> tuple[dict[str, str], set[str]]:
    """Return why the engine does not need each patch (empty if it needs or has it), and which are in effect.

    A release of vLLM has no reasons: its version is enough.
    """
    states = [find_patch_status(patch_file.load_patch(name), engine, hardware) for name in names]
    present = {status.name for status in states if status.state in IN_EFFECT}
    if build_of_engine(engine).release:
        return {}, present
    unneeded = {PatchState.UPSTREAM, PatchState.NOT_APPLICABLE}
    return {status.name: status.why or "upstream" if status.state in unneeded else "" for status in states}, present


def list_present_patches(engine: Engine) -> tuple[str, ...]:
    """Return the names of all known patches applied to the engine, by dflash-tui or by hand."""
    patches, _ = patch_file.load_all_patches()
    states = [find_patch_status(patch, engine) for patch in patches if patch.distribution == engine.distribution]
    return tuple(status.name for status in states if status.state in {PatchState.APPLIED, PatchState.APPLIED_BY_OTHER})


def verify_files(engine: Engine, only: Collection[str] | None = None) -> list[FileCheck]:
    """Check the files of `only`, or every file that a known patch could edit.

    A file is in order if it matches the engine as it was made, or the wheel's RECORD.
    """
    known = {path for patch in patch_file.load_all_patches()[0] for path in patch.paths}
    files = read_files(engine, known | set(engine.edited) if only is None else only)
    official = read_wheel_digests(engine)
    checks = []
    for path in files.texts:
        now, published = files.digests.get(path), official.get(path)
        patched = engine.edited[path][1] if path in engine.edited else None
        made = patched or published
        if now is None and not (made or (engine.vllm_package / path).is_symlink()):
            continue
        found = "modified, not by dflash-tui" if made else "not listed in the wheel's RECORD"
        if now is None:
            found = files.unreadable[path]
        elif now == made:
            found = f"patched with {', '.join(engine.patches)}" if patched else "as published"
        checks.append(FileCheck(path, ok=now is not None and made in {None, now}, found=found))
    return checks


_DISABLED = "disabled by --set"


def load_planned_patches(plan: Plan) -> list[Patch]:
    """Return the patches of a plan; raise UsageError if one is missing or invalid."""
    return [patch_file.load_patch(name) for name in plan.patches]


def explain_unwanted(plan: Plan, present: Collection[str]) -> dict[str, str]:
    """Return the patches `present` in the engine that a launch of `plan` should run without: name -> reason."""
    wanted = load_planned_patches(plan)
    reasons = {}
    for patch in patch_file.load_all_patches()[0]:
        rival = next((other.name for other in wanted if patch_file.are_alternatives(patch, other)), "")
        if patch.name in present and patch.name not in plan.patches and (rival or patch.experimental):
            reasons[patch.name] = f"{rival} is its alternative" if rival else "experimental, not enabled"
    return reasons | {name: _DISABLED for name in plan.disabled_patches if name in present}


def patch_status(plan: Plan, engine: Engine | None) -> list[PatchStatus]:
    """Return the state of each patch of `plan` in its engine, or in the engine that will be installed.

    A patch that the plan excludes has the plan's reason; unless it is in effect it is not applicable.
    """

    def find_state(patch: Patch) -> PatchStatus:
        return find_patch_status(patch, engine, plan.hardware) if engine else PatchStatus(patch.name, PatchState.NEEDED)

    reasons = plan.skipped_patches | dict.fromkeys(plan.disabled_patches, _DISABLED)
    reasons |= explain_unwanted(plan, list_present_patches(engine)) if engine else {}
    states = [find_state(patch) for patch in load_planned_patches(plan)]
    for name, why in reasons.items():
        state = find_state(patch_file.load_patch(name)).state
        unneeded = state in {PatchState.NEEDED, PatchState.DRIFTED}
        states.append(PatchStatus(name, PatchState.NOT_APPLICABLE if unneeded else state, why))
    return states


def check_dependencies(needed: Sequence[Patch], engine: Engine, hardware: Hardware | None) -> None:
    """Raise PatchError if a patch requires one that is missing, or is an alternative to one that is present."""
    names, present = {patch.name for patch in needed}, list_present_patches(engine)
    for patch in needed:
        rivals = [other.name for other in patch_file.load_all_patches()[0] if patch_file.are_alternatives(patch, other)]
        if both := next((rival for rival in rivals if rival in names), ""):
            raise PatchError(f"patch {patch.name} is an alternative to {both}", hint="choose one of the two")
        if there := next((rival for rival in rivals if rival in present), ""):
            raise PatchError(
                f"patch {patch.name} is an alternative to {there}, which is in {engine.folder} already",
                hint=f"choose another engine, or disable it: --set patches.{patch.name}=false",
            )
        partners = [patch_file.load_patch(name) for name in patch.together_with if not names & {*patch.together_with}]
        if partners and not any(
            find_patch_status(partner, engine, hardware).state in IN_EFFECT for partner in partners
        ):
            raise PatchError(
                f"patch {patch.name} requires {' or '.join(patch.together_with)}",
                evidence=" ".join(patch.why.split()),
                hint=f"apply both: --only {patch.name} --only {partners[0].name}",
            )
