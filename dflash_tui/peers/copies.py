"""Copy models from this host to one that lacks them, by rsync over ssh, on the address of the link."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from dflash_tui.common import paths, private_files
from dflash_tui.common.errors import DflashError
from dflash_tui.common.formatting import format_gigabytes
from dflash_tui.common.sanitizer import join_last_lines
from dflash_tui.engines import model_hub
from dflash_tui.engines.download import ByteProgress
from dflash_tui.engines.model_hub import measure_file
from dflash_tui.events import Preparing, Step
from dflash_tui.launch.preflight.check import Check, CheckLevel, fail_check, pass_check
from dflash_tui.machine.process_environment import OPENSSH, build_helper_environment
from dflash_tui.peers import transport
from dflash_tui.peers.connection import ask, start_process
from dflash_tui.peers.transport import LinkAddress
from dflash_tui.planning.cluster import LOCAL, Cluster
from dflash_tui.planning.plan import Plan, PlannedModel

ROLES = ("target", "drafter")
RESERVE = 1_000_000_000
"""Bytes to keep free on a disk."""
_ROOM_SECONDS = 60.0
_SSH_SECONDS = 15.0
_LONGEST_NAME = 80
_SSH_FAILED = 255
_FREE = "free some space there, or put the folders elsewhere with HF_HOME and XDG_DATA_HOME"
_AGAIN = "run the same command again: the copy resumes where it stopped"
# The receiver may read what it has before it accepts more, which takes a minute for the largest files.
_RSYNC = (
    "rsync", "--append-verify", "--times", "--protect-args", "--timeout=300", "--from0", "--files-from=-",
    "--info=progress2", "--no-human-readable",
)  # fmt: skip
_COUNT = re.compile(rb"(\d+) +\d+%")
_NO_RSYNC = ("rsync copies models, and one of the two hosts has none", "sudo apt install rsync, on both")


class CopyFile(msgspec.Struct, frozen=True):
    """A file of a model."""

    name: str
    """Its path in the model's folder."""
    size: int
    """Its size in bytes."""
    data: str
    """The path of its content: in the hub's cache `name` is a link to it."""


class ModelCopy(msgspec.Struct, frozen=True):
    """A model that is complete on this host, and its place on another."""

    title: str
    """Its name for users."""
    roles: tuple[str, ...]
    """Its roles for the server: target, drafter or both."""
    source: str
    """The folder of its files on this host."""
    folder: str
    """The name of its folder there, in the hub's cache or among our own models."""
    version: str
    """The commit, or for our own models a digest of names, sizes and times; copies of others are not resumed."""
    files: tuple[CopyFile, ...]
    revision: str | None = None
    """The branch, tag or commit in the hub's cache; None for a folder among our own models."""
    path: str = ""
    """The path that the user named; a folder at that path on the other host is used instead of a copy."""

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.size for file in self.files)


class RoomFound(msgspec.Struct, frozen=True):
    """How much of a model another host has, and its free space."""

    missing: dict[str, int]
    """Bytes still to be sent, by the path of each missing file."""
    free: int
    """The free bytes of the disk."""
    is_done: bool
    """Whether nothing is left to copy."""
    folder: str
    """The folder to copy the files to."""
    has_rsync: bool


class MissingModel(NamedTuple):
    """A model that another host lacks, and the room for it there."""

    copy: ModelCopy
    room: RoomFound

    @property
    def size(self) -> int:
        """The bytes still to be copied."""
        return sum(self.room.missing.values())

    @property
    def can_copy(self) -> bool:
        """Whether both hosts have rsync."""
        return self.room.has_rsync and shutil.which("rsync") is not None


