"""Run uv: in an environment without secrets, with its progress and its errors told, and ended where we are."""

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import uv

from dflash_tui.common.errors import EngineError, explain_resource_limit
from dflash_tui.common.sanitizer import clean_text, join_clean_lines
from dflash_tui.engines import package_lock
from dflash_tui.engines.install_advice import advise_on_install_error
from dflash_tui.events import Preparing, Step
from dflash_tui.machine.process_environment import PACKAGE_INDEXES, build_helper_environment

_END_PATIENCE = 3.0  # seconds
_MIB = {"KiB": 1 / 1024, "MiB": 1.0, "GiB": 1024.0}
_DOWNLOADING = re.compile(r"^\s*Downloading (?P<name>\S+) \((?P<size>[\d.]+)(?P<unit>[KMG]iB)\)")
_DOWNLOADED = re.compile(r"^\s*Downloaded (?P<name>\S+)")


class InstallProgress:
    """Reports the progress of uv by the lines that it prints for its larger downloads."""

    def __init__(
        self,
        what: str,
        packages: Sequence[str],
        download_mb: int,
        report: Callable[[Preparing], None],
        step: Step = Step.INSTALL,
    ) -> None:
        self.what, self.packages = what, packages
        self.pid: int | None = None
        """uv's process, once it runs."""
        self._download_mb, self._report, self._step = download_mb, report, step
        self._sizes: dict[str, float] = {}
        self._mib = 0.0

    def line(self, text: str) -> None:
        """Take one line of uv's stderr."""
        if match := _DOWNLOADING.match(text):
            self._sizes[match["name"]] = float(match["size"]) * _MIB[match["unit"]]
        elif match := _DOWNLOADED.match(text):
            self._mib += self._sizes.pop(match["name"], 0.0)
        elif text.startswith(("Resolved", "Prepared", "Installed", "Bytecode")):
            compiles = text.startswith("Installed") and self._step is Step.INSTALL
            note = ", now compiling them to byte code" if compiles else ""
            self._report(Preparing(time.time(), self._step, f"{text}{note}"))
            return
        else:
            return
        waiting = max(self._sizes, key=lambda name: self._sizes[name], default="")
        action = f"downloading {waiting} ({self._sizes[waiting]:.0f} MiB)" if waiting else text.strip()
        # Packages under a megabyte and wheels from a local folder are not announced, so this is a lower bound.
        fraction = min(0.99, self._mib * 1.048576 / self._download_mb)
        self._report(Preparing(time.time(), self._step, f"{action} · {self._mib:.0f} MiB downloaded", fraction))


async def run_uv(argv: list[str], progress: InstallProgress, lock: int, recorded: Path) -> str:
    """Run uv and return its stdout.

    Args:
        argv: Its words.
        progress: What is told each line of its stderr.
        lock: The descriptor of the lock on the engine's folder, which it keeps.
        recorded: The lock of the engine's packages, which is there if it was installed before.

    Raises:
        EngineError: uv cannot be run, or ended with an error; the evidence is its own message.
        DflashError: the system refuses another process.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            uv.find_uv_bin(),
            *argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=await asyncio.to_thread(build_uv_environment),
            pass_fds=(lock,),
            start_new_session=True,
            cwd="/",  # no uv.toml of whatever folder we were started in
        )
    except OSError as error:
        if limit := explain_resource_limit(error):
            raise limit from None
        what = f"uv, which installs {progress.what}, cannot be run"
        hint = "reinstall dflash-tui, which brings uv; nothing incomplete was left"
        raise EngineError(what, evidence=str(error), hint=hint) from None
    progress.pid = process.pid
    assert process.stdout is not None  # noqa: S101 - both are PIPE
    assert process.stderr is not None  # noqa: S101
    lines: list[str] = []
    output = asyncio.create_task(process.stdout.read())
    try:
        async for raw in process.stderr:
            lines.append(raw.decode(errors="replace").rstrip())
            progress.line(lines[-1])
        out = await output
        if await process.wait() != 0:
            raise build_install_error(progress, argv, lines, recorded)
        return out.decode(errors="replace")
    finally:
        output.cancel()
        if process.returncode is None:
            from dflash_tui.machine import process_group

            # Those in which it compiles, too: they would write a moment longer into a folder that goes.
            await process_group.end_group(process, _END_PATIENCE)


def build_install_error(progress: InstallProgress, argv: list[str], lines: list[str], recorded: Path) -> EngineError:
    """Return what kept uv from installing something, by the lines of its stderr, and what to do about it."""
    if mismatch := package_lock.explain_mismatch("\n".join(lines), recorded):
        return mismatch
    first = next((i for i, line in enumerate(lines) if re.match(r"\s*(?:error:|×)", line)), max(0, len(lines) - 6))
    evidence = join_clean_lines("\n".join(lines[first : first + 8]))
    words = f"uv {' '.join(argv[:2])}: {', '.join(progress.packages)}"
    what = f"{progress.what} could not be installed ({words})"
    advice = advise_on_install_error(evidence, recorded)
    return EngineError(what, evidence=clean_text(evidence, 1500), hint=f"nothing incomplete was left; {advice}")


def build_uv_environment() -> dict[str, str]:
    """Return the environment for uv: ours, and pip's settings of wheel folders and mirrors."""
    env = build_helper_environment(*PACKAGE_INDEXES)
    for ours, pips in (("UV_FIND_LINKS", "PIP_FIND_LINKS"), ("UV_DEFAULT_INDEX", "PIP_INDEX_URL")):
        if ours not in env and env.get(pips):
            env[ours] = env[pips]
    if "UV_FIND_LINKS" not in env and (links := _pip_find_links()):
        env["UV_FIND_LINKS"] = links
    return env


@cache
def _pip_find_links() -> str:
    """Return the wheel folder in pip's configuration, which uv does not read; empty when there is none."""
    argv = [sys.executable, "-P", "-m", "pip", "config", "get", "global.find-links"]
    env = build_helper_environment(*PACKAGE_INDEXES)
    result = subprocess.run(argv, capture_output=True, text=True, check=False, env=env, cwd="/")
    return result.stdout.strip() if result.returncode == 0 else ""


def wheel_folder_has_torch() -> bool:
    """Whether a configured wheel folder holds torch, which is then used instead of the backend's index."""
    links = build_uv_environment().get("UV_FIND_LINKS", "")
    return any(any(Path(folder).glob("torch-*.whl")) for folder in re.split(r"[\s,]+", links) if folder)
