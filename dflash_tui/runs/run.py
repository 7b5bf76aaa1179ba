"""The record of one launched server, as `run.json` holds it."""

import contextlib
import os
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from dflash_tui.common import paths, private_files
from dflash_tui.common.formatting import format_host_and_port
from dflash_tui.events import YEAR_2100, Event, Launched, Preparing, decode_recorded, encode
from dflash_tui.planning.cluster import name_roce
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.resolution import HOST

# Where vLLM itself looks for the API key.
KEY_VARIABLE = "VLLM_API_KEY"
# Unknown fields of later releases are ignored; any other change of the format gets another version.
# `planning.earlier_plans` reads the plans of version 1.
VERSION = 2
LOG_NAME = "server.log"
# This variable marks a server as part of an experiment, even after the driver process has ended.
EXPERIMENT_MARK = "DFLASH_TUI_EXPERIMENT"
# Compressed logs, left by rotation, are not read.
_COMPRESSED = frozenset({".gz", ".xz", ".zst", ".bz2"})

_DAY = 86_400.0
_LONGEST_LINE = 1 << 20
E = TypeVar("E", bound=Event)
_Line = Annotated[str, msgspec.Meta(max_length=5000)]


class FarRank(msgspec.Struct, frozen=True):
    """A rank of a server on another host."""

    rank: int
    """Its number, from 1."""
    host: str
    """The name of the host for ssh."""
    run: str
    """The id of its run on that host."""

    @property
    def log_name(self) -> str:
        """The file in the local run folder to which its log is copied."""
        return f"rank{self.rank}.log"


class Run(msgspec.Struct, frozen=True):
    """One launched server, as recorded in `run.json`."""

    id: str
    """The name of its folder: launch time and recipe."""
    plan: Plan
    """The plan that was launched."""
    pid: Annotated[int, msgspec.Meta(gt=1, lt=1 << 31)]
    """The pid of the server process."""
    born: str
    """The identity of the process (boot and start time), which no other process with this pid has."""
    started_at: float
    """When it was launched, in seconds since the epoch."""
    utc_offset: float
    """Seconds by which local time was ahead of UTC at the launch; log timestamps are local."""
    engine: _Line
    """The vLLM package and version."""
    patches: tuple[str, ...] = ()
    """The patches applied to the engine."""
    prepared: tuple[Preparing, ...] = ()
    """The first and the last events of the steps before the launch."""
    forced: str = ""
    """Why failed checks were overruled; empty if none were."""
    restarted_from: _Line = ""
    """The id of the failed run that this one replaced, or empty."""
    far_ranks: tuple[FarRank, ...] = ()
    """The ranks on other hosts; empty in the run of such a rank."""
    models: dict[str, str] = {}
    """The weights of the target and the drafter: a commit, or a digest of the files."""
    version: int = VERSION
    """The format version of `run.json`."""

    @property
    def has_possible_times(self) -> bool:
        """Whether its times are possible at all; a record may come from anyone."""
        times = (self.started_at, *(event.at for event in self.prepared))
        return all(0 <= at < YEAR_2100 for at in times) and abs(self.utc_offset) <= _DAY

    @property
    def folder(self) -> Path:
        """The run folder."""
        return paths.runs_folder() / self.id

    @property
    def log(self) -> Path:
        """The server's log file, under its present name."""
        return find_log(self.folder, self.pid)

    @property
    def samples(self) -> Path:
        """The file of recorded events, one JSON object per line."""
        return self.folder / "samples.jsonl"

    def record(self, event: Event) -> None:
        """Append an event to the samples; if that fails, as on a full disk, it is dropped silently."""
        with contextlib.suppress(OSError):
            private_files.append_line(self.samples, encode(event))

    def read_recorded(self, kind: type[E]) -> list[E]:
        """Return the recorded events of one kind; few lines of a large file are decoded."""
        mark = msgspec.json.encode(kind.__struct_config__.tag)
        with contextlib.suppress(OSError), self.samples.open("rb") as file:
            lines = (line for line in iter(lambda: file.readline(_LONGEST_LINE), b"") if mark in line)
            return [event for line in lines if isinstance(event := decode_recorded(line), kind)]
        return []

    @property
    def url(self) -> str:
        """The server's base URL."""
        address = ip_address(self.plan.host)
        host = ("::1" if address.version == 6 else HOST) if address.is_unspecified else self.plan.host
        return f"http://{format_host_and_port(host, self.plan.port)}"

    @property
    def api_key(self) -> str:
        """The API key, from the environment, of a server that other machines can reach; it is never recorded."""
        key = os.environ.get(KEY_VARIABLE, "").strip() if self.plan.is_open else ""
        return key if key.isascii() and key.isprintable() else ""

    @property
    def metered_gpus(self) -> tuple[str, ...]:
        """The UUIDs of the GPUs whose energy is the whole server's; empty if it has GPUs on other hosts."""
        return () if self.plan.cluster else self.plan.gpus

    @property
    def experiment(self) -> str:
        """The id of the A/B or tune that launched the server as one of its boots, or empty."""
        return self.plan.env.get(EXPERIMENT_MARK, "")

    @property
    def launched(self) -> Launched:
        """The launch event."""
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
            method=plan.method.value,
            roce=name_roce(plan.cluster, plan.rank, plan.env) if plan.cluster and not plan.on_cpu else "",
            rank=plan.rank,
            hardware=plan.hardware.value,
            published_length=min(
                (f.acceptance_length[0] for f in plan.expected if f.acceptance_length and not f.set_up), default=None
            ),
        )


def find_log(folder: Path, pid: int = 0) -> Path:
    """Return the log in a run folder, even if it was renamed.

    It is the file in `folder` that process `pid` writes to; else `server.log`; or, if that is missing or empty, the
    newest `server.log.*`.
    """
    log = folder / LOG_NAME
    try:
        output = Path(f"/proc/{pid}/fd/1").readlink()
        if output.parent == folder.resolve() and output.is_file():  # False if it was deleted
            return folder / output.name
    except OSError:
        pass
    try:
        if log.stat().st_size:
            return log
    except OSError:
        pass
    rotated = (path for path in folder.glob(f"{LOG_NAME}.*") if path.suffix not in _COMPRESSED and path.is_file())
    return max(rotated, key=lambda path: path.stat().st_mtime, default=log)
