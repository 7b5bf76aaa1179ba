"""Make a patched engine from an unpatched one, completely or not at all; neither changes afterwards.

The two share their files by hard links, except files that patches edit or that name the environment's folder. A user's
environment is cloned in the same way, and is never written to.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from dflash_tui.common import paths, private_files
from dflash_tui.common.errors import EngineError, PatchError
from dflash_tui.common.private_files import acquire_lock
from dflash_tui.engines import engine_python, environments
from dflash_tui.engines.environments import MAKING, MARKER, PATCHED_IN_PLACE, Engine
from dflash_tui.engines.patching import status, text_edits
from dflash_tui.engines.patching.status import PatchState
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.patch_file import Patch

_TIMEOUT = 300.0  # importing vLLM for the check may take minutes
_LARGEST_SCRIPT = 1 << 20
_OWN_FILES = frozenset({MARKER, PATCHED_IN_PLACE, "dflash-pristine"})
_PREFIX = re.compile(rb"[!'\" ](/[^'\"\n]*)/bin/python")


class PatchedEngine(NamedTuple):
    """A patched engine, and how it was made."""

    engine: Engine
    added: tuple[str, ...] = ()
    """The patches applied now; empty if the engine existed already."""
    note: str = ""


def make_patched_engine(
    base: Engine, folder: Path, patches: Sequence[Patch], hardware: Hardware | None = None
) -> PatchedEngine:
    """Return the engine in `folder`; if it is missing, make it from `base` with those of `patches` that it needs.

    Concurrent callers wait for each other. The next call removes what a killed one left.

    Raises:
        PatchError: a patch does not fit, its modules do not import, or the files cannot be written.
        Cancelled: the caller was cancelled; nothing was made.
    """
    if not base.patchable:
        raise PatchError(
            f"{base.folder} is not a virtual environment, so no patched engine can be made from it",
            hint="python3 -m venv creates one; without --engine dflash-tui creates its own",
        )
    private_files.ensure_private_folder(folder.parent)
    with open(folder.with_name(f".{folder.name}.lock"), "ab", opener=private_files.open_private) as lock:
        if not acquire_lock(lock.fileno(), _TIMEOUT, engine_python.raise_if_cancelled):
            raise PatchError(f"another dflash-tui is making {folder}", hint="try again when it is done")
        if found := environments.find_engine(folder):
            return PatchedEngine(found)
        needed = _select_needed(patches, base, hardware)
        making = folder.with_name(f"{MAKING}{folder.name}")
        for left in (making, folder):
            shutil.rmtree(left, ignore_errors=True)
        try:
            return _make(base, making, folder, needed)
        except OSError as error:
            hint = "free some space" if error.errno == errno.ENOSPC else "make the folder writable"
            evidence = f"{error.filename or ''}: {error.strerror}".lstrip(": ")
            raise PatchError(f"{folder} cannot be made", evidence=evidence, hint=hint) from None
        finally:
            shutil.rmtree(making, ignore_errors=True)


def preview_patches(patches: Sequence[Patch], engine: Engine, hardware: Hardware | None = None) -> dict[str, str]:
    """Return a unified diff per file for the patches that the engine needs; raise PatchError if one does not fit."""
    needed = _select_needed(patches, engine, hardware)
    return text_edits.diff_patches(needed, status.read_files(engine, {path for p in needed for path in p.paths}).texts)


def _select_needed(patches: Sequence[Patch], base: Engine, hardware: Hardware | None) -> list[Patch]:
    states = {patch.name: status.find_patch_status(patch, base, hardware) for patch in patches}
    for patch in patches:
        if (found := states[patch.name]).state is PatchState.DRIFTED:
            mend = f"dflash-tui engine remove {Path(base.folder).name}, and install it again"
            if base.adopted or base.source_tree:
                mend = f"update vLLM in {base.source_tree or base.folder}"
            raise PatchError(
                f"patch {patch.name} does not fit {base.distribution} {base.vllm}",
                evidence=found.drift.rstrip() or found.why,
                hint=f"{mend}, launch without the patch (--set patches.{patch.name}=false), or report it: {patch.link}",
            )
    needed = [patch for patch in patches if states[patch.name].state is PatchState.NEEDED]
    status.check_dependencies(needed, base, hardware)
    return needed


def _make(base: Engine, making: Path, folder: Path, needed: Sequence[Patch]) -> PatchedEngine:
    began = time.monotonic()
    before = status.read_files(base, {path for patch in needed for path in patch.paths})
    edited = text_edits.patch_texts(needed, before.texts)
    clone_environment(base, making, folder)
    clone = replace(base, folder=str(making), adopted=False, base=base.folder, package="")
    for path, text in edited.items():
        _replace_file(status.resolve_vllm_file(clone, path), text.encode())
    engine_python.raise_if_cancelled()
    note = _check_imports(base, clone, edited)
    after = status.read_files(clone, edited).digests
    engine = replace(
        clone,
        folder=str(folder),
        installed_at=time.time(),
        seconds=time.monotonic() - began,
        patch_digests=base.patch_digests | {patch.name: patch.digest for patch in needed},
        edited=base.edited
        | {path: (base.edited.get(path, (before.digests[path],))[0], after[path]) for path in edited},
    )
    private_files.write_private_file(making / MARKER, msgspec.json.encode(engine))
    making.rename(folder)
    return PatchedEngine(engine, tuple(patch.name for patch in needed), note)


def _replace_file(file: Path, data: bytes) -> None:
    """Replace a hard link with a new file, and delete the byte code of the old one."""
    mode = file.stat().st_mode
    file.unlink()
    file.write_bytes(data)
    file.chmod(mode & ~0o002)
    for stale in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        stale.unlink()


def clone_environment(base: Engine, target: Path, final: Path) -> None:
    """Clone an environment into `target` by hard links, to be used in the folder `final`.

    A file that cannot be linked, as onto another disk, is copied. A `vllm` package outside the environment, as in an
    editable install, is cloned into it.
    """
    source = Path(base.folder)
    _clone_folder(source, target, source, leave_out=_OWN_FILES)
    target.chmod(0o700)
    site = target / base.site_packages.relative_to(source)
    package, inside = base.vllm_package, site / "vllm"
    if package.is_symlink() or not package.is_relative_to(source):
        inside.unlink(missing_ok=True)
        _clone_folder(paths.resolve_links(package), inside, source)
    # Its scripts may name it by another path, as when it was created through a link.
    head = (source / "bin" / "vllm").read_bytes()[:1000] if (source / "bin" / "vllm").is_file() else b""
    names = (name for name in _PREFIX.findall(head) if paths.resolve_links(Path(os.fsdecode(name))) == source)
    prefixes = {os.fsencode(source), *names}
    for file in (target / "pyvenv.cfg", *(target / "bin").iterdir(), *site.glob("*.pth")):
        _rename_environment(file, prefixes, os.fsencode(final))


def _clone_folder(folder: Path, target: Path, root: Path, leave_out: Iterable[str] = ()) -> None:
    """Clone a folder recursively; absolute links into `root` become relative, so that they lead into the clone."""
    target.mkdir(mode=0o755)
    with os.scandir(folder) as entries:
        for entry in entries:
            there = target / entry.name
            # A running server may be writing byte code, under another name until it is complete.
            if entry.name in leave_out or (folder.name == "__pycache__" and not entry.name.endswith(".pyc")):
                continue
            if entry.is_symlink():
                leads = Path(entry.path).readlink()
                inside = leads.is_absolute() and leads.is_relative_to(root)
                there.symlink_to(os.path.relpath(leads, folder) if inside else leads)
            elif entry.is_dir():
                _clone_folder(Path(entry.path), there, root)
            elif entry.is_file():
                _link(entry.path, there)


def _link(source: str, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk, another user's file, or too many links
        shutil.copy2(source, target)


def _rename_environment(file: Path, prefixes: Iterable[bytes], final: bytes) -> None:
    """Replace the environment's path with `final` in a script or setting; binaries are skipped."""
    if file.is_symlink() or not file.is_file() or file.stat().st_size > _LARGEST_SCRIPT:
        return
    text = file.read_bytes()
    if b"\0" in text or not (file.name == "pyvenv.cfg" or any(prefix in text for prefix in prefixes)):
        return
    for prefix in prefixes:
        text = re.sub(re.escape(prefix) + rb"(?![\w.-])", lambda _: final, text)
    _replace_file(file, text)


def _check_imports(base: Engine, clone: Engine, edited: Collection[str]) -> str:
    """Import the edited modules with the clone's own Python; return why they could not be tested, or an empty string.

    A module that `base` cannot import either (without a GPU, say) says nothing about the patch.
    """
    if not edited:
        return ""
    modules = ["vllm." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in edited]
    if not (failed := _list_failed_imports(clone, modules, {"PYTHONDONTWRITEBYTECODE": ""})):
        return ""
    plain = _list_failed_imports(base, list(failed))
    for name, why in failed.items():
        if name not in plain:
            what = f"{name} no longer imports with the patch"
            raise PatchError(what, evidence=why[:500], hint="report it")
    name = next(iter(failed))
    return f"the patched {name} was not tested: it does not import here without the patch either ({plain[name][:200]})"


def _list_failed_imports(engine: Engine, modules: Sequence[str], env: Mapping[str, str] = {}) -> dict[str, str]:
    try:
        answer = engine_python.run_script(
            engine.python, "describe.py", "failures", *modules, timeout=engine_python.IMPORT_TIMEOUT, env=env
        )
    except EngineError as error:
        return dict.fromkeys(modules, error.evidence or error.what)
    return msgspec.json.decode(answer, type=dict[str, str])