async def find_copies(plan: Plan) -> list[ModelCopy]:
    """Return the plan's models that are complete here, by the hub or else by their own index."""
    if plan.build_script:
        folder = Path(plan.models_folder)
        files = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
        return [_describe_folder(f"the models of {plan.recipe}", ROLES, folder, folder.name, files)] if files else []
    copies: list[ModelCopy] = []
    for role, model in zip(ROLES, plan.models, strict=False):
        copy = _describe_local(role, model) or await _describe_cached(role, model)
        if copy and all(copy.files != other.files for other in copies):
            copies.append(copy)
    return copies


def name_folders(plan: Plan) -> dict[str, str]:
    """Return the names of the copies of the plan's local folders on other hosts: folder -> name."""
    copies = (_describe_local("", model) for model in plan.models)
    return {copy.title: copy.folder for copy in copies if copy}


def _describe_local(role: str, model: PlannedModel) -> ModelCopy | None:
    """Return the copy of a model named by its folder; a changed folder gets another name."""
    folder = model_hub.find_local_folder(model.name)
    files = model_hub.list_loaded_files(folder) if folder else {}
    if not folder or not files:
        return None
    word = re.sub(r"[^A-Za-z0-9_.+-]", "-", folder.name).lstrip(".+-")[:_LONGEST_NAME] or "model"
    return _describe_folder(model.name, (role,), folder, f"{word}-{_digest_versions(files)}", files, path=model.name)


def _describe_folder(
    title: str, roles: tuple[str, ...], folder: Path, name: str, files: Mapping[str, Path], *, path: str = ""
) -> ModelCopy:
    entries = tuple(CopyFile(file, at.stat().st_size, file) for file, at in files.items())
    return ModelCopy(title, roles, str(folder), name, _digest_versions(files), entries, path=path)


async def _describe_cached(role: str, model: PlannedModel) -> ModelCopy | None:
    """Return the copy of a model in the hub's cache; None if it is incomplete, or links to files elsewhere."""
    availability = await model_hub.look_up_model(model.name, model.revision)
    if not availability.complete or not availability.folder:
        return None
    snapshot = Path(availability.folder)
    folder = paths.resolve_links(snapshot.parents[1])
    entries = []
    for path in model_hub.list_loaded_files(snapshot).values():
        data = paths.resolve_links(path)
        if not data.is_relative_to(folder):
            return None
        name = f"snapshots/{path.relative_to(snapshot.parent)}"
        entries.append(CopyFile(name, data.stat().st_size, str(data.relative_to(folder))))
    name = model_hub.repository_folder(model.name).name
    return ModelCopy(model.name, (role,), str(folder), name, snapshot.name, tuple(entries), revision=model.revision)


