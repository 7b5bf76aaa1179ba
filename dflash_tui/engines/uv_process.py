"""Run uv, report its progress and explain its errors; lock the packages of an engine.

The lock holds the versions and hashes of an engine's first installation. It stays when the engine is removed, so that
reinstalling gives the same files or fails. Each Python version and machine architecture has its own lock.
"""

import asyncio
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import uv

from dflash_tui.common import private_files
from dflash_tui.common.errors import EngineError, explain_resource_limit
from dflash_tui.common.sanitizer import clean_text, join_clean_lines
from dflash_tui.events import Preparing, Step
from dflash_tui.machine import processes
from dflash_tui.machine.process_environment import PACKAGE_INDEXES, build_helper_environment
from dflash_tui.planning.recipes.recipe import EngineSpec

_END_PATIENCE = 3.0  # seconds
_MIB = {"KiB": 1 / 1024, "MiB": 1.0, "GiB": 1024.0}
_DOWNLOADING = re.compile(r"^\s*Downloading (?P<name>\S+) \((?P<size>[\d.]+)(?P<unit>[KMG]iB)\)")
_DOWNLOADED = re.compile(r"^\s*Downloaded (?P<name>\S+)")


class InstallProgress:
    """Reports uv's progress from the lines that it prints for its larger downloads."""

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
        """The pid of uv; None until it runs."""
        self._download_mb, self._report, self._step = download_mb, report, step
        self._sizes: dict[str, float] = {}
        self._mib = 0.0

    def line(self, text: str) -> None:
        """Process one line of uv's stderr."""
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
        # uv does not announce packages under a megabyte or wheels from a local folder, so this is a lower bound.
        fraction = min(0.99, self._mib * 1.048576 / self._download_mb)
        self._report(Preparing(time.time(), self._step, f"{action} · {self._mib:.0f} MiB downloaded", fraction))


async def run_uv(argv: list[str], progress: InstallProgress, lock: int, recorded: Path) -> str:
    """Run uv and return its stdout.

    `progress` receives each line of its stderr, `lock` is the descriptor of the lock that uv inherits, and `recorded`
    is the engine's package lock, which exists if the engine was installed before.

    Raises:
        EngineError: uv cannot be run or failed; the evidence is its own message.
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
            cwd="/",  # ignores a uv.toml in the current folder
        )
    except OSError as error:
        if limit := explain_resource_limit(error):
            raise limit from None
        what = f"uv, which installs {progress.what}, cannot be run"
        hint = "reinstall dflash-tui, which includes uv; nothing incomplete was left"
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
            raise _explain_failure(progress, argv, lines, recorded)
        return out.decode(errors="replace")
    finally:
        output.cancel()
        if process.returncode is None:
            # Ends its compile workers too, which would keep writing to a folder that is being deleted.
            await processes.end_group(process, _END_PATIENCE)


def _explain_failure(progress: InstallProgress, argv: list[str], lines: list[str], recorded: Path) -> EngineError:
    first = next((i for i, line in enumerate(lines) if re.match(r"\s*(?:error:|×)", line)), max(0, len(lines) - 6))
    evidence = join_clean_lines("\n".join(lines[first : first + 8]))
    words = f"uv {' '.join(argv[:2])}: {', '.join(progress.packages)}"
    what = f"{progress.what} could not be installed ({words})"
    advice = advise_on_install_error(evidence, recorded)
    return EngineError(what, evidence=clean_text(evidence, 1500), hint=f"nothing incomplete was left; {advice}")


def build_uv_environment() -> dict[str, str]:
    """Return our environment for uv, with pip's settings for wheel folders and mirrors."""
    env = build_helper_environment(*PACKAGE_INDEXES)
    for ours, pips in (("UV_FIND_LINKS", "PIP_FIND_LINKS"), ("UV_DEFAULT_INDEX", "PIP_INDEX_URL")):
        if ours not in env and env.get(pips):
            env[ours] = env[pips]
    return env


