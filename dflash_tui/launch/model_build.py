"""Make the models of a recipe on this machine: fetch the packages they are made from, and run its shipped script."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from dflash_tui.common import private_files
from dflash_tui.common.errors import DflashError
from dflash_tui.common.sanitizer import join_last_lines
from dflash_tui.engines import installation, uv_process
from dflash_tui.engines.byte_progress import ByteProgress
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.installation import Report
from dflash_tui.events import Preparing, Step
from dflash_tui.machine.process_environment import build_helper_environment
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.recipe import ModelBuild

_INTERVAL = 0.5  # seconds
_LAST_LINES = 5
_BYTES = re.compile(r"(\d{1,15}) bytes\s*")
_FREE = "free some space, or put the models elsewhere with XDG_DATA_HOME, and run the same command again"


async def build_models(plan: Plan, build: ModelBuild | None, engine: Engine, report: Report) -> None:
    """Build the models of `plan` as its recipe's `build` says, where they are missing.

    They are made in a folder beside the final one, which is renamed when it is complete. A second caller waits for
    the first; what a killed one left is removed by the next. Downloads stay in uv's cache.

    Raises:
        EngineError: a package cannot be had.
        DflashError: the script failed.
    """
    if not (build and plan.build_script):
        return
    folder = Path(plan.models_folder)
    if folder.is_dir():
        report(Preparing(time.time(), Step.MODELS, "target and drafter, already built", 1.0, done=True))
        return
    private_files.ensure_private_folder(folder.parent)
    async with installation.hold_lock(folder.with_name(f".{folder.name}.lock"), report, Step.MODELS) as lock:
        for leftover in folder.parent.glob(f".{folder.name}.*[0-9]"):
            shutil.rmtree(leftover, ignore_errors=True)
        began = time.monotonic()
        report(Preparing(time.time(), Step.MODELS, "building target and drafter"))
        if not folder.is_dir():
            temporary = folder.with_name(f".{folder.name}.{time.time_ns()}")
            temporary.mkdir(mode=0o700)
            try:
                making = _Build(plan, build, engine, temporary, report, lock)
                await making.fetch_packages()
                (await making.run_script()).rename(folder)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    seconds = time.monotonic() - began
    report(Preparing(time.time(), Step.MODELS, f"target and drafter built in {seconds:.0f} s", 1.0, done=True))


class _Build(NamedTuple):
    plan: Plan
    build: ModelBuild
    engine: Engine
    temporary: Path
    report: Report
    lock: int

    @property
    def packages(self) -> Path:
        """The folder of the packages that the script reads."""
        return self.temporary / "packages"

    async def fetch_packages(self) -> None:
        """Fetch by version and hash what stands beside the script, if anything does."""
        requirements = Path(self.plan.build_script).with_suffix(".txt")
        if not requirements.exists():
            return
        lines = requirements.read_text(encoding="utf-8").splitlines()
        names = [line.split()[0] for line in lines if line and not line.startswith("#")]
        argv = ["pip", "install", "--python", str(self.engine.python), "--target", str(self.packages), "--no-deps"]
        argv += ["--require-hashes", "--only-binary", ":all:", "--requirements", str(requirements)]
        what = f"what {self.plan.recipe} is built from"
        progress = uv_process.InstallProgress(what, names, self.build.download_mb, self.report, Step.MODELS)
        written = ByteProgress(what, self.build.download_mb * 1_000_000, 0, self.report)
        no_lock = self.temporary / "none"  # of an earlier install: the hashes are in the requirements
        fetching = asyncio.create_task(uv_process.run_uv(argv, progress, self.lock, no_lock))
        try:
            while not fetching.done():
                if amount := _measure_written(progress.pid):
                    written.report(amount)
                await asyncio.wait({fetching}, timeout=_INTERVAL)
            await fetching
        finally:
            fetching.cancel()
            await asyncio.gather(fetching, return_exceptions=True)

    async def run_script(self) -> Path:
        """Return the folder that the script has filled."""
        folder = self.temporary / "models"
        folder.mkdir(mode=0o700)
        process = await asyncio.create_subprocess_exec(
            self.engine.python,
            self.plan.build_script,
            folder,
            self.packages,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=build_helper_environment(),
            cwd="/",
            pass_fds=(self.lock,),
        )
        assert process.stdout is not None  # noqa: S101 - it is PIPE
        output, progress = list[str](), None
        try:
            async for raw in process.stdout:
                output.append(raw.decode(errors="replace"))
                if match := _BYTES.fullmatch(output[-1]):
                    done, total = int(match[1]), self.build.size_mb * 1_000_000
                    progress = progress or ByteProgress("target and drafter", total, done, self.report)
                    progress.report(done)
                    output.pop()
            await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()
        if process.returncode != 0:
            last = join_last_lines("".join(output), _LAST_LINES)
            hint = _FREE if "no space left" in last.lower() else ""
            raise DflashError(f"the models of {self.plan.recipe} could not be built", evidence=last, hint=hint)
        return folder


def _measure_written(pid: int | None) -> int:
    """Return the bytes that uv has written: it unpacks while it downloads."""
    try:
        return int(psutil.Process(pid).io_counters().write_chars) if pid else 0
    except psutil.Error:
        return 0
