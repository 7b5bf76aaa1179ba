"""Install a vLLM environment with uv, completely or not at all."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from dflash_tui.common import private_files
from dflash_tui.common.errors import EngineError
from dflash_tui.common.formatting import pluralize
from dflash_tui.common.private_files import try_lock
from dflash_tui.engines import inventory, uv_process
from dflash_tui.engines.environments import (
    MARKER,
    Engine,
    find_engine,
    find_site_packages,
    find_unused_engine,
)
from dflash_tui.events import Preparing, Step
from dflash_tui.planning.recipes.recipe import EngineSpec

Report = Callable[[Preparing], None]


async def install_engine(spec: EngineSpec, folder: Path, report: Report) -> Engine:
    """Return the engine for `spec` in `folder`, installing it if it is missing.

    Concurrent callers wait for each other. A failed or cancelled installation leaves nothing behind; the next call
    removes what a killed one left.

    Raises:
        EngineError: no space, no network, or uv could not resolve or install; the folder is removed.
    """
    private_files.ensure_private_folder(folder.parent)
    async with hold_lock(folder.with_name(f".{folder.name}.lock"), report) as lock:
        if engine := find_engine(folder):
            return engine
        inventory.refuse_running_server(folder)
        if os.path.lexists(folder / MARKER) and (unused := find_unused_engine(folder)):
            report(Preparing(time.time(), Step.INSTALL, f"{unused.what}: it is installed again"))
        shutil.rmtree(folder, ignore_errors=True)
        _check_space(spec, folder.parent)
        try:
            return await _build(spec, folder, report, lock)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


@asynccontextmanager
async def hold_lock(path: Path, report: Report, step: Step = Step.INSTALL) -> AsyncIterator[int]:
    """Hold the lock on `path` and yield its descriptor; processes that inherit it keep the lock while they live.

    Waiting for another process is reported as part of `step`.
    """
    with open(path, "ab", opener=private_files.open_private) as file:  # noqa: ASYNC230 - takes no time
        reported = False
        while not try_lock(file.fileno()):
            if not reported:
                report(Preparing(time.time(), step, "waiting for another dflash-tui to finish"))
            reported = True
            await asyncio.sleep(0.5)
        yield file.fileno()


def _check_space(spec: EngineSpec, folder: Path) -> None:
    free, needed = shutil.disk_usage(folder).free // 1_000_000, spec.disk_mb + spec.download_mb
    if free < needed:
        raise EngineError(
            f"not enough disk space for vLLM {spec.vllm}: {needed / 1000:.1f} GB needed (download {spec.download_mb} "
            f"MB, installed {spec.disk_mb} MB)",
            evidence=f"{free / 1000:.1f} GB free on the disk of {folder}",
            hint="free some space, or put the engines elsewhere with XDG_DATA_HOME",
        )


async def _build(spec: EngineSpec, folder: Path, report: Report, lock: int) -> Engine:
    began = time.monotonic()
    name = spec.distribution
    plan = f"{name} {spec.vllm}: about {spec.download_mb} MB to download, {spec.disk_mb / 1000:.1f} GB on disk"
    report(Preparing(time.time(), Step.INSTALL, plan, 0.0))
    recorded = uv_process.lock_file(folder)

    async def run_uv(*argv: str) -> str:
        progress = uv_process.InstallProgress(f"vLLM {spec.vllm}", spec.packages, spec.download_mb, report)
        return await uv_process.run_uv(list(argv), progress, lock, recorded)

    folder.mkdir(mode=0o700)
    await run_uv("venv", "--python", sys.executable, str(folder))
    python = str(folder / "bin" / "python")
    locked = recorded if recorded.exists() else folder / "dflash-packages.txt"
    backend = (
        ["--torch-backend", spec.torch_backend]
        if spec.torch_backend and not uv_process.wheel_folder_has_torch()
        else []
    )
    if locked != recorded:
        await run_uv(*uv_process.build_compile_command(spec, python, folder, locked), *backend)
    await run_uv(*uv_process.build_install_command(spec, python, locked), *backend)
    if locked != recorded:
        uv_process.record_lock(folder, locked)
    if spec.stands_in:
        _stand_in(find_site_packages(folder), spec)
    frozen = await run_uv("pip", "freeze", "--python", python)
    now, seconds = time.time(), time.monotonic() - began
    packages = tuple(line for line in frozen.splitlines() if "==" in line)
    engine = Engine(str(folder), spec.vllm, name, now, seconds, packages)
    private_files.replace_private_file(folder / MARKER, msgspec.json.encode(engine))
    count = len(packages) - bool(spec.stands_in)  # uv did not install the metadata written above
    text = f"{name} {spec.vllm}, {pluralize(count, 'package')} in {seconds:.0f} s"
    report(Preparing(now, Step.INSTALL, text, 1.0, done=True))
    return engine


def _stand_in(site: Path, spec: EngineSpec) -> None:
    """Write metadata for `vllm` beside the distribution that contains it, since vLLM looks itself up by name."""
    version = f"{spec.vllm}+{spec.stands_in.removeprefix('vllm-')}"
    info = site / f"vllm-{version}.dist-info"
    info.mkdir(mode=0o700, exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\nSummary: stands for {spec.stands_in}\n"
    record = "".join(f"{info.name}/{name},,\n" for name in ("METADATA", "INSTALLER", "RECORD"))
    for name, text in (("METADATA", metadata), ("INSTALLER", "dflash-tui\n"), ("RECORD", record)):
        private_files.write_private_file(info / name, text.encode())