def wheel_folder_has_torch() -> bool:
    """Whether a configured wheel folder contains torch, which is then used instead of the backend's index."""
    links = build_uv_environment().get("UV_FIND_LINKS", "")
    return any(any(Path(folder).glob("torch-*.whl")) for folder in re.split(r"[\s,]+", links) if folder)


_ADVICE = (
    (
        r"building (?:from source|source distributions).{0,80} is disabled|no usable wheels|must have a hash",
        "choose a version that has wheels, or let the recipe build it: `source_builds: true` in its `engine`",
    ),
    (
        r"no space left|disk quota exceeded",
        "free some space where engines are (XDG_DATA_HOME) and in uv's cache (UV_CACHE_DIR, `uv cache clean`), or put "
        "them elsewhere, and run the same command again",
    ),
    (
        r"temporarily unavailable|os error 11\b",
        "uv cannot start more threads: `ulimit -u` shows the limit, `ps -u $USER` your processes",
    ),
    (
        r"unknownissuer|certificate",
        "the network presents its own certificate, as company proxies do: export UV_SYSTEM_CERTS=1 for those of "
        "the system, or SSL_CERT_FILE=/its.pem, and run the same command again",
    ),
    (
        r"dns|connect|network|timed? ?out|offline|fetch|request",
        "check the network, or point uv to a mirror or wheel folder (UV_DEFAULT_INDEX, UV_FIND_LINKS), and run the "
        "same command again",
    ),
)


def advise_on_install_error(evidence: str, recorded: Path) -> str:
    """Return what to do about an error of uv, by the first known pattern in its message."""
    if "Hash mismatch" in evidence and recorded.exists():
        return f"the file differs from the first installation's: find out why; if you changed it: rm {recorded}"
    if advice := next((advice for signs, advice in _ADVICE if re.search(signs, evidence, re.IGNORECASE)), ""):
        return advice
    if recorded.exists():
        return f"its packages are pinned by the first installation; to resolve them again: rm {recorded}"
    return (
        "name a package index or wheel folder that has the requested packages (UV_DEFAULT_INDEX, UV_FIND_LINKS), "
        "or correct the recipe's `engine` part"
    )


FOLDER = "locked"


def lock_file(folder: Path) -> Path:
    """Return the package lock file of the engine in `folder`, whether it exists or not."""
    made_for = f"py{sys.version_info.major}.{sys.version_info.minor}-{platform.machine()}"
    return folder.parent / FOLDER / f"{folder.name}-{made_for}.txt"


def build_compile_command(spec: EngineSpec, python: str, folder: Path, lock: Path) -> list[str]:
    """Return the uv arguments that resolve `spec` into `lock`; their input files are written into `folder`."""
    packages, overrides = folder / "dflash-requirements.txt", folder / "dflash-overrides.txt"
    for path, lines in ((packages, spec.packages), (overrides, spec.overrides)):
        private_files.write_private_file(path, "".join(f"{line}\n" for line in lines).encode())
    argv = ["pip", "compile", str(packages), "--python", python, "--generate-hashes", "--overrides", str(overrides)]
    argv += ["--no-header", "--no-annotate", "--output-file", str(lock)]
    argv += ["--exclude-newer", spec.exclude_newer] if spec.exclude_newer else []
    return argv if spec.source_builds else [*argv, "--only-binary", ":all:"]


def build_install_command(spec: EngineSpec, python: str, lock: Path) -> list[str]:
    """Return the uv arguments that install exactly the packages in `lock`.

    Hashes are not required for source builds, which are not reproducible; every other file is checked.
    """
    argv = ["pip", "install", "--python", python, "--compile-bytecode", "--no-deps", "--requirements", str(lock)]
    argv += ["--exclude-newer", spec.exclude_newer] if spec.exclude_newer else []
    return argv if spec.source_builds else [*argv, "--only-binary", ":all:", "--require-hashes"]


def record_lock(folder: Path, lock: Path) -> None:
    """Record the package lock of the first installation of the engine in `folder`."""
    recorded = lock_file(folder)
    private_files.ensure_private_folder(recorded.parent)
    private_files.replace_private_file(recorded, lock.read_bytes())
