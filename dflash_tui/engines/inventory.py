"""The engines of this machine: listed, inspected, adopted, removed. vLLM is looked at by the engine's own Python."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import msgspec

from dflash_tui.common import paths
from dflash_tui.common.errors import UsageError
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.engines import environments as engines
from dflash_tui.engines.engine_python import IMPORT_TIMEOUT, run_script
from dflash_tui.engines.environments import Engine
from dflash_tui.planning.recipe_loader import FIRST_WITH_DFLASH
from dflash_tui.runs import registry, server_process

_INSTALLED_TIMEOUT = 30.0


class EnvironmentContents(msgspec.Struct, frozen=True):
    """What an environment holds; `vllm` is empty when it holds none, `packages` is versions by distribution."""

    python: str
    machine: str
    distribution: str
    vllm: str
    package: str
    dflash: bool
    packages: dict[str, str]

    @property
    def release(self) -> str:
        """The version of vLLM without what a build adds to it."""
        return self.vllm.partition("+")[0]


register_type(EnvironmentContents)


class ServeOptions(msgspec.Struct, frozen=True):
    """What `vllm serve` takes: choices by flag (None: any value), and the keys of `--speculative-config`."""

    flags: dict[str, tuple[str, ...] | None]
    speculation: tuple[str, ...]


register_type(ServeOptions)


def list_engines() -> list[Engine]:
    """Return the engines that we made, then those that were adopted."""
    ours = [engines.find_engine(folder) for folder in sorted(paths.engines_folder().glob("[!.]*"))]
    return [engine for engine in (*ours, *map(_adopted, sorted(_records().glob("*.json")))) if engine]


def find_any_engine(folder: Path) -> Engine | None:
    """Return the engine in `folder`, made by us or adopted, or None; somebody else's of ours has to be adopted."""
    return _adopted(_record(folder)) or (engines.find_engine(folder) if _is_ours(folder) else None)


def _is_ours(folder: Path) -> bool:
    return folder.parent.resolve() == paths.engines_folder().resolve()


