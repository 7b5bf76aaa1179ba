"""The record of one launched server, as `run.json` holds it."""

from __future__ import annotations

import os
from ipaddress import ip_address
from pathlib import Path

import msgspec

from dflash_tui.common import paths
from dflash_tui.events import Launched, Preparing
from dflash_tui.planning.plan import HOST, Plan

# Where vLLM itself looks for the key that requests must have.
KEY_VARIABLE = "VLLM_API_KEY"
# Fields that a later release adds are passed over; what it records otherwise gets another version.
# Version 1 has plans as `planning.earlier_plans` reads them.
VERSION = 2
LOG_NAME = "server.log"


class Run(msgspec.Struct, frozen=True):
    """One launched server, as recorded in `run.json`.

    `started_at` is seconds since the epoch, `utc_offset` the seconds that local time was ahead of UTC (the log
    stamps local time), `born` the identity of the process: with the pid it names one process for good. `forced` is
    why a failed check was overruled, `version` how the file is to be read. `restarted_from` is the run that died
    before this one was launched in its place, empty for any other.
    """

    id: str
    plan: Plan
    pid: int
    born: str
    started_at: float
    utc_offset: float
    engine: str
    patches: tuple[str, ...] = ()
    prepared: tuple[Preparing, ...] = ()
    forced: str = ""
    restarted_from: str = ""
    version: int = VERSION

    @property
    def folder(self) -> Path:
        """The run folder."""
        return paths.runs_folder() / self.id

    @property
    def log(self) -> Path:
        """The file that holds all the server printed, by the name that it has now."""
        return find_log(self.folder, self.pid)

    @property
    def samples(self) -> Path:
        """The file of recorded events, one JSON object per line."""
        return self.folder / "samples.jsonl"

    @property
    def url(self) -> str:
        """The server's base URL."""
        at = ip_address(self.plan.host)
        reached = ("::1" if at.version == 6 else HOST) if at.is_unspecified else self.plan.host
        return f"http://{f'[{reached}]' if at.version == 6 else reached}:{self.plan.port}"

    @property
    def key(self) -> str:
        """The key that an open server asks for, from our environment: it is recorded nowhere; else empty."""
        return os.environ.get(KEY_VARIABLE, "").strip() if self.plan.is_open else ""

    @property
    def launched(self) -> Launched:
        """The event of the launch."""
        plan = self.plan
        return Launched(
            at=self.started_at,
            run=self.id,
            recipe=plan.recipe,
            pid=self.pid,
            port=plan.port,
            mode=plan.mode.value,
            synthetic=plan.synthetic,
            num_speculative_tokens=plan.num_speculative_tokens,
        )


def find_log(folder: Path, pid: int = 0) -> Path:
    """Return the file that the process `pid` writes its output to when it is in `folder`, else the log there.

    That is `server.log`, or when there is none, or an empty one in its place, the newest `server.log.*`.
    """
    log = folder / LOG_NAME
    try:
        written = Path(f"/proc/{pid}/fd/1").readlink()
        if written.parent == folder.resolve() and written.is_file():  # a deleted one is no file
            return folder / written.name
    except OSError:
        pass
    try:
        if log.stat().st_size:
            return log
    except OSError:
        pass
    others = [path for path in folder.glob(f"{LOG_NAME}.*") if path.is_file() and not path.is_symlink()]
    return max(others, key=_modified_at, default=log)


def _modified_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