def _digest_versions(files: Mapping[str, Path]) -> str:
    """Return a digest of names, sizes and times, which changes with the files' content without reading it."""
    stats = {name: path.stat() for name, path in files.items()}
    lines = [f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in stats.items()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


async def find_missing(copies: Sequence[ModelCopy], host: str, *, begins: bool = False) -> list[MissingModel]:
    """Return the models that another host lacks, in whole or in part; `begins` makes their folders there."""
    if host == LOCAL or not copies:
        return []
    rooms = await ask(host, "find_room", list[RoomFound], _ROOM_SECONDS, copies=copies, begins=begins)
    return [MissingModel(copy, room) for copy, room in zip(copies, rooms, strict=True) if not room.is_done]


def check_missing(missing: Iterable[MissingModel], host: str, cluster: Cluster, rank: int) -> list[Check]:
    """Return a check per role of each model to copy, and whether it fits on the disk."""
    way, checks, needed = _describe_way(cluster, rank), [], 0
    for model in missing:
        needed += model.size
        for number, role in enumerate(model.copy.roles):
            name, amount = f"{host}: {role}", format_gigabytes(model.size)
            if number:
                checks.append(pass_check(name, f"{model.copy.title}, copied with the {model.copy.roles[0]}"))
            elif not model.can_copy:
                checks.append(fail_check(name, *_NO_RSYNC))
            elif model.room.free < needed + RESERVE:
                finding = f"{model.copy.title}, {amount} to copy, {format_gigabytes(model.room.free)} free there"
                checks.append(fail_check(name, finding, f"on {host}: {_FREE}"))
            else:
                checks.append(pass_check(name, f"{model.copy.title}, {amount} to copy from this machine {way}"))
    return checks


async def copy_missing(
    copies: Sequence[ModelCopy], host: str, cluster: Cluster, rank: int, report: Callable[[Preparing], None]
) -> None:
    """Copy missing models over the link, or over ssh's usual address if the link does not accept ssh.

    Raises:
        DflashError: a copy failed; its partial files are kept, and the next copy resumes them.
    """
    missing = await find_missing(copies, host, begins=True)
    if wrong := [check for check in check_missing(missing, host, cluster, rank) if check.level is CheckLevel.FAIL]:
        raise DflashError(f"{wrong[0].name}: {wrong[0].finding}", hint=wrong[0].fix)
    for model in missing:
        link, way = await _find_link(host, cluster, rank), _describe_way(cluster, rank)
        if why := await _explain_silence(host, link):
            report(Preparing(time.time(), Step.MODELS, f"no ssh {way}, so as {host} is reached: {why}"))
        await send_copy(host, None if why else link, model, report, "by ssh" if why else way)


async def send_copy(
    host: str, link: LinkAddress | None, model: MissingModel, report: Callable[[Preparing], None], way: str = "by ssh"
) -> None:
    """Copy a model's files that a host lacks; cancelling stops both sides, and the copy can be resumed.

    Without `link`, ssh's configured addresses are used; `way` names the way in events.

    Raises:
        DflashError: the disk is full, no connection, or a file changed meanwhile.
    """
    copy, room = model
    names = {*room.missing} | {file.name for file in copy.files if file.name != file.data}
    follows_links = copy.revision is None
    links = "--copy-links" if follows_links else "--links"
    command = [*_RSYNC, links, *transport.build_rsync_words(host, link, f"{copy.source}/", room.folder)]
    # What rsync counts includes the part of a file that is there already.
    others = copy.size - sum({file.data: file.size for file in copy.files if file.data in room.missing}.values())
    progress = ByteProgress(copy.title, copy.size, copy.size - model.size, report, way)
    await _run_rsync(command, names, lambda sent: progress.report(others + sent), host, copy.title)
    source = Path(copy.source)
    if follows_links and copy.version != _digest_versions({file.name: source / file.name for file in copy.files}):
        raise DflashError(f"{copy.title} changed while it was copied", hint="run the same command again")
    await ask(host, "finish_copy", type(None), _ROOM_SECONDS, copy=copy)
    progress.finish("copied")


async def _run_rsync(
    command: Sequence[str], names: Iterable[str], report: Callable[[int], None], host: str, title: str
) -> None:
    """Run rsync for the files `names`; `report` is called with the bytes of them that are there."""
    async with start_process(command, build_helper_environment(OPENSSH)) as process:
        process.stdin.write("\0".join(sorted(names)).encode())
        process.stdin.write_eof()
        while text := await process.stdout.read(1 << 16):
            if counts := _COUNT.findall(text):
                report(int(counts[-1]))
        if code := await process.wait():
            raise _explain_failure(host, title, code, await process.errors)


def _explain_failure(host: str, title: str, code: int, errors: str) -> DflashError:
    evidence = join_last_lines(errors, 3)
    if os.strerror(errno.ENOSPC) in errors or os.strerror(errno.EDQUOT) in errors:
        return DflashError(f"the disk for the models of {host} is full", evidence=evidence, hint=f"{_FREE}; {_AGAIN}")
    if code != _SSH_FAILED and "connection unexpectedly closed" not in errors:
        return DflashError(f"{title} was not copied to {host}", evidence=evidence, hint=_AGAIN)
    error = transport.explain_end(host, _SSH_FAILED, errors)
    return DflashError(error.what, evidence=error.evidence, hint=f"{_AGAIN}; {error.hint}")


def _describe_way(cluster: Cluster, rank: int) -> str:
    end = cluster.hosts[rank]
    return f"over {end.address} ({end.interface})" if end.interface else f"over {end.address}"


async def _find_link(host: str, cluster: Cluster, rank: int) -> LinkAddress:
    """Return a host's address on the link, with the name by which ssh knows its key."""
    async with start_process(["ssh", "-G", "--", host], build_helper_environment(OPENSSH)) as process:
        settings = (await process.stdout.read()).decode(errors="replace")
    return LinkAddress(cluster.hosts[0].address, cluster.hosts[rank].address, transport.read_key_name(host, settings))


async def _explain_silence(host: str, link: LinkAddress) -> str:
    """Return why ssh does not reach a host over a link; empty if it does."""
    command = transport.build_probe_command(host, link)
    async with start_process(command, build_helper_environment(OPENSSH)) as process:
        try:
            code = await asyncio.wait_for(process.wait(), _SSH_SECONDS)
        except TimeoutError:
            return f"no answer within {_SSH_SECONDS:.0f} s"
        return transport.explain_end(host, code, await process.errors).evidence if code else ""


def describe_rooms(copies: list[ModelCopy], begins: bool) -> list[RoomFound]:
    """Return how much of each model this host has, and its free space; `begins` makes the folders of the copies."""
    return [_describe_room(copy, begins=begins) for copy in copies]


def _describe_room(copy: ModelCopy, *, begins: bool) -> RoomFound:
    folder, work = _find_folders(copy)
    if begins and copy.revision is None:
        private_files.ensure_private_folder(work)
    elif begins:
        work.mkdir(parents=True, exist_ok=True)
    has_all = _is_done(copy, folder)
    missing = {
        file.data: file.size - min(measure_file(work / file.data) or 0, file.size)
        for file in copy.files
        if not has_all and file.size not in {measure_file(folder / file.name), measure_file(folder / file.data)}
    }
    free = shutil.disk_usage(paths.find_existing(work)).free
    return RoomFound(missing, free, has_all, str(work), shutil.which("rsync") is not None)


def finish_copy(copy: ModelCopy) -> None:
    """Move copied files into place; raise DflashError if some are incomplete."""
    folder, work = _find_folders(copy)
    is_cached = copy.revision is not None
    for path in sorted(work.rglob("*")) if is_cached else ():
        if path.is_symlink() or path.is_file():
            target = folder / path.relative_to(work)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
    if not _is_whole(copy, folder if is_cached else work):
        raise DflashError(f"{copy.folder} did not arrive whole", hint="run the same command again")
    if copy.revision is None and not folder.exists():
        work.rename(folder)
    elif copy.revision and copy.revision != copy.version:
        ref = folder / "refs" / copy.revision  # a branch, by which a start without the hub finds the commit
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(copy.version)
    shutil.rmtree(work, ignore_errors=True)


def _is_whole(copy: ModelCopy, folder: Path) -> bool:
    return all(measure_file(folder / file.name) == file.size for file in copy.files)


def _find_folders(copy: ModelCopy) -> tuple[Path, Path]:
    """Return the folder of a model, and the folder on the same disk that its files are copied into."""
    if copy.revision is None:
        models = paths.models_folder()
        return models / copy.folder, models / f".{copy.folder}.{copy.version}.copy"
    folder = model_hub.hub_cache_folder() / copy.folder
    return folder, folder / ".dflash-tui.copy"


def _is_done(copy: ModelCopy, folder: Path) -> bool:
    if copy.revision is None:
        return folder.is_dir() or bool(copy.path and model_hub.find_local_folder(copy.path))
    if not _is_whole(copy, folder):
        return False
    ref = folder / "refs" / copy.revision
    return copy.revision == copy.version or (ref.is_file() and ref.read_text().strip() == copy.version)