def find_engine_by_name(name: str) -> Engine:
    """Return the engine that `name` means: its folder, the folder's name, or the start of that.

    Raises:
        UsageError: none does, or several.
    """
    known = list_engines()
    path = Path(name).expanduser()
    if "/" in name and (found := find_any_engine(path.absolute()) or find_any_engine(path.resolve())):
        return found
    fitting = [engine for engine in known if Path(engine.folder).name == name]
    fitting = fitting or [engine for engine in known if name and Path(engine.folder).name.startswith(name)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise UsageError(f"'{name}' fits {len(fitting)} engines", hint=", ".join(engine.folder for engine in fitting))
    adopt = f"dflash-tui engine adopt {name}" if path.is_dir() else "dflash-tui engine list"
    raise UsageError(f"no engine called '{name}'", hint=adopt)


def list_leftovers() -> list[Path]:
    """Return folders that a killed install or removal left; the next install of the same engine removes its own."""
    removed, made = paths.engines_folder().glob(".removing-*"), paths.engines_folder().glob("[!.]*")
    # An engine that was moved has its marker; what never was an environment is none of ours.
    half = (path for path in made if _begun(path) and not (path / engines.MARKER).exists())
    return sorted([*removed, *half])


def _begun(folder: Path) -> bool:
    """Whether an install was begun in `folder`."""
    return (folder / "pyvenv.cfg").is_file() or folder.with_name(f".{folder.name}.lock").exists()


def is_busy(folder: Path) -> bool:
    """Whether an engine is being installed in `folder`, or removed, right now."""
    try:
        with _undisturbed(folder):
            return False
    except UsageError:
        return True


def clear_leftover(folder: Path) -> None:
    """Delete what a killed install or removal left in `folder`.

    Raises:
        UsageError: it is being installed right now.
    """
    with _undisturbed(folder):
        shutil.rmtree(folder)


@contextmanager
def _undisturbed(folder: Path) -> Iterator[None]:
    """Hold the lock of an install in `folder`, if there was one; its file stays, since somebody may wait for it."""
    lock = folder.with_name(f".{folder.name}.lock")
    with lock.open() if lock.exists() else nullcontext() as file:
        try:
            if file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{folder.name} is being installed right now", hint="wait for it, or end it") from None
        yield


def describe_environment(python: Path) -> EnvironmentContents:
    """Return what the environment of `python` holds.

    Raises:
        EngineError: its Python does not run.
    """
    return msgspec.json.decode(
        run_script(python, "describe.py", "installed", timeout=_INSTALLED_TIMEOUT), type=EnvironmentContents
    )


def read_serve_options(engine: Engine) -> ServeOptions:
    """Return what the engine's `vllm serve` takes; asked once per engine, which takes some 20 seconds.

    Raises:
        EngineError: its vLLM cannot be imported.
    """
    if known := read_cached_serve_options(engine):
        return known
    answer = run_script(engine.python, "describe.py", "options", timeout=IMPORT_TIMEOUT)
    found = msgspec.json.decode(answer, type=ServeOptions)
    _kept(engine).write_bytes(answer)
    return found


def read_cached_serve_options(engine: Engine) -> ServeOptions | None:
    """Return what `options` has returned before for this engine, or None."""
    try:
        return msgspec.json.decode(_kept(engine).read_bytes(), type=ServeOptions)
    except (OSError, msgspec.MsgspecError):
        return None


def adopt_engine(folder: Path, *, patch: bool) -> Engine:
    """Take an environment of the user's into the list; only our own record is written, nothing in the environment.

    With `patch` recipes may apply their patches to it.

    Raises:
        UsageError: it is not an environment with a vLLM that has DFlash.
    """
    folder = folder.expanduser().resolve()
    if not (folder / "bin" / "python").exists() or not (folder / "bin" / "vllm").exists():
        raise UsageError(f"{folder} is not an environment with vLLM", hint="name the folder that holds bin/vllm")
    if _is_ours(folder):
        raise UsageError(f"{folder} is an engine of ours", hint=f"use it with --engine {folder.name}")
    found = describe_environment(folder / "bin" / "python")
    if not found.vllm or not found.dflash:
        what = f"vLLM {found.vllm} in {folder} has no DFlash" if found.vllm else f"{folder} holds no vLLM"
        raise UsageError(what, hint=f"{FIRST_WITH_DFLASH} is the first release that has it")
    inside = [place for place in folder.glob("lib/python3.*/site-packages") if Path(found.package).parent == place]
    if patch and not ((folder / "pyvenv.cfg").is_file() and inside):
        what = f"vLLM is not in a virtual environment in {folder}, so it is not patched"
        raise UsageError(what, evidence=found.package, hint="adopt it without --patch")
    packages = tuple(f"{name}=={version}" for name, version in sorted(found.packages.items()))
    made = (str(folder), found.release, found.distribution, time.time(), 0.0, packages)
    engine = Engine(*made, adopted=True, patchable=patch)
    _records().mkdir(parents=True, exist_ok=True)
    _kept(engine).unlink(missing_ok=True)
    _record(folder).write_bytes(msgspec.json.encode(engine))
    return engine


def remove_engine(engine: Engine) -> None:
    """Delete an engine that we made; of an adopted one only our record.

    Raises:
        UsageError: a server runs from it.
    """
    for run in registry.list_runs():
        if run.plan.engine_folder == engine.folder and server_process.is_alive(run):
            raise UsageError(f"{run.id} runs from it", hint=f"dflash-tui stop {run.id}")
    _kept(engine).unlink(missing_ok=True)
    if engine.adopted:
        _record(Path(engine.folder)).unlink(missing_ok=True)
        return
    folder = Path(engine.folder)
    # Out of sight in one step, so that a deletion that is killed leaves no half engine behind.
    doomed = folder.with_name(f".removing-{folder.name}-{time.time_ns()}")
    with _undisturbed(folder):
        folder.rename(doomed)
    shutil.rmtree(doomed)


def measure_engine_size(engine: Engine) -> int:
    """Return the bytes of the engine's files; those that uv shares with its cache by hard links count in full."""
    files = (path for path in Path(engine.folder).rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files)


def _adopted(record: Path) -> Engine | None:
    try:
        engine = msgspec.json.decode(record.read_bytes(), type=Engine)
    except (OSError, msgspec.MsgspecError):
        return None
    return engine if engine.python.exists() and _record(Path(engine.folder)) == record else None


def _kept(engine: Engine) -> Path:
    """Return where an engine's options are kept."""
    return paths.engines_folder() / f".{_digest(engine.folder)}-{engine.vllm}.options.json"


def _records() -> Path:
    return paths.engines_folder() / "adopted"


def _record(folder: Path) -> Path:
    return _records() / f"{_digest(str(folder))}.json"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
