"""The record of one launched server, as `run.json` holds it."""

from __future__ import annotations

import os
from ipaddress import ip_address
from pathlib import Path

import msgspec

from dflash_tui.common import paths
from dflash_tui.events import Launched, Preparing
from dflash_tui.planning.plan import HOST, Plan
from dflash_tui.runs import run_files

# Where vLLM itself looks for the key that requests must have.
KEY_VARIABLE = "VLLM_API_KEY"
# Fields that a later release adds are passed over; what it records otherwise gets another version.
VERSION = 1


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
        return run_files.find_log(self.folder, self.pid)

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
